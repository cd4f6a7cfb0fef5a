# SPDX-License-Identifier: Apache-2.0
"""Projects of one's own against an installed aisp: what this build installs, or the installation that AISP_PREFIX names."""
import os
import pathlib
import shutil
import subprocess

from harness import AISP, SOURCE

CMAKE = os.environ.get("AISP_CMAKE", "cmake")
BUILD = pathlib.Path(os.environ.get("AISP_BUILD", pathlib.Path(AISP).parent))
COMPILERS = [f"-DCMAKE_CUDA_COMPILER={os.environ['AISP_NVCC']}", f"-DCMAKE_CXX_COMPILER={os.environ['AISP_CXX']}"] if "AISP_NVCC" in os.environ else []


def cmake(*words, good=True):
    finished = subprocess.run([CMAKE, *map(str, words)], capture_output=True, text=True, timeout=570)
    if good and finished.returncode != 0:
        raise AssertionError(f"cmake {' '.join(map(str, words))}\n{finished.stdout}{finished.stderr}")
    return finished


def installed(place):
    """The prefix of an aisp that find_package finds."""
    if "AISP_PREFIX" in os.environ:
        return pathlib.Path(os.environ["AISP_PREFIX"])
    cmake("--install", BUILD, "--prefix", place / "prefix", "--component", "development")
    return place / "prefix"


def configure(project, prefix, *options, good=True):
    return cmake("-G", "Ninja", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={prefix}", *COMPILERS, *options, good=good)


def new_pairs(folder, kinds):
    """Returns what `aisp new NAME FLAG...` writes, for each name."""
    folder.mkdir(parents=True)
    for name, flags in kinds.items():
        subprocess.run([AISP, "new", name, *flags], cwd=folder, check=True, capture_output=True)


def copy_of_the_example(place):
    shutil.copytree(SOURCE / "docs/your-own-kernels", place / "project")
    return place / "project"


# A pair whose kernel launches itself, which the build links with the device runtime.
LAUNCHES = """// SPDX-License-Identifier: Apache-2.0
// A chain of kernels, each of which waits for the one before.
#include <aisp/device_runtime.hpp>
#include <aisp/pair.hpp>

namespace aisp::fresh {
namespace {

__global__ void count_kernel(int* counter, int left) {
  ++*counter;
  if (left > 1) count_kernel<<<1, 1, 0, cudaStreamTailLaunch>>>(counter, left - 1);
}

class Chain final : public Workload {
  Output<int> counter_;

  void start(Launch& launch) { check(cudaMemsetAsync(counter_, 0, sizeof(int), launch.stream)); }

 public:
  explicit Chain(Setup& setup) : counter_{setup.output<int>(1)} {}
  Cost cost() const override { return {.dependent_kernels = 9}; }
  double expected(std::size_t) const override { return 9; }

  void by_host(Launch& launch) {
    start(launch);
    for (int i = 0; i < 9; ++i) launch(count_kernel, {1, 1}, counter_, 1);
  }
  void by_device(Launch& launch) {
    start(launch);
    launch(count_kernel, {1, 1}, counter_, 9);
  }
};

}  // namespace

extern constinit const Pair NAME{
    .teaches = "a kernel can launch the next one",
    .make = make<Chain>,
    .baseline = {.name = "by_host", .run = call<&Chain::by_host>},
    .optimized = variants({{.name = "by_device", .run = call<&Chain::by_device>}}),
    .bound = Bound::latency,
};

}  // namespace aisp::fresh
"""


def launching_pairs(folder, *names):
    for name in names:
        (folder / f"{name}.cu").write_text(LAUNCHES.replace("NAME", name))
