# SPDX-License-Identifier: Apache-2.0
"""Markdown as aisp writes it: src/report/markdown/markdown.cpp, src/report/quote.cpp and base::broken, for what scripts write."""
import re

PROSE_COLUMNS = 100
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
ESCAPED = {"&": "&amp;", "<": "&lt;", "\\": "\\\\", "|": "\\|", "`": "\\`"}


def markdown_text(text):
    """Escapes text of others for a line or a table's cell: no tag, code, link or picture begins in it, and no line ends."""
    text = "".join(ESCAPED.get(one, one) for one in CONTROLS.sub(" ", text))
    return re.sub(r"\](?=[(\[])", r"\\]", text)


class Table:
    """A Markdown table; cells are text, in which only emphasis means something."""

    def __init__(self, columns, right_aligned=()):
        self.columns = len(columns)
        self.text = self.line(columns)
        self.text += "|" + "".join(" ---: |" if column in right_aligned else " --- |" for column in columns) + "\n"

    def add(self, cells):
        self.text += self.line((list(cells) + [""] * self.columns)[:self.columns])

    @staticmethod
    def line(cells):
        return "|" + "".join(f" {markdown_text(cell)} |" for cell in cells) + "\n"


def words_of(line, keep_together):
    """Words with the blanks before them. If `keep_together`, a number and what follows it are one word, and so is what stands in square
    brackets or in backquotes."""
    words, begin, brackets, quoted, last = [], 0, 0, False, ""
    for at, one in enumerate(line):
        brackets = brackets + 1 if one == "[" else max(brackets - 1, 0) if one == "]" else brackets
        quoted ^= one == "`"
        single = one == " " and line[at + 1:at + 2] not in ("", " ")
        kept = keep_together and single and (brackets or quoted or last in "0123456789")
        if one == " " and last not in ("", " ") and not kept:
            words.append(line[begin:at])
            begin = at
        last = one
    return words + [line[begin:]]


def broken(line, width, hang=0):
    """`line` in lines of at most `width` characters, broken at blanks; every line but the first begins with `hang` blanks."""
    if len(line) <= width:
        return [line]
    words = []
    for word in words_of(line, True):
        words += [word] if len(word.lstrip(" ")) + hang <= width else words_of(word, False)
    lines = [""]
    for word in words:
        if lines[-1].strip() and len(lines[-1]) + len(word) > width:
            lines.append(" " * hang)
            word = word.lstrip(" ")
        lines[-1] += word
    return lines


def paragraph(words):
    return "\n".join(broken(words, PROSE_COLUMNS)) + "\n"


def list_item(words):
    return "\n".join(broken("- " + words, PROSE_COLUMNS, 2)) + "\n"
