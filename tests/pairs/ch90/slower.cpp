// SPDX-License-Identifier: Apache-2.0
// An optimized variant that is slower than its baseline.
#include "../doubling.hpp"

namespace aisp::ch90 {
namespace {

class Slower final : public fixtures::Doubling {
 public:
  explicit Slower(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { doubled(launch); }
  void optimized(Launch& launch) { slow(launch); }
};

}  // namespace

extern constinit const Pair slower{
    .teaches = "an optimized variant that is slower than its baseline",
    .make = make<Slower>,
    .baseline = {"slow", call<&Slower::baseline>},
    .optimized = variants({{"doubled", call<&Slower::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch90
