# SPDX-License-Identifier: Apache-2.0
"""Folders include only what is below them; the checker that says so finds what it should."""
import importlib.util
import re
import unittest

from tree import SOURCE, TemporaryTree, run

CHECK = SOURCE / "scripts" / "check-includes.py"


def allowed():
    spec = importlib.util.spec_from_file_location("check_includes", CHECK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ALLOWED


class RealTree(unittest.TestCase):
    def test_every_include_is_in_order(self):
        result = run(CHECK, SOURCE)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_the_architecture_shows_the_same_order(self):
        page = (SOURCE / "docs/architecture.md").read_text()
        table = page[page.index("| folder | what is in it | may include |"):].split("\n\n")[0]
        shown = {folder: {name.removeprefix("include/") for name in re.findall(r"`([\w/]+)`", others)}
                 for folder, others in re.findall(r"(?m)^\| `([\w/]+)` \|[^|]*\| (.*) \|$", table)}
        self.assertEqual(shown, allowed())


class Checker(TemporaryTree):
    def setUp(self):
        super().setUp()
        self.write("include/aisp/pair.hpp", "#include <cuda_runtime_api.h>\n#include <vector>\n")
        self.write("src/base/files.hpp", "#include <string>\n")
        self.write("src/evidence/result.hpp", '#include <nlohmann/json_fwd.hpp>\n#include "base/files.hpp"\n')
        self.write("src/cli/main.cpp", '#include <CLI/CLI.hpp>\n#include "evidence/result.hpp"\n#include <aisp/pair.hpp>\n')
        self.write("chapters/shared/engine.cuh", "#include <aisp/pair.hpp>\n")
        self.write("chapters/ch07/topic.cuh", "#include <cub/cub.cuh>\n")
        self.write("chapters/ch07/box.cu", '#include <aisp/pair.hpp>\n#include "engine.cuh"\n#include "topic.cuh"\n')

    def check(self):
        return run(CHECK, self.root)

    def wrong(self, name, text, *words):
        path = self.root / name
        before = path.read_text() if path.exists() else None
        self.write(name, text)
        result = self.check()
        self.assertEqual(result.returncode, 1, f"accepted: {text}")
        for word in (f"{name}:1:", *words):
            self.assertIn(word, result.stdout)
        if before is None:
            path.unlink()
        else:
            path.write_text(before)

    def test_good_tree(self):
        result = self.check()
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn("7 files", result.stdout)

    def test_upward_includes(self):
        self.wrong("src/base/text.cpp", '#include "evidence/result.hpp"\n', "src/base may not include src/evidence")
        self.write("src/machine/gpu.hpp", "")
        self.write("src/run/child.hpp", "")
        self.write("src/verify/verifier.hpp", "")
        self.wrong("src/evidence/a.cpp", '#include "machine/gpu.hpp"\n', "may not include src/machine")
        self.wrong("src/machine/a.cpp", '#include "evidence/result.hpp"\n', "may not include src/evidence")
        self.wrong("src/pair/a.cpp", '#include "run/child.hpp"\n', "may not include src/run")
        self.wrong("src/measure/a.cpp", '#include "verify/verifier.hpp"\n', "may not include src/verify")

    def test_folders_in_folders(self):
        self.write("src/run/wire/request.hpp", "")
        self.write("src/run/child/child.hpp", '#include "run/wire/request.hpp"\n')
        self.write("src/report/html/page.hpp", '#include "evidence/result.hpp"\n')
        self.write("src/report/text.cpp", '#include "report/html/page.hpp"\n')
        self.write("src/suite/suite.cpp", '#include "run/child/child.hpp"\n')
        self.assertEqual(self.check().returncode, 0)
        self.wrong("src/run/parent/a.cpp", '#include "run/child/child.hpp"\n', "src/run/parent may not include src/run/child")
        self.wrong("src/run/wire/a.hpp", '#include "run/child/child.hpp"\n', "src/run/wire may not include src/run/child")
        self.wrong("src/report/html/a.cpp", '#include "machine/gpu.hpp"\n', "src/report may not include src/machine")

    def test_folders_beside_each_other_form_no_circle(self):
        self.write("src/evidence/one/a.hpp", '#include "evidence/two/b.hpp"\n')
        self.write("src/evidence/two/b.hpp", "#include <string>\n")
        self.write("src/evidence/three/c.hpp", "#include <string>\n")
        self.assertEqual(self.check().returncode, 0)
        self.write("src/evidence/two/b.hpp", '#include "evidence/three/c.hpp"\n')
        self.wrong("src/evidence/three/c.hpp", '#include "evidence/one/a.hpp"\n', "src/evidence/three and src/evidence/one include each other")

    def test_pure_folders_never_see_cuda(self):
        self.wrong("src/report/a.cpp", "#include <cuda_runtime.h>\n", "stays free of CUDA")
        self.wrong("src/evidence/a.cpp", "#include <aisp/pair.hpp>\n", "stays free of CUDA")
        self.write("src/base/files.hpp", "#include <aisp/pair.hpp>\n")
        result = self.check()
        self.assertEqual(result.returncode, 1)
        self.assertIn("src/evidence/result.hpp:2: reaches <aisp/pair.hpp> through src/base/files.hpp", result.stdout)

    def test_public_headers_never_see_src(self):
        self.wrong("include/aisp/a.hpp", '#include "base/files.hpp"\n', "include/aisp sees only")
        self.wrong("include/aisp/a.hpp", "#include <fmt/format.h>\n", "free of host libraries")

    def test_pairs_see_public_headers_only(self):
        self.wrong("chapters/ch07/a.cu", '#include "base/files.hpp"\n', "not a file that this folder may see")
        self.wrong("chapters/ch07/a.cu", '#include "../ch08/topic.cuh"\n', 'without ".."')
        self.wrong("chapters/ch08/a.cu", '#include "topic.cuh"\n', "not a file that this folder may see")
        for name in ("fmt/core.h", "nlohmann/json.hpp", "CLI/CLI.hpp", "thrust/sort.h", "iostream"):
            self.wrong("chapters/ch07/a.cpp", f"#include <{name}>\n", f"<{name}>: pairs include")

    def test_pairs_of_the_self_test_are_pairs(self):
        self.write("selftest/shared/calls.hpp", "#include <aisp/pair.hpp>\n")
        self.write("selftest/cheating/gpu_cheats.cu", '#include <aisp/pair.hpp>\n#include "calls.hpp"\n')
        self.assertEqual(self.check().returncode, 0)
        self.wrong("selftest/cheating/cheats.cpp", '#include "base/files.hpp"\n', "not a file that this folder may see")
        self.wrong("selftest/cheating/cheats.cpp", '#include "engine.cuh"\n', "not a file that this folder may see")
        self.wrong("selftest/cheating/cheats.cpp", "#include <fmt/core.h>\n", "<fmt/core.h>: pairs include")
        self.wrong("selftest/cheating/gpu_cheats.cu", "#include <gtest/gtest.h>\n", "<gtest/gtest.h>: pairs include")

    def test_libraries_have_their_places(self):
        self.wrong("src/base/a.cpp", "#include <CLI/CLI.hpp>\n", "CLI11 belongs to src/cli")
        self.wrong("src/base/a.hpp", "#include <nlohmann/json.hpp>\n", "json_fwd.hpp")
        self.write("src/base/a.cpp", '#include "base/a.hpp"\n')
        self.write("src/base/a.hpp", "#include <nlohmann/json.hpp>\n")
        self.write("src/cli/b.cpp", '#include "base/a.hpp"\n')
        self.assertEqual(self.check().returncode, 0, "a header of .cpp files alone")
        self.write("src/cli/b.hpp", '#include "base/a.hpp"\n')
        self.assertEqual(self.check().returncode, 1, "of a header that nobody includes yet too")
        for name in ("src/base/a.cpp", "src/base/a.hpp", "src/cli/b.cpp", "src/cli/b.hpp"):
            (self.root / name).unlink()
        self.wrong("src/base/a.cpp", "#include <gtest/gtest.h>\n", "GoogleTest belongs to tests")

    def test_cutlass_has_its_place(self):
        self.write("src/libraries/cutlass_bf16.cu", "#include <aisp/pair.hpp>\n#include <cutlass/cutlass.h>\n#include <cute/tensor.hpp>\n")
        self.assertEqual(self.check().returncode, 0)
        self.wrong("chapters/ch07/a.cu", "#include <cutlass/cutlass.h>\n", "CUTLASS belongs to src/libraries")
        self.wrong("src/machine/a.cpp", "#include <cute/tensor.hpp>\n", "CUTLASS belongs to src/libraries")
        self.wrong("src/libraries/a.cpp", '#include "evidence/result.hpp"\n', "src/libraries may not include src/evidence")

    def test_nvcc_compiles_no_host_libraries_not_even_by_way_of_a_header(self):
        self.wrong("src/pair/a.cu", "#include <fmt/format.h>\n", "nvcc compiles no fmt")
        self.write("src/base/words.hpp", "#include <fmt/format.h>\n")
        self.wrong("src/pair/a.cu", '#include "base/words.hpp"\n', "src/base/words.hpp")

    def test_version_header_has_one_reader(self):
        self.write("src/base/version.cpp", '#include "aisp_version.hpp"\n')
        self.assertEqual(self.check().returncode, 0)
        self.wrong("src/cli/about.cpp", '#include "aisp_version.hpp"\n', "changes with every commit")

    def test_missing_file_and_missing_folder(self):
        self.wrong("src/base/a.cpp", '#include "base/nothing.hpp"\n', "not a file")
        self.wrong("src/base/a.cpp", '#include "files.hpp"\n', "name the folder too")
        self.wrong("src/tools/a.cpp", '#include "base/files.hpp"\n', "src/tools has no place in the order")


if __name__ == "__main__":
    unittest.main()
