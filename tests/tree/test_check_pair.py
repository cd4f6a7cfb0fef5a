# SPDX-License-Identifier: Apache-2.0
"""scripts/check-pair finds what a reviewer would say of a pair's file, and nothing in a good one."""
import json
import shutil
import unittest

from tree import CUDA_INCLUDES, CXX, SOURCE, TemporaryTree, run

CHECK = SOURCE / "scripts/check-pair"
GOOD = (SOURCE / "templates/starter/host.cpp").read_text()


class CheckPair(TemporaryTree):
    def setUp(self):
        super().setUp()
        (self.root / "include").symlink_to(SOURCE / "include")
        for name in (".clang-format", ".clang-tidy"):
            shutil.copy(SOURCE / name, self.root / name)

    def configure(self):
        """Without a build a check takes a moment, with one as long as the compiler does."""
        other = self.root / "chapters/ch01/other.cpp"
        includes = [f"-I{SOURCE / 'include'}", f"-I{self.root / 'chapters/shared'}", *(f"-isystem{folder}" for folder in CUDA_INCLUDES)]
        command = [CXX, "-std=c++20", "-O0", "-Wall", "-Wextra", *includes, "-o", "other.o", "-c", str(other)]
        self.write("build/compile_commands.json", json.dumps([{"directory": str(self.root), "file": str(other), "arguments": command}]))

    def pair(self, place="chapters/ch07/box.cpp"):
        chapter, name = place.split("/")[-2:]
        text = GOOD.replace("aisp::starter", f"aisp::{chapter}").replace("Pair host{", f"Pair {name.split('.')[0]}{{")
        return self.write(place, text)

    def check(self, *arguments):
        return run(CHECK, *arguments)

    def found(self, path, *words, line=None):
        result = self.check(path)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        place = f"{path}:{'' if line is None else f'{line}:'}"
        told = [said for said in result.stdout.splitlines() if said.startswith(place) and all(word in said for word in words)]
        self.assertEqual(len(told), 1, result.stdout)

    def edited(self, before, after):
        path = self.pair()
        text = path.read_text()
        self.assertIn(before, text)
        path.write_text(text.replace(before, after))
        return path

    def test_nothing_in_a_good_pair(self):
        self.configure()
        for place in ("chapters/ch07/box.cpp", "kernels/sums/box.cpp"):
            with self.subTest(place):
                path = self.pair(place)
                result = self.check(path)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                self.assertEqual(result.stdout, f"{path}: nothing found; next: verify --targets {place.split('/')[1]}:box, by the program that "
                                 "holds it\n")
                path.unlink()

    def test_what_could_not_be_checked_is_said(self):
        result = self.check(self.pair())
        self.assertEqual(result.returncode, 0)
        self.assertIn("not checked: compiler, symbols and lint: no build", result.stderr)

    def test_names(self):
        self.found(self.pair("chapters/ch7/box.cpp"), "bad chapter folder 'ch7'", "as ch07")
        (self.root / "chapters/ch7/box.cpp").unlink()
        self.found(self.pair("chapters/ch07/Box.cpp"), "bad pair name 'Box'")
        (self.root / "chapters/ch07/Box.cpp").unlink()
        self.pair("chapters/ch08/box.cpp")
        self.found(self.pair(), "ch08/box.cpp has that name already")

    def test_text(self):
        self.found(self.edited("// SPDX-License-Identifier: Apache-2.0\n", "// Mine.\n"), "names no license")
        self.found(self.edited("namespace {\n", "namespace {\n" + "// words\n" * 400), "400 are the most")
        self.found(self.edited("#include <aisp/pair.hpp>\n", "#include <aisp/pair.hpp>\n\n#include <iostream>\n"), "<iostream>", "a pair prints nothing", line=5)
        self.found(self.edited("  void baseline(Launch&) {", "  void baseline(Launch&)  {"), "not formatted; clang-format 14 has here: void baseline(Launch&) {", line=23)

    def test_readme(self):
        self.write("chapters/ch07/README.md", "# Chapter 7\n")
        self.found(self.pair(), "README.md does not tell of it; add a line with [box](box.cpp)")

    def test_code(self):
        self.configure()
        self.found(self.edited("float sum = 0;", "float sum = 0, unused;"), "unused variable", line="25:22")
        self.found(self.edited("float sum = 0;", "flaot sum = 0;"), "flaot", line="25:7")
        self.found(self.edited("void optimized(Launch&) {", "void optimized(Launch&) const {"), "takes a method of this form, and no other: void name(Launch& launch)", line=52)
        self.found(self.edited('    .optimized = variants({{.name = "eight_sums", .run = call<&Work::optimized>}}),\n', ""), "a_pair_needs_its_optimized_variants")
        self.found(self.edited("Pair box{", "Pair bax{"), "it does not define the Pair box (its Pair is called bax)")
        self.found(self.edited("}  // namespace\n\nextern", "}  // namespace\n\nint helper() { return 1; }\n\nextern"), "exports aisp::ch07::helper()")

    @unittest.skipUnless(shutil.which("clang-tidy"), "clang-tidy is not installed")
    def test_lint(self):
        self.configure()
        self.found(self.edited("std::size_t rows_;", "int* nothing_ = 0;\n  std::size_t rows_;"), "nullptr", line="41:19")

    def test_wrong_usage(self):
        for arguments, words in (((), "required"), ((self.root / "none.cu",), "is not the file of a pair"), ((SOURCE / "README.md",), "is not the file of a pair"),
                                 (("--build", self.root, self.pair()), "compile_commands.json is missing")):
            with self.subTest(words):
                result = self.check(*arguments)
                self.assertEqual(result.returncode, 2)
                self.assertIn(words, result.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
