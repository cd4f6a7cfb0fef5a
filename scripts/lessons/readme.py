# SPDX-License-Identifier: Apache-2.0
"""A chapter's README as check-lessons reads it: step tables, answers, quotes, and paragraphs with the pair that they are about."""
import re
from dataclasses import dataclass, field

FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
GENERATED = re.compile(r"^<!-- (measured|counted|swept):\s[^>]*-->$.*?^<!-- \1: end -->$", re.M | re.S)
COMMENT = re.compile(r"<!--.*?-->", re.S)
ANSWERS = re.compile(r"<!--\s+answers\s+(ch\d\d:\w+)((?:\s+\w+(?::\w+)?)*)\s+-->")
QUOTE = re.compile(r"<!--\s+(\w+)\s+(ch\d\d:\w+)\s+(\w+)(?:/(\w+))?\s+(?:speedup|time(?:/\d+)?|floor|bandwidth|metric:\S+)\s+-->")
PAIR_LINK = re.compile(r"\]\((\w+)\.(?:cu|cpp)\)")
NAMES = re.compile(r"`(\w+)`")
INLINE = re.compile(r"`[^`\n]+`")
BAR = re.compile(r"(?<!\\)\|")  # between cells; one within a cell is escaped
GAIN = "gain over the step before"
# Ends of what is no sentence of its own: list items, table rows, headings.
PARAGRAPH_END = re.compile(r"\n(?=\s*\n|[-*] |\d+\. |\||#)")


def blank(match):
    return re.sub(r"[^\n]", " ", match.group())


@dataclass
class Row:
    """A row of a step table: the steps that its first cell names, the gain that it shows, and the words next to them."""
    line: int
    steps: list
    gain: str
    words: str


@dataclass
class StepTable:
    pair: str       # the one whose section it stands in
    line: int       # of its heading
    has_gain: bool
    rows: list = field(default_factory=list)


@dataclass
class Paragraph:
    line: int
    pair: str       # that it is about
    heading: str    # of its part of the README
    text: str


class Subject:
    """The pair that a text is about: the one that its heading links to, else the last one linked to in its prose."""
    pair, in_heading = "", False

    def after(self, text):
        link = PAIR_LINK.search(text)
        if text.startswith("#"):
            self.pair, self.in_heading = link[1] if link else "", bool(link)
        elif link and not self.in_heading and not text.startswith("|"):
            self.pair = link[1]
        return self.pair


class Readme:
    def __init__(self, path):
        self.path, self.text = path, path.read_text()
        self.chapter = path.parent.name
        self.prose = GENERATED.sub(blank, FENCE.sub(blank, self.text))
        self.lines = self.prose.split("\n")
        self.tables = list(self._tables())
        self.paragraphs = list(self._paragraphs())
        self.answers = {}       # by (target, word): lines
        self.loose_answers = []  # (line, comment) that answer from no sentence
        for mark in ANSWERS.finditer(self.prose):
            line = self.line_of(mark.start())
            before = PARAGRAPH_END.split(self.prose[:mark.start()])[-1].split("\n\n")[-1]
            if len(COMMENT.sub("", before).split()) < 3:
                self.loose_answers.append((line, " ".join(mark[0].split())))
            for word in mark[2].split():
                self.answers.setdefault((mark[1], word), []).append(line)
        quotes = list(QUOTE.finditer(self.prose))
        self.quoted = {(mark[2], name) for mark in quotes for name in mark.group(3, 4) if name}
        self.quotes = [(self.line_of(mark.start()), mark[1], mark[2]) for mark in quotes]

    def line_of(self, place):
        return self.prose.count("\n", 0, place) + 1

    def line_of_pair(self, name):
        """Returns the line that first links to a pair."""
        link = re.search(rf"\]\({name}\.(?:cu|cpp)\)", self.prose)
        return self.line_of(link.start()) if link else 1

    def _tables(self):
        table, about = None, Subject()
        for number, line in enumerate(self.lines, 1):
            pair = about.after(line)
            cells = cells_of(line)
            if table is None:
                if cells[:1] == ["step"] and pair:
                    table = StepTable(pair, number, GAIN in cells)
            elif not cells:
                yield table
                table = None
            elif not set(line) <= set("| -:"):
                gain = cells[1] if table.has_gain else ""
                table.rows.append(Row(number, NAMES.findall(cells[0]), gain, " ".join(cells[1 + table.has_gain:])))
        if table:
            yield table

    def _paragraphs(self):
        about, at, heading = Subject(), 0, ""
        for part in re.split(r"\n\s*\n", self.prose):
            start = self.prose.index(part, at)
            at = start + len(part)
            for piece in PARAGRAPH_END.split(part):
                place = self.prose.index(piece, start)
                start = place + len(piece)
                if piece.startswith("## "):
                    heading = piece[3:].split("\n")[0].strip()
                yield Paragraph(self.line_of(place), about.after(piece), heading, piece)

    def with_gains(self, gain_of):
        """The text with the column of gains in each step table as `gain_of(pair, steps, row)` has it, made where it is missing."""
        lines = self.text.split("\n")
        for table in self.tables:
            for at in (table.line - 1, table.line):
                cell = GAIN if at == table.line - 1 else "---"
                lines[at] = with_cell(lines[at], cell, table.has_gain)
            for place, row in enumerate(table.rows):
                lines[row.line - 1] = with_cell(lines[row.line - 1], gain_of(table, place), table.has_gain)
        return "\n".join(lines)


def cells_of(line):
    return [cell.strip() for cell in BAR.split(line.strip()[1:])[:-1]] if line.startswith("|") else []


def with_cell(line, cell, replaces):
    """The line of a table with `cell` after its first one."""
    cells = cells_of(line)
    return "| " + " | ".join(cells[:1] + [cell] + cells[1 + replaces:]) + " |"
