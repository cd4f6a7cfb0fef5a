# SPDX-License-Identifier: Apache-2.0
"""Writes the C++ file with the digests of all pairs and, beside it as OUT.texts, their files, each packed: its text, a NUL and the lines
about its functions (src/pair/code.hpp).

usage: index.py ROOT OUT DIGESTS... [SOURCE=FATBIN...]   (what digest.py wrote, in the order of the registry; kernels to link at run time)"""
import re
import sys
import zlib
from pathlib import Path

# The assembler brings the bytes in: a compiler would take seconds for data that it only passes on.
TEXT = """// Written by cmake/code/index.py; changes here are lost.
#include "pair/code.hpp"

#include <array>

asm(R"aisp_asm(
.pushsection .rodata.aisp_files, "a"
aisp_texts:
.incbin %(packed)s
%(fatbins)s.popsection
)aisp_asm");

namespace aisp::pair {
namespace {
extern "C" {
extern const char aisp_texts[];
%(symbols)s}
constexpr std::array<CodeDigest, %(digest_count)d> digests{{
%(digests)s}};
constexpr std::array<SourceFile, %(file_count)d> files{{
%(files)s}};
constexpr std::array<Code, %(pair_count)d> table{{
%(pairs)s}};
constexpr std::array<LinkableKernels, %(kernel_count)d> kernels{{
%(kernels)s}};
}  // namespace

std::span<const Code> linked_code() { return table; }
std::span<const LinkableKernels> linked_kernels() { return kernels; }

}  // namespace aisp::pair
"""


def quoted(text):
    return '"' + str(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def read(path):
    digests, *files = re.split("^file ", Path(path).read_text(), flags=re.M)
    return [line.split()[1:] for line in digests.splitlines()], [file.split("\n", 1) for file in files]


def packed(text):
    pack = zlib.compressobj(9, zlib.DEFLATED, -15, 9)
    return pack.compress(text) + pack.flush()


def cpp(root, out, digest_files, fatbins):
    texts, places = bytearray(), {}
    digests, files, pairs = [], [], []
    for of_pair, shown in map(read, digest_files):
        pairs.append(f"    Code{{std::span{{digests}}.subspan({len(digests)}, {len(of_pair)}), "
                     f"std::span{{files}}.subspan({len(files)}, {len(shown)})}},\n")
        for arch, digest in of_pair:
            driver = arch.startswith("ptx")
            digests.append(f'    CodeDigest{{{arch.removeprefix("ptx")}, {str(driver).lower()}, "{digest}"}},\n')
        for path, functions in shown:
            if path not in places:
                begin = len(texts)
                texts += packed((Path(root) / path).read_bytes() + b"\0" + functions.encode())
                places[path] = f"aisp_texts + {begin}, aisp_texts + {len(texts)}"
            files.append(f"    SourceFile{{{quoted(path)}, {places[path]}}},\n")
    kernels = [f"    LinkableKernels{{{quoted(source)}, aisp_kernels_{i}, aisp_kernels_{i}_end}},\n"
               for i, (source, fatbin) in enumerate(fatbins)]
    return texts, TEXT % {
        "packed": quoted(f"{out}.texts"),
        "fatbins": "".join(f".balign 16\naisp_kernels_{i}:\n.incbin {quoted(fatbin)}\naisp_kernels_{i}_end:\n"
                           for i, (source, fatbin) in enumerate(fatbins)),
        "symbols": "".join(f"extern const char aisp_kernels_{i}[], aisp_kernels_{i}_end[];\n" for i in range(len(fatbins))),
        "digests": "".join(digests), "digest_count": len(digests),
        "files": "".join(files), "file_count": len(files),
        "pairs": "".join(pairs), "pair_count": len(pairs),
        "kernels": "".join(kernels), "kernel_count": len(kernels)}


def main(root, out, *inputs):
    fatbins = [given.split("=", 1) for given in inputs if "=" in given]
    texts, text = cpp(root, out, [given for given in inputs if "=" not in given], fatbins)
    for place, content in (Path(f"{out}.texts"), bytes(texts)), (Path(out), text.encode()):
        if not place.exists() or place.read_bytes() != content:
            place.write_bytes(content)


if __name__ == "__main__":
    main(*sys.argv[1:])
