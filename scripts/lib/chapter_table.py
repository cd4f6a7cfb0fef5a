# SPDX-License-Identifier: Apache-2.0
"""The measured tables of a chapter's README, from recorded expectations."""
import math

from markdown import Table, list_item, markdown_text, paragraph
from number_text import display_ms, metric_number, metric_text, plural, significant, whole_percent
from records import FEWEST_RUNS_FOR_AN_INTERVAL, is_near

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
MOST_METRICS = 3
NO_SLOWER = 0.9995  # a library's speedup over the baseline that reads as 1.00x
OTHER_WORK = 1.25   # times the bytes or FLOPs that a variant declares: a library that declares as many runs another algorithm

COLUMNS = ["pair", "GPU", "baseline", "lesson", "its time", "speedup of the recorded runs", "best variant", "of its lower bound",
           "of the library"]
RIGHT_ALIGNED = ["baseline", "its time", "speedup of the recorded runs", "of its lower bound"]
WHAT_COLUMNS_SAY = (
    "Times and speedups are medians over the recorded runs. Of fewer than five runs, the range that was seen stands in round "
    "brackets. Of five or more, square brackets hold the interval in which 95 % of further runs are expected, 99 % where the "
    "host decides the times; it is wider than the interval within one run, which reports of a run show. Where its ends, or "
    "those of the range, are a factor of 1.5 or more apart, the times stand in place of the ratio. The best variant is named "
    "where it is another than the lesson's; its shares then follow those of the lesson. The lower bound is the least time that "
    "the machine's ceilings allow, the library the fastest one that is as precise, where that is no slower than the baseline.")
ANOTHER_ALGORITHM = "(*another algorithm*)"
WHAT_ANOTHER_ALGORITHM_IS = (
    f" *Another algorithm* marks a library that declares {OTHER_WORK} times the bytes or FLOPs of the variant beside it, or more: "
    "it does other work, and is no bar.")
HOW_TO_MEASURE_AGAIN = ("Stale: the code changed after the measurement; `aisp run --targets {} --update-expectations` measures it "
                        "again.")
WHAT_STEPS_SAY = (
    "Steps are the optimized variants in their order, each with its speedup over the baseline (its time where that ratio is not "
    "steady) and, in brackets, over the step before it or the one named.")
WHAT_METRICS_SAY = (
    "Metrics go from the baseline to the best variant, which is named where it is not the lesson's; where more than three "
    "differ, those stand here that differ most.")


def times_text(medians_ms, median_ms):
    """"416 to 443 us"; one time where both ends read the same."""
    if len(medians_ms) < 2:
        return display_ms(median_ms)
    low, high = display_ms(min(medians_ms)), display_ms(max(medians_ms))
    if low == high:
        return high
    number, unit = low.split(" ")
    return f"{number if high.endswith(' ' + unit) else low} to {high}"


def metric_of(variant, name):
    return metric_text(variant.metrics[name]) if name in variant.metrics else "-"


def speedup_text(record, variant):
    """"3.04x [3.02, 3.06], 6 runs", "3.04x (3.02 to 3.06, 3 runs)", or what was measured of both if their ratio is not steady. Of the judged
    metric if the pair is not judged by time."""
    baseline, runs = record.variants[record.baseline], len(variant.speedups)
    is_time, shown = record.judged_by == "time", plural(runs, "run")
    if not variant.is_steady():
        if is_time:
            before, after = (times_text(one.medians_ms, one.median_ms) for one in (baseline, variant))
            return f"no ratio: {before} against {after}, {shown}"
        return f"no ratio: {metric_of(baseline, record.judged_by)} against {metric_of(variant, record.judged_by)} of {record.judged_by}, {shown}"
    ratio, metric = significant(variant.speedup) + "x", "" if is_time else f" of {record.judged_by}"
    low, high = map(significant, variant.shown_range())
    if runs >= FEWEST_RUNS_FOR_AN_INTERVAL:
        return f"{ratio} [{low}, {high}]{metric}, {shown}"
    return f"{ratio}{metric} ({low} to {high}, {shown})" if runs > 1 else f"{ratio}{metric} ({shown})"


def short_speedup(record, name):
    """"3.04x", or the median time (or judged metric) of a variant without a steady ratio."""
    variant = record.variants[name]
    if variant.is_steady():
        return significant(variant.speedup) + "x"
    return display_ms(variant.median_ms) if record.judged_by == "time" else metric_of(variant, record.judged_by)


def gain_text(record, step, over):
    """"1.36x" over another variant; empty where one of both was not recorded or the ratio is not steady within the runs."""
    gain = record.gain(step, over)
    if gain is None:
        return ""
    own, others = record.variants[step].speedups, record.variants[over].speedups
    gains = [gain] + ([a / b for a, b in zip(own, others)] if len(own) == len(others) else [])
    return significant(gain) + "x" if is_near(min(gains), max(gains)) else ""


def fastest_library(target, record, step):
    """The fastest one that the step may be held against; empty where none was recorded, or where all are slower than the baseline: what beats
    such a library says nothing."""
    beside = [name for name in target.libraries_beside(step) if name in record.variants] if step in target.steps else []
    fastest = max(beside, key=lambda name: record.variants[name].speedup, default="")
    return fastest if fastest and record.variants[fastest].speedup > NO_SLOWER else ""


def other_best(target, record):
    """The best variant if it is not the lesson's; else empty."""
    best = record.best()
    return "" if best == target.lesson else best


def with_best(lesson, best):
    """"61 %, best 89 %"; `best` is empty where the lesson's is all there is to say."""
    return ", ".join(filter(None, [lesson, best and f"best {best}"]))


def lower_bound_cell(target, record):
    def share(name):
        percent = record.variants[name].percent_of_floor if name in record.variants else None
        return "" if percent is None else whole_percent(percent)
    return with_best(share(target.lesson), share(other_best(target, record)))


def runs_another_algorithm(record, library, step):
    """As evidence::why_no_yardstick has it: by the declared cost."""
    own, others = record.variants[step].cost, record.variants[library].cost
    return any(others.get(amount, 0) >= OTHER_WORK * own[amount] > 0 for amount in ("bytes", "flops") if amount in own)


def library_cell(target, record):
    """"61 % of cublas", "82 %, best 99 % of cublaslt_tuned": each beside the fastest library that it may be held against."""
    names = [name if name in record.variants else "" for name in (target.lesson, other_best(target, record))]
    beside = [fastest_library(target, record, name) for name in names]
    shares = []
    for name, library, is_named in zip(names, beside, (beside[0] != beside[1], True)):
        words = [whole_percent(100 * record.gain(name, library)), f"of {library}" if is_named else "",
                 ANOTHER_ALGORITHM if runs_another_algorithm(record, library, name) else ""] if library else []
        shares.append(" ".join(filter(None, words)))
    return with_best(*shares)


def steps_cell(target, record):
    """"device_scalars 2.80x, captured_graph 5.25x (1.36x)": what a step brings over the one before it follows it, with that one's name where it
    is another."""
    if len(target.steps) < 2:
        return ""
    texts, before = [], record.baseline
    for step in target.steps:
        if step not in record.variants:
            continue
        over = target.gains_over[step]
        gain = "" if over == record.baseline else gain_text(record, step, over)
        named = "" if over == before else f" over {over}"
        texts.append(f"{step} {short_speedup(record, step)}" + (f" ({gain}{named})" if gain else ""))
        before = step
    return ", ".join(texts)


def variants_cell(role):
    return lambda _, record: ", ".join(f"{name} {short_speedup(record, name)}" for name in record.named(role))


def change_of(before, after, name):
    """A metric's change as a logarithm; 0 if one of both has none, which says nothing of a difference."""
    if name not in before or name not in after:
        return 0
    start, end = before[name].value, after[name].value
    ratio = end / start if start else math.inf
    return abs(math.log(ratio)) if 0 < ratio < math.inf else math.inf


def metrics_cell(_, record):
    """"tokens_per_second 1.20M to 3.40M tokens/s": from the baseline to the best variant, which is named where the lesson is another. What is the
    same of both is left out: a pair may report its registers and shared memory, few of which its lesson is about."""
    best = record.best()
    if not best:
        return ""
    before, after = record.variants[record.baseline].metrics, record.variants[best].metrics
    differing = []
    for name in sorted({*before, *after}):
        start, end = (metric_number(of[name]) if name in of else "-" for of in (before, after))
        unit = (after.get(name) or before[name]).unit
        if start != end:
            differing.append((change_of(before, after, name), f"{name} {start} to {end} {unit}".rstrip()))
    differing.sort(key=lambda one: -one[0])  # what differs most first
    more = f" and {len(differing) - MOST_METRICS} more" if len(differing) > MOST_METRICS else ""
    text = ", ".join(text for _, text in differing[:MOST_METRICS]) + more
    return text if not text or best == record.lesson else f"{best}: {text}"


DETAILS = {"steps": steps_cell, "controls": variants_cell("control"), "libraries": variants_cell("library"), "metrics": metrics_cell}


def hardware_names(records):
    """For a reader; kinds that would have one name keep their keys."""
    cards = {}
    for record in records:
        cards.setdefault(record.hardware, record.card)
    names = list(cards.values())
    return {hardware: card if names.count(card) == 1 else hardware for hardware, card in cards.items()}


class PairRows:
    """A table in which a pair's name stands in the first of its rows."""

    def __init__(self, columns, right_aligned=()):
        self.table, self.last = Table(columns, right_aligned), ""

    def add(self, pair, cells):
        self.table.add(["" if pair == self.last else pair] + cells)
        self.last = pair


def results_table(rows, names):
    table = PairRows(COLUMNS, RIGHT_ALIGNED)
    for target, record in rows:
        if record is None:
            table.add(target.name, ["not measured yet"])
            continue
        stale = " (**stale**)" if target.is_stale(record.source_digest) else ""
        lesson, best = record.variants.get(target.lesson), other_best(target, record)
        cells = [target.lesson, display_ms(lesson.median_ms), speedup_text(record, lesson)] if lesson else ["-"] * 3
        table.add(target.name, [names[record.hardware] + stale, display_ms(record.variants[record.baseline].median_ms), *cells,
                                best and f"{best} {short_speedup(record, best)}", lower_bound_cell(target, record),
                                library_cell(target, record)])
    return table.table.text


def details_table(rows, names):
    """Without rows and columns that say nothing; nothing where none says anything."""
    cells = [(target, record, {name: text(target, record) for name, text in DETAILS.items()}) for target, record in rows if record]
    shown = [name for name in DETAILS if any(of[name] for _, _, of in cells)]
    if not shown:
        return ""
    table = PairRows(["pair", "GPU"] + shown)
    for target, record, of in cells:
        if any(of.values()):
            table.add(target.name, [names[record.hardware]] + [of[name] for name in shown])
    words = " ".join(says for name, says in (("steps", WHAT_STEPS_SAY), ("metrics", WHAT_METRICS_SAY)) if name in shown)
    return (f"\n### Steps, controls and libraries\n\n<details>\n<summary>A table of {', '.join(shown)}</summary>\n\n{table.table.text}\n"
            f"</details>\n" + (f"\n{paragraph(words)}" if words else ""))


def host_text(machine):
    cpus, nodes, hypervisor = machine.get("cpus_usable", 0), max(0, machine.get("numa_nodes", 0)), machine.get("hypervisor", "")
    if cpus <= 0:
        return machine["cpu"]
    return f"{machine['cpu']}, {plural(cpus, 'usable CPU')}, {plural(nodes, 'NUMA node')}" + (f", hypervisor {hypervisor}" if hypervisor else "")


def machine_text(machine):
    """"NVIDIA H200, driver 580.159, CUDA 13.0, power limit 700 W"; the CPU of a host pair."""
    if not machine.get("gpu"):
        return host_text(machine)
    limit = machine.get("power_limit_w", 0)
    return f"{machine['gpu']}, driver {machine['driver']}, CUDA {machine['cuda']}" + (f", power limit {significant(limit)} W" if limit > 0 else "")


def when(run):
    """Date and commit. The code of a commit with changes cannot be found again."""
    return f"{run['date_utc'][:10]} at {run['commit'][:9]}" + (" with changes" if run["commit"].endswith("+changes") else "")


def times_of(recorded):
    """"2026-01-02 at 012345678 (transpose), 2026-01-03 at 123456789 (the others)" of [(target, record)]."""
    pairs = {}
    for target, record in recorded:
        pairs.setdefault(when(record.latest), []).append(target.name)
    pairs = dict(sorted(pairs.items()))
    most = max(pairs, key=lambda time: len(pairs[time]))
    if len(pairs) == 1:
        return most
    others = "the others" if len(pairs[most]) > 1 else pairs[most][0]
    return ", ".join([f"{time} ({', '.join(names)})" for time, names in pairs.items() if time != most] + [f"{most} ({others})"])


def recordings(rows, names):
    """A list: each kind of hardware, and when its rows were recorded."""
    text = ""
    for hardware in sorted(names):
        of_it = [(target, record) for target, record in rows if record and record.hardware == hardware]
        machines = "; ".join(dict.fromkeys(machine_text(record.machine) for _, record in of_it))
        text += list_item(markdown_text(f"{names[hardware]}: {machines}; recorded {times_of(of_it)}"))
    return text


def chapter_table(chapter, targets, records):
    """A row for each pair and kind of hardware that it was recorded on, "not measured yet" for the others; what the hardware was and when; then
    a table of steps, controls, libraries and metrics. `records`: by target, perhaps also of other chapters."""
    if not targets:
        return "This chapter has no pairs yet.\n"
    rows = [(target, record) for target in targets for record in records.get(target.target, [None])]
    names = hardware_names([record for _, record in rows if record])
    text = results_table(rows, names)
    if not names:
        return text
    legend = WHAT_COLUMNS_SAY + (WHAT_ANOTHER_ALGORITHM_IS if ANOTHER_ALGORITHM in text else "")
    text += f"\n{paragraph(legend)}\n{recordings(rows, names)}"
    if any(record and target.is_stale(record.source_digest) for target, record in rows):
        text += "\n" + paragraph(HOW_TO_MEASURE_AGAIN.format(chapter))
    return text + details_table(rows, names)


def with_table(page, table):
    """The page with `table` between its two marks, each on a line of its own."""
    lines = page.split("\n")
    places = [[at for at, line in enumerate(lines) if line.strip() == mark] for mark in (BEGIN, END)]
    if [len(of) for of in places] != [1, 1] or places[1] < places[0]:
        raise ValueError(f"the table's place is not marked; put the lines {BEGIN} and {END} where it belongs, once and in this order")
    (begin,), (end,) = places
    return "\n".join(lines[:begin + 1] + ["", table, *lines[end:]])
