# SPDX-License-Identifier: Apache-2.0
"""Horizontal bars with their names, in groups below a heading."""
import math
from dataclasses import dataclass

from svg import Picture, Plot, Scale, shortened, width_of

WIDTH = 880  # as wide as a page of a README shows without shrinking
BAR, STEP, GROUP = 13, 20, 26


@dataclass
class Bar:
    name: str
    value: float
    text: str     # after the bar
    style: str
    low: float = None   # of its interval
    high: float = None


def scale_of(bars, reference, logarithmic, most, left, right):
    ends = [end for bar in bars for end in (bar.value, bar.low, bar.high) if end]
    low, high = min([reference, *ends]) if logarithmic else 0, min(max([reference, *ends]), most)
    return Scale(logarithmic, low * 0.95 if 0 < low < reference else low, high, left, right)


def bars_picture(title, notes, groups, unit, reference, room, most=math.inf, logarithmic=False):
    """Draws groups of (name, bars) with a line at the reference; longer bars than `most` are cut, and `room` is the least for texts."""
    bars = [bar for _, group in groups for bar in group]
    left = min(max(max(width_of(bar.name) for bar in bars) + 14, 80), WIDTH * 0.48)
    right = WIDTH - min(max([room, *(width_of(bar.text) + 10 for bar in bars)]), WIDTH * 0.4)
    scale = scale_of(bars, reference, logarithmic, most, left, right)
    picture = Picture(title, WIDTH)
    picture.text("heading", 4, 20, shortened(title, WIDTH - 8, 16))
    for at, note in enumerate(notes):
        picture.text("small", 4, 38 + 18 * at, note)
    y = 26 + 18 * len(notes)
    plot = Plot(picture, left, y, right, y + sum(GROUP + STEP * len(group) + 2 for _, group in groups), scale)
    plot.grid([(tick, f"{tick:.6g}{unit}", "middle") for tick in scale.ticks(int((right - left) / 52))], below=15)
    plot.reference(reference)
    for name, group in groups:
        picture.text("group", 4, y + 17, name)
        y += GROUP
        for bar in group:
            draw_bar(plot, bar, y, scale.at(reference) if logarithmic else left, most)
            y += STEP
        y += 2
    return picture.alone(plot.bottom + 22)


def draw_bar(plot, bar, y, start, most):
    picture, end = plot.picture, plot.x.at(bar.value)
    picture.text("name", 4, y + BAR - 2, shortened(bar.name, plot.left - 12))
    picture.rect(bar.style, min(start, end), y, max(abs(end - start), 1.5), BAR, f"{bar.name}: {bar.text}")
    if bar.value > most:
        picture.rect("back", end - 14, y, 4, BAR)
    outermost = max(start, end)
    if bar.low and bar.high:
        low, high, middle = plot.x.at(bar.low), plot.x.at(bar.high), y + BAR / 2
        if high - low > 3:
            picture.line("whisker", low, middle, high, middle)
            for place in (low, high):
                picture.line("whisker", place, middle - 3, place, middle + 3)
        outermost = max(outermost, high)
    picture.text("value", outermost + 6, y + BAR - 2, shortened(bar.text, WIDTH - outermost - 8))
