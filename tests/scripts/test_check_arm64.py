# SPDX-License-Identifier: Apache-2.0
"""scripts/check-arm64 sees what is x86's alone, and nothing else. That all of the host code passes is a step of ./setup.sh --test."""
import os
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("AISP_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("AISP", str(SOURCE / "build/ci/aisp"))).parent
FILES = {
    "intrinsic.cpp": "#include <immintrin.h>\nvoid wait() { _mm_pause(); }\n",
    "builtin.cpp": "void wait() { __builtin_ia32_pause(); }\n",
    "call.cpp": "#include <sys/syscall.h>\nlong number() { return SYS_open; }\n",
    "guarded.cpp": "#if defined(__x86_64__)\n#include <immintrin.h>\nvoid wait() { _mm_pause(); }\n#endif\n#include <fmt/format.h>\n",
}


class Arm64(unittest.TestCase):
    def check(self, *arguments):
        return subprocess.run([SOURCE / "scripts/check-arm64", *arguments], capture_output=True, text=True, timeout=240, check=False)

    def test_what_only_x86_has_is_found(self):
        with tempfile.TemporaryDirectory() as work:
            files = [pathlib.Path(work, name) for name in FILES]
            for file in files:
                file.write_text(FILES[file.name])
            result = self.check(BUILD, *files)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("3 of 4 files or folders of them do not compile for arm64", result.stderr)
        self.assertNotIn("guarded.cpp", result.stderr)

    def test_without_a_build_it_says_what_to_do(self):
        result = self.check("/nowhere")
        self.assertEqual(result.returncode, 2)
        self.assertIn("cmake --preset ci", result.stderr)


if __name__ == "__main__":
    unittest.main()
