# SPDX-License-Identifier: Apache-2.0
"""Which points of a recorded sweep lie on one curve: src/evidence/recorded/curves.cpp, for READMEs."""
from dataclasses import dataclass, field


@dataclass
class Curve:
    """Points that differ in one size only, in its ascending order, or in several that rise or fall together."""
    size: str = ""                               # that the axis is of
    along: list = field(default_factory=list)    # sizes that change with it, step by step
    fixed: dict = field(default_factory=dict)    # values of those that tell this curve from others of its family
    points: list = field(default_factory=list)   # places in the sweep
    geometric: bool = False                      # its values multiply rather than add up


def is_geometric(values):
    """Whether steps differ less as factors than as differences."""
    if len(values) < 3 or values[0] <= 0:
        return len(values) == 2 and values[0] > 0 and values[1] >= 4 * values[0]

    def spread(steps):
        return max(steps) / min(steps)

    pairs = list(zip(values, values[1:]))
    return spread([b / a for a, b in pairs]) < spread([b - a for a, b in pairs])


def finished(curve, points):
    curve.points.sort(key=lambda at: points[at]["sizes"][curve.size])
    curve.geometric = is_geometric([points[at]["sizes"][curve.size] for at in curve.points])
    return curve


def curves_along(size, others, points):
    """Curves of points that differ in `size` alone; `others` are the further sizes that change."""
    groups = {}
    for at, point in enumerate(points):
        group = groups.setdefault(tuple(point["sizes"][other] for other in others), {})
        group.setdefault(point["sizes"][size], at)  # a case may say what another says: once is enough for a curve
    return [finished(Curve(size, fixed=dict(zip(others, fixed)), points=list(group.values())), points)
            for fixed, group in sorted(groups.items()) if len(group) > 1]


def changes_one_way(values):
    return values in (sorted(values), sorted(values, reverse=True))


def curve_of_all(changing, points):
    """A curve over the first size that has another value at each point while every other one rises or falls with it; over one that rises in the
    order in which the points were declared, if there is one."""
    declared, found = list(range(len(points))), None
    for size in changing:
        if len({point["sizes"][size] for point in points}) < len(points):
            continue
        along = [other for other in changing if other != size]
        curve = finished(Curve(size, along, points=list(declared)), points)
        if not all(changes_one_way([points[at]["sizes"][other] for at in curve.points]) for other in along):
            return []
        if found is None or (curve.points == declared and found.points != declared):
            found = curve
    return [found] if found else []


def curves_of(points):
    """A family has as many curves as its further sizes have combinations. The axis is the size along which most points lie on curves; points
    that lie on none are left out. Without any, sizes that change together make one curve of all points."""
    if len(points) < 2:
        return []
    changing = [size for size in sorted(points[0]["sizes"]) if len({point["sizes"][size] for point in points}) > 1]
    best, most = [], (0, 0)
    for size in changing:
        curves = curves_along(size, [other for other in changing if other != size], points)
        rank = sum(len(curve.points) for curve in curves), -len(curves)  # fewer curves for as many points: each shows more
        if curves and (not best or rank > most):
            best, most = curves, rank
    # Two cases of many that happen to differ in one size are no curve of the sweep.
    is_curve = most[0] == len(points) or any(len(curve.points) > 2 for curve in best)
    return best if is_curve else curve_of_all(changing, points)
