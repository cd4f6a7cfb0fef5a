// SPDX-License-Identifier: Apache-2.0
// Gives slightly other bits every time, within its tolerance.
#include "../doubling.hpp"

namespace aisp::ch94 {
namespace {

class NonDeterministic final : public selftest::Doubling {
 public:
  explicit NonDeterministic(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) {
    const float wobble = 1 + 1e-7f * static_cast<float>(++executions_ % 3);
    for (std::size_t i = 0; i < count_; ++i) out_[i] = 2 * in_.get()[i] * wobble;
  }

 private:
  int executions_ = 0;
};

}  // namespace

extern constinit const selftest::Case non_deterministic{
    .expected = {selftest::Ends::failed, "verify", "reproducible"},
    .reproducible = true,
    .pair =
        {
            .teaches = "gives slightly other bits every time, within its tolerance",
            .make = make<NonDeterministic>,
            .baseline = {"slow", call<&NonDeterministic::baseline>},
            .optimized = variants({{.name = "doubled", .run = call<&NonDeterministic::optimized>, .deterministic = false}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = within(1e-5),
        },
};

}  // namespace aisp::ch94
