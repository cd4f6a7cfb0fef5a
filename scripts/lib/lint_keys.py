# SPDX-License-Identifier: Apache-2.0
"""lint_keys.py BUILD LINTER [FILE...]: for each file a line "KEY<tab>FILE"; without files for all that BUILD compiles for src, batches of
them (cmake/batches.cmake) included. Equal keys have equal findings: a key is a hash of the linter, its
checks, how the file is compiled and all that it includes, in whatever folder the tree lies. The key is - where BUILD did not compile the file
as it is now."""
import hashlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path


def digest(*parts):
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def included(build):
    """Returns the files that each object was made of, as ninja recorded them, for objects that are up to date."""
    files, current = {}, None
    listed = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True)
    for line in listed.stdout.splitlines():
        if line.startswith(" ") and current:
            files[current].append(os.path.join(build, line.strip()))
        elif "#deps" in line:
            current = line.split(": #deps")[0] if "(VALID)" in line else None
            if current:
                files[current] = []
    return files


def words_of(entry):
    """A compilation database holds a command or its words."""
    return entry["arguments"] if "arguments" in entry else shlex.split(entry["command"])


def compiled_to(words):
    return words[words.index("-o") + 1] if "-o" in words[:-1] else None


class Keys:
    def __init__(self, root, build, linter):
        self.root, self.build, self.contents = root, build, {}
        self.made_of = included(build)
        self.commands = {}
        for entry in json.loads((build / "compile_commands.json").read_text()):
            self.commands.setdefault(os.path.realpath(os.path.join(entry["directory"], entry["file"])), entry)
        version = subprocess.run([linter, "--version"], capture_output=True, text=True).stdout
        checks = sorted([root / ".clang-tidy", *root.glob("src/**/.clang-tidy")])
        self.common = digest(version, (root / "scripts/lint").read_text(), *(file.read_text() for file in checks if file.exists()))

    def compiled(self):
        """All that is compiled for src, with the costliest first."""
        ours = [file for file in self.commands
                if file.endswith(".cpp") and (file.startswith(f"{self.root}/src/") or os.path.dirname(file) == f"{self.build}/generated/batches")]
        return sorted((os.path.relpath(file, self.root) for file in ours), key=lambda file: ("batches/" not in file, file))

    def content(self, path):
        """Returns the contents of a file of the tree, or the time of a system file, which is in the same place everywhere."""
        path = os.path.realpath(path)
        if path not in self.contents:
            if path.startswith(f"{self.root}{os.sep}"):
                held = hashlib.sha256(Path(path).read_bytes()).hexdigest()
                self.contents[path] = f"{os.path.relpath(path, self.root)} {held}"
            else:
                status = os.stat(path)
                self.contents[path] = f"{path} {status.st_size} {status.st_mtime_ns}"
        return self.contents[path]

    def key(self, file):
        entry = self.commands.get(os.path.realpath(file))
        words = words_of(entry) if entry else []
        made_of = self.made_of.get(compiled_to(words))
        if not made_of:
            return "-"
        try:
            parts = sorted({self.content(path) for path in [file, *made_of]})
        except OSError:
            return "-"
        words = (os.path.realpath(word) if word.startswith("/") else word for word in words)
        return digest(self.common, " ".join(words).replace(str(self.root), "."), *parts)


def main(build, linter, *files):
    keys = Keys(Path.cwd().resolve(), Path(build).resolve(), linter)
    for file in files or keys.compiled():
        print(f"{keys.key(file)}\t{file}")


if __name__ == "__main__":
    main(*sys.argv[1:])
