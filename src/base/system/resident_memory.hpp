// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

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

}  // namespace aisp::base
