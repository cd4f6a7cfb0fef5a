# SPDX-License-Identifier: Apache-2.0
"""The pictures that the chapters' READMEs link to, drawn from recorded expectations. A comment right after the link to a picture says what it
shows: docs/report-formats.md has the kinds."""
import json
import re
import subprocess

from bar_picture import Bar, bars_picture
from chapter_table import fastest_library, gain_text, machine_text
from intensity_picture import intensity_picture
from number_text import display_ms, significant, whole_percent
from quoted_figures import with_quoted_figures
from sweep_picture import sweep_picture

KINDS = ("speedups", "library", "roofline", "intensity", "sweep", "sweep_speedups")
OTHER_HANDS = ("drawn by hand: ", "drawn by scripts/draw-diagrams: ", "drawn by aisp peak --levels: ")
LINK = re.compile(r"\]\(([^()\s/:]+\.svg)\)(?:<!-- picture:\s+([^>]*?)\s+-->)?")
MOST_ON_LINEAR_SCALE = 12  # bars of a ladder that climbs further cannot be told apart on one
MOST_OF_LIBRARY = 200      # percent: what is many times as fast needs no scale, and those near the library do


class Mark:
    """A picture that a README links to; `kind` is empty where it is not drawn from records."""

    def __init__(self, file, what):
        self.file, self.kind, self.hardware, self.pairs = file, "", "", []
        if what is None:
            raise ValueError(f"{file}: no comment after it says what it shows, as in <!-- picture: speedups h200 -->")
        what = " ".join(what.split())
        if what.startswith(OTHER_HANDS):
            return
        self.kind, self.hardware, *self.pairs = [*what.split(" "), ""] if " " not in what else what.split(" ")
        if self.kind not in KINDS or not self.hardware:
            raise ValueError(f"{file}: '{what}' is no kind of picture and hardware; {', '.join(KINDS)}, or drawn by hand: and why")


def picture_marks(page):
    return [Mark(*match.groups()) for match in LINK.finditer(page)]


def roofline(pages, chapter, hardware, *form):
    """Returns what `aisp roofline` says of a chapter."""
    command = [pages.aisp, "roofline", "--expectations-dir", pages.expectations, "--chapter", chapter, "--hardware", hardware, *form]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise ValueError(ended.stderr.strip())
    return ended.stdout


def title_of(mark, chapter):
    number = re.fullmatch(r"ch(\d\d)", chapter)
    return f"{f'Chapter {int(number[1])}' if number else chapter} on {mark.hardware}"


def shown_pairs(mark, chapter, pages):
    """The (target, record) that a picture shows: those that its mark names, or all of the chapter in the order of the executable."""
    targets = {target.name: target for target in pages.targets if target.chapter == chapter}
    records = {record.name: record for name in targets for record in pages.records.get(f"{chapter}:{name}", [])
               if record.hardware == mark.hardware}
    shown = [(name, targets.get(name), records.get(name)) for name in mark.pairs or targets]
    missing = [name for name, target, record in shown if not (target and record)]
    if mark.pairs and missing:
        raise ValueError(f"{chapter}:{missing[0]} is not recorded on {mark.hardware}")
    if len(missing) == len(shown):
        raise ValueError(f"nothing of {chapter} is recorded on {mark.hardware}")
    return [(target, record) for _, target, record in shown if record]


def staleness(target, source_digest):
    return " (stale: its code changed since)" if target.is_stale(source_digest) else ""


def heading_of(target, record):
    return target.name + staleness(target, record.source_digest)


def style_of(target, variant, role):
    return {"control": "unclear", "library": "library"}.get(role, "best" if variant == target.lesson else "optimized")


def speedup_bar(target, record, name):
    """With the ends of the range that further runs fall into, or of the one that was seen."""
    variant, over = record.variants[name], target.gains_over.get(name, record.baseline)
    low, high = variant.shown_range() if variant.is_steady() else (min(variant.speedups), max(variant.speedups))
    text = f"{significant(variant.speedup)}x" if variant.is_steady() else f"{significant(low)} to {significant(high)}x"
    gain = "" if over == record.baseline else gain_text(record, name, over)
    return Bar(name, variant.speedup, text + (f" ({gain} over {over})" if gain else ""), style_of(target, name, variant.role), low, high)


def speedup_bars(target, record):
    """The baseline, the steps in their order, then controls and libraries."""
    judged = f"1x of {record.judged_by}" if record.judged_by != "time" else f"1x, {display_ms(record.variants[record.baseline].median_ms)}"
    names = [name for name in target.steps if name in record.variants] + record.named("control") + record.named("library")
    return [Bar(record.baseline, 1, judged, "baseline"), *(speedup_bar(target, record, name) for name in names)]


def speedups_picture(title, shown):
    groups = [(heading_of(*each), speedup_bars(*each)) for each in shown]
    notes = ["Speedup over the baseline, with the spread of runs; dark: the lesson, violet: a library, grey: a control",
             machine_text(shown[0][1].machine)]
    greatest = max(bar.value for _, bars in groups for bar in bars)
    return bars_picture(title, notes, groups, "x", reference=1, room=300, logarithmic=greatest > MOST_ON_LINEAR_SCALE)


def share_bar(target, record, name, library):
    percent = 100 * record.gain(name, library)
    return Bar(name, percent, whole_percent(percent), "baseline" if name == record.baseline else style_of(target, name, ""))


def library_picture(title, shown):
    groups = []
    for target, record in shown:
        if library := fastest_library(target, record, target.lesson):
            names = [record.baseline, *(name for name in target.steps if name in record.variants)]
            groups.append((f"{heading_of(target, record)} (100 %: {library})", [share_bar(target, record, name, library) for name in names]))
    notes = ["Speed in percent of the library, timed in the same rounds; orange: the baseline, dark: the lesson",
             machine_text(shown[0][1].machine)]
    return groups and bars_picture(title, notes, groups, " %", reference=100, room=150, most=MOST_OF_LIBRARY)


def swept(mark, chapter, pages):
    """Returns the sweep, and its target as a heading names it."""
    if len(mark.pairs) != 1:
        raise ValueError("a picture of a sweep is of one pair; name it after the hardware")
    target = f"{chapter}:{mark.pairs[0]}"
    known = next((each for each in pages.targets if each.target == target), None)
    if not known or (mark.hardware, target) not in pages.sweeps:
        raise ValueError(f"no sweep of {target} is recorded on {mark.hardware}; aisp run --targets {target} --sweep "
                         "--update-expectations records one")
    sweep = pages.sweeps[mark.hardware, target]
    return sweep, target + staleness(known, sweep["source_digest"])


def of_whole_chapter(mark, chapter, pages, *form):
    if mark.pairs:
        raise ValueError("a picture of this kind shows its whole chapter; name no pair after the hardware")
    shown_pairs(mark, chapter, pages)
    return roofline(pages, chapter, mark.hardware, *form)


def drawn(mark, chapter, pages):
    """The picture as SVG; raises ValueError where its mark asks for what is not recorded."""
    title = title_of(mark, chapter)
    if mark.kind == "roofline":
        picture = of_whole_chapter(mark, chapter, pages, "--svg", "-")
    elif mark.kind == "intensity":
        counted = {target: counters for (hardware, target), counters in pages.counted.items() if hardware == mark.hardware}
        picture = intensity_picture(title, json.loads(of_whole_chapter(mark, chapter, pages, "--json"))["rooflines"][0], counted)
    elif mark.kind.startswith("sweep"):
        picture = sweep_picture(*swept(mark, chapter, pages), of_speedups=mark.kind == "sweep_speedups")
    else:
        picture = {"speedups": speedups_picture, "library": library_picture}[mark.kind](title, shown_pairs(mark, chapter, pages))
    if not picture:
        raise ValueError(f"nothing of this kind is recorded on {mark.hardware}")
    return picture


def chapter_picture(mark, chapter, pages, before):
    """The picture as it should be; `before` is what its file holds. In one that is not drawn from records figures are filled as in prose."""
    if mark.kind:
        return drawn(mark, chapter, pages)
    if not before:
        raise ValueError("it is not drawn from records, and not there")
    return with_quoted_figures(before, pages.records)
