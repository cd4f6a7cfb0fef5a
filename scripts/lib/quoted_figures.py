# SPDX-License-Identifier: Apache-2.0
"""Figures in prose that come from recorded expectations. A comment right after a figure says where it is from:

  1.43x<!-- h200 ch10:wgmma_matmul wgmma speedup -->

The hardware, the target, the variant (A/B: A over B, in the same rounds), and what of it: speedup; time, or time/N for that of one of N; floor
(percent of it); bandwidth (the bytes that it declares, over its time); metric:NAME (what the pair reports). A comment may take two lines. One
that begins with "answers" is a sentence's (scripts/check-lessons)."""
import re

from number_text import display_ms, human_rate, metric_text, significant, whole_percent

QUOTE = re.compile(r"<!--\s+(?!answers\s)(\S+)\s+([a-z][a-z0-9_]*:\S+)\s+(\S+)\s+(\S+)\s+-->", re.A)
TIME = re.compile(r"time(?:/([1-9][0-9]{0,11}))?", re.A)
METRIC = "metric:"
# The figure that ends a text: in a unit of aisp's, or the number of a metric, whose unit is cut off. The 5 of 4-5 is not negative.
FIGURE = re.compile(r"[0-9]+(\.[0-9]+)?(x|\s(%|ns|us|ms|s|[kMGTPE]?B/s))\Z", re.A)
NUMBER = re.compile(r"(\B-)?[0-9]+(\.[0-9]+)?[kMGT]?\Z", re.A)
LONGEST_NUMBER = 16


def figure_of(record, variant, quantity):
    """None where nothing of that name is recorded."""
    name, over, other = variant.partition("/")
    if over and quantity != "speedup":
        return None
    if quantity == "speedup":
        gain = record.gain(name, other if over else record.baseline)
        return gain and significant(gain) + "x"
    of = record.variants.get(name)
    if not of:
        return None
    if quantity == "floor":
        return None if of.percent_of_floor is None else whole_percent(of.percent_of_floor)
    if quantity == "bandwidth":
        moved = of.cost.get("bytes", 0)
        return human_rate(moved / of.median_ms * 1e3, "B") if moved > 0 and of.median_ms > 0 else None
    if quantity.startswith(METRIC):
        metric = of.metrics.get(quantity.removeprefix(METRIC))
        return metric and metric_text(metric)
    time = TIME.fullmatch(quantity)
    return time and display_ms(of.median_ms / int(time[1] or 1))


def length_at_the_end(words, quantity, figure):
    """How long the figure is that ends the text before a comment, 0 without one."""
    if not quantity.startswith(METRIC):
        found = FIGURE.search(words)
        return len(found[0]) if found else 0
    unit = figure[figure.index(" "):] if " " in figure else ""
    found = NUMBER.search(words.removesuffix(unit)) if words.endswith(unit) else None
    return len(found[0]) + len(unit) if found else 0


def with_figure(text, length, figure):
    """The text with another figure at its end. The unit may stand on the next line, which then is as long as before."""
    kept, old = text[:len(text) - length], text[len(text) - length:]
    at = old.find("\n") - len(old) + len(figure)
    is_broken = "\n" in old and 0 <= at and figure[at] == " "
    return kept + (figure[:at] + "\n" + figure[at + 1:] if is_broken else figure)


def with_quoted_figures(page, records):
    """The page with every figure that such a comment follows as `records` have it, by target; ValueError names the comment where nothing is
    recorded of that name, or where no figure stands before it."""
    written, at = "", 0
    for mark in QUOTE.finditer(page):
        hardware, target, variant, quantity = mark.groups()
        record = next((one for one in records.get(target, []) if one.hardware == hardware), None)
        figure = record and figure_of(record, variant, quantity)
        comment = " ".join(mark[0].split("\n"))
        if not figure:
            raise ValueError(f"{comment}: nothing of that name is recorded; HARDWARE TARGET VARIANT, then speedup, time, time/N, floor, "
                             "bandwidth or metric:NAME")
        written, at = written + page[at:mark.start()], mark.start()
        words = written[-len(figure) - LONGEST_NUMBER:].replace("\n", " ")
        length = length_at_the_end(words, quantity, figure)
        if not length:
            raise ValueError(f"{comment}: no figure stands right before it, as in {figure}")
        if words[-length:] != figure:
            written = with_figure(written, length, figure)
    return written + page[at:]
