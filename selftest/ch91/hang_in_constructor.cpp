// SPDX-License-Identifier: Apache-2.0
// Hangs while it is set up.
#include "../doubling.hpp"

namespace aisp::ch91 {
namespace {

class HangInConstructor final : public selftest::Doubling {
 public:
  explicit HangInConstructor(Setup& setup) : Doubling{setup} { selftest::hang(); }
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
};

}  // namespace

extern constinit const selftest::Case hang_in_constructor{
    .expected = {selftest::Ends::timeout, "setup", "stage_limit"},
    .limit_s = 1,
    .pair =
        {
            .teaches = "hangs while it is set up",
            .make = make<HangInConstructor>,
            .baseline = {"slow", call<&HangInConstructor::baseline>},
            .optimized = variants({{"doubled", call<&HangInConstructor::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch91
