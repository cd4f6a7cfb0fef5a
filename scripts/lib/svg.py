# SPDX-License-Identifier: Apache-2.0
"""Pictures as SVG that stands alone: shapes, axes, grid and legends in the style of the report's pictures, light and dark."""
import html
import math
import pathlib
import re

STYLE = (pathlib.Path(__file__).resolve().parents[2] / "src/report/html/page/picture.css").read_text()
COLOURS = 8  # classes s0, s1, ... of the style
ROW = 18     # of a legend


def width_of(words, font=12):
    """Returns the greatest width that the words take in any usual sans-serif font."""
    return len(words) * 0.6 * font


def shortened(words, width, font=12):
    """Returns the words without their end where they would be wider than that."""
    if width_of(words, font) <= width:
        return words
    while words and width_of(words, font) + 0.6 * font > width:
        words = words[:-1]
    return words + "…"


class Picture:
    """Shapes in the order in which they cover one another; `title` is read out where the picture cannot be seen."""

    def __init__(self, title, width):
        self.title, self.width, self.parts = title, width, []

    def add(self, tag, style, content="", **attributes):
        places = "".join(f' {name.rstrip("_").replace("_", "-")}="{value if isinstance(value, str) else f"{value:.1f}"}"'
                         for name, value in attributes.items())
        self.parts.append(f'<{tag} class="{style}"{places}>{content}</{tag}>' if content is not None else
                          f'<{tag} class="{style}"{places}/>')

    def text(self, style, x, y, words, anchor="start"):
        place = {} if anchor == "start" else {"text_anchor": anchor}
        self.add("text", style, html.escape(words, quote=True).replace("&#x27;", "'"), x=x, y=y, **place)

    def line(self, style, x1, y1, x2, y2):
        self.add("line", style, None, x1=x1, y1=y1, x2=x2, y2=y2)

    def rect(self, style, x, y, width, height, tip=""):
        """A tip appears under the pointer."""
        self.add("rect", style, tip_of(tip), x=x, y=y, width=width, height=height)

    def circle(self, style, x, y, radius, tip=""):
        self.add("circle", style, tip_of(tip), cx=x, cy=y, r=radius)

    def path(self, style, outline):
        self.add("path", style, None, d=outline)

    def polyline(self, style, points):
        self.add("polyline", style, None, points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points))

    def legend(self, y, entries):
        """Draws (style, words) in rows from `y`, with a line in place of a dot for a ceiling; returns the place of the last row."""
        x = 4
        for style, words in entries:
            words = shortened(words, self.width - 24)
            needed = width_of(words) + 30
            if x > 4 and x + needed > self.width:
                x, y = 4, y + ROW
            if style == "ceiling":
                self.line(style, x, y - 4, x + 11, y - 4)
            else:
                self.circle(style, x + 5, y - 4, 4.5)
            self.text("small", x + 14, y, words)
            x += needed
        return y

    def moved_down(self, y, parts):
        """Adds parts that another picture holds, `y` further down."""
        self.parts += [f'<g transform="translate(0 {y:.0f})">', *parts, "</g>"]

    def alone(self, height, style=""):
        size = f'{self.width:.0f}" height="{height:.0f}"'
        body = re.sub(r"(?<=\d )us\b", "µs", "".join(part + "\n" for part in self.parts))
        return (f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" viewBox="0 0 {self.width:.0f} {height:.0f}" width="{size} role="img" '
                f'aria-label="{html.escape(self.title)}">\n<style>\n{STYLE}{style}</style>\n<rect class="back" width="{size}/>\n{body}</svg>\n')


def tip_of(words):
    return f"<title>{html.escape(words)}</title>" if words else ""


class Scale:
    """Places from `start` to `end` of values from `low` to `high`, which are above 0 where it is logarithmic."""

    def __init__(self, logarithmic, low, high, start, end):
        self.logarithmic, self.low, self.high, self.start, self.end = logarithmic, low, high, start, end

    def at(self, value):
        position = math.log10 if self.logarithmic else float
        low, high = position(self.low), position(self.high)
        part = (position(value) - low) / (high - low) if high > low else 0.5
        return self.start + min(max(part, 0), 1) * (self.end - self.start)

    def decades(self, steps, every):
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1, every)
        values = (step * 10.0**exponent for exponent in exponents for step in steps)
        return [value for value in values if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)]

    def ticks(self, most):
        """Returns round values: of 1, 2 and 5 times the powers of ten, or fewer, so that `most` are not exceeded."""
        if self.high <= self.low:
            return [self.low]
        if self.logarithmic:
            values, every = self.decades((1, 2, 5), 1), 1
            while len(values) > most:
                values, every = self.decades((1,), every), every + 1
            if len(values) > 1:
                return values
        rough = (self.high - self.low) / (max(most, 2) - 1)
        power = 10.0**math.floor(math.log10(rough))
        step = power * (10 if rough > 5 * power else 5 if rough > 2 * power else 2 if rough > power else 1)
        first = math.ceil(self.low / step - 1e-9)
        values = [(first + i) * step for i in range(most + 1)]
        return [value for value in values if value <= self.high + step * 1e-9]


class Plot:
    """An area of a picture in which values have places, with its grid and the names of its axes."""

    def __init__(self, picture, left, top, right, bottom, x, y=None):
        self.picture, self.left, self.top, self.right, self.bottom, self.x, self.y = picture, left, top, right, bottom, x, y

    def grid(self, columns, rows=(), names=("", ""), below=16, above=0):
        """Draws a line with its name for each (value, name, anchor) of the columns and (value, name) of the rows, and the names of both
        axes. Names of columns stand `below` the area; their lines begin `above` it."""
        draw, (x_name, y_name) = self.picture, names
        if y_name:
            draw.text("axis", 4, self.top - 8, y_name)
        for value, name in rows:
            draw.line("grid", self.left, self.y.at(value), self.right, self.y.at(value))
            draw.text("tick", self.left - 6, self.y.at(value) + 4, name, "end")
        for value, name, anchor in columns:
            place = self.x.at(value)
            draw.line("grid", place, self.top - above, place, self.bottom)
            draw.text("tick", place, self.bottom + below, name, anchor)
        if x_name:
            draw.text("axis", (self.left + self.right) / 2, self.bottom + 34, x_name, "middle")

    def reference(self, value, above=0):
        self.picture.line("reference", self.x.at(value), self.top - above, self.x.at(value), self.bottom)

    def curve(self, style, points, joined=True, dots=True):
        """Draws (x, y, tip) as dots and joins them by a line."""
        places = [(self.x.at(x), self.y.at(y), tip) for x, y, tip in points]
        if joined:
            self.picture.polyline(f"series {style}", [place[:2] for place in places])
        for x, y, tip in places if dots else ():
            self.picture.circle(style, x, y, 3.5, tip)
