// SPDX-License-Identifier: Apache-2.0
// Gives other bits every time and claims to be deterministic.
#include "../doubling.hpp"

namespace aisp::ch94 {
namespace {

class HiddenNonDeterminism final : public selftest::Doubling {
 public:
  explicit HiddenNonDeterminism(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) {
    const float wobble = 1 + 1e-7f * static_cast<float>(++executions_ % 3);
    for (std::size_t i = 0; i < count_; ++i) out_[i] = 2 * in_.get()[i] * wobble;
  }

 private:
  int executions_ = 0;
};

}  // namespace

extern constinit const selftest::Case hidden_non_determinism{
    .expected = {selftest::Ends::failed, "verify", "reproducible"},
    .reproducible = true,
    .pair =
        {
            .teaches = "gives other bits every time and claims to be deterministic",
            .make = make<HiddenNonDeterminism>,
            .baseline = {"slow", call<&HiddenNonDeterminism::baseline>},
            .optimized = variants({{"doubled", call<&HiddenNonDeterminism::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = within(1e-5),
        },
};

}  // namespace aisp::ch94
