// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/resource.h>
#include <sys/time.h>

namespace aisp::ch05 {

// The kernel's counts for all threads of this process.
struct Usage {
  double cpu_seconds = 0;
  double page_faults = 0;  // those served without a disk

  static Usage now() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    return {.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime),
            .page_faults = static_cast<double>(usage.ru_minflt)};
  }
  Usage since(const Usage& earlier) const {
    return {.cpu_seconds = cpu_seconds - earlier.cpu_seconds, .page_faults = page_faults - earlier.page_faults};
  }
};

}  // namespace aisp::ch05
