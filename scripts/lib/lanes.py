# SPDX-License-Identifier: Apache-2.0
"""Pictures of lanes: boxes beside each other along an axis that all lanes share, with their names on the left, from top to bottom."""
from svg import Picture

WIDTH, LEFT, RIGHT, BAR, ROW = 860, 150, 16, 16, 22
STYLE = """.picture text.note{font-size:11px;fill:var(--soft)}.picture text.tiny{font-size:9px}.picture text.on{fill:#fff}
.picture .lane{fill:var(--grid);fill-opacity:.6}.picture .pale{fill:#c9d3dd}.picture .grey{fill:var(--frame)}
.picture .edge{stroke:var(--paper);stroke-width:.7}.picture .lens{fill:none;stroke:var(--bad);stroke-width:2}
.picture .c0{fill:#2f6db3}.picture .c1{fill:#c77700}.picture .c2{fill:#2f7d4f}.picture .c3{fill:#7a5ea8}
.picture .c4{fill:#b3261e}.picture .c5{fill:#0b8a8f}.picture .c6{fill:#8a6d1f}.picture .c7{fill:#a8437f}
@media (prefers-color-scheme: dark){.picture .pale{fill:#46515c}.picture .c0{fill:#4f8fd6}.picture .c1{fill:#d98e1f}.picture .c2{fill:#3f9a66}
.picture .c3{fill:#9279c4}.picture .c4{fill:#d2554c}.picture .c5{fill:#22a3a8}.picture .c6{fill:#a88a35}.picture .c7{fill:#c263a0}}
"""


class Lanes(Picture):
    """`y` is where the next part begins."""

    def __init__(self, title, label, y=40):
        super().__init__(label, WIDTH)
        self.y = y
        self.text("heading", 12, 24, title)

    def note(self, x, y, words, style="note", anchor="start"):
        self.text(style, x, y, words, anchor)

    def box(self, x, y, width, height, style, words="", tiny=False):
        self.rect(style, x, y, width, height)
        if words:
            kinds = (("on", "on tiny") if style[0] == "c" else ("note", "tiny"))
            self.note(x + width / 2, y + height / 2 + (3 if tiny else 4), words, kinds[tiny], "middle")

    def keys(self, entries):
        """Draws (style, words) in a row."""
        x = 12.0
        for style, words in entries:
            self.box(x, self.y - 4, 12, 12, style)
            self.note(x + 17, self.y + 6, words)
            x += 34 + 6.3 * len(words)
        self.y += 22

    def named_lane(self, name, height=BAR):
        """Draws an empty lane at `y`."""
        self.note(LEFT - 8, self.y + height - 4, name, "note", "end")
        self.box(LEFT, self.y, WIDTH - LEFT - RIGHT, height, "lane")

    def lane(self, name, bars, end, height=BAR):
        """`bars`: (start, stop, style, words), on a scale from 0 to `end`."""
        scale = (WIDTH - LEFT - RIGHT) / end
        self.named_lane(name, height)
        for start, stop, style, words in bars:
            shown = words if (stop - start) * scale > 6.5 * len(words) + 2 else ""
            self.box(LEFT + start * scale, self.y, (stop - start) * scale, height, f"{style} edge", shown, len(words) > 2)
        self.y += height + ROW - BAR

    def heading(self, words, note=""):
        self.y += 8
        self.note(12, self.y + 8, words, "group")
        if note:
            self.note(LEFT, self.y + 8, note)
        self.y += 18

    def lines(self, *sentences):
        for sentence in sentences:
            self.note(12, self.y + 10, sentence)
            self.y += 16

    def done(self):
        return self.alone(round(self.y + 12), STYLE)
