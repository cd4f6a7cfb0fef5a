# SPDX-License-Identifier: Apache-2.0
"""The curves of a recorded sweep: one line a variant over the size that its points change, and what the machine allows."""
from dataclasses import dataclass
from typing import Callable

from bar_picture import WIDTH
from chapter_table import machine_text
from curves import Curve, curves_of
from number_text import significant
from svg import COLOURS, Picture, Plot, Scale, shortened, width_of

HEIGHT, LEAST_LEFT, RIGHT, MOST_COLUMNS, MOST_ROWS = 210, 62, 14, 9, 6


@dataclass
class Quantity:
    """That a picture shows of a variant that takes some milliseconds; 0 where it has none."""
    name: str
    unit: str
    value: Callable
    has_ceiling: bool = True
    is_time: bool = False


TIME = Quantity("median", " ms", lambda variant, ms: ms, is_time=True)
SPEEDUP = Quantity("speedup over the baseline", "x",
                   lambda variant, ms: 1 if variant["role"] == "baseline" else variant.get("speedup") or 0, has_ceiling=False)


def rate_of(sweep, amount, unit):
    """In the unit in which the fastest variant has one to three digits before the point."""
    fastest = max((variant["cost"][amount] / variant["median_ms"] * 1e3 for point in sweep["points"] for variant in point["variants"]
                   if variant["median_ms"] > 0), default=0)
    prefix, size = next((each for each in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)) if fastest >= each[1]), ("", 1))
    return Quantity(f"{prefix}{unit}/s", "", lambda variant, ms: variant["cost"][amount] / ms * 1e3 / size)


def rate_or_time(sweep):
    """The rate of the work that limits the pair; where a variant declares none, the time."""
    costs = [variant["cost"] for point in sweep["points"] for variant in point["variants"]]
    has_bytes, has_flops = all(cost["bytes"] > 0 for cost in costs), all(cost["flops"] > 0 and cost["math"] for cost in costs)
    if has_flops and not (has_bytes and sweep["bound"] in ("memory", "transfer")):
        return rate_of(sweep, "flops", "FLOP")
    return rate_of(sweep, "bytes", "B") if has_bytes else TIME


def named(point, name):
    return next((variant for variant in point["variants"] if variant["name"] == name), None)


def line_of(sweep, places, quantity, name):
    """(name with its role, [(x, value, tip)]) of the points at which the variant was timed."""
    timed = [(x, point, variant) for x, point in places if (variant := named(point, name)) and variant["median_ms"] > 0]
    points = [(x, value, f"{sweep['target']} {point['case']}, {name}: {significant(value)}{quantity.unit or ' ' + quantity.name}")
              for x, point, variant in timed if (value := quantity.value(variant, variant["median_ms"])) > 0]
    role = "lesson" if name == sweep["lesson"] else "library" if any(variant["role"] == "library" for _, _, variant in timed) else ""
    return name + (f" ({role})" if role else ""), points


def series_of(sweep, curve, quantity):
    """(name, style, points) of each variant, and of what the machine allows for the lesson, as other variants may do more work."""
    points = [sweep["points"][at] for at in curve.points]
    places = [(point["sizes"][curve.size] if curve.size else at, point) for at, point in enumerate(points)]
    names = dict.fromkeys(variant["name"] for point in sweep["points"] for variant in point["variants"])
    lines = [line for line in (line_of(sweep, places, quantity, name) for name in names) if line[1]]
    series = [(name, f"s{at % COLOURS}", line) for at, (name, line) in enumerate(lines)]
    floors = [(x, quantity.value(lesson, lesson["floor_ms"]), "") for x, point in places
              if (lesson := named(point, sweep["lesson"])) and lesson.get("floor_ms")]
    return series + ([("what the machine allows", "ceiling", floors)] if series and floors and quantity.has_ceiling else [])


def size_ticks(sizes, scale):
    """As many sizes as do not touch each other below the axis, and its ends before all others."""
    ticks, taken = [], []
    for size in [sizes[0], sizes[-1], *sizes]:
        place, half = scale.at(size), width_of(f"{size}") / 2 + 4
        if all(place + half <= low or place - half >= high for low, high in taken):
            taken.append((place - half, place + half))
            ticks.append((size, f"{size}", "end" if place + half > WIDTH else "middle"))
    return ticks


def case_ticks(cases, left):
    every = (len(cases) + MOST_COLUMNS - 1) // MOST_COLUMNS
    return [(at, shortened(cases[at], (WIDTH - left) / MOST_COLUMNS), "start" if at == 0 else "end" if at + every >= len(cases) else "middle")
            for at in range(0, len(cases), every)]


def title_of(quantity, curve):
    return ", ".join([quantity.name, *(f"{name}={value}" for name, value in curve.fixed.items())])


def scale_of_values(values, logarithmic, top):
    least, most = min(values), max(values)
    if logarithmic:
        return Scale(True, least / 1.25, most * 1.25, top + HEIGHT, top)
    return Scale(False, 0, most + ((most - least) * 0.08 if most > least else most * 0.05), top + HEIGHT, top)


def curve_picture(sweep, curve, quantity):
    """Returns the picture and its height."""
    picture, series = Picture("", WIDTH), series_of(sweep, curve, quantity)
    sizes, values = ([point[axis] for _, _, points in series for point in points] for axis in (0, 1))
    top = picture.legend(14, [(style, name) for name, style, _ in series]) + 27 if len(series) > 1 else 22
    y = scale_of_values(values, quantity.is_time and curve.geometric and max(values) > 10 * min(values), top)
    rows = [(tick, f"{tick:.6g}{quantity.unit}") for tick in y.ticks(MOST_ROWS)]
    left = max([LEAST_LEFT, *(width_of(name) + 12 for _, name in rows)])
    x = Scale(curve.geometric and min(sizes) > 0, min(sizes), max(sizes), left + 8, WIDTH - RIGHT - 8)
    points = [sweep["points"][at] for at in curve.points]
    columns = size_ticks([point["sizes"][curve.size] for point in points], x) if curve.size else case_ticks(
        [point["case"] for point in points], left)
    name = f"{curve.size} ({', '.join(curve.along)} with it)" if curve.along else curve.size or "case"
    plot = Plot(picture, left, top, WIDTH - RIGHT, top + HEIGHT, x, y)
    plot.grid(columns, rows, (name, title_of(quantity, curve)))
    for _, style, line in series:
        plot.curve(style, line, joined=bool(curve.size), dots=style != "ceiling")
    return picture, plot.bottom + 40


def sweep_picture(sweep, heading, of_speedups):
    """A picture for each curve below one heading; cases that form no curve stand side by side."""
    quantity = SPEEDUP if of_speedups else rate_or_time(sweep)
    curves = curves_of(sweep["points"]) or [Curve(points=list(range(len(sweep["points"]))))]
    curves = [curve for curve in curves if series_of(sweep, curve, quantity)]
    if not curves:
        return ""
    picture, y = Picture(f"{sweep['target']}: {title_of(quantity, curves[0])}", WIDTH), 36
    picture.text("name", 4, 20, shortened(f"{heading} on {machine_text(sweep['recorded'])}", WIDTH - 8))
    for curve in curves:
        part, height = curve_picture(sweep, curve, quantity)
        picture.moved_down(y, part.parts)
        y += height
    return picture.alone(y)
