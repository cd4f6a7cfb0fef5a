# SPDX-License-Identifier: Apache-2.0
"""Files that `aisp new` writes, and names that it refuses. That it builds and passes: test_own_kernels.py, and the pairs of
templates in the fixtures."""
import re
import sys
import unittest

from harness import SOURCE, EndToEnd

KINDS = {(): "gpu.cu", ("--host",): "host.cpp", ("--multi-gpu",): "multi_gpu.cu", ("--library",): "library.cu"}


class New(EndToEnd):
    def setUp(self):
        super().setUp()
        self.top = self.work
        self.enter("kernels/sums")

    def enter(self, folder):
        self.work = self.top / folder
        self.work.mkdir(parents=True, exist_ok=True)

    def tearDown(self):
        self.work = self.top
        super().tearDown()

    def refused(self, *arguments, words):
        self.assert_code(finished := self.call("new", *arguments), 2)
        self.assert_one_error_line(finished, *words)
        self.assertEqual(finished.out, "")

    def test_writes_the_template_under_its_own_name(self):
        for number, (flags, template) in enumerate(KINDS.items()):
            with self.subTest(template):
                kind, extension = template.split(".")
                finished = self.call("new", f"mine{number}", *flags)
                self.assert_code(finished, 0)
                path = self.work / f"mine{number}.{extension}"
                self.assertIn(str(path), finished.out)
                self.assertIn(f": verify --targets sums:mine{number}, then run", finished.out)
                expected = (SOURCE / "templates/starter" / template).read_text()
                self.assertEqual(expected.count("aisp::starter"), 2)
                self.assertEqual(expected.count(f"Pair {kind}{{"), 1)
                expected = expected.replace("aisp::starter", "aisp::sums").replace(f"Pair {kind}{{", f"Pair mine{number}{{")
                self.assertEqual(path.read_text(), expected)

    def test_a_chapter_of_the_tree(self):
        self.refused("mine", "--chapter", "ch07", words=("there is no folder chapters here",))
        self.enter("tree")
        (self.work / "chapters").mkdir()
        (self.work / "CMakeLists.txt").touch()
        self.assert_code(self.call("new", "mine", "--chapter", "ch07"), 0)
        self.assertIn("namespace aisp::ch07 {", (self.work / "chapters/ch07/mine.cu").read_text())
        self.refused("other", "--chapter", "7", words=("--chapter takes ch and two digits, as ch07, not '7'",))
        self.refused("mine", "--host", "--chapter", "ch08", words=("chapters/ch07/mine.cu already",))

    def test_overwrites_nothing(self):
        path = self.work / "mine.cpp"
        path.write_text("mine alone")
        self.refused("mine", words=("sums/mine.cpp already; names of pairs are unique",))
        self.assertEqual(path.read_text(), "mine alone")
        self.assertEqual([path], list(self.work.iterdir()))
        self.enter("kernels/others")
        self.refused("mine", words=("sums/mine.cpp already",))

    def test_bad_names(self):
        for name in ("Mine", "2d", "a-b", "../mine", "_mine", "a" * 129):
            with self.subTest(name):
                self.refused(name, words=(f"bad name '{name}'", "[a-z][a-z0-9_]*"))
        self.refused("a" * 100_000, words=("bad name 'aaa", "128 of them at most"))
        for name in ("int", "class", "nullptr", "namespace", "register", "co_await", "not_eq", "errno"):
            with self.subTest(name):
                self.refused(name, "--host", words=(f"bad name '{name}'", "choose another"))
        self.refused("columns", "--host", words=("bad name 'columns'",))  # of the template's own
        self.assertEqual(list(self.work.iterdir()), [])
        self.enter("kernels/double")
        self.refused("mine", words=("the folder 'double' is a namespace too", "rename it"))
        self.enter("kernels/My-Kernels")
        self.refused("mine", words=("the folder 'My-Kernels' is a namespace too", "rename it"))

    def test_a_script_that_would_hide_a_module(self):
        for name in sorted({"aisp", "numpy", "torch", *(name for name in sys.stdlib_module_names if re.fullmatch("[a-z][a-z0-9_]*", name))}):
            self.refused(name, "--python", words=(f"bad name '{name}'", f"instead of its module {name}; choose another"))
        self.assertEqual(list(self.work.iterdir()), [])
        self.assert_code(self.call("new", "random_sums", "--python"), 0)

    def test_places_where_no_build_would_find_it(self):
        (self.work / "there.cu").touch()
        self.enter("kernels")
        self.refused("mine", words=("kernels is no folder of pairs; call aisp new in one, as in sums",))
        (self.top / "CMakeLists.txt").touch()
        self.enter(".")
        self.refused("mine", words=("is no folder of pairs",))

    def test_one_kind_at_a_time(self):
        self.refused("mine", "--host", "--library", words=("--host", "--library"))
        self.refused(words=("NAME is required",))


if __name__ == "__main__":
    unittest.main()
