# SPDX-License-Identifier: Apache-2.0
"""The pictures of chapters, drawn from what was recorded."""
import json
import unittest
import xml.etree.ElementTree as tree

from harness import EndToEnd

PLACE = "<!-- measured: begin -->\n<!-- measured: end -->\n"


class Pictures(EndToEnd):
    def setUp(self):
        super().setUp()
        self.assert_code(self.run_pairs("ch90:good", flags=("--update-expectations",)), 0)
        self.chapter = self.work / "chapters/ch90"
        self.chapter.mkdir(parents=True)

    def readme(self, *links):
        (self.chapter / "README.md").write_text(PLACE + "\n".join(links) + "\n")

    def differing(self, finished):
        return [line.split(":")[0] for line in finished.out.splitlines() if ".svg:" in line]

    def test_every_kind_is_drawn_and_checked(self):
        kinds = ("speedups", "library", "roofline", "intensity")
        self.readme(*(f"![{kind}]({kind}.svg)<!-- picture: {kind} host -->" for kind in kinds))
        finished = self.pages("--check")
        self.assert_code(finished, 1)
        self.assertEqual(len(self.differing(finished)), 4, finished.out)
        self.assertEqual(list(self.chapter.glob("*.svg")), [], "--check writes nothing")
        self.assert_code(self.pages(), 0)
        for kind in kinds:
            text = (self.chapter / f"{kind}.svg").read_text()
            self.assertTrue(tree.fromstring(text).tag.endswith("svg"))
            self.assertIn("doubled", text)
        finished = self.pages("--check")
        self.assert_code(finished, 0)
        self.assertEqual(finished.out, "")
        file = self.work / "expectations/host/ch90.json"
        content = json.loads(file.read_text())
        content["pairs"]["good"]["runs"][0]["variants"]["doubled"].update(speedup=77, speedup_low=76, speedup_high=78)
        file.write_text(json.dumps(content))
        finished = self.pages("--check")
        self.assert_code(finished, 1)
        self.assertEqual(self.differing(finished),
                         ["chapters/ch90/speedups.svg", "chapters/ch90/library.svg"])
        self.assert_code(self.pages(), 0)
        self.assertIn("77.0x", (self.chapter / "speedups.svg").read_text())

    def test_a_picture_drawn_by_hand_must_be_there(self):
        self.readme("![m](machine.svg)<!-- picture: drawn by hand: nobody records where parts lie -->")
        finished = self.pages()
        self.assert_code(finished, 2)
        self.assertRegex(finished.err, r"(?m)^chapters/ch90/machine\.svg: .*not there$")

    def test_what_cannot_be_drawn_keeps_nothing_else_from_it(self):
        self.readme("![a](gone.svg)<!-- picture: speedups b200 -->", "![b](good.svg)<!-- picture: speedups host good -->")
        finished = self.pages()
        self.assert_code(finished, 2)
        self.assertIn("chapters/ch90/gone.svg: nothing of ch90 is recorded on b200\n", finished.err)
        self.assertTrue((self.chapter / "good.svg").exists())
        self.readme("![a](untold.svg)")
        finished = self.pages("--check")
        self.assert_code(finished, 1)
        self.assertIn("chapters/ch90/README.md: untold.svg: no comment after it", finished.out)


if __name__ == "__main__":
    unittest.main()
