// SPDX-License-Identifier: Apache-2.0
// Writes zeros.
#include "../doubling.hpp"

namespace aisp::ch94 {
namespace {

class Zeros final : public selftest::Doubling {
 public:
  explicit Zeros(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = 0;
  }
};

}  // namespace

extern constinit const selftest::Case zeros{
    .expected = {selftest::Ends::failed, "verify", "reference"},
    .pair =
        {
            .teaches = "writes zeros",
            .make = make<Zeros>,
            .baseline = {"slow", call<&Zeros::baseline>},
            .optimized = variants({{"doubled", call<&Zeros::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch94
