// SPDX-License-Identifier: Apache-2.0
#include "measure/host_settings.hpp"

#include <sys/resource.h>

#include <cfenv>

namespace aisp::measure {

HostSettings::HostSettings() : priority_{getpriority(PRIO_PROCESS, 0)}, rounding_{std::fegetround()} {
  if (sched_getaffinity(0, sizeof cpus_, &cpus_) != 0) CPU_ZERO(&cpus_);
}

std::vector<std::string> HostSettings::restore() const {
  std::vector<std::string> changed;
  cpu_set_t now{};
  if (sched_getaffinity(0, sizeof now, &now) == 0 && CPU_COUNT(&cpus_) > 0 && CPU_EQUAL(&now, &cpus_) == 0) {
    sched_setaffinity(0, sizeof cpus_, &cpus_);
    changed.emplace_back("the CPUs that the thread may use");
  }
  if (getpriority(PRIO_PROCESS, 0) != priority_) {
    setpriority(PRIO_PROCESS, 0, priority_);
    changed.emplace_back("the thread's priority");
  }
  if (std::fegetround() != rounding_) {
    std::fesetround(rounding_);
    changed.emplace_back("the processor's rounding");
  }
  return changed;
}

}  // namespace aisp::measure
