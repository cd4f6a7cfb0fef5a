# SPDX-License-Identifier: Apache-2.0
"""Sizes and first lines of files; the example in the documentation is a pair that compiles."""
import re
import unittest

from tree import NVCC, SOURCE, TemporaryTree, run

CODE = {".hpp", ".cuh", ".cpp", ".cu"}
SCRIPTS = {".sh", ".py", ".cmake"}
FOLDERS = ("include", "src", "chapters", "selftest", "tests", "scripts", "cmake", "templates", "docs/your-own-kernels")


def files(*folders):
    for folder in folders:
        for path in sorted((SOURCE / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


class Sources(unittest.TestCase):
    def assert_length(self, paths, limit):
        seen = 0
        for path in paths:
            seen += 1
            lines = len(path.read_text(encoding="utf-8").splitlines())
            with self.subTest(str(path.relative_to(SOURCE))):
                self.assertLessEqual(lines, limit)
        self.assertGreater(seen, 0)

    def test_files_have_at_most_400_lines(self):
        self.assert_length((p for p in files(*FOLDERS) if p.suffix in CODE | SCRIPTS), 400)

    def test_every_source_names_its_license(self):
        for path in files(*FOLDERS):
            if path.suffix in CODE | SCRIPTS:
                with self.subTest(str(path.relative_to(SOURCE))):
                    self.assertIn("SPDX-License-Identifier: Apache-2.0", "".join(path.read_text(encoding="utf-8").splitlines()[:3]))

    def test_instructions_of_one_cpu_are_behind_a_condition(self):
        special = re.compile(r"__builtin_ia32|_mm_\w+\(|\basm\b(?!\")")
        for path in files("include", "src"):
            if path.suffix not in {".hpp", ".cpp"}:
                continue
            depth = 0
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                depth += line.startswith("#if") - line.startswith("#endif")
                if special.search(line.split("//")[0]):
                    with self.subTest(f"{path.relative_to(SOURCE)}:{number}"):
                        self.assertGreater(depth, 0, "does not compile for other CPUs")

    def test_launches_ask_for_what_they_need(self):
        # By hand, a kernel with more shared memory than a smaller GPU has, or with clusters, fails there instead of being skipped.
        by_hand = re.compile(r"cudaFuncAttributeMaxDynamicSharedMemorySize|cudaLaunchAttributeClusterDimension|cudaLaunchAttributeCooperative\b")
        for path in files("chapters", "templates", "docs/your-own-kernels"):
            if path.suffix in CODE:
                with self.subTest(str(path.relative_to(SOURCE))):
                    self.assertNotRegex(path.read_text(encoding="utf-8"), by_hand, "launch(kernel, {...}) or allow_shared_memory does it")

    def test_writing_to_descriptors_is_left_to_one_function(self):
        # Others forgot that a signal may come between, and cut the text short.
        for path in files("src"):
            if path.suffix in CODE and path.relative_to(SOURCE).parts[1] != "base":
                with self.subTest(str(path.relative_to(SOURCE))):
                    self.assertNotRegex(path.read_text(encoding="utf-8"), r"(?<!\w)::write\(", "base::write_all does it")

    def test_only_files_that_aisp_names_are_replaced(self):
        # write_atomically puts a file in the place of a device, a pipe or a link; what a user names goes through print_to.
        named_by_aisp = {("recorded.cpp", "document"), ("new_pair.cpp", "path"), ("report.cpp", "where")}
        for path in files("src"):
            if path.suffix in CODE and path.relative_to(SOURCE).parts[1] != "base":
                for place in re.findall(r"\bwrite_atomically\(([^,]*),", path.read_text(encoding="utf-8")):
                    with self.subTest(f"{path.relative_to(SOURCE)}: {place}"):
                        self.assertNotRegex(place, r"\b(flags|options|configuration)\b", "cli::print_to or base::write_output does it")
                        if path.relative_to(SOURCE).parts[1] == "cli":
                            self.assertIn((path.name, place), named_by_aisp, "a user's word? then cli::print_to does it")

    def test_scripts_are_executable(self):
        for path in [SOURCE / "setup.sh", SOURCE / ".ci/run", *files("scripts")]:
            if path.read_bytes().startswith(b"#!"):
                with self.subTest(path.name):
                    self.assertTrue(path.stat().st_mode & 0o100)


PAGE = SOURCE / "docs/adding-a-pair.md"


class DocumentedExample(TemporaryTree):
    def setUp(self):
        super().setUp()
        self.text = PAGE.read_text()
        self.listings = re.findall(r"^```cpp\n(.*?)^```", self.text, re.MULTILINE | re.DOTALL)
        self.assertEqual(len(self.listings), 2, "the page shows two whole files")

    def test_first_example_of_adding_a_pair_compiles_and_exports_its_pair(self):
        path = re.search(r"`chapters/(ch\d\d/[a-z0-9_]+\.cu)`", self.text)
        self.assertIsNotNone(path, "the page says where to save the file")
        source = self.write(path[1], self.listings[0])
        result = run(NVCC, "-std=c++20", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "-Werror=all-warnings",
                     "-Xcompiler=-Wall,-Wextra,-Wshadow,-Wno-missing-field-initializers,-Werror", f"-I{SOURCE / 'include'}", "-c", source,
                     "-o", f"{source}.o")
        self.assertEqual(result.returncode, 0, result.stderr)
        symbols = run(SOURCE / "scripts/check-symbols", f"{source}.o")
        self.assertEqual(symbols.returncode, 0, symbols.stdout)

    def test_second_example_is_a_file_of_the_example_project(self):
        """tests/end_to_end/installed/test_own_kernels.py builds and verifies it."""
        self.assertEqual(self.listings[1], (SOURCE / "docs/your-own-kernels/kernels/sums/rms_norm.cpp").read_text())

    def test_pairs_to_copy_from_have_what_their_row_is_about(self):
        rows = [row for row in re.findall(r"^\|(.*)\|$", self.text.split("| need | use | copy from |")[1], re.M) if "](" in row or "`aisp/" in row]
        self.assertGreater(len(rows), 20)
        for row in rows:
            need, use, models = row.split(" | ")
            shown = [(PAGE.parent / model).resolve().read_text() for model in re.findall(r"\]\(([^)]+)\)", models)]
            shown += [(SOURCE / "include" / header).read_text() for header in re.findall(r"`(aisp/[^`]+)`", models)]
            words = [re.match(r"[.\w/]+(?:::\w+)?", word)[0].strip(".") for word in re.findall(r"`([^`]+)`", use)]
            with self.subTest(need.strip()):
                self.assertTrue(words and shown)
                self.assertTrue(any(re.search(rf"(?<!\w){re.escape(words[0])}", text) for text in shown), f"none of them has {words[0]}")


if __name__ == "__main__":
    unittest.main()
