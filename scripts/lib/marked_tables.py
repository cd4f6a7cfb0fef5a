# SPDX-License-Identifier: Apache-2.0
"""Tables of READMEs that stand between <!-- KIND: HARDWARE PAIR... -->, alone on its lines, and a line <!-- KIND: end -->."""
from curves import curves_of
from markdown import Table, paragraph
from number_text import display_ms, human_bytes, human_rate, significant, whole_percent

MOST_STALLS = 3
WORDS_FOR_STALLS = {
    "barrier": "barrier or wgmma", "branch_resolving": "branch", "dispatch_stall": "dispatcher", "drain": "last stores",
    "gmma": "wgmma's registers", "imc_miss": "constants", "lg_throttle": "queue to global memory", "long_scoreboard": "global memory",
    "math_pipe_throttle": "busy arithmetic unit", "membar": "memory fence", "mio_throttle": "queue to shared memory", "misc": "other",
    "no_instruction": "instruction fetch", "not_selected": "turn of another warp", "selected": "none, it issues",
    "short_scoreboard": "shared memory", "sleeping": "nanosleep", "tex_throttle": "queue to textures", "wait": "instruction before"}


def count_text(value):
    if value >= 1e6:
        return significant(value / 1e6) + " M"
    return significant(value / 1e3) + " k" if value >= 1e4 else significant(value)


# Counter: heading and format, as src/evidence/profile/counter_table.hpp has them.
COUNTERS = {
    "duration_us": ("duration", lambda us: display_ms(us * 1e-3)),
    "sm_throughput_percent": ("SM", whole_percent),
    "memory_throughput_percent": ("memory", whole_percent),
    "dram_read_bytes": ("DRAM read", human_bytes),
    "dram_write_bytes": ("DRAM written", human_bytes),
    "l2_hit_percent": ("L2 hits", whole_percent),
    "occupancy_percent": ("occupancy", whole_percent),
    "tensor_pipe_percent": ("tensor pipe", whole_percent),
    "bank_conflicts": ("bank conflicts", count_text),
    "sectors_per_load": ("sectors/load", significant),
    "sectors_per_store": ("sectors/store", significant),
}


def flops_text(counters):
    parts = [f"{human_rate(count, 'FLOP').removesuffix('/s')} {of}" for of, count in sorted(counters.get("flops", {}).items())]
    return ", ".join(parts + ["in graphs not counted"] * (counters.get("uncounted_instructions_percent") is not None)) or "-"


def stalls_text(counters):
    stalls = counters.get("stalls", [])[:MOST_STALLS]
    return ", ".join(f"{WORDS_FOR_STALLS.get(stall['reason'], stall['reason'])} {whole_percent(stall['percent'])}" for stall in stalls) or "-"


def counters_cells(counters):
    values = [(counters.get(name), text) for name, (_, text) in COUNTERS.items()]
    return ["-" if value is None else text(value) for value, text in values] + [flops_text(counters), stalls_text(counters)]


def table_text(rows):
    table = Table(rows[0])
    for row in rows[1:]:
        table.add(row)
    return table.text


def without_empty_columns(rows):
    """A column of dashes says nothing; the first one stays."""
    kept = [at for at in range(len(rows[0])) if at == 0 or any(row[at] != "-" for row in rows[1:])]
    return [[row[at] for at in kept] for row in rows]


def when(recorded):
    return f"{recorded['date_utc'][:10]} at {recorded['commit'][:9]}"


def target_of(name, targets):
    found = next((target for target in targets if target.name == name), None)
    if not found:
        raise ValueError(f"{targets[0].chapter if targets else 'the chapter'} has no pair {name}")
    return found


def counted_table(hardware, words, targets, counted):
    """A row for the baseline, the lesson and the variants named after a slash, of each pair."""
    rows, stale, missing, times = [], [], [], {}
    for word in words:
        name, *further = word.split("/")
        target = target_of(name, targets)
        found = counted.get((hardware, target.target))
        if not found:
            missing.append(name)
            continue
        for variant in found["variants"]:
            if variant["role"] == "baseline" or variant["name"] in (found["lesson"], *further):
                rows.append([f"{name}: {variant['name']}"] + counters_cells(variant["counters"]))
        if target.is_stale(found["source_digest"]):
            stale.append(name)
        times[when(found["recorded"])] = None
    parts = []
    if rows:
        heads = ["pair: variant"] + [heading for heading, _ in COUNTERS.values()] + ["FLOPs", "warps wait for"]
        parts = [table_text(without_empty_columns([heads] + rows)),
                 paragraph(f"Counted on {hardware} on {', '.join(times)}. Of each pair the baseline comes first.")]
    parts += [paragraph(f"{says}: {', '.join(names)}.") for says, names in (
        ("Stale, since the code changed after the counting", stale), (f"Not counted on {hardware} yet", missing)) if names]
    return "\n".join(parts)


def swept_rows(sweep):
    """A row for each point, curve after curve: its sizes, or its name where the points form no curve, the time of each variant, the lesson's
    speedup and its share of what the machine allows."""
    points, curves = sweep["points"], curves_of(sweep["points"])
    sizes = [*curves[0].fixed, curves[0].size, *curves[0].along] if curves else []
    order = [at for curve in curves for at in curve.points]
    order += [at for at in range(len(points)) if at not in order]
    names = list(dict.fromkeys(variant["name"] for point in points for variant in point["variants"]))
    rows = [(sizes or ["case"]) + names + ["speedup", "of ceiling"]]
    for point in (points[at] for at in order):
        variants = {variant["name"]: variant for variant in point["variants"]}
        times = [variants[name]["median_ms"] if name in variants else 0 for name in names]
        lesson = variants.get(sweep["lesson"], {})
        speedup, floor, median = (lesson.get(key) for key in ("speedup", "floor_ms", "median_ms"))
        rows.append([str(point["sizes"].get(size, "-")) for size in sizes] + ([] if sizes else [point["case"]])
                    + [display_ms(time) if time > 0 else "-" for time in times]
                    + [significant(speedup) + "x" if speedup else "-", whole_percent(100 * floor / median) if floor and median else "-"])
    return rows if any(row[-1] != "-" for row in rows[1:]) else [row[:-1] for row in rows]


def swept_table(hardware, words, targets, sweeps):
    """For each pair a table of its recorded sweep."""
    parts = []
    for name in words:
        target = target_of(name, targets)
        sweep = sweeps.get((hardware, target.target))
        if not sweep:
            parts.append(paragraph(f"The sweep of {name} was not recorded on {hardware} yet."))
            continue
        stale = "; stale: the code changed since" if target.is_stale(sweep["source_digest"]) else ""
        parts.append(table_text(swept_rows(sweep)) + "\n" + paragraph(f"{name} on {hardware}, {when(sweep['recorded'])}{stale}."))
    return "\n".join(parts)


def lines_of_comment(lines):
    """How many lines a comment has that begins with the first of `lines`; 0 where text follows it, or where it has no end."""
    for at, line in enumerate(lines):
        if at and line.startswith("<!--"):
            return 0
        if "-->" in line:
            return at + 1 if line.index("-->") + 3 == len(line) else 0
    return 0


def with_marked_tables(page, kind, make):
    """The page with what lies between such lines written anew: make(hardware, words after it)."""
    begin, end = f"<!-- {kind}:", f"<!-- {kind}: end -->"
    lines, written, at, inside = page.split("\n"), [], 0, False
    while at < len(lines):
        mark = lines_of_comment(lines[at:]) if lines[at].startswith(begin) and lines[at] != end else 0
        if lines[at] == end and not inside:
            raise ValueError(f"line {at + 1}: a table ends here that has not begun")
        if mark and inside:
            raise ValueError(f"line {at + 1}: a table begins here before {end} of the one above")
        inside = inside and lines[at] != end
        if not inside:
            written += lines[at:at + max(mark, 1)]
        if mark:
            inside = True
            words = " ".join(lines[at:at + mark])[len(begin):-len("-->")].split()
            if len(words) < 2:
                raise ValueError(f"line {at + 1}: it names no pair: {begin} HARDWARE PAIR... -->")
            try:
                written += ["", make(words[0], words[1:])]
            except ValueError as error:
                raise ValueError(f"line {at + 1}: {error}") from error
        at += max(mark, 1)
    if inside:
        raise ValueError(f"a table has no line {end}")
    return "\n".join(written)
