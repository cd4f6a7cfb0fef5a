// SPDX-License-Identifier: Apache-2.0
#include "run/reproducible.hpp"

#include <cstdlib>
#include <string_view>

namespace aisp::run {

void demand_deterministic_libraries() {
  // The two that cuBLAS documents as giving the same bits with several streams at work.
  const char* own = std::getenv("CUBLAS_WORKSPACE_CONFIG");
  const std::string_view workspace = own != nullptr ? own : "";
  if (workspace != ":4096:8" && workspace != ":16:8") setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1);
  // Replaces the math that a variant asks for by another one behind its back.
  unsetenv("NVIDIA_TF32_OVERRIDE");
  unsetenv("CUBLAS_EMULATE_SINGLE_PRECISION");
}

}  // namespace aisp::run
