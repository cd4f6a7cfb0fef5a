// SPDX-License-Identifier: Apache-2.0
// How long the host works, for metrics of pairs whose subject is the host's part of a step.
#pragma once
#include <chrono>

namespace aisp::ch16 {

// Adds the microseconds of its life to a total. A life may be made `extra_us` longer, as if there were more work.
class HostClock {
 public:
  explicit HostClock(double& total_us, int extra_us = 0) : total_us_{total_us}, extra_us_{extra_us} {}
  ~HostClock() {
    const double own_us = elapsed_us();
    double all_us = own_us;
    while (all_us < own_us + extra_us_) all_us = elapsed_us();
    total_us_ += all_us;
  }
  HostClock(const HostClock&) = delete;
  HostClock& operator=(const HostClock&) = delete;

 private:
  double elapsed_us() const {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start_).count();
  }
  double& total_us_;
  int extra_us_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace aisp::ch16
