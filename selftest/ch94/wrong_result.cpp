// SPDX-License-Identifier: Apache-2.0
// One element is wrong.
#include "../doubling.hpp"

namespace aisp::ch94 {
namespace {

class WrongResult final : public selftest::Doubling {
 public:
  explicit WrongResult(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    doubled(launch);
    out_[count_ / 3] += 1;
  }
};

}  // namespace

extern constinit const selftest::Case wrong_result{
    .expected = {selftest::Ends::failed, "verify", "baseline"},
    .pair =
        {
            .teaches = "one element is wrong",
            .make = make<WrongResult>,
            .baseline = {"slow", call<&WrongResult::baseline>},
            .optimized = variants({{"doubled", call<&WrongResult::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch94
