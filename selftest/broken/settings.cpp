// SPDX-License-Identifier: Apache-2.0
// They leave settings of the process behind that other variants must live with.
#include "doubling.hpp"

#include <sched.h>
#include <sys/resource.h>

#include <cfenv>
#include <cstdlib>

namespace aisp::ch93 {
namespace {

using namespace selftest;

class Leaves final : public Doubling {
 public:
  using Doubling::Doubling;
  void one_cpu(Launch&) {
    cpu_set_t all, first;
    ::sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&first);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&first) == 0; ++cpu)
      if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &first);
    fill_doubled();
    ::sched_setaffinity(0, sizeof first, &first);
  }
  void low_priority(Launch&) {
    fill_doubled();
    ::setpriority(PRIO_PROCESS, 0, ::getpriority(PRIO_PROCESS, 0) + 1);
  }
  void another_rounding(Launch&) {
    fill_doubled();
    std::fesetround(FE_TOWARDZERO);
  }
};

constexpr Expected told = fails("verify/limits", "measurement/limits");

}  // namespace

extern constinit const selftest::Case affinity_left =
    pair_of<&Leaves::one_cpu>({.does = "binds its thread to one CPU and leaves it there", .must = told, .needs = {.cpus = 2}});
extern constinit const selftest::Case priority_left =
    pair_of<&Leaves::low_priority>({.does = "lowers its priority for all that comes after it", .must = told});
extern constinit const selftest::Case rounding_left =
    pair_of<&Leaves::another_rounding>({.does = "leaves the processor rounding towards zero", .must = told});

}  // namespace aisp::ch93
