# SPDX-License-Identifier: Apache-2.0
"""What aisp.bench gives and raises."""
import collections
import pathlib

Speedup = collections.namedtuple("Speedup", "value low high verdict")


class Error(Exception):
    """Nothing was measured, and why, in one line; `status` is the exit status of the command aisp for the same."""

    def __init__(self, line, status=2):
        super().__init__(line)
        self.status = status


class Result:
    """One measured pair. `str()` of it is what the command shows."""

    def __init__(self, answer):
        self.text = answer["text"]
        self.status = answer["status"]
        self.folder = pathlib.Path(answer["folder"])
        self.pair = answer["suite"]["pairs"][0]  # as docs/schema/result.schema.json describes it
        self.variants = {variant["name"]: variant for variant in self.pair["variants"]}

    def __str__(self):
        return f"{self.text}Reports: {self.folder}\n"

    __repr__ = __str__

    @property
    def passed(self):
        return self.pair["status"] == "passed"

    @property
    def skipped(self):
        """Why nothing was measured here, as without a GPU; None where it was."""
        return self.pair["reason"] if self.pair["status"] == "skipped" else None

    def speedup(self, variant=None):
        """(value, low, high, verdict) of a variant, or of the lesson."""
        found = self.variants[variant or self.pair["lesson"]].get("speedup")
        return Speedup(found["value"], found["low"], found["high"], found["verdict"]) if found else None

    def median_ms(self, variant):
        return self.variants[variant]["timing"]["median_ms"]

    def load(self):
        """The run as pandas frames."""
        from aisp.runs import load
        return load(self.folder)


class Failed(Error):
    """A variant was wrong, or raised. `result` is all that is known."""

    def __init__(self, result):
        problems = result.pair["errors"]
        said = [" ".join(filter(None, [f"{problem['variant']}:" if problem["variant"] else "", problem["message"]])) for problem in problems[:3]]
        super().__init__(f"{result.pair['target']} {result.pair['status']}: {'; '.join(said) or result.pair['reason']}", result.status)
        self.result = result
