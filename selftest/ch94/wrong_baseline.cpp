// SPDX-License-Identifier: Apache-2.0
// The baseline is wrong, and the variant agrees with it.
#include "../doubling.hpp"

namespace aisp::ch94 {
namespace {

class WrongBaseline final : public selftest::Doubling {
 public:
  explicit WrongBaseline(Setup& setup) : Doubling{setup} {}
  void baseline(Launch&) { halve(); }
  void optimized(Launch&) { halve(); }

 private:
  void halve() {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = in_.get()[i] / 2;
  }
};

}  // namespace

extern constinit const selftest::Case wrong_baseline{
    .expected = {selftest::Ends::failed, "verify", "reference"},
    .pair =
        {
            .teaches = "the baseline is wrong, and the variant agrees with it",
            .make = make<WrongBaseline>,
            .baseline = {"slow", call<&WrongBaseline::baseline>},
            .optimized = variants({{"doubled", call<&WrongBaseline::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch94
