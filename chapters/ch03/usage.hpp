// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/resource.h>

namespace aisp::ch03 {

// The kernel's counts for all threads of this process.
struct Usage {
  double page_faults = 0;       // those served without a disk
  double context_switches = 0;  // threads that slept, and threads that were interrupted

  static Usage now() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return {.page_faults = static_cast<double>(usage.ru_minflt),
            .context_switches = static_cast<double>(usage.ru_nvcsw) + static_cast<double>(usage.ru_nivcsw)};
  }
  Usage since(const Usage& earlier) const {
    return {.page_faults = page_faults - earlier.page_faults, .context_switches = context_switches - earlier.context_switches};
  }
};

}  // namespace aisp::ch03
