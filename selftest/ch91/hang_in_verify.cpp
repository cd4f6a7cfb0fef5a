// SPDX-License-Identifier: Apache-2.0
// Hangs the first time a variant runs.
#include "../doubling.hpp"

namespace aisp::ch91 {
namespace {

class HangInVerify final : public selftest::Doubling {
 public:
  explicit HangInVerify(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) { selftest::hang(); }
};

}  // namespace

extern constinit const selftest::Case hang_in_verify{
    .expected = {selftest::Ends::timeout, "verify", "stage_limit"},
    .limit_s = 1,
    .pair =
        {
            .teaches = "hangs the first time a variant runs",
            .make = make<HangInVerify>,
            .baseline = {"slow", call<&HangInVerify::baseline>},
            .optimized = variants({{"doubled", call<&HangInVerify::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch91
