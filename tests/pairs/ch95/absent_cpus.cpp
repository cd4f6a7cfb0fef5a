// SPDX-License-Identifier: Apache-2.0
// Needs more CPUs than any machine has.
#include "../doubling.hpp"

namespace aisp::ch95 {
namespace {

class AbsentCpus final : public fixtures::Doubling {
 public:
  explicit AbsentCpus(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
};

}  // namespace

extern constinit const Pair absent_cpus{
    .teaches = "needs more CPUs than any machine has",
    .make = make<AbsentCpus>,
    .baseline = {"slow", call<&AbsentCpus::baseline>},
    .optimized = variants({{"doubled", call<&AbsentCpus::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .needs = {.cpus = 1'000'000},
};

}  // namespace aisp::ch95
