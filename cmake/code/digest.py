# SPDX-License-Identifier: Apache-2.0
"""Writes what is known of one pair's code: a digest for each architecture that its object file holds, and the files to show.

usage: digest.py ROOT SOURCE OBJECT OUT"""
import hashlib
import sys
from pathlib import Path

from device_code import Unreadable, device_code
from source_code import Sources


def digests(host_code, device):
    """By architecture; "0" where nothing runs on a GPU."""
    return {arch: hashlib.sha256(f"{host_code}\n{code}".encode()).hexdigest() for arch, code in (device or {"0": ""}).items()}


def main(root, source, built, out):
    sources = Sources(root)
    try:
        device = device_code(Path(built).read_bytes())
    except Unreadable as error:
        sys.exit(f"{built}: {error}")
    lines = [f"digest {arch} {digest}" for arch, digest in sorted(digests(sources.host_code(source), device).items())]
    lines += [f"file {file.relative_to(sources.root)}" for file in sources.shown(source)]
    Path(out).write_text("".join(line + "\n" for line in lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
