# SPDX-License-Identifier: Apache-2.0
"""No function that objects of g++ and of nvcc both define under one name has a lambda in that name: the two lay out its captures
differently, and the linker keeps one of them (include/aisp/front_end.hpp)."""
import os
import re
import unittest
from pathlib import Path

from tree import NVCC, TemporaryTree, compile_cxx, run

# A symbol that the linker merges with others of its name.
MERGED = re.compile(r" [WVu] (\w+)$", re.M)
CLOSURE = re.compile(r"Ul\w*?E\d*_")
# std::ranges captures two references in the order of the parameters, which both front ends keep, since the function is no member. Other
# lambdas of the standard library are left out for the same reason: they name what they capture.
KEPT_ORDER = "__make_comp_proj"


def merged(objects):
    return set(MERGED.findall(run("nm", "--defined-only", *objects).stdout))


def shared_closures(objects):
    by_nvcc = [path for path in objects if ".cu.o" in str(path)]
    both = merged(by_nvcc) & merged([path for path in objects if path not in by_nvcc])
    return sorted(name for name in both if "4aisp" in name and CLOSURE.search(name) and KEPT_ORDER not in name)


class Closures(TemporaryTree):
    @unittest.skipUnless("AISP_LINKED_OBJECTS" in os.environ, "needs the build's list of objects")
    def test_none_is_shared(self):
        objects = [path for path in Path(os.environ["AISP_LINKED_OBJECTS"]).read_text().split() if os.path.exists(path)]
        by_both = merged(objects[:1]) & merged(objects[1:2])
        self.assertTrue({name for name in by_both if "OpenedObject" in name}, f"{objects[:2]} lack inline functions")
        self.assertEqual(shared_closures(objects), [])

    def test_a_shared_one_is_found(self):
        text = ("namespace aisp { struct Plan { int factor = 2; template <class F> int each(const F& f) { return f(1); }\n"
                "  int tuned(int b) { return each([&](int i) { return i * b + factor; }); } }; }\n")
        for name in ("host.cpp", "device.cu"):
            self.write(name, text + f"int {name[:4]}(int i) {{ return aisp::Plan{{}}.tuned(i); }}\n")
        self.assertEqual(compile_cxx(self.root / "host.cpp", self.root / "host.cpp.o", "-O0").returncode, 0)
        compiled = run(NVCC, "-std=c++20", "-O0", "-c", self.root / "device.cu", "-o", self.root / "device.cu.o")
        self.assertEqual(compiled.returncode, 0, compiled.stderr)
        objects = [self.root / "host.cpp.o", self.root / "device.cu.o"]
        self.assertIn("_ZN4aisp4Plan4eachIZNS0_5tunedEiEUliE_EEiRKT_", shared_closures(objects))
        self.assertEqual(shared_closures(objects[:1]), [])


if __name__ == "__main__":
    unittest.main()
