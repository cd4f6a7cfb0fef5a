// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace aisp::ch03 {

// One turn of a polling loop: frees the core's resources for its other hardware thread and keeps the loop from speculating ahead.
inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace aisp::ch03
