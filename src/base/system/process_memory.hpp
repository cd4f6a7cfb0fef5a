// SPDX-License-Identifier: Apache-2.0
// Memory of this process: how much is resident, and whether a checker watches it.
#pragma once
#include <cstdint>
#include <cstdlib>

namespace aisp::base {

// Memory of this process that is resident now; 0 where the kernel does not tell.
std::uint64_t resident_bytes();
// The most memory of this process that was resident at a time, since it started or since the last reset; 0 where the kernel does
// not tell.
std::uint64_t peak_resident_bytes();
// Begins anew from what is resident now. False where the kernel does not let it: the peak is then the whole process's.
bool reset_peak_resident();

// Processes that the kernel has killed for want of memory, the machine's or a group's, since it booted; 0 where it does not tell.
std::uint64_t memory_kills();

// Whether a memory checker watches this process (scripts/sanitize.sh says so by AISP_MEMORY_CHECKER). It keeps books of its own
// in the process's heap, puts red zones around allocations, and others run beside it on the same GPU.
inline bool under_memory_checker() {
  static const bool is_set = std::getenv("AISP_MEMORY_CHECKER") != nullptr;
  return is_set;
}

}  // namespace aisp::base
