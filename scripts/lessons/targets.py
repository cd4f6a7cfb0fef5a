# SPDX-License-Identifier: Apache-2.0
"""The pairs of an executable, as `aisp list-targets --json` has them."""
import json
import subprocess
from dataclasses import dataclass, field


@dataclass
class Target:
    chapter: str
    name: str
    lesson: str
    baseline: str = ""
    steps: list = field(default_factory=list)              # names of the optimized variants, in their order
    gains_over: dict = field(default_factory=dict)         # of a step: the variant that its gain is told over
    libraries: list = field(default_factory=list)
    changes_precision: set = field(default_factory=set)    # variants that do
    source_digests: list = field(default_factory=list)     # of its code, for each architecture that it was built for

    @property
    def target(self):
        return f"{self.chapter}:{self.name}"

    def is_stale(self, source_digest):
        """Whether what was recorded with this digest is of code that is not the executable's any more."""
        return source_digest not in self.source_digests

    def libraries_beside(self, step):
        """Those that a step may be held against: as precise as it is, or more."""
        return [name for name in self.libraries if name not in self.changes_precision or step in self.changes_precision]


def read_targets(aisp):
    """(pairs of the executable, those that it was built without: the command that builds each by (chapter, name))."""
    ended = subprocess.run([aisp, "list-targets", "--json"], capture_output=True, text=True)
    if ended.returncode:
        raise ValueError(f"{aisp} list-targets --json ended with status {ended.returncode}: {ended.stderr.strip()}")
    listed = json.loads(ended.stdout)
    if any(one["built"] and "source_digests" not in one for one in listed):
        raise ValueError(f"{aisp} is older than this script: it lists no source_digests; build it again")
    built = [Target(one["chapter"], one["name"], one["lesson"], one["baseline"], one["optimized"], one["gains_over"], one["libraries"],
                    set(one["changes_precision"]), one["source_digests"]) for one in listed if one["built"]]
    return built, {(one["chapter"], one["name"]): one["build_with"] for one in listed if not one["built"]}
