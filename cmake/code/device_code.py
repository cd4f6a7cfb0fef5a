# SPDX-License-Identifier: Apache-2.0
"""The GPU's part of an object file that nvcc wrote: a digest of its instructions and constants for each architecture.

What the compiler adds about where the source lies and which lines it has makes no difference: debug and line sections, and the
hashes of paths that nvcc puts into the names of anonymous namespaces."""
import ctypes
import functools
import hashlib
import re
import struct

FATBIN_MAGIC = 0xBA55ED50
PTX, CUBIN = 1, 2
LZ4, ZSTD = 0x2000, 0x8000  # of an entry's flags
STRTAB, SYMTAB, RELA, NOBITS, REL, NOTE = 3, 2, 4, 8, 9, 7
LINK_ORDER_ONLY = ("", ".shstrtab", ".strtab", ".symtab", ".nv.callgraph", ".nv.compat")
OF_A_FILE = re.compile(rb"[0-9a-f]{8}_\d+_\w+?_(?:cu|cpp)_[0-9a-f]{8}")
# A record of .nv.info: its format, its attribute and its size or value.
SIZED_VALUE = 4


class Unreadable(Exception):
    pass


class Elf:
    """The sections of a 64-bit little-endian ELF file."""

    def __init__(self, data):
        if data[:6] != b"\x7fELF\x02\x01":
            raise Unreadable("no ELF file of 64 bits")
        self.data = data
        self.flags, = struct.unpack_from("<I", data, 48)
        offset, = struct.unpack_from("<Q", data, 40)
        size, count, names = struct.unpack_from("<HHH", data, 58)
        self.headers = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]
        table = self.headers[names][4]
        self.names = [self.text_at(table + header[0]) for header in self.headers]

    def text_at(self, offset):
        return self.data[offset:self.data.index(b"\0", offset)].decode()

    def content(self, index):
        _, kind, _, _, offset, size, *_ = self.headers[index]
        return b"" if kind == NOBITS else self.data[offset:offset + size]

    def symbols(self):
        """Names by index; a section's symbol has the section's name."""
        for index, header in enumerate(self.headers):
            if header[1] != SYMTAB:
                continue
            table, found = self.content(index), []
            strings = self.headers[header[6]][4]
            for at in range(0, len(table), 24):
                name, info, _, section = struct.unpack_from("<IBBH", table, at)
                of_section = info & 15 == 3 and section < len(self.names)
                found.append(self.names[section] if of_section else self.text_at(strings + name))
            return found
        return []


@functools.cache
def zstd():
    # Python has a module for it from 3.14 on; gcc and dpkg need the library too.
    try:
        library = ctypes.CDLL("libzstd.so.1")
    except OSError as error:
        raise Unreadable(f"its device code is compressed, and the library for that is missing ({error}); install libzstd1") from error
    library.ZSTD_decompress.restype = ctypes.c_size_t
    library.ZSTD_decompress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    return library


def decompressed(content, size):
    out = ctypes.create_string_buffer(size)
    if zstd().ZSTD_decompress(out, size, content, len(content)) != size:
        raise Unreadable("its device code is damaged: it cannot be decompressed")
    return out.raw


def fatbin_entries(elf):
    """Kind, architecture and content of everything that nvcc embedded."""
    for index, name in enumerate(elf.names):
        if name != ".nv_fatbin":
            continue
        data, at = elf.content(index), 0
        while at + 16 <= len(data):
            magic, _, header, size = struct.unpack_from("<IHHQ", data, at)
            if magic != FATBIN_MAGIC:
                at += 8  # padding between two
                continue
            entry, end = at + header, at + header + size
            while entry < end:
                kind, _, header, size = struct.unpack_from("<HHIQ", data, entry)
                arch, = struct.unpack_from("<I", data, entry + 28)
                flags, = struct.unpack_from("<Q", data, entry + 40)
                content = data[entry + header:entry + header + size]
                if flags & LZ4:
                    raise Unreadable("its device code is compressed as LZ4; pairs are compiled with --compress-mode=size")
                if flags & ZSTD:
                    compressed, = struct.unpack_from("<I", data, entry + 16)
                    original, = struct.unpack_from("<Q", data, entry + 56)
                    content = decompressed(content[:compressed], original)
                yield kind, arch, content
                entry += header + size
            at = end


def without_place(name):
    return OF_A_FILE.sub(b"file", name.encode() if isinstance(name, str) else name)


def relocations(elf, index, symbols):
    size = 24 if elf.headers[index][1] == RELA else 16
    table = elf.content(index)
    for at in range(0, len(table), size):
        offset, info = struct.unpack_from("<QQ", table, at)
        yield b"%d %d %s %s" % (offset, info & 0xFFFFFFFF, without_place(symbols[info >> 32]), table[at + 16:at + size].hex().encode())


def kernel_facts(content, symbols):
    """The records of .nv.info that name a kernel: registers, stack and frame; by name, since indices depend on debug sections."""
    at = 0
    while at + 4 <= len(content):
        form, attribute, size = struct.unpack_from("<BBH", content, at)
        value = content[at + 4:at + 4 + size] if form == SIZED_VALUE else struct.pack("<H", size)
        at += 4 + (size if form == SIZED_VALUE else 0)
        if form == SIZED_VALUE and size == 8:
            symbol, number = struct.unpack("<II", value)
            yield b"%d %s %d" % (attribute, without_place(symbols[symbol]) if symbol < len(symbols) else b"", number)
        else:
            yield b"%d %s" % (attribute, value.hex().encode())


def is_about_code(elf, index):
    name, kind = elf.names[index], elf.headers[index][1]
    if name in LINK_ORDER_ONLY or kind in (STRTAB, SYMTAB, NOTE):
        return False
    return not re.match(r"(\.rela?)?\.(debug|nv_debug|line|note)", name)


def cubin_parts(data):
    elf = Elf(data)
    symbols = elf.symbols()
    for index, name in enumerate(elf.names):
        if not is_about_code(elf, index):
            continue
        _, kind, flags, _, _, size, _, info, *_ = elf.headers[index]
        if kind in (REL, RELA):
            content = b"\n".join(sorted(relocations(elf, index, symbols)))
        elif name == ".nv.info":
            content = b"\n".join(sorted(kernel_facts(elf.content(index), symbols)))
        elif kind == NOBITS:
            content = b"%d bytes" % size
        else:
            content = elf.content(index)
        # The upper byte of a code section's info is its number of registers; the lower ones are a symbol's index.
        registers = info >> 24 if name.startswith(".text.") else 0
        yield b"%s %d %d %s" % (without_place(name), flags, registers, hashlib.sha256(content).hexdigest().encode())


def ptx_parts(data):
    for line in data.rstrip(b"\0").split(b"\n"):
        line = line.split(b"//")[0].strip()
        if line and not re.match(rb"\.(loc|file|section|version)\b", line):
            yield without_place(line)


def device_code(data):
    """The digests of an object file's device code by architecture: "90" for instructions, "ptx90" for what the driver compiles."""
    parts = {}
    for kind, arch, content in fatbin_entries(Elf(data)):
        if kind == CUBIN:
            parts.setdefault(f"{arch}", []).append(b"\n".join(sorted(cubin_parts(content))))
        elif kind == PTX:
            parts.setdefault(f"ptx{arch}", []).append(b"\n".join(ptx_parts(content)))
    return {arch: hashlib.sha256(b"\n\n".join(sorted(of_arch))).hexdigest() for arch, of_arch in parts.items()}
