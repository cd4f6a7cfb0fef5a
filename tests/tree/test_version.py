# SPDX-License-Identifier: Apache-2.0
"""The build's record of the tree that it was built from."""
import re
import shutil
import unittest

from tree import CMAKE, SOURCE, TemporaryTree, run


@unittest.skipUnless(shutil.which("git"), "needs git")
class Version(TemporaryTree):
    def setUp(self):
        super().setUp()
        self.write("chapters/ch07/box.cu", "")
        self.write("README.md", "")
        self.git("init", "--quiet")
        self.git("add", ".")
        self.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--no-gpg-sign", "-m", "a tree")

    def git(self, *arguments):
        result = run("git", "-C", self.root, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)

    def dirty(self):
        out = self.root / ".git" / "aisp_version.hpp"
        result = run(CMAKE, f"-DAISP_SOURCE_DIR={self.root}", f"-DAISP_OUT={out}", "-DAISP_PROJECT_VERSION=1.2.3", "-P",
                     SOURCE / "cmake" / "version.cmake")
        self.assertEqual(result.returncode, 0, result.stderr)
        text = out.read_text()
        self.assertRegex(text, r'git_commit = "[0-9a-f]{40}"')
        return re.search(r"git_dirty = (true|false)", text)[1] == "true"

    def test_what_is_committed_is_clean(self):
        self.assertFalse(self.dirty())

    def test_change(self):
        self.write("chapters/ch07/box.cu", "// changed")
        self.assertTrue(self.dirty())

    def test_pair_that_was_dropped_in(self):
        for name in ("chapters/ch07/scan.cu", "chapters/ch21/streams.cu", "src/run/more.cpp", "include/aisp/more.hpp", "selftest/cheating/cheat.cpp",
                     "cmake/more.cmake"):
            with self.subTest(name):
                path = self.write(name, "")
                self.assertTrue(self.dirty())
                path.unlink()
        self.assertFalse(self.dirty())

    def test_notes_beside_the_tree_are_no_part_of_the_build(self):
        self.write("notes.txt", "")
        self.write("artifacts/run/results.jsonl", "")
        self.assertFalse(self.dirty())


if __name__ == "__main__":
    unittest.main()
