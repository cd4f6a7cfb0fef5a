# SPDX-License-Identifier: Apache-2.0
"""Writes what is known of one pair's code: a digest for each architecture that its object file holds, and the files to show with their
functions. Stops where the object lacks the Pair that its path promises."""
import argparse
import hashlib
import os
import sys
from pathlib import Path

from device_code import Unreadable, device_code
from promise_code import broken_promises
from source_code import Sources
from variant_code import functions


def digests(host_code, device):
    """By architecture; "0" where nothing runs on a GPU."""
    return {arch: hashlib.sha256(f"{host_code}\n{code}".encode()).hexdigest() for arch, code in (device or {"0": ""}).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="what paths of files are relative to")
    parser.add_argument("--api", type=Path, required=True, help="the folder with aisp/pair.hpp")
    parser.add_argument("--shared", type=Path, required=True, help="the folder with headers of several chapters; need not exist")
    parser.add_argument("source", type=Path)
    parser.add_argument("object", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("linked", type=Path, nargs="?", help="the object with the device code, where that is linked by itself")
    given = parser.parse_args()
    sources = Sources(given.root, given.api, given.shared)
    built = given.object.read_bytes()
    try:
        broken = broken_promises(given.source, built)
        device = device_code(given.linked.read_bytes() if given.linked else built)
    except Unreadable as error:
        sys.exit(f"{given.object}: {error}")
    if broken:
        sys.exit("\n".join(broken))
    lines = [f"digest {arch} {digest}" for arch, digest in sorted(digests(sources.host_code(given.source), device).items())]
    for file, found in functions(sources.shown(given.source), sources.tokens_of).items():
        lines += [f"file {os.path.relpath(file, sources.root)}", *found]
    given.out.write_text("".join(line + "\n" for line in lines))


if __name__ == "__main__":
    main()
