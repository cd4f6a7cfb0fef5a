// SPDX-License-Identifier: Apache-2.0
#include "../doubling.hpp"

namespace aisp::ch88 {
namespace {

// The declared work is beyond all caches: a quarter of an exabyte.
class Overpriced final : public fixtures::Doubling {
 public:
  explicit Overpriced(Setup& setup) : Doubling{setup} {}
  Cost cost() const override { return {.host_bytes = 0.25e18}; }
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
};

}  // namespace

extern constinit const Pair overpriced{
    .teaches = "declares a cost that no memory could move in its time",
    .make = make<Overpriced>,
    .baseline = {"slow", call<&Overpriced::baseline>},
    .optimized = variants({{"doubled", call<&Overpriced::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch88
