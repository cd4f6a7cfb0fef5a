# SPDX-License-Identifier: Apache-2.0
"""draw-diagrams in a copy of the tree's folders: pictures can be read, and --check names the one that is not what is drawn."""
import pathlib
import shutil
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]


class DrawDiagrams(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in ("scripts/draw-diagrams", "scripts/lib/lanes.py", "scripts/lib/svg.py", "src/report/html/page/picture.css"):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        self.script = self.root / "scripts/draw-diagrams"

    def run_script(self, *arguments):
        return subprocess.run([self.script, *arguments], capture_output=True, text=True, check=False)

    def test_pictures_are_drawn_and_equal_those_of_the_tree(self):
        self.assertEqual(self.run_script().returncode, 0)
        drawn = sorted(self.root.glob("chapters/*/*.svg"))
        self.assertGreater(len(drawn), 4)
        for picture in drawn:
            width = float(xml.etree.ElementTree.parse(picture).getroot().get("width"))
            self.assertLessEqual(width, 900, picture)
            self.assertEqual(picture.read_text(), (ROOT / picture.relative_to(self.root)).read_text(), picture)

    def test_check_names_what_differs_and_writes_nothing(self):
        self.run_script()
        self.assertEqual(self.run_script("--check").returncode, 0)
        ring = self.root / "chapters/ch10/ring.svg"
        ring.write_text(ring.read_text().replace("four stages", "five stages"))
        ended = self.run_script("--check")
        self.assertEqual((ended.returncode, ended.stderr.count("\n")), (1, 1))
        self.assertIn("chapters/ch10/ring.svg is not what this script draws", ended.stderr)
        self.assertIn("five stages", ring.read_text())

    def test_other_words_are_refused(self):
        ended = self.run_script("--draw")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("usage:", ended.stderr)

    def test_a_swizzled_column_meets_no_bank_twice(self):
        self.run_script()
        root = xml.etree.ElementTree.parse(self.root / "chapters/ch10/swizzle.svg").getroot()
        framed = [(float(box.get("x")), float(box.get("y"))) for box in root.iter("{http://www.w3.org/2000/svg}rect") if box.get("class") == "lens"]
        right = [x for x, _ in framed if x > 440]
        self.assertEqual((len(framed), len(right), len(set(right))), (16, 8, 8))


if __name__ == "__main__":
    unittest.main()
