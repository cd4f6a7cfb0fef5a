// SPDX-License-Identifier: Apache-2.0
// An honest pair where reproducible bits are asked for.
#include "../doubling.hpp"

namespace aisp::ch96 {
namespace {

class HonestBits final : public selftest::Doubling {
 public:
  explicit HonestBits(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = in_.get()[i] + in_.get()[i];
  }
};

}  // namespace

extern constinit const selftest::Case honest_bits{
    .reproducible = true,
    .pair =
        {
            .teaches = "an honest pair where reproducible bits are asked for",
            .make = make<HonestBits>,
            .baseline = {"slow", call<&HonestBits::baseline>},
            .optimized = variants({{"doubled", call<&HonestBits::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch96
