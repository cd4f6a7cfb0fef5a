# SPDX-License-Identifier: Apache-2.0
"""Prose of documents is wrapped, whether people wrote it or aisp report --chapter-tables."""
import re
import unittest

from test_documents import FENCE, blank, pages
from tree import SOURCE, TemporaryTree

# Tables, headings and references of links cannot be wrapped, nor a picture up to the first word of the comment behind it.
UNWRAPPABLE = re.compile(r"\||#|!\[[^\]]*\]\([^)]*\)(<!--( \w+:)?)?$|\[[^\]]+\]: ")
WIDTH = 100


def long_lines(root):
    """PAGE:LINE of each line of prose beyond the width, whoever wrote it."""
    found = []
    for page in pages(root):
        text = FENCE.sub(blank, page.read_text())
        found += [f"{page.relative_to(root)}:{number}" for number, line in enumerate(text.split("\n"), 1)
                  if len(line) > WIDTH and not UNWRAPPABLE.match(line)]
    return found


class Wrapping(unittest.TestCase):
    def test_prose_is_wrapped(self):
        self.assertEqual(long_lines(SOURCE), [], f"prose beyond {WIDTH} columns")


class Checker(TemporaryTree):
    def test_long_lines(self):
        long, table = "word " * 30, "| " + "cell " * 30
        self.write("README.md", f"# {long}\nshort\n{table}\n```bash\n{long}\n```\n![{long}](a.svg)\n[a]: {long}\n{long}\n- {long}\n")
        self.write("docs/more/deep.md", long)
        self.write("chapters/ch07/README.md", f"<!-- measured: begin -->\n{table}\n\n{long}\n<!-- measured: end -->\n{long}\n")
        self.assertEqual(long_lines(self.root),
                         ["README.md:9", "README.md:10", "docs/more/deep.md:1", "chapters/ch07/README.md:4", "chapters/ch07/README.md:6"])

    def test_long_comments(self):
        long = "word " * 20
        self.write("chapters/ch07/README.md", f"<!-- counted: h200 {long}-->\n<!-- counted: h200\n{long}\n-->\n"
                   f"![{long}](a.svg)<!-- picture:\nspeedups h200 -->\n![{long}](a.svg)<!-- picture: speedups h200 -->\n![a](b.svg)<!-- picture: {long}-->\n")
        self.assertEqual(long_lines(self.root), [f"chapters/ch07/README.md:{line}" for line in (1, 7, 8)])


if __name__ == "__main__":
    unittest.main()
