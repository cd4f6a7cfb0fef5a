# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Finds CUDA 13.0 or newer, or installs it from NVIDIA's wheels on PyPI into .cuda. Sets cuda_home.

cuda_minimum=13.0
# One release, pinned; together they hold nvcc, the runtime and all headers that are included, plus the libraries opened at run time.
cuda_wheels=(
  nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
  nvidia-cuda-profiler-api==13.0.85 nvidia-nvtx==13.0.85 nvidia-cuda-cupti==13.0.85 nvidia-cuda-nvrtc==13.0.88 nvidia-nvjitlink==13.0.88
  nvidia-cublas==13.1.0.3
)
# The tools that read machine code for tests/scripts/test_sass.py; the oldest that PyPI has, and they read what 13.0 wrote.
sass_tools=(cuobjdump nvdisasm)
sass_wheels=(nvidia-cuda-cuobjdump==13.2.78 nvidia-cuda-nvdisasm==13.2.78)
cuda_headers=(cuda_runtime.h crt/host_config.h cublas_v2.h cublasLt.h nvtx3/nvToolsExt.h cccl/cub/cub.cuh)
cuda_home=

# Says why the folder is no usable toolkit, or nothing.
cuda_fault() {
  local home=$1 version header
  if [[ ! -x $home/bin/nvcc ]]; then
    echo "has no bin/nvcc"
    return
  fi
  version=$("$home/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
  if [[ -z $version ]] || ! at_least "$version" "$cuda_minimum"; then
    echo "is CUDA ${version:-of unknown version}, older than $cuda_minimum"
    return
  fi
  for header in "${cuda_headers[@]}"; do
    if [[ ! -e $home/include/$header ]]; then
      echo "has no include/$header"
      return
    fi
  done
  if [[ ! -e $home/include/cupti.h && ! -e $home/extras/CUPTI/include/cupti.h ]]; then echo "has no include/cupti.h"; fi
}

find_system_cuda() {
  local candidate fault nvcc
  local candidates=()
  if [[ -n ${CUDA_HOME:-} ]]; then candidates+=("$CUDA_HOME"); fi
  if nvcc=$(command -v nvcc); then candidates+=("$(dirname "$(dirname "$(readlink -f "$nvcc")")")"); fi
  for candidate in /usr/local/cuda /usr/local/cuda-*; do
    if [[ -d $candidate ]]; then candidates+=("$candidate"); fi
  done
  for candidate in "${candidates[@]}"; do
    fault=$(cuda_fault "$candidate")
    if [[ -z $fault ]]; then
      cuda_home=$(readlink -f "$candidate")
      return
    fi
    if [[ $candidate == "${CUDA_HOME:-}" ]]; then say "CUDA_HOME=$candidate is not used: it $fault"; fi
  done
}

install_cuda_wheels() {
  local prefix=$root/.cuda stamp=$root/.cuda/wheels.txt work=$root/.cuda.partial
  cuda_home=$prefix
  if [[ -f $stamp && $(<"$stamp") == "${cuda_wheels[*]}" && -z $(cuda_fault "$prefix") ]]; then return; fi
  say "CUDA: installing the $cuda_minimum toolkit from PyPI wheels into .cuda (0.7 GB to download, 1.2 GB on disk)"
  unpack_wheels "$work" cuda-wheels "${cuda_wheels[@]}" ||
    fail "pip could not install the CUDA wheels; check the network (PyPI), or install CUDA $cuda_minimum and set CUDA_HOME"
  if ((dry_run)); then return; fi
  arrange_wheels "$work/site/nvidia/cu13"
  echo "${cuda_wheels[*]}" >"$work/site/nvidia/cu13/wheels.txt"
  rm -rf "$prefix"
  mv "$work/site/nvidia/cu13" "$prefix"
  rm -rf "$work"
  local fault
  fault=$(cuda_fault "$prefix")
  [[ -z $fault ]] || fail "the toolkit from the wheels in $prefix $fault"
}

# The wheels hold a toolkit's files without the links that compilers and linkers follow.
arrange_wheels() {
  local home=$1 library
  ln -sfn lib "$home/lib64"
  for library in "$home"/lib/*.so.*; do
    ln -sfn "$(basename "$library")" "${library%%.so.*}.so"
  done
  chmod +x "$home"/bin/* "$home"/nvvm/bin/*
}

install_sass_wheels() {
  local prefix=$root/.cuda.sass work=$root/.cuda.sass.partial
  say "CUDA: installing ${sass_tools[*]} from PyPI wheels into .cuda.sass (5 MB to download, 6 MB on disk)"
  unpack_wheels "$work" sass-wheels "${sass_wheels[@]}" || return 1
  if ((dry_run)); then return; fi
  chmod +x "$work"/site/nvidia/cu13/bin/* && rm -rf "$prefix" && mv "$work/site/nvidia/cu13" "$prefix" && rm -rf "$work" &&
    echo "${sass_wheels[*]}" >"$prefix/wheels.txt"
}

# For tests only, and only where neither the toolkit nor PATH has them.
find_or_install_sass_tools() {
  local tool absent=0
  for tool in "${sass_tools[@]}"; do
    if [[ ! -x $cuda_home/bin/$tool ]] && ! command -v "$tool" >/dev/null; then absent=1; fi
  done
  if ((!absent)) || [[ -f $root/.cuda.sass/wheels.txt && $(<"$root/.cuda.sass/wheels.txt") == "${sass_wheels[*]}" ]]; then return; fi
  if ! install_sass_wheels 2>/dev/null; then
    rm -rf "$root/.cuda.sass.partial"
    say "warning: no ${sass_tools[*]} ($logs/sass-wheels*.log): no test looks at the kernels' machine code; run ./setup.sh --test again" >&2
  fi
}

find_or_install_cuda() {
  if [[ $1 != wheels ]]; then find_system_cuda; fi
  if [[ -z $cuda_home && $1 == system ]]; then
    fail "no CUDA toolkit $cuda_minimum or newer in CUDA_HOME, on PATH or in /usr/local; install one or use --cuda wheels"
  fi
  if [[ -z $cuda_home ]]; then install_cuda_wheels; fi
  if ((dry_run)); then say "CUDA: $cuda_home"; fi
}
