# SPDX-License-Identifier: Apache-2.0
"""Every check that the program names in a result is one that docs/method.md, and so `aisp explain`, explains, and the other way round."""
import re
import sys
import unittest

from tree import SOURCE, TemporaryTree

sys.dont_write_bytecode = True
sys.path.insert(0, str(SOURCE / "cmake"))
from manual import terms  # noqa: E402

# Calls that make a problem, up to its check: the stage or the variant come first.
MAKERS = (r"\badd_problem\(\s*result,\s*[^,]+,\s*", r"(?<!add_)\bproblem\(\s*[^,]+,\s*", r"\b(?:fail_variant|complain)\(\s*[^,]+,\s*",
          r"\bguarded\(\s*[^,\"]+,\s*", r"\bproblems\.push_back\(\s*\{\s*[\w:]+,\s*[^,]+,\s*")
NAMED = re.compile(rf"(?:{'|'.join(MAKERS)})\"(\w+)\"")
# In src/verify the variant and the stage are known.
FAILED = re.compile(r"\bfail\(\s*\"(\w+)\",")


def checks_made(root):
    found = set()
    for path in sorted((root / "src").rglob("*.?pp")):
        text = path.read_text()
        found.update(NAMED.findall(text))
        if path.relative_to(root / "src").parts[0] == "verify":
            found.update(FAILED.findall(text))
    return found


class Checks(unittest.TestCase):
    def test_all_can_be_explained(self):
        made = checks_made(SOURCE)
        self.assertGreater(len(made), 35)
        explained = {name for kind, name, _ in terms((SOURCE / "docs/method.md").read_text()) if kind == "check"}
        self.assertEqual(made, explained, "docs/method.md")


class Checker(TemporaryTree):
    def test_names(self):
        self.write("src/verify/check.cpp", 'fail("written", text);\n  fail("out of memory", {});\n  guarded(outcome_, "run", [&] {});\n')
        self.write("src/run/child.cpp", 'record.problem({}, "cuda", what);\nrecord.problem(std::string{name}, "cost",\n x);\n'
                   'record.fail_variant(\n      *timed.result, "late", "text");\nproblem(variant.name, check, message);\nguarded("ncu", body);\n')
        self.write("src/run/parent.cpp", 'add_problem(result, last_stage(ending), "killed", x);\nadd_problem(result, Stage::exit, "left", x);\n'
                   'result.problems.push_back({evidence::Stage::selection, "", "needs", x});\npair.problems.push_back(\n  {Stage::counters, {}, "deep", x});\n'
                   'fail("elsewhere", x);\n')
        self.assertEqual(checks_made(self.root),
                         {"written", "run", "cuda", "cost", "late", "killed", "left", "needs", "deep"})


if __name__ == "__main__":
    unittest.main()
