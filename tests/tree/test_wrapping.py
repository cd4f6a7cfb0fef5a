# SPDX-License-Identifier: Apache-2.0
"""Prose of documents is wrapped, whether people wrote it or scripts/pages, and words stand one blank apart."""
import re
import unittest

from test_documents import FENCE, blank, pages
from tree import SOURCE, TemporaryTree

# Tables, headings and references of links cannot be wrapped, nor a picture up to the first word of the comment behind it.
UNWRAPPABLE = re.compile(r"\||#|!\[[^\]]*\]\([^)]*\)(<!--( \w+:)?)?$|\[[^\]]+\]: ")
WIDTH = 100
SIGN_OF_LIST = re.compile(r"\s*([-*]|\d+\.)\s+")
WIDE_GAP = re.compile(r"\S {2,}\S")


def lines_of_prose(root):
    """Each page with the number and text of its lines outside of fences."""
    for page in pages(root):
        for number, line in enumerate(FENCE.sub(blank, page.read_text()).split("\n"), 1):
            yield f"{page.relative_to(root)}:{number}", line


def long_lines(root):
    """PAGE:LINE of each line of prose beyond the width, whoever wrote it."""
    return [place for place, line in lines_of_prose(root) if len(line) > WIDTH and not UNWRAPPABLE.match(line)]


def wide_gaps(root):
    """PAGE:LINE of each line of prose with two blanks or more between words. Columns of tables may be aligned."""
    return [place for place, line in lines_of_prose(root)
            if not line.lstrip().startswith("|") and WIDE_GAP.search(SIGN_OF_LIST.sub("", line, count=1))]


class Wrapping(unittest.TestCase):
    def test_prose_is_wrapped(self):
        self.assertEqual(long_lines(SOURCE), [], f"prose beyond {WIDTH} columns")

    def test_words_stand_one_blank_apart(self):
        self.assertEqual(wide_gaps(SOURCE), [])


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

    def test_wide_gaps(self):
        self.write("README.md", "one  gap\n- a list\n-   of wide items\n  1.  numbered\n- with  a gap\n| a  | table |\n```\nof  code\n```\nnone\n")
        self.assertEqual(wide_gaps(self.root), ["README.md:1", "README.md:5"])


if __name__ == "__main__":
    unittest.main()
