// SPDX-License-Identifier: Apache-2.0
// Two variants that do the same: no verdict may be claimed.
#include "../doubling.hpp"

namespace aisp::ch90 {
namespace {

class Equal final : public fixtures::Doubling {
 public:
  explicit Equal(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { doubled(launch); }
  void optimized(Launch& launch) { doubled(launch); }
};

}  // namespace

extern constinit const Pair equal{
    .teaches = "two variants that do the same: no verdict may be claimed",
    .make = make<Equal>,
    .baseline = {"slow", call<&Equal::baseline>},
    .optimized = variants({{"doubled", call<&Equal::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch90
