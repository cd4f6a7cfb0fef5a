#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Says how far a build by ninja has come and how long it will take: one line that changes on a terminal, else a line a minute.

Usage: progress.py FOLDER LOG JOBS [TARGET...]     LOG: what ninja writes; goes on until stdin ends.

The time left is measured: what the files that were never compiled in FOLDER will take at the mean of those that were, C++ and CUDA apart,
because a file of the latter takes several times as long. It is said from the first minute on, once a file of each kind was compiled."""
import re
import select
import subprocess
import sys
import time
from pathlib import Path

SOONEST_S = 60
STEP = re.compile(r"^\[(\d+)/(\d+)\] ", re.M)
OBJECT = re.compile(r" -o (\S+\.(cu|cpp)\.o)\b")


def objects_of(folder, targets):
    """Returns the objects that the build compiles, with the kind of each."""
    said = subprocess.run(["ninja", "-C", folder, "-t", "commands", *targets], capture_output=True, text=True, check=False).stdout
    return dict(OBJECT.findall(said))


def seconds_taken(folder):
    """By output, as ninja keeps them."""
    log = Path(folder) / ".ninja_log"
    rows = (line.split("\t") for line in (log.read_text(errors="replace") if log.exists() else "").splitlines())
    return {row[3]: (int(row[1]) - int(row[0])) / 1e3 for row in rows if len(row) == 5}


def seconds_left(objects, taken, jobs):
    """None as long as it cannot be told."""
    left = 0.0
    for kind in sorted(set(objects.values())):
        of_kind = [output for output, its in objects.items() if its == kind]
        known = [taken[output] for output in of_kind if output in taken]
        if len(known) < len(of_kind) and not known:
            return None
        left += (len(of_kind) - len(known)) * sum(known) / max(len(known), 1)
    return left / jobs


def text_of(done, steps, left):
    text = f"{done} of {steps} steps"
    if left is None:
        return text
    return text + (f", about {left / 60:.0f} min left" if left >= 90 else ", less than 2 min left")


def main(folder, log, jobs, *targets):
    live = sys.stdout.isatty()
    begin = time.monotonic()
    objects = None
    while not select.select([sys.stdin], [], [], 1 if live else SOONEST_S)[0]:
        said = STEP.findall(Path(log).read_text(errors="replace")) if Path(log).exists() else []
        if not said:
            continue
        left = None
        if time.monotonic() - begin >= SOONEST_S:
            objects = objects or objects_of(folder, targets)
            left = seconds_left(objects, seconds_taken(folder), int(jobs))
        text = "  " + text_of(*map(int, said[-1]), left)
        print("\r" + text + "\033[K" if live else text, end="" if live else "\n", flush=True)
    if live:
        print("\r\033[K", end="", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
