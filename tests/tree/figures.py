# SPDX-License-Identifier: Apache-2.0
"""Figures in documents that somebody measured, and what says where."""
import re

from constants import CONSTANTS
from tree import FENCE, INLINE, blank

GENERATED = re.compile(r"^<!-- (measured|counted|swept):\s[^>]*-->$.*?^<!-- \1: end -->$", re.M | re.S)
# A figure that somebody measured, and the comment behind it that says where: scripts/pages fills the first kind, also
# in pictures that are drawn by hand. Numbers in words count where they compare or have a unit.
WORDS = "two|three|four|five|six|seven|eight|nine|ten|twelve|sixteen|twenty|thirty|forty|fifty|sixty|eighty|hundred|thousand"
FIGURE = re.compile(
    r"(?<![\w.])(?:\d[\d.]*(?:(?<!\.)x\b(?!\s*\d)|\s(?:times|[nuµm]?s|[GM]Hz|W|J|[KMGTP]B/s|[GTP]FLOP/s|[KMGT]i?B|bytes|%)(?!\w)"
    r"|[kMGT]?\s(?:[a-z]\w*\s){0,4}[a-z]\w*/s(?!\w))"
    rf"|(?:{WORDS})\s(?:(?:micro|milli|nano)?seconds|percent)\b"
    rf"|(?:twice|(?:{WORDS})\s(?:and\sa\shalf\s)?times)\s(?:as|the|more|less|faster|slower|longer|shorter|above|below)\b)(?!\s(?:confidence )?interval)",
    re.I)
SOURCE_OF_FIGURE = re.compile(r"<!--\s+(?:\w+\s+\w+:\w+\s+[\w/]+\s+(?:speedup|time(?:/\d+)?|floor|bandwidth|metric:\S+)|timeline\s+\w+|not\s+recorded:\s[^>]*\w[^>]*)\s+-->")
# The second kind is a text in the picture docs/timelines/NAME.svg.
TIMELINE_FIGURE = re.compile(rf"({FIGURE.pattern})<!--\s+timeline\s+(\w+)\s+-->", re.I)
# Counts of a metric before and after, which have no unit: "`page_faults` falls from 33000 to 64".
NUMBER = r"\d[\d.,]*(?<![.,])[kMGT]?"
CHANGE = re.compile(rf"`[\w.]+`(?:\s+[a-z]+,?){{0,6}}?\s+from\s+({NUMBER}\s+to\s+{NUMBER})(?![\w.]*\w)")
# One comment in front of a table, in a paragraph of its own, stands for all of its figures.
TABLE_WITHOUT_RECORD = re.compile(r"(?:\A|(?<=\n\n))<!--\s+not\s+recorded:\s[^>]*\w[^>]*\s+-->\n{1,2}(?:\|.*\n?)+", re.M)
# One comment at the end of a paragraph, or of an item of a list, stands for those of its figures that it names: <!-- not recorded: 76 MB,
# 67 MB: built 2026-11-23 -->. So prose can be read without comments in its sentences.
PARAGRAPH_WITHOUT_RECORD = re.compile(r"<!--\s+not\s+recorded:\s+([^>]*?):\s[^>]*\w[^>]*-->[ \t]*$", re.M)
PARAGRAPH_BEGINS = re.compile(r"\n[ \t]*\n|\n[ \t]*(?:[-*]|\d+\.) ")
# Filled by scripts/check-lessons: the second cell of each row of a table of steps.
GAINS = re.compile(r"^\| step \| gain over the step before \|.*\n(?:\|.*\n?)+", re.M)
GAIN = re.compile(r"^(\| [^|]* \|)([^|]*)", re.M)
# Documents of evidence beside the READMEs; the others hold settings and formats.
EVIDENCE = ("docs/profiling.md", "docs/counters.md", "docs/method.md", "docs/ci.md", "docs/install.md")
# Sizes of pages, lines, tiles and buffers: constants of the hardware and of the pairs' code. Others are in constants.py.
POWER_OF_TWO = re.compile(r"(\d+)\s(?:[KMGT]i?B|bytes)")
COMMENT_OF_PAGE = re.compile(r"<!--.*?-->", re.S)


def is_power_of_two(figure):
    power = POWER_OF_TWO.fullmatch(figure)
    return power and int(power[1]).bit_count() == 1


def places_of_constants(text, page):
    """From where to where a page has what constants.py says of it."""
    phrases = [r"(?<![\w.])" + r"\s+".join(map(re.escape, phrase.split())) for phrase in CONSTANTS.get(page, {})]
    return [match.span() for phrase in phrases for match in re.finditer(phrase, text)]


def named_at_the_end(text):
    """(from, to, figures) of each paragraph whose last comment names figures of it."""
    for comment in PARAGRAPH_WITHOUT_RECORD.finditer(text):
        begins = [begin.end() for begin in PARAGRAPH_BEGINS.finditer(text, 0, comment.start())]
        yield max(begins, default=0), comment.start(), {" ".join(name.split()) for name in comment[1].split(",")}


def figures_of(text):
    """(from, to, words) of each figure in a text whose comments are blanks."""
    without_code = INLINE.sub(lambda code: " " * len(code.group()), text)
    found = [(*figure.span(), figure.group()) for figure in FIGURE.finditer(without_code)]
    with_unit = {place for start, end, _ in found for place in range(start, end)}
    found += [(*change.span(1), change.group(1)) for change in CHANGE.finditer(text) if change.end(1) not in with_unit]
    return [(start, end, " ".join(words.split())) for start, end, words in sorted(found)]


def without_source(page, name):
    """(line, words) of each figure in a page's prose and in its tables that says neither what recorded it nor why nothing did."""
    text, found = page, []
    for pattern in (GENERATED, FENCE, TABLE_WITHOUT_RECORD, re.compile(r"<style>.*?</style>", re.S)):
        text = pattern.sub(blank, text)
    text = GAINS.sub(lambda table: GAIN.sub(lambda row: row[1] + " " * len(row[2]), table.group()), text)
    words_alone = COMMENT_OF_PAGE.sub(lambda comment: " " * len(comment.group()), text)
    constants, named = places_of_constants(words_alone, name), list(named_at_the_end(text))
    for start, end, words in figures_of(words_alone):
        is_constant = is_power_of_two(words) or any(first <= start and end <= last for first, last in constants)
        is_named = any(first <= start and end <= last and words in figures for first, last, figures in named)
        if not is_constant and not is_named and not SOURCE_OF_FIGURE.match(text, end):
            found.append((text.count("\n", 0, start) + 1, words))
    return found
