# SPDX-License-Identifier: Apache-2.0
"""Writes the C++ file with the digests of all pairs and the text of their files (src/pair/code.hpp).

usage: index.py ROOT OUT DIGESTS... [SOURCE=FATBIN...]   (what digest.py wrote, in the order of the registry; kernels to link at run time)"""
import sys
from pathlib import Path

# The assembler brings the files in: a compiler would take seconds for text that it only passes on.
TEXT = """// Written by cmake/code/index.py; changes here are lost.
#include "pair/code.hpp"

#include <array>

asm(R"aisp_asm(
.pushsection .rodata.aisp_files, "a"
%(texts)s.popsection
)aisp_asm");

namespace aisp::pair {
namespace {
extern "C" {
%(symbols)s}
constexpr std::array<CodeDigest, %(digest_count)d> digests{{
%(digests)s}};
constexpr std::array<SourceFile, %(file_count)d> files{{
%(files)s}};
constexpr std::array<Code, %(pair_count)d> table{{
%(pairs)s}};
constexpr std::array<SourceFile, %(kernel_count)d> kernels{{
%(kernels)s}};
}  // namespace

std::span<const Code> linked_code() { return table; }
std::span<const SourceFile> linked_kernels() { return kernels; }

}  // namespace aisp::pair
"""


def quoted(text):
    return '"' + str(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def read(path):
    lines = [line.split(" ", 1) for line in Path(path).read_text().splitlines()]
    digests = [rest.split() for word, rest in lines if word == "digest"]
    return digests, [rest for word, rest in lines if word == "file"]


def cpp(root, digest_files, fatbins):
    texts = {}
    digests, files, pairs = [], [], []
    for of_pair, shown in map(read, digest_files):
        pairs.append(f"    Code{{std::span{{digests}}.subspan({len(digests)}, {len(of_pair)}), "
                     f"std::span{{files}}.subspan({len(files)}, {len(shown)})}},\n")
        for arch, digest in of_pair:
            driver = arch.startswith("ptx")
            digests.append(f'    CodeDigest{{{arch.removeprefix("ptx")}, {str(driver).lower()}, "{digest}"}},\n')
        for path in shown:
            number = texts.setdefault(path, len(texts))
            files.append(f"    SourceFile{{{quoted(path)}, aisp_file_{number}, aisp_file_{number}_end}},\n")
    kernels = []
    for source, fatbin in fatbins:
        number = texts.setdefault(fatbin, len(texts))
        kernels.append(f"    SourceFile{{{quoted(source)}, aisp_file_{number}, aisp_file_{number}_end}},\n")
    return TEXT % {
        "texts": "".join(f".balign 16\naisp_file_{number}:\n.incbin {quoted(Path(root) / path)}\naisp_file_{number}_end:\n.byte 0\n"
                         for path, number in texts.items()),
        "symbols": "".join(f"extern const char aisp_file_{number}[], aisp_file_{number}_end[];\n" for number in texts.values()),
        "digests": "".join(digests), "digest_count": len(digests),
        "files": "".join(files), "file_count": len(files),
        "pairs": "".join(pairs), "pair_count": len(pairs),
        "kernels": "".join(kernels), "kernel_count": len(kernels)}


def main(root, out, *inputs):
    fatbins = [given.split("=", 1) for given in inputs if "=" in given]
    text, place = cpp(root, [given for given in inputs if "=" not in given], fatbins), Path(out)
    if not place.exists() or place.read_text() != text:
        place.write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
