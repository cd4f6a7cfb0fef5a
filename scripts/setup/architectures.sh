# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Which GPU architectures are built for: those that were named, else those of the GPUs that are here. Sets architectures, empty for what the
# preset says.

architecture_without_gpu=90a

has_gpu() { nvidia-smi --query-gpu=compute_cap --format=csv,noheader >/dev/null 2>&1; }

# The compute capabilities of the GPUs that are here and that pairs run on (8.0 and newer), as CMake writes them: "80-real;90a-real". From
# 9.0 on kernels use instructions that only the architecture with the letter has.
architectures_of_gpus() {
  nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d ' .' | grep -xE '[0-9]{2,3}' | sort -nu |
    awk '$1 >= 80 {print $1 ($1 >= 90 ? "a" : "") "-real"}' | paste -sd';'
}

choose_architectures() {
  # Results are recorded on one architecture, and the tests look at its instructions; packages hold what their preset says.
  if [[ ! $mode =~ ^(release|cutlass)$ || -n $architectures ]]; then return; fi
  architectures=$(architectures_of_gpus || true)
  if [[ -n $architectures ]]; then
    say "GPU architectures: $architectures, of the GPUs that are here"
  else
    architectures=$architecture_without_gpu-real
    say "GPU architectures: $architectures, because no GPU of compute capability 8.0 or newer is visible; choose others with --architectures, as 80 for an A100"
  fi
}
