// SPDX-License-Identifier: Apache-2.0
// Writes one element behind its output.
#include "../doubling.hpp"

namespace aisp::ch94 {
namespace {

class OutOfBounds final : public selftest::Doubling {
 public:
  explicit OutOfBounds(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    doubled(launch);
    out_[count_] = 1;
  }
};

}  // namespace

extern constinit const selftest::Case out_of_bounds{
    .expected = {selftest::Ends::failed, "verify", "red_zones"},
    .pair =
        {
            .teaches = "writes one element behind its output",
            .make = make<OutOfBounds>,
            .baseline = {"slow", call<&OutOfBounds::baseline>},
            .optimized = variants({{"doubled", call<&OutOfBounds::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch94
