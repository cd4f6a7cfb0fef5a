#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a fresh machine ready: packages, CUDA toolkit, build, a quick check, and what this machine can run. Safe to run again.
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
cd "$root"
# shellcheck source=scripts/setup/common.sh
. scripts/setup/common.sh
# shellcheck source=scripts/setup/packages.sh
. scripts/setup/packages.sh
# shellcheck source=scripts/setup/cuda.sh
. scripts/setup/cuda.sh
# shellcheck source=scripts/setup/cutlass.sh
. scripts/setup/cutlass.sh
# shellcheck source=scripts/setup/driver.sh
. scripts/setup/driver.sh
# shellcheck source=scripts/setup/architectures.sh
. scripts/setup/architectures.sh
# shellcheck source=scripts/setup/build.sh
. scripts/setup/build.sh

usage() {
  cat <<'EOF'
usage: ./setup.sh [options]

Installs what is missing, builds build/release/aisp, runs `aisp verify`, measures the ceilings of a GPU that is there (`aisp peak`)
and says what this machine can run.
Debian 12 or Ubuntu 24.04 on x86-64; root or sudo is used only for packages that are missing.

  --test              build preset ci instead and run all tests and checks
  --nightly           build preset ci instead and run what --test leaves to the night: fuzzers, lint of single files, engine benchmarks
  --asan              build preset asan instead and run the unit tests under the sanitizers
  --package           build preset packages instead, for six GPU architectures, which takes an hour, and make tarball, Debian package
                      and wheel in packages/
  --chapters LIST     build these pairs alone, as "ch01", "ch01,ch05:mmap" or "ch1*:*gemm*" (what --targets takes, commas between); the
                      executable then says of all others that they are not built
  --cutlass           build libaisp_cutlass.so alone, CUTLASS's kernels as bars beside ours, two minutes (./setup.sh and
                      --package build it last; --chapters, --test and --asan do not)
  --architectures LIST
                      GPU architectures to build for, as 90a or "80;90a" (default: those of the GPUs that are here, else 90a; with
                      --package its six; with --test and --asan 90a, which results are recorded on)
  --cuda auto|system|wheels
                      toolkit: the machine's, 13.0 or newer, else wheels from PyPI in .cuda (auto, the default); only the
                      machine's; only the wheels
  --with-driver       also install the NVIDIA driver, 580 or newer (root)
  --with-nsight       also install Nsight Systems and Nsight Compute (root)
  --jobs N            parallel compilations (default: one per CPU and 2 GiB of memory)
  --dry-run           print what would be done, change nothing
  --help

Environment: CUDA_HOME names a toolkit; AISP_IGNORE_SYSTEM_CUDA=1 means --cuda wheels; CUTLASS_HOME names CUTLASS 4.0 or newer
(else its headers come from PyPI into .cutlass).
EOF
}

mode=release
nightly=0
cuda_choice=auto
architectures=
chapters=
with_chapters=0
with_driver=0
with_nsight=0
while [[ $# -gt 0 ]]; do
  case $1 in
    --test) mode=ci ;;
    --nightly)
      mode=ci
      nightly=1
      ;;
    --asan) mode=asan ;;
    --package) mode=packages ;;
    --cutlass) mode=cutlass ;;
    --cuda | --jobs | --architectures | --chapters)
      [[ $# -ge 2 ]] || usage_error "$1 needs a value"
      case $1 in
        --cuda) cuda_choice=$2 ;;
        --jobs) jobs=$2 ;;
        --chapters) chapters=$2 with_chapters=1 ;;
        *) architectures=$2 ;;
      esac
      shift
      ;;
    --cuda=*) cuda_choice=${1#*=} ;;
    --architectures=*) architectures=${1#*=} ;;
    --chapters=*) chapters=${1#*=} with_chapters=1 ;;
    --jobs=*) jobs=${1#*=} ;;
    --with-driver) with_driver=1 ;;
    --with-nsight) with_nsight=1 ;;
    --dry-run) dry_run=1 ;;
    -h | --help)
      usage
      exit 0
      ;;
    *) usage_error "unknown option '$1'" ;;
  esac
  shift
done
[[ $cuda_choice =~ ^(auto|system|wheels)$ ]] || usage_error "--cuda is auto, system or wheels, not '$cuda_choice'"
[[ $architectures =~ ^([0-9]+[af]?(-real|-virtual)?(;|$))*$ ]] || usage_error "--architectures is a list like 90a or 80;90a, not '$architectures'"
[[ -z $jobs || $jobs =~ ^[1-9][0-9]*$ ]] || usage_error "--jobs is a positive number, not '$jobs'"
if [[ ${AISP_IGNORE_SYSTEM_CUDA:-0} != 0 && $cuda_choice == auto ]]; then cuda_choice=wheels; fi

if ((with_chapters)) && [[ $mode != release ]]; then usage_error "--chapters is for the release build, without --test, --asan, --package and --cutlass"; fi

check_machine
install_packages "$mode"
if ((with_chapters)); then check_chapters; fi
find_or_install_cuda "$cuda_choice"
case $mode in
  packages | cutlass) find_or_get_cutlass ;;
  release) if ((!with_chapters)); then find_or_get_cutlass; fi ;;
esac
if [[ $mode == ci ]]; then find_or_install_sass_tools; fi
if ((with_driver)); then install_driver; fi
if ((with_nsight)); then install_nsight; fi
choose_architectures
case $mode in
  release) build_and_verify ;;
  packages) build_packages ;;
  cutlass) build_cutlass_alone ;;
  ci) if ((nightly)); then check_at_night; else build_and_test; fi ;;
  asan) build_and_test_sanitized ;;
esac
