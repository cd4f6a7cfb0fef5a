# SPDX-License-Identifier: Apache-2.0
"""What aisp.bench gives and raises."""
import collections
import pathlib


class Speedup(collections.namedtuple("Speedup", "value low high verdict")):
    """Of a variant over the baseline, with the interval within the run."""

    __slots__ = ()

    def __str__(self):
        return f"{_significant(self.value)}x [{_significant(self.low)}, {_significant(self.high)}] {self.verdict.replace('_', ' ')}"

    def __repr__(self):
        return f"Speedup({self})"


class Error(Exception):
    """Nothing was measured, and why, in one line; `status` is the exit status of the command aisp for the same."""

    def __init__(self, line, status=2):
        super().__init__(line)
        self.status = status


class Table(list):
    """Rows as dicts with equal keys, which pandas.DataFrame takes; printed, a table."""

    def __str__(self):
        rows = [list(self[0])] + [[_cell(value) for value in row.values()] for row in self] if self else []
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  ".join(cell.ljust(width) if isinstance(value, str) else cell.rjust(width)
                           for cell, width, value in zip(row, widths, self[0].values())).rstrip() for row in rows]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self):
        def row(cells, tag):
            return "<tr>" + "".join(f"<{tag}>{_escaped(cell)}</{tag}>" for cell in cells) + "</tr>"
        if not self:
            return ""
        return "<table>" + row(self[0], "th") + "".join(row(map(_cell, each.values()), "td") for each in self) + "</table>"


class Point:
    """A pair as it was measured, at one choice of its sizes."""

    def __init__(self, pair):
        self._pair = pair

    @property
    def pair(self):
        """Everything, as docs/schema/result.schema.json describes it."""
        return self._pair

    @property
    def sizes(self):
        return self.pair["sizes"]

    @property
    def variants(self):
        return {variant["name"]: variant for variant in self.pair["variants"]}

    @property
    def passed(self):
        return self.pair["status"] == "passed"

    @property
    def skipped(self):
        """Why nothing was measured here, as without a GPU; None where it was."""
        return self.pair["reason"] if self.pair["status"] == "skipped" else None

    def speedup(self, variant=None):
        """(value, low, high, verdict) of a variant, or of the lesson."""
        found = self._of(variant or self.pair["lesson"]).get("speedup")
        return Speedup(found["value"], found["low"], found["high"], found["verdict"]) if found else None

    def median_ms(self, variant):
        return self._of(variant)["timing"]["median_ms"]

    def gb_per_s(self, variant):
        """10^9 bytes a second; None where no bytes are known."""
        return self._rate(variant, "bytes", 1e9)

    def tflop_per_s(self, variant):
        """10^12 operations a second; None without cost={"flops": ...}."""
        return self._rate(variant, "flops", 1e12)

    def table(self):
        """A row for each variant."""
        return _table(self._rows())

    def _rows(self):
        for name, variant in self.variants.items():
            if not variant.get("timing"):
                continue
            speedup = self.speedup(name) or Speedup(None, None, None, "")
            yield {**self.sizes, "variant": name, "median_ms": self.median_ms(name), "gb_per_s": self.gb_per_s(name),
                   "tflop_per_s": self.tflop_per_s(name), "speedup": speedup.value, "low": speedup.low, "high": speedup.high,
                   "verdict": speedup.verdict}

    def _of(self, variant):
        variants = self.variants
        if variant not in variants:
            raise Error(f"{self.pair['target']} has no variant {variant!r}; they are {', '.join(variants)}")
        return variants[variant]

    def _rate(self, variant, amount, unit):
        found = self._of(variant)
        return found[amount] / (found["timing"]["median_ms"] * 1e-3) / unit if found[amount] > 0 and found.get("timing") else None


class Result(Point):
    """One run: of a pair, or with sizes= of a pair at each of them, its `points`. `text` is what the command shows."""

    def __init__(self, answer):
        self.text = answer["text"]
        self.status = answer["status"]
        self.folder = pathlib.Path(answer["folder"])
        self.pictures = answer["pictures"]  # of a sweep: "rate" and "speedup", each an SVG
        self.points = [Point(pair) for pair in answer["suite"]["pairs"]]

    @property
    def pair(self):
        if len(self.points) > 1:
            example = ", ".join(f"{name}={value}" for name, value in self.points[0].sizes.items())
            raise Error(f"there are {len(self.points)} points; name one, as in result.at({example}), or take result.table()")
        return self.points[0].pair

    def at(self, **sizes):
        """The point that has these sizes."""
        found = [point for point in self.points if sizes.items() <= point.sizes.items()]
        if len(found) != 1:
            known = "; ".join(", ".join(f"{name}={value}" for name, value in point.sizes.items()) for point in self.points)
            raise Error(f"{'no point has' if not found else 'several points have'} these sizes; they are {known}")
        return found[0]

    @property
    def passed(self):
        return all(point.passed for point in self.points)

    @property
    def skipped(self):
        return next((point.skipped for point in self.points if point.skipped), None)

    def table(self):
        """A row for each variant, at each point."""
        return _table(row for point in self.points for row in point._rows())

    def load(self):
        """The run as pandas frames."""
        from aisp.runs import load
        return load(self.folder)

    def __str__(self):
        return f"{self.table() or self.points[0].pair['reason']}\n{self.folder}"

    def __repr__(self):
        target = self.points[0].pair["target"]
        if len(self.points) > 1:
            return f"<aisp.Result {target} at {len(self.points)} sizes>"
        return f"<aisp.Result {target} {self.pair['status']}: {self.pair['lesson']} {self.speedup() or self.pair['reason'] or 'was not timed'}>"

    def _repr_html_(self):
        return self.table()._repr_html_() + "".join(self.pictures.values())


def _table(rows):
    """Without the columns of rates that no variant has."""
    rows = list(rows)
    empty = {name for name in ("gb_per_s", "tflop_per_s") if all(row[name] is None for row in rows)}
    return Table({name: value for name, value in row.items() if name not in empty} for row in rows)


def _significant(value):
    """Three digits, as the command shows them."""
    digits = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:.{max(0, 3 - digits)}f}" if digits else f"{value:#.3g}"


def _cell(value):
    return "" if value is None else _significant(value) if isinstance(value, float) else str(value)


def _escaped(text):
    return str(text).replace("&", "&amp;").replace("<", "&lt;")


class Failed(Error):
    """A variant was wrong, or raised. `result` is all that is known."""

    def __init__(self, result):
        failed = next(point.pair for point in result.points if point.pair["status"] != "passed")
        problems = failed["errors"]
        said = [" ".join(filter(None, [f"{problem['variant']}:" if problem["variant"] else "", problem["message"]])) for problem in problems[:3]]
        label = " ".join(filter(None, [failed["target"], failed["case"]]))
        super().__init__(f"{label} {failed['status']}: {'; '.join(said) or failed['reason']}", result.status)
        self.result = result
