# SPDX-License-Identifier: Apache-2.0
"""Code that the tests of the tree share. ctest sets the environment; run alone, they use what is on PATH."""
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(os.environ.get("AISP_SOURCE", Path(__file__).parents[2]))
CXX = os.environ.get("AISP_CXX", "c++")
NVCC = os.environ.get("AISP_NVCC", "nvcc")
CMAKE = os.environ.get("AISP_CMAKE", "cmake")
CUDA_INCLUDES = os.environ.get("AISP_CUDA_INCLUDES", "/usr/local/cuda/include").split(":")

# Parts of a document: blocks of code, and code between backquotes.
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")

# The least that is a pair: what the tests of the registry and of symbols compile.
PAIR = """// SPDX-License-Identifier: Apache-2.0
#include <aisp/pair.hpp>
namespace aisp::%(chapter)s {
namespace {
class Thing final : public Workload {
 public:
  explicit Thing(Setup&) {}
  Cost cost() const override { return {}; }
  void run(Launch&) {}
};
}
%(extra)s
extern constinit const Pair %(name)s{
    .teaches = "nothing",
    .make = make<Thing>,
    .baseline = {.name = "baseline", .run = call<&Thing::run>},
    %(optimized)s
};
}
"""
OPTIMIZED = '.optimized = variants({{.name = "optimized", .run = call<&Thing::run>}}),'


def pair(name, chapter="ch07", optimized=OPTIMIZED, extra=""):
    return PAIR % {"name": name, "chapter": chapter, "optimized": optimized, "extra": extra}


def blank(match):
    """The lines of a match, empty, so that those behind it keep their numbers."""
    return "\n" * match.group().count("\n")


def run(*command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)


def compile_cxx(source, output, *options):
    includes = [f"-I{SOURCE / 'include'}", f"-I{SOURCE / 'src'}"] + [f"-isystem{folder}" for folder in CUDA_INCLUDES]
    return run(CXX, "-std=c++20", *includes, *options, "-c", source, "-o", output)


class TemporaryTree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path
