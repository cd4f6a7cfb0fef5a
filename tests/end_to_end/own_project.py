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
    """What `aisp new NAME FLAG...` writes, for each name."""
    folder.mkdir(parents=True)
    for name, flags in kinds.items():
        subprocess.run([AISP, "new", name, *flags], cwd=folder, check=True, capture_output=True)


def copy_of_the_example(place):
    shutil.copytree(SOURCE / "docs/your-own-kernels", place / "project")
    return place / "project"
