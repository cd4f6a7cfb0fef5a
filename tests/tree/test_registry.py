# SPDX-License-Identifier: Apache-2.0
"""The generated registry takes what is a pair and refuses the rest with a message that says what to do."""
import re
import unittest

from tree import CMAKE, CUDA_INCLUDES, CXX, SOURCE, TemporaryTree, compile_cxx, pair, run

GENERATE = """cmake_minimum_required(VERSION 3.25)
include("%s/cmake/registry.cmake")
set(AISP_SOURCE_ROOT "${ROOT}")
aisp_generate_registry("${ROOT}/registry.cpp" "${ROOT}/chapters")
"""
# A project like aisp itself, without CUDA: what CMakeLists.txt does with a folder of pairs.
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(mini LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
add_library(aisp_api INTERFACE)
add_library(aisp_warnings INTERFACE)
target_include_directories(aisp_api INTERFACE %(source)s/include %(source)s/src)
target_include_directories(aisp_api SYSTEM INTERFACE %(cuda)s)
add_library(aisp_core STATIC rest.cpp)
target_link_libraries(aisp_core PUBLIC aisp_api)
include(%(source)s/cmake/pairs.cmake)
aisp_add_pairs(pairs ${CMAKE_CURRENT_SOURCE_DIR}/chapters)
add_executable(list list.cpp)
aisp_link(list pairs)
"""
LIST = """#include <cstdio>
#include "pair/registry.hpp"
int main() { for (const auto& entry : aisp::pair::registry()) std::printf("%s %s\\n", entry.target().c_str(), entry.pair->baseline.name.data()); }
"""
# What the executable's core defines of Workload; the test's pairs need no more.
REST = """#include <aisp/pair.hpp>
#include <stdexcept>
namespace aisp {
double Workload::expected(std::size_t) const { throw std::logic_error{""}; }
double Workload::expected_output(int, std::size_t) const { return 0; }
double Workload::expected_quantized(std::string_view, int, std::size_t) const { return 0; }
std::size_t Workload::output_length(int) const { return 0; }
}
"""


class Registry(TemporaryTree):
    def generate(self):
        script = self.write("generate.cmake", GENERATE % SOURCE)
        return run(CMAKE, f"-DROOT={self.root}", "-P", script)

    def refused(self, *words):
        result = self.generate()
        message = " ".join(result.stderr.split())
        self.assertNotEqual(result.returncode, 0, "it was accepted")
        for word in words:
            self.assertIn(word, message)
        self.assertFalse((self.root / "registry.cpp").exists(), "a table was written all the same")

    def test_table_is_sorted_by_chapter_then_name(self):
        for name in ("chapters/ch10/alpha.cu", "chapters/ch07/scan_wide.cu", "chapters/ch07/scan.cpp", "chapters/ch07/box.cu"):
            self.write(name, "")
        result = self.generate()
        self.assertEqual(result.returncode, 0, result.stderr)
        entries = re.findall(r'Entry\{"(.*?)", "(.*?)", "(.*?)", &(.*?)\}', (self.root / "registry.cpp").read_text())
        self.assertEqual(entries, [("ch07", "box", "chapters/ch07/box.cu", "aisp::ch07::box"),
                                   ("ch07", "scan", "chapters/ch07/scan.cpp", "aisp::ch07::scan"),
                                   ("ch07", "scan_wide", "chapters/ch07/scan_wide.cu", "aisp::ch07::scan_wide"),
                                   ("ch10", "alpha", "chapters/ch10/alpha.cu", "aisp::ch10::alpha")])
        compiled = compile_cxx(self.root / "registry.cpp", self.root / "registry.o", "-Wall", "-Wextra", "-Werror")
        self.assertEqual(compiled.returncode, 0, compiled.stderr)

    def test_headers_and_deeper_folders_are_no_pairs(self):
        for name in ("chapters/ch07/topic.cuh", "chapters/shared/gemm.cuh", "chapters/ch07/README.md", "chapters/ch07/data/tool.cu"):
            self.write(name, "")
        self.assertEqual(self.generate().returncode, 0)
        self.assertNotIn("Entry{", (self.root / "registry.cpp").read_text())

    def family(self, text):
        script = self.write("generate.cmake", (GENERATE % SOURCE).replace('chapters")', 'chapters" "${ROOT}/selftest")'))
        self.write("chapters/ch07/box.cu", "")
        self.write("selftest/hangs.cpp", text)
        return run(CMAKE, f"-DROOT={self.root}", "-P", script)

    def test_a_file_of_the_self_test_is_a_family_of_pairs(self):
        result = self.family("// They hang.\nnamespace aisp::ch91 {\nextern constinit const selftest::Case in_verify =\n    row;\n"
                             "extern constinit const selftest::Case at_once{};\n}\n")
        self.assertEqual(result.returncode, 0, result.stderr)
        table = (self.root / "registry.cpp").read_text()
        entries = re.findall(r'Entry\{"(.*?)", "(.*?)", "(.*?)", &(.*?)\}', table)
        self.assertEqual(entries, [("ch07", "box", "chapters/ch07/box.cu", "aisp::ch07::box"),
                                   ("ch91", "at_once", "selftest/hangs.cpp", "aisp::ch91::at_once.pair"),
                                   ("ch91", "in_verify", "selftest/hangs.cpp", "aisp::ch91::in_verify.pair")])
        self.assertIn("namespace aisp::ch91 { extern const selftest::Case at_once; }", table)

    def test_a_family_without_pairs_is_refused(self):
        for text in ("namespace aisp::ch91 {\n}\n", "\nextern constinit const selftest::Case at_once{};\n",
                     "\nnamespace aisp::ch91 {\n  extern constinit const selftest::Case at_once{};\n}\n"):
            with self.subTest(text):
                result = self.family(text)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn("hangs.cpp: a family of the self-test declares its pairs as", " ".join(result.stderr.split()))

    def test_unchanged_table_is_not_written_again(self):
        self.write("chapters/ch07/box.cu", "")
        self.generate()
        before = (self.root / "registry.cpp").stat().st_mtime_ns
        self.generate()
        self.assertEqual((self.root / "registry.cpp").stat().st_mtime_ns, before)
        self.write("chapters/ch07/scan.cu", "")
        self.generate()
        self.assertNotEqual((self.root / "registry.cpp").stat().st_mtime_ns, before)

    def test_bad_chapter_folder(self):
        self.write("chapters/ch7/box.cu", "")
        self.refused("chapters/ch7/box.cu: bad chapter folder 'ch7'", "as ch07")

    def test_pair_among_the_shared_headers(self):
        self.write("chapters/shared/box.cu", "")
        self.refused("bad chapter folder 'shared'", ".cuh or .hpp")

    def test_pair_outside_a_chapter(self):
        self.write("chapters/box.cu", "")
        self.refused("chapters/box.cu: a pair lies in a chapter's folder")

    def test_bad_pair_names(self):
        for name in ("Box", "7box", "box-wide", "box.old", "_box"):
            with self.subTest(name):
                path = self.write(f"chapters/ch07/{name}.cu", "")
                self.refused(f"bad pair name '{name}'", "[a-z][a-z0-9_]*")
                path.unlink()

    def test_other_extensions(self):
        self.write("chapters/ch07/box.cc", "")
        self.refused("ends in .cu (GPU) or .cpp (host), not in '.cc'")

    def test_duplicate_in_one_chapter(self):
        self.write("chapters/ch07/box.cu", "")
        self.write("chapters/ch07/box.cpp", "")
        self.refused("duplicate pair name 'box'", "chapters/ch07/box.cpp", "chapters/ch07/box.cu")

    def test_duplicate_over_chapters(self):
        self.write("chapters/ch07/box.cu", "")
        self.write("chapters/ch11/box.cu", "")
        self.refused("chapters/ch11/box.cu: duplicate pair name 'box'", "chapters/ch07/box.cu has it already")

    def test_duplicate_in_the_table_does_not_compile(self):
        self.write("chapters/ch07/box.cu", "")
        self.write("chapters/ch07/scan.cu", "")
        self.generate()
        table = self.root / "registry.cpp"
        table.write_text(table.read_text().replace('"scan"', '"box"'))
        compiled = compile_cxx(table, self.root / "registry.o")
        self.assertNotEqual(compiled.returncode, 0)
        self.assertIn("a pair's name occurs once over all chapters", compiled.stderr)

    def test_pair_without_optimized_variant_does_not_compile(self):
        good = self.write("good.cpp", pair("good"))
        self.assertEqual(compile_cxx(good, self.root / "good.o").returncode, 0, "the test's own pair is broken")
        for form in ("", ".optimized = {},", ".optimized = variants({}),"):
            with self.subTest(form):
                compiled = compile_cxx(self.write("bad.cpp", pair("bad", optimized=form)), self.root / "bad.o")
                self.assertNotEqual(compiled.returncode, 0)
                self.assertRegex(compiled.stderr, "(?i)variants")

    def test_file_that_does_not_define_its_pair_is_a_link_error_with_its_name(self):
        self.write("chapters/ch07/box.cpp", pair("other_name"))
        self.generate()
        objects = []
        for source in ("chapters/ch07/box.cpp", "registry.cpp", "list.cpp", "rest.cpp"):
            path = self.root / source
            if not path.exists():
                path.write_text({"list.cpp": LIST, "rest.cpp": REST}[source])
            objects.append(path.with_suffix(".o"))
            compiled = compile_cxx(path, objects[-1])
            self.assertEqual(compiled.returncode, 0, compiled.stderr)
        linked = run(CXX, *objects, "-o", self.root / "list")
        self.assertNotEqual(linked.returncode, 0)
        self.assertRegex(linked.stderr, "undefined reference to [`'‘]aisp::ch07::box['’]")

    def check(self, text, name="box"):
        source = self.write(f"chapters/ch07/{name}.cu", text)
        script = self.write("check.cmake", f'include("{SOURCE}/cmake/registry.cmake")\naisp_check_pairs("{source}")\n')
        result = run(CMAKE, "-P", script)
        return result.returncode, " ".join(result.stderr.split())

    def test_file_that_does_not_define_its_pair_is_told_before_anything_is_compiled(self):
        self.assertEqual(self.check(pair("box")), (0, ""))
        remedy = "a pair file ends with: extern constinit const Pair box{...} in namespace aisp::ch07"
        for text, words in ((pair("other"), "it does not define the Pair box (its Pair is called other"),
                            (pair("box2"), "it does not define the Pair box (its Pair is called box2"),
                            (pair("box").replace("extern constinit", ""), "it does not define the Pair box (it is not extern"),
                            (pair("box", chapter="ch08"), "it has no namespace aisp::ch07"),
                            ("", "it has no namespace aisp::ch07"),
                            ("namespace aisp::ch07 { }", "it does not define the Pair box;")):
            with self.subTest(words):
                status, message = self.check(text)
                self.assertNotEqual(status, 0)
                self.assertIn(f"chapters/ch07/box.cu: {words}", message)
                self.assertIn(remedy, message)

    def test_dropping_in_a_file_registers_it_and_removing_it_unregisters_it(self):
        self.write("CMakeLists.txt", PROJECT % {"source": SOURCE, "cuda": " ".join(CUDA_INCLUDES)})
        self.write("rest.cpp", REST)
        self.write("list.cpp", LIST)
        self.write("chapters/ch07/box.cpp", pair("box"))

        def build_and_list():
            built = run(CMAKE, "--build", self.root / "build")
            self.assertEqual(built.returncode, 0, built.stdout + built.stderr)
            return run(self.root / "build/list").stdout.splitlines()

        configured = run(CMAKE, "-G", "Ninja", "-S", self.root, "-B", self.root / "build", f"-DCMAKE_CXX_COMPILER={CXX}")
        self.assertEqual(configured.returncode, 0, configured.stderr)
        self.assertEqual(build_and_list(), ["ch07:box baseline"])
        added = self.write("chapters/ch11/streams.cpp", pair("streams", chapter="ch11"))
        self.assertEqual(build_and_list(), ["ch07:box baseline", "ch11:streams baseline"])
        added.unlink()
        self.assertEqual(build_and_list(), ["ch07:box baseline"])


if __name__ == "__main__":
    unittest.main()
