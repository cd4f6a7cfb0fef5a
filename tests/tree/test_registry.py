# SPDX-License-Identifier: Apache-2.0
"""The generated registry takes what is a pair and refuses the rest with a message that says what to do."""
import re
import unittest

from tree import CMAKE, CUDA_INCLUDES, CXX, SOURCE, TemporaryTree, compile_cxx, pair, run

GENERATE = """cmake_minimum_required(VERSION 3.25)
include("%s/cmake/registry.cmake")
set(AISP_SOURCE_ROOT "${ROOT}")
set(AISP_NUMBERED ${NUMBERED})
set(AISP_CHOSEN "${CHOSEN}")
aisp_generate_registry("${ROOT}/registry.cpp" "${ROOT}/chapters")
"""
# A project like aisp itself, without CUDA: what CMakeLists.txt does with a folder of pairs.
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(mini LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
add_library(aisp_api INTERFACE)
target_include_directories(aisp_api INTERFACE %(source)s/include %(source)s/src)
target_include_directories(aisp_api SYSTEM INTERFACE %(cuda)s)
add_library(aisp_core STATIC rest.cpp)
target_link_libraries(aisp_core PUBLIC aisp_api)
set(AISP_API_INCLUDE %(source)s/include)
set(AISP_REGISTRY_INCLUDE %(source)s/src)
include(%(source)s/cmake/pairs.cmake)
aisp_add_pairs(list chapters)
add_executable(list list.cpp)
aisp_link(list)
"""
LIST = """#include <cstdio>
#include "pair/registry.hpp"
int main() { for (const auto& entry : aisp::pair::registry()) std::printf("%s %s\\n", entry.target().c_str(), entry.pair->baseline.name.data()); }
"""
# The parts of Workload that the executable's core defines; the test's pairs need no more.
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
    def generate(self, numbered="OFF", chosen=""):
        script = self.write("generate.cmake", GENERATE % SOURCE)
        return run(CMAKE, f"-DROOT={self.root}", f"-DNUMBERED={numbered}", f"-DCHOSEN={chosen}", "-P", script)

    def refused(self, *words, numbered="OFF"):
        result = self.generate(numbered)
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

    def test_pairs_that_were_not_chosen_are_names_only(self):
        for name in ("ch01/box.cu", "ch05/mmap.cpp", "ch05/other.cu", "ch10/big_gemm.cu", "ch10/small.cu"):
            self.write(f"chapters/{name}", "")
        everything = {"ch01:box", "ch05:mmap", "ch05:other", "ch10:big_gemm", "ch10:small"}
        for chosen, wanted in (("", everything), ("all", everything), ("ch01", {"ch01:box"}), ("1,ch05:mmap", {"ch01:box", "ch05:mmap"}),
                               ("ch1*:*gemm*", {"ch10:big_gemm"}), ("ch0[15]", {"ch01:box", "ch05:mmap", "ch05:other"}), ("m?ap", {"ch05:mmap"}),
                               ("small, ch5:o*", {"ch05:other", "ch10:small"})):
            with self.subTest(chosen):
                result = self.generate(chosen=chosen)
                self.assertEqual(result.returncode, 0, result.stderr)
                table = (self.root / "registry.cpp").read_text()
                built = {f"{chapter}:{name}" for chapter, name in re.findall(r'Entry\{"(.*?)", "(.*?)", ', table)}
                self.assertEqual(built, wanted)
                left_out = re.findall(r'NotBuilt\{"(.*?)", "(.*?)", "(.*?)"\}', table)
                self.assertEqual({f"{chapter}:{name}" for chapter, name, _ in left_out}, everything - wanted)
                self.assertTrue(all((self.root / source).exists() for _, _, source in left_out))
        compiled = compile_cxx(self.root / "registry.cpp", self.root / "registry.o", "-Wall", "-Wextra", "-Werror")
        self.assertEqual(compiled.returncode, 0, compiled.stderr)

    def test_a_choice_that_names_no_pair_is_refused(self):
        self.write("chapters/ch01/box.cu", "")
        for chosen, words in (("ch99", "no pair is called 'ch99'; there are pairs in ch01"), ("ch01,bx", "'bx'"), (" ", "the list is empty")):
            with self.subTest(chosen):
                result = self.generate(chosen=chosen)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(f"AISP_PAIRS: {words}" if chosen == "ch99" else words, " ".join(result.stderr.split()))

    def family(self, text):
        script = self.write("generate.cmake", (GENERATE % SOURCE).replace('chapters")', 'chapters" "${ROOT}/selftest")'))
        self.write("chapters/ch07/box.cu", "")
        self.write("selftest/broken/hangs.cpp", text)
        return run(CMAKE, f"-DROOT={self.root}", "-P", script)

    def test_a_file_of_the_self_test_is_a_family_of_pairs(self):
        result = self.family("// They hang.\nnamespace aisp::ch91 {\nextern constinit const selftest::Case in_verify =\n    row;\n"
                             "extern constinit const selftest::Case at_once{};\n}\n")
        self.assertEqual(result.returncode, 0, result.stderr)
        table = (self.root / "registry.cpp").read_text()
        entries = re.findall(r'Entry\{"(.*?)", "(.*?)", "(.*?)", &(.*?)\}', table)
        self.assertEqual(entries, [("ch07", "box", "chapters/ch07/box.cu", "aisp::ch07::box"),
                                   ("ch91", "at_once", "selftest/broken/hangs.cpp", "aisp::ch91::at_once.pair"),
                                   ("ch91", "in_verify", "selftest/broken/hangs.cpp", "aisp::ch91::in_verify.pair")])
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

    def test_chapters_of_the_book_are_numbered(self):
        self.write("chapters/ch7/box.cu", "")
        self.refused("chapters/ch7/box.cu: bad chapter folder 'ch7'", "as ch07", numbered="ON")

    def test_chapters_of_ones_own_have_any_name_that_can_be_a_namespace(self):
        self.write("chapters/my_kernels2/box.cu", "")
        result = self.generate()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn('Entry{"my_kernels2", "box", "chapters/my_kernels2/box.cu", &aisp::my_kernels2::box}', (self.root / "registry.cpp").read_text())
        (self.root / "registry.cpp").unlink()
        for name in ("Mine", "2d", "my-kernels", "_mine"):
            with self.subTest(name):
                path = self.write(f"chapters/{name}/other.cu", "")
                self.refused(f"bad chapter folder '{name}'; a folder of pairs is a namespace too", "[a-z][a-z0-9_]*")
                path.unlink()

    def test_names_that_are_taken(self):
        files = [path for folder in ("include", "src", "selftest") for path in (SOURCE / folder).rglob("*.[hc]*")]
        taken = {name for path in files for name in re.findall(r"^namespace aisp::(?!inline )(\w+)", path.read_text(), re.M) if not re.fullmatch(r"ch\d\d", name)}
        self.assertLess({"base", "device", "pair", "selftest"}, taken)
        for name in sorted(taken | {"all", "detail"}):
            with self.subTest(name):
                path = self.write(f"chapters/{name}/box.cu", "")
                self.refused(f"bad chapter folder '{name}'", "that name is taken; rename the folder")
                path.unlink()

    def test_pair_among_the_shared_headers(self):
        self.write("chapters/shared/box.cu", "")
        for numbered in ("ON", "OFF"):
            self.refused("bad chapter folder 'shared'", ".cuh or .hpp", numbered=numbered)

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

    def build(self, text):
        """Builds a project with one pair, chapters/ch07/box.cpp."""
        for name, content in (("CMakeLists.txt", PROJECT % {"source": SOURCE, "cuda": " ".join(CUDA_INCLUDES)}), ("rest.cpp", REST), ("list.cpp", LIST)):
            if not (self.root / name).exists():
                self.write(name, content)
        self.write("chapters/ch07/box.cpp", text)
        if not (self.root / "build").exists():
            configured = run(CMAKE, "-G", "Ninja", "-S", self.root, "-B", self.root / "build", f"-DCMAKE_CXX_COMPILER={CXX}")
            self.assertEqual(configured.returncode, 0, configured.stderr)
        return run(CMAKE, "--build", self.root / "build")

    def test_file_that_does_not_define_its_pair_is_told_by_its_name_before_the_linker_is(self):
        good = pair("box")
        built = self.build(good)
        self.assertEqual(built.returncode, 0, built.stdout)
        remedy = "a pair file ends with: extern constinit const Pair box{...} in namespace aisp::ch07, outside anonymous namespaces"
        own = "extern constinit const Pair"
        for text, words in ((pair("other"), "it does not define the Pair box (its Pair is called other)"),
                            (pair("box2"), "it does not define the Pair box (its Pair is called box2)"),
                            (good.replace("extern constinit", "[[maybe_unused]] constexpr"), "it does not define the Pair box (it is not extern"),
                            (good.replace(own, "namespace { " + own)[:-2] + "} }", "it does not define the Pair box (it is not extern, or inside an anonymous"),
                            (good.replace(own, "namespace more { " + own)[:-2] + "} }", "it does not define the Pair box (it is not extern, or inside"),
                            (pair("box", chapter="ch08"), "it has no namespace aisp::ch07"),
                            ("", "it has no namespace aisp::ch07"),
                            ("namespace aisp::ch07 { }", "it does not define the Pair box;")):
            with self.subTest(words):
                built = self.build(text)
                self.assertNotEqual(built.returncode, 0)
                told = [line for line in built.stdout.splitlines() if remedy in line]
                self.assertEqual(len(told), 1, built.stdout)
                self.assertTrue(told[0].startswith(f"{self.root}/chapters/ch07/box.cpp: {words}"), told[0])
                self.assertNotIn("undefined reference", built.stdout)

    def test_dropping_in_a_file_registers_it_and_removing_it_unregisters_it(self):
        def build_and_list():
            built = self.build(pair("box"))
            self.assertEqual(built.returncode, 0, built.stdout + built.stderr)
            return run(self.root / "build/list").stdout.splitlines()

        self.assertEqual(build_and_list(), ["ch07:box baseline"])
        added = self.write("chapters/mine/streams.cpp", pair("streams", chapter="mine"))
        self.assertEqual(build_and_list(), ["ch07:box baseline", "mine:streams baseline"])
        added.unlink()
        self.assertEqual(build_and_list(), ["ch07:box baseline"])

    def test_folder_and_order_of_the_calls(self):
        text = PROJECT % {"source": SOURCE, "cuda": " ".join(CUDA_INCLUDES)}
        self.write("rest.cpp", REST)
        self.write("list.cpp", LIST)
        for wrong, words in ((text.replace("list chapters", "list kernels"), f"aisp_add_pairs(list): there is no folder {self.root}/kernels"),
                             (text.replace("list chapters", "list"), "name the folder of the pairs"),
                             (text.replace("aisp_add_pairs(list chapters)", ""), "aisp_link(list): there are no pairs of that name; call aisp_add_pairs(list")):
            with self.subTest(words):
                self.write("CMakeLists.txt", wrong)
                (self.root / "chapters").mkdir(exist_ok=True)
                configured = run(CMAKE, "-G", "Ninja", "-S", self.root, "-B", self.root / "build", f"-DCMAKE_CXX_COMPILER={CXX}")
                self.assertNotEqual(configured.returncode, 0)
                self.assertIn(words, " ".join(configured.stderr.split()))


if __name__ == "__main__":
    unittest.main()
