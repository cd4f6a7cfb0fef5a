#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the tests of a JUnit report of ctest, and says what those that failed said last.

Usage: count-tests.py REPORT.xml     prints "PASSED FAILED SKIPPED" on stdout and the failures on stderr.
"""
import sys
import xml.etree.ElementTree as tree

SHOWN_LINES = 30


def failed(case):
    return case.get("status") == "fail" or case.find("failure") is not None


def skipped(case):
    return case.get("status") in ("notrun", "disabled") or case.find("skipped") is not None


def main(report):
    try:
        cases = list(tree.parse(report).getroot().iter("testcase"))
    except (OSError, tree.ParseError) as reason:
        sys.exit(f"count-tests.py: {report}: {reason}")
    failures = [case for case in cases if failed(case)]
    for case in failures:
        said = (case.findtext("system-out") or "").rstrip().splitlines()
        print(f"--- {case.get('name')} failed; the end of what it said:", *said[-SHOWN_LINES:], sep="\n", file=sys.stderr)
    of_skipped = sum(skipped(case) and not failed(case) for case in cases)
    print(len(cases) - len(failures) - of_skipped, len(failures), of_skipped)


if __name__ == "__main__":
    main(sys.argv[1])
