# SPDX-License-Identifier: Apache-2.0
"""Writes the C++ file with the rows of docs/method.md that `aisp explain` prints (src/cli/glossary.hpp).

usage: manual.py MANUAL OUT"""
import re
import sys
from pathlib import Path

KINDS = ["check", "metric", "finding"]
HEADING = re.compile(rf"\| ({'|'.join(KINDS)}) ")
ROW = re.compile(r"\| `?(\w+)`? \| (.*?) (?:\| (\d) )?\|")
TEXT = """// Written by cmake/manual.py; changes here are lost.
#include "cli/glossary.hpp"

namespace aisp::cli {

std::span<const Term> manual_terms() {
  static constexpr Term terms[] = {
%s  };
  return terms;
}

}  // namespace aisp::cli
"""


def terms(manual):
    """The kind, name and meaning of each row, in the manual's order."""
    kind = ""
    for line in manual.splitlines():
        if heading := HEADING.match(line):
            kind = heading[1]
        elif not line.startswith("|"):
            kind = ""
        elif kind and (row := ROW.fullmatch(line)):
            yield kind, row[1], row[2] + (f" (exit status {row[3]})" if row[3] else "")


def main(manual, out):
    rows = sorted(terms(Path(manual).read_text()), key=lambda row: KINDS.index(row[0]))
    text = TEXT % "".join(f'      {{"{kind}", "{name}", R"aisp({meaning})aisp"}},\n' for kind, name, meaning in rows)
    if not Path(out).exists() or Path(out).read_text() != text:  # another sentence of the manual compiles nothing
        Path(out).write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
