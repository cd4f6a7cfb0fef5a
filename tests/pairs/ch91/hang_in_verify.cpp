// SPDX-License-Identifier: Apache-2.0
// Hangs the first time a variant runs.
#include "../doubling.hpp"

namespace aisp::ch91 {
namespace {

class HangInVerify final : public fixtures::Doubling {
 public:
  explicit HangInVerify(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) { fixtures::hang(); }
};

}  // namespace

extern constinit const Pair hang_in_verify{
    .teaches = "hangs the first time a variant runs",
    .make = make<HangInVerify>,
    .baseline = {"slow", call<&HangInVerify::baseline>},
    .optimized = variants({{"doubled", call<&HangInVerify::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch91
