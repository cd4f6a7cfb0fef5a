// SPDX-License-Identifier: Apache-2.0
// Needs more host memory than any machine has.
#include "../doubling.hpp"

namespace aisp::ch95 {
namespace {

class AbsentMemory final : public fixtures::Doubling {
 public:
  explicit AbsentMemory(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
};

}  // namespace

extern constinit const Pair absent_memory{
    .teaches = "needs more host memory than any machine has",
    .make = make<AbsentMemory>,
    .baseline = {"slow", call<&AbsentMemory::baseline>},
    .optimized = variants({{"doubled", call<&AbsentMemory::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .needs = {.host_memory = std::size_t{1} << 60},
};

}  // namespace aisp::ch95
