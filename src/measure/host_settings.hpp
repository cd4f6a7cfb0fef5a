// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sched.h>

#include <string>
#include <vector>

namespace aisp::measure {

// Settings of this thread that reach beyond the variant that makes them: where it may run, its priority, how it rounds.
class HostSettings {
 public:
  HostSettings();
  // Puts back what has changed, and names it.
  std::vector<std::string> restore() const;

 private:
  cpu_set_t cpus_{};
  int priority_ = 0;
  int rounding_ = 0;
};

}  // namespace aisp::measure
