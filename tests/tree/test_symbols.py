# SPDX-License-Identifier: Apache-2.0
"""The object of a pair exports its Pair and nothing else."""
import os
import re
import unittest
from pathlib import Path

from tree import NVCC, SOURCE, TemporaryTree, compile_cxx, pair, run

CHECK = SOURCE / "scripts" / "check-symbols"


class RealPairs(unittest.TestCase):
    @unittest.skipUnless("AISP_PAIR_OBJECTS" in os.environ, "needs the build's list of objects")
    def test_every_pair_exports_only_itself(self):
        listed = Path(os.environ["AISP_PAIR_OBJECTS"]).read_text().split()
        objects = [path for path in listed if "_empty.cpp" not in path]
        self.assertGreater(len(objects), 0)
        result = run(CHECK, "--source", SOURCE, *objects)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


    @unittest.skipUnless("AISP_PAIR_OBJECTS" in os.environ, "needs the build's list of objects")
    def test_functions_of_host_pairs_begin_at_cache_lines(self):
        objects = [path for path in Path(os.environ["AISP_PAIR_OBJECTS"]).read_text().split() if path.endswith(".cpp.o")
                   and "_empty" not in path and "selftest/broken" not in path]
        placed = re.findall(r"^([0-9a-f]+) t (\w*invoke\w*)$", run("nm", *objects).stdout, re.M)
        self.assertTrue(placed, "no object has a run of a variant")
        self.assertEqual([name for address, name in placed if int(address, 16) % 64 != 0], [])


class Checker(TemporaryTree):
    def check(self, extra="", name="box"):
        source = self.write("box.cpp", pair(name, extra=extra))
        output = self.root / "ch07" / "box.cpp.o"
        output.parent.mkdir(exist_ok=True)
        # -O0 keeps inline functions that would otherwise vanish.
        compiled = compile_cxx(source, output, "-O0")
        self.assertEqual(compiled.returncode, 0, compiled.stderr)
        return run(CHECK, "--source", self.root, output)

    def test_good_pair(self):
        result = self.check("namespace { int helper() { return 1; } int used = helper(); }")
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_function_and_variable_outside_anonymous_namespaces(self):
        result = self.check("int helper() { return 1; }\nint counter = 2;")
        self.assertEqual(result.returncode, 1)
        self.assertIn("exports aisp::ch07::helper()", result.stdout)
        self.assertIn("exports aisp::ch07::counter", result.stdout)

    def test_inline_function_of_the_pair_but_not_of_the_chapters_header(self):
        text = "inline int helper() { return 1; }\nnamespace { int used = helper(); }"
        result = self.check(text)
        self.assertEqual(result.returncode, 1)
        self.assertIn("shares aisp::ch07::helper()", result.stdout)
        self.write("chapters/ch07/topic.hpp", "inline int helper() { return 1; }")
        self.assertEqual(self.check(text).returncode, 0)

    def test_template_of_a_method_of_a_local_class_is_no_name_of_its_own(self):
        result = self.check("template <auto method> struct Of { static void invoke() {} };\n"
                            "namespace { struct Local { void go() {} }; [[maybe_unused]] void (*used)() = &Of<&Local::go>::invoke; }")
        self.assertEqual(result.returncode, 1)
        self.assertIn("shares aisp::ch07::Of<&aisp::ch07::(anonymous namespace)::Local::go>::invoke()", result.stdout)

    def test_missing_pair(self):
        result = self.check(name="other")
        self.assertEqual(result.returncode, 1)
        self.assertIn("does not define aisp::ch07::box", result.stdout)

    def test_a_family_of_the_self_test_exports_its_pairs(self):
        head, row = pair("zeros").replace("aisp/pair.hpp", "aisp/selftest.hpp").split("extern constinit const Pair zeros")
        row = "extern constinit const selftest::Case %s{.pair = " + row.replace("};\n}\n", "}};\n")
        text = head + row % "zeros" + row % "ones" + "}\n"
        source = self.write("selftest/broken/wrong.cpp", text)
        self.assertEqual(compile_cxx(source, self.root / "selftest/broken/wrong.cpp.o", "-O0").returncode, 0)
        result = run(CHECK, "--source", self.root, self.root / "selftest/broken/wrong.cpp.o")
        self.assertEqual(result.returncode, 0, result.stdout)
        source.write_text(text.replace("Case ones", "Case twos"))
        result = run(CHECK, "--source", self.root, self.root / "selftest/broken/wrong.cpp.o")
        self.assertEqual(result.returncode, 1)
        self.assertIn("exports aisp::ch07::ones", result.stdout)
        self.assertIn("does not define aisp::ch07::twos", result.stdout)

    def test_kernels_of_anonymous_namespaces_are_no_exports(self):
        source = self.write("ch07/box.cu", pair("box", extra="namespace { __global__ void fill_kernel(int* x) { *x = 1; } "
                                                             "[[maybe_unused]] void go() { fill_kernel<<<1, 1>>>(nullptr); } }"))
        output = self.root / "ch07" / "box.cu.o"
        compiled = run(NVCC, "-std=c++20", f"-I{SOURCE / 'include'}", "-gencode=arch=compute_90a,code=sm_90a", "-c", source, "-o", output)
        self.assertEqual(compiled.returncode, 0, compiled.stderr)
        self.assertEqual(run(CHECK, output).returncode, 0)
        source.write_text(source.read_text().replace("namespace { __global__", "__global__").replace("(nullptr); } }", "(nullptr); }"))
        compiled = run(NVCC, "-std=c++20", f"-I{SOURCE / 'include'}", "-gencode=arch=compute_90a,code=sm_90a", "-c", source, "-o", output)
        self.assertEqual(compiled.returncode, 0, compiled.stderr)
        result = run(CHECK, output)
        self.assertEqual(result.returncode, 1)
        self.assertIn("fill_kernel", result.stdout)


if __name__ == "__main__":
    unittest.main()
