# SPDX-License-Identifier: Apache-2.0
"""Whether an object file defines the Pair that its source's path promises: aisp::chapter::name of chapter/name.cu. The linker would
say so without a word of the file. In the folder selftest a file declares its pairs itself."""
import re

from device_code import SYMTAB, Elf

GLOBAL = 1
FAMILY = re.compile(r"^extern constinit const selftest::Case (\w+)", re.M)


def promised(source, text):
    """The chapter and the names of the pairs that a file must define."""
    if source.parent.parent.name == "selftest":
        chapter = re.search(r"^namespace aisp::(ch\d\d) {", text, re.M)
        return (chapter[1] if chapter else ""), FAMILY.findall(text)
    return source.parent.name, [source.stem]


def mangled(*names):
    return "_ZN" + "".join(f"{len(name)}{name}" for name in names) + "E"


def exported(elf):
    """The names of all symbols that an object file defines for others."""
    found = set()
    for index, header in enumerate(elf.headers):
        if header[1] != SYMTAB:
            continue
        table, strings = elf.content(index), elf.headers[header[6]][4]
        for at in range(0, len(table), 24):
            name, info, section = int.from_bytes(table[at:at + 4], "little"), table[at + 4], int.from_bytes(table[at + 6:at + 8], "little")
            if info >> 4 == GLOBAL and section != 0:
                found.add(elf.text_at(strings + name))
    return found


def reason(text, chapter, name):
    if not re.search(rf"\bnamespace\s+aisp::{chapter}\s*{{", text):
        return f"it has no namespace aisp::{chapter}"
    declared = re.search(r"\bconst\s+(?:\w+::)*Pair\s+(\w+)\s*[{=]", text)
    if declared is None:
        return f"it does not define the Pair {name}"
    if declared[1] != name:
        return f"it does not define the Pair {name} (its Pair is called {declared[1]})"
    return f"it does not define the Pair {name} (it is not extern, or inside an anonymous or another namespace)"


def broken_promises(source, built):
    text = source.read_text(errors="replace")
    chapter, names = promised(source, text)
    symbols = exported(Elf(built))
    return [f"{source}: {reason(text, chapter, name)}; a pair file ends with: extern constinit const Pair {name}{{...}} in namespace "
            f"aisp::{chapter}, outside anonymous namespaces"
            for name in names if mangled("aisp", chapter, name) not in symbols]
