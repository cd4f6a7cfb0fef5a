# SPDX-License-Identifier: Apache-2.0
"""Comments read alone: few continue the name below them as a clause ("What is left", "Of a GPU")."""
import re
import unittest

from test_sources import CODE, files
from tree import SOURCE

FOLDERS = ("src", "include", "chapters", "tests", "scripts", "cmake")
CLAUSE = re.compile(r"\W*(?:What|Of|Whoever|Who|Where)\b")
LIMIT = 10

# A literal or the licence is skipped first, so that a mark inside a literal starts no comment. Consecutive lines are one comment.
CPP = re.compile(r"""//[ ]SPDX[^\n]*|R"(\w*)\(.*?\)\1"|"(?:[^"\\\n]|\\.)*"|(?<!\w)'(?:[^'\\\n]|\\.)+'"""
                 r"""|(?P<block>//[^\n]*(?:\n[ ]*//[^\n]*)*|/\*.*?\*/)""", re.S)
SCRIPT = re.compile(r"""^\#![^\n]*|^\#[ ]SPDX[^\n]*|^[ ]*["]{3}(?P<text>.*?)["]{3}|["]{3}.*?["]{3}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'"""
                    r"""|(?<!\S)(?P<block>\#[^\n]*(?:\n[ ]*\#[^\n]*)*)""", re.S | re.M)


def comments(path):
    """The line and the text of every comment and docstring of a file."""
    text = path.read_text(encoding="utf-8")
    pattern = CPP if path.suffix in CODE else SCRIPT
    for match in pattern.finditer(text):
        found = match.groupdict()
        if comment := found.get("block") or found.get("text"):
            yield text.count("\n", 0, match.start()) + 1, comment


def has_comments(path):
    return path.suffix in CODE | {".py", ".sh", ".cmake"} or path.name == "CMakeLists.txt" or (not path.suffix and path.read_bytes()[:2] == b"#!")


class Comments(unittest.TestCase):
    def test_few_comments_begin_as_a_clause(self):
        seen, clauses = 0, []
        for path in files(*FOLDERS):
            if has_comments(path):
                for line, comment in comments(path):
                    seen += 1
                    if CLAUSE.match(comment):
                        clauses.append(f"{path.relative_to(SOURCE)}:{line}: {comment.splitlines()[0].strip()}")
        self.assertGreater(seen, 5000)
        self.assertLessEqual(len(clauses), LIMIT, "write a sentence, or a noun phrase that names the value:\n" + "\n".join(clauses))


if __name__ == "__main__":
    unittest.main()
