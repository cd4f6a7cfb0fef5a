#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks every #include in include/, chapters/, selftest/ and src/ against the order of the tree's folders.

Usage: scripts/check-includes.py [TREE]     prints "file:line: what is wrong"; exit status 1 when anything is.
"""
import re
import sys
from pathlib import Path

# A folder of src may include itself, the folders in it and these; include/aisp where "aisp" is named. Arrows go down only. A folder
# in a folder has the row of the whole, unless it has one of its own: then its siblings may include it only where they name it.
# docs/architecture.md has the same as a table.
ALLOWED = {
    "base": {"aisp"},
    "libraries": {"base", "aisp"},
    "machine": {"base", "libraries", "aisp"},  # of the latter the interface alone
    "evidence": {"base"},
    "report": {"base", "evidence"},
    "knowledge": {"base", "evidence", "machine", "aisp"},
    "pair": {"base", "aisp"},
    "compile": {"base", "pair", "aisp"},
    "profile": {"base", "evidence", "aisp"},
    # The timing mode `kernel` reads the profiler's durations.
    "measure": {"base", "evidence", "pair", "profile", "aisp"},
    "verify": {"base", "evidence", "measure", "pair", "aisp"},
    "peak": {"base", "evidence", "machine", "measure", "pair", "aisp"},
    "run/wire": {"base", "evidence", "pair"},
    "run/results": {"base", "evidence", "machine", "measure", "aisp"},
    "run/child": {"base", "evidence", "machine", "measure", "pair", "peak", "profile", "run/results", "run/wire", "verify", "aisp"},
    "run/parent": {"base", "evidence", "measure", "pair", "profile", "run/wire", "aisp"},
    "suite": {"base", "evidence", "machine", "measure", "pair", "peak", "profile", "report", "run", "aisp"},
    "foreign": {"base", "evidence", "machine", "pair", "report", "run", "suite", "aisp"},
    "cli": {"base", "evidence", "knowledge", "machine", "measure", "pair", "peak", "profile", "report", "run", "suite", "aisp"},
}

# Folders in one folder that include each other. This list may only become shorter.
CIRCLES = {("report/markdown", "report/pictures")}

PURE = {"evidence", "report"}  # must be usable and testable without CUDA
HOST_LIBRARIES = re.compile(r"^(fmt|nlohmann|CLI|gtest|gmock)/")
CUDA = re.compile(r"^(cuda|cub|cupti|cublas|cufft|curand|cusparse|cusolver|cudnn|nvtx3|nccl|nvml|nvrtc|nvJitLink|cooperative_groups|thrust|device_|"
                  r"driver_types|vector_types|crt/)")
CUTLASS = re.compile(r"^(cutlass|cute)/")  # a file that includes it takes a minute
SLOW = re.compile(r"^(thrust/(?!iterator/)|iostream$)")  # CUB's algorithms take Thrust's iterators, and include them anyway
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SUFFIXES = {".hpp", ".cuh", ".cpp", ".cu"}
DEVICE = {".cu", ".cuh"}


def row_of(folder):
    """The name in ALLOWED that a folder of src goes by: its own, else that of the whole that it is in."""
    parts = Path(folder).parts
    return next((name for name in ("/".join(parts[:n]) for n in (2, 1)) if name in ALLOWED), parts[0])


def may_include(row, other):
    return row == other or other in ALLOWED[row] or other.split("/")[0] in ALLOWED[row]


class Tree:
    def __init__(self, root):
        self.root = root
        self.problems = []
        self.files = sorted(f for top in ("include", "chapters", "selftest", "src") for f in (root / top).rglob("*")
                            if f.suffix in SUFFIXES and f.is_file())
        self.includes = {f: self.read(f) for f in self.files}

    @staticmethod
    def read(file):
        found = []
        for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            match = INCLUDE.match(line)
            if match:
                found.append((number, match[1], match[2]))
        return found

    def problem(self, file, number, text):
        self.problems.append(f"{file.relative_to(self.root)}:{number}: {text}")

    def resolve(self, file, quote, name):
        """The file of this tree that an include means, or None for one of the system's."""
        if quote == "<":
            target = self.root / "include" / name
            return target if name.startswith("aisp/") else None
        places = [file.parent, self.root / "src"]
        if file.is_relative_to(self.root / "chapters"):
            # Kernels to link at run time lie one folder deeper.
            own = file.parent.parent if file.parent.name == "lto" else file.parent
            places = [own, self.root / "chapters" / "shared"]
        elif file.is_relative_to(self.root / "selftest"):
            places = [file.parent, self.root / "selftest" / "shared"]
        return next((place / name for place in places if (place / name).is_file()), Path(name))

    def check(self):
        writers = []
        for file in self.files:
            top, folder = file.relative_to(self.root).parts[:2]
            for number, quote, name in self.includes[file]:
                if name == "aisp_version.hpp":
                    writers.append((file, number))
                    if top != "src":
                        self.problem(file, number, "aisp_version.hpp belongs to src")
                    continue
                self.check_common(file, number, quote, name)
                if top == "include":
                    self.check_public(file, number, quote, name)
                elif top in {"chapters", "selftest"}:
                    self.check_pair(file, number, quote, name)
                else:
                    self.check_source(file, number, quote, name, folder)
            self.check_reached(file, top, folder)
        self.check_circles()
        for file, number in writers[1:]:
            self.problem(file, number, f"aisp_version.hpp changes with every commit; {writers[0][0].name} includes it already")
        return self.problems

    def check_circles(self):
        """Checks that of two folders in one folder of src at most one includes the other, by way of further ones too."""
        arrows = {}  # from folder to folder, and an include that is one
        for file in self.files:
            if not file.is_relative_to(self.root / "src"):
                continue
            folder = file.relative_to(self.root / "src").parent
            for number, quote, name in self.includes[file]:
                other = Path(name).parent
                if quote == '"' and folder != other and len(folder.parts) > 1 and folder.parent == other.parent:
                    arrows.setdefault(str(folder), {}).setdefault(str(other), (file, number))
        for start, nexts in sorted(arrows.items()):
            for first, (file, number) in sorted(nexts.items()):
                seen, waiting = set(), [first]
                while waiting:
                    here = waiting.pop()
                    seen.add(here)
                    waiting.extend(set(arrows.get(here, ())) - seen)
                if start in seen and tuple(sorted((start, first))) not in CIRCLES:
                    self.problem(file, number, f"src/{start} and src/{first} include each other; move what both need up or to one side")

    def check_common(self, file, number, quote, name):
        if CUTLASS.match(name) and not file.is_relative_to(self.root / "src" / "libraries"):
            self.problem(file, number, f"<{name}>: CUTLASS belongs to src/libraries, because it takes a minute to compile; include "
                                       "<aisp/libraries/cutlass.hpp>")
        if ".." in Path(name).parts:
            self.problem(file, number, f'"{name}": includes name a file from its include directory, without ".."')
        target = self.resolve(file, quote, name)
        if target is not None and not target.is_file():
            self.problem(file, number, f"{name} is not a file that this folder may see")

    def check_public(self, file, number, quote, name):
        if quote == '"':
            self.problem(file, number, f'"{name}": include/aisp sees only <aisp/...>, CUDA and the standard library')
        elif HOST_LIBRARIES.match(name):
            self.problem(file, number, f"<{name}>: public headers are compiled by nvcc and stay free of host libraries")

    def check_pair(self, file, number, quote, name):
        if quote == "<" and (HOST_LIBRARIES.match(name) or SLOW.match(name)):
            self.problem(file, number, f"<{name}>: pairs include <aisp/...>, CUDA libraries and the standard library, so that one compiles "
                                       "in seconds; a pair prints nothing")

    def check_source(self, file, number, quote, name, folder):
        row = row_of(file.relative_to(self.root / "src").parent)
        if row not in ALLOWED:
            self.problem(file, 1, f"src/{row} has no place in the order of folders; add it to scripts/check-includes.py")
            return
        if quote == '"':
            if len(Path(name).parts) < 2:
                self.problem(file, number, f'"{name}": name the folder too, as in "{row}/{name}"')
            elif not may_include(row, row_of(Path(name).parent)):
                self.problem(file, number, f"src/{row} may not include src/{row_of(Path(name).parent)}")
        elif name.startswith("aisp/") and "aisp" not in ALLOWED[row]:
            self.problem(file, number, f"src/{folder} may not include <{name}>: it stays free of CUDA")
        elif folder in PURE and CUDA.match(name):
            self.problem(file, number, f"src/{folder} may not include <{name}>: it stays free of CUDA")
        elif name.startswith("CLI/") and folder != "cli":
            self.problem(file, number, f"<{name}>: CLI11 belongs to src/cli")
        elif name.startswith("nlohmann/") and name != "nlohmann/json_fwd.hpp" and file.suffix in {".hpp", ".cuh"} and not self.is_private(file):
            self.problem(file, number, f"<{name}>: headers include <nlohmann/json_fwd.hpp>; the whole of it costs every includer seconds (a "
                                       "header that only .cpp files include may)")
        elif re.match(r"^(gtest|gmock)/", name):
            self.problem(file, number, f"<{name}>: GoogleTest belongs to tests")

    def is_private(self, header):
        """Whether .cpp files alone include it, or other such headers, and anybody does."""
        includers = [f for f, includes in self.includes.items() for _, quote, name in includes if self.resolve(f, quote, name) == header]
        return bool(includers) and all(f.suffix == ".cpp" or self.is_private(f) for f in includers)

    def check_reached(self, file, top, folder):
        """Checks the headers that a file includes by way of others."""
        pure = top == "src" and folder in PURE
        if not pure and file.suffix not in DEVICE:
            return
        seen, waiting = {file}, [(file, 0)]
        while waiting:
            here, line = waiting.pop()
            for number, quote, name in self.includes.get(here, []):
                number = line or number
                target = self.resolve(here, quote, name)
                if target in self.includes and target not in seen:
                    seen.add(target)
                    waiting.append((target, number))
                if here is file and top != "src":
                    continue  # said already
                if pure and here is not file and (CUDA.match(name) or name.startswith("aisp/")):
                    self.problem(file, number, f"reaches <{name}> through {here.relative_to(self.root)}: src/{folder} stays free of CUDA")
                if file.suffix in DEVICE and HOST_LIBRARIES.match(name):
                    self.problem(file, number, f"<{name}> ({here.relative_to(self.root)}): nvcc compiles no fmt, JSON, CLI11 or "
                                               "GoogleTest")


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    tree = Tree(root)
    if not tree.files:
        sys.exit(f"{root}: no sources in include, chapters, selftest or src")
    problems = tree.check()
    print("\n".join(problems) if problems else f"{len(tree.files)} files, every include in order")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
