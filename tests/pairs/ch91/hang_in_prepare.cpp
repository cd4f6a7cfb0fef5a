// SPDX-License-Identifier: Apache-2.0
// Hangs in a variant's prepare.
#include "../doubling.hpp"

namespace aisp::ch91 {
namespace {

class HangInPrepare final : public fixtures::Doubling {
 public:
  explicit HangInPrepare(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
  void prepare(Launch&) { fixtures::hang(); }
};

}  // namespace

extern constinit const Pair hang_in_prepare{
    .teaches = "hangs in a variant's prepare",
    .make = make<HangInPrepare>,
    .baseline = {"slow", call<&HangInPrepare::baseline>},
    .optimized = variants({{"doubled", call<&HangInPrepare::optimized>, call<&HangInPrepare::prepare>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch91
