# SPDX-License-Identifier: Apache-2.0
"""How much math each pair of a chapter does for a byte of memory, beside the ridges of the machine."""
from number_text import human_rate, significant
from svg import COLOURS, Picture, Plot, Scale, shortened

WIDTH, LEFT, RIGHT, HEAD, ROW, RIDGE = 1000, 210, 190, 62, 28, 17
ALIKE = 0.05  # counted intensities that differ by less are not told apart
INTENSITY = "intensity_flop_per_byte"


def lesson_of(pair):
    return next((variant for variant in pair["variants"] if variant["is_lesson"]), {})


class Row:
    """The intensities of a pair's variants, and by the bytes that counters saw those of its baseline and its lesson, where they differ."""

    def __init__(self, pair, counted):
        self.name, self.dots = pair["target"].partition(":")[2] + (" (stale)" if pair["stale"] else ""), {}
        for variant in pair["variants"]:
            if INTENSITY in variant:
                self.dots.setdefault((variant[INTENSITY], variant["math"]), []).append(variant["name"])
        self.values = sorted({intensity for intensity, _ in self.dots})
        moved = {each["name"]: each["counters"].get("dram_read_bytes", 0) + each["counters"].get("dram_write_bytes", 0) for each in counted}
        ends = [variant["flops"] / moved[variant["name"]] for variant in (pair["variants"][0], lesson_of(pair)) if moved.get(variant["name"])]
        self.counted = ends if len(ends) == 2 and abs(ends[1] / ends[0] - 1) > ALIKE else []


def rows_of(roofline, counted):
    """Those of the pairs that a roofline draws, in the order of their intensity."""
    drawn = [pair for pair in roofline["pairs"] if INTENSITY in pair["variants"][0] and INTENSITY in lesson_of(pair)]
    return sorted((Row(pair, counted.get(pair["target"], {}).get("variants", [])) for pair in drawn), key=lambda row: row.values[-1])


def ceilings_text(ceilings):
    """"Ceilings: memory 4.25 TB/s, bf16 ~790 TFLOP/s (SOURCE)"; a tilde stands before guesses."""
    rates = [("memory", ceilings["memory_bytes_s"], "B", ceilings.get("memory_from"))] + [
        (name, rate, "FLOP", ceilings.get("flops_from", {}).get(name)) for name, rate in ceilings["flops_s"].items()]
    texts = [f"{name} {'~' if source == 'guess' else ''}{human_rate(rate, unit)}" for name, rate, unit, source in rates if rate > 0]
    return f"Ceilings: {', '.join(texts)} ({ceilings['source']})"


def notes_of(roofline, rows):
    notes = ["Left of its ridge (dashed, measured math rate over memory bandwidth) bytes set the time, right of it math."]
    if "ceilings" in roofline:
        notes.append(ceilings_text(roofline["ceilings"]))
    if any(row.counted for row in rows):
        notes.append("Arrows: by the bytes that counters saw in device memory, from the baseline to the lesson.")
    return notes


def intensity_picture(title, roofline, counted):
    """Draws one of `aisp roofline --json`; `counted` has the recorded counters by target. Empty where no pair has a place."""
    rows = rows_of(roofline, counted)
    if not rows:
        return ""
    picture, reach = Picture(f"Arithmetic intensity, {title}", WIDTH), [value for row in rows for value in (*row.values, *row.counted)]
    scale = Scale(True, min([1, *reach]) / 1.6, max([10, *reach]) * 1.6, LEFT, WIDTH - RIGHT)
    styles = {name: f"s{at % COLOURS}" for at, name in enumerate(sorted({name for row in rows for _, name in row.dots}))}
    ridges = sorted((ridge, name) for name, ridge in roofline["ridges_flop_per_byte"].items() if name in styles and scale.low <= ridge <= scale.high)
    top = HEAD + RIDGE * len(ridges)
    plot = Plot(picture, LEFT, top, WIDTH - RIGHT, top + ROW * len(rows) + 4, scale)
    picture.text("heading", 4, 22, picture.title)
    picture.text("small", 4, 42, "FLOPs that each pair declares for a byte of memory that it must move, on a logarithmic axis")
    plot.grid([(tick, significant(tick, 1), "middle") for tick in scale.ticks(12)], below=17, above=6)
    # Each with its name on a line of its own, the leftmost on top, so that no name crosses the next ridge.
    for at, (ridge, name) in enumerate(ridges):
        y = HEAD + RIDGE * at
        plot.reference(ridge, above=top - y + 6)
        picture.circle(styles[name], scale.at(ridge) + 10, y, 4)
        picture.text("name", scale.at(ridge) + 18, y + 4, f"{name} ridge {significant(ridge)}")
    for at, row in enumerate(rows):
        draw_row(plot, row, top + ROW * (at + 0.5), styles)
    notes = notes_of(roofline, rows)
    for at, note in enumerate(notes):
        picture.text("small", 4, plot.bottom + 44 + 18 * at, note)
    return picture.alone(plot.bottom + 36 + 18 * len(notes))


def draw_row(plot, row, y, styles):
    """A dot for each intensity, and their values after the last."""
    picture, place = plot.picture, plot.x.at
    picture.text("name", LEFT - 12, y + 4, shortened(row.name, LEFT - 20), "end")
    picture.line("leader", place(row.values[0]), y, place(row.values[-1]), y)
    if row.counted:
        draw_arrow(plot, row, y + 9)
    for (intensity, name), variants in sorted(row.dots.items()):
        picture.circle(styles[name], place(intensity), y, 5.5, f"{', '.join(variants)}: {significant(intensity, 2)} FLOP/byte in {name}")
    words = list(dict.fromkeys(significant(value, 2) for value in row.values))
    picture.text("value", place(max(row.values + row.counted)) + 12, y + 4, f"{words[0]} to {words[-1]}" if len(words) > 3 else ", ".join(words))


def draw_arrow(plot, row, y):
    picture, (start, end) = plot.picture, map(plot.x.at, row.counted)
    head = end - 6 if end > start else end + 6
    before, after = (significant(value, 2) for value in row.counted)
    picture.line("arrow", start, y, end, y)
    picture.path("arrow", f"M{head:.1f} {y - 3:.1f}L{end:.1f} {y:.1f}L{head:.1f} {y + 3:.1f}")
    picture.circle("arrow", start, y, 2, f"counted: {before} FLOP/byte before, {after} after")
