// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdlib>

namespace aisp::base {

// Whether a memory checker watches this process (scripts/sanitize.sh says so by AISP_MEMORY_CHECKER). It keeps books of its own
// in the process's heap, puts red zones around allocations, and others run beside it on the same GPU.
inline bool under_memory_checker() {
  static const bool is_set = std::getenv("AISP_MEMORY_CHECKER") != nullptr;
  return is_set;
}

}  // namespace aisp::base
