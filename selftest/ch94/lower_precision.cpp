// SPDX-License-Identifier: Apache-2.0
// Rounds its result to 8 bits of mantissa.
#include "../doubling.hpp"

#include <bit>
#include <cstdint>

namespace aisp::ch94 {
namespace {

class LowerPrecision final : public selftest::Doubling {
 public:
  explicit LowerPrecision(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(2 * in_.get()[i]);
      out_[i] = std::bit_cast<float>(bits & 0xFFFF8000u);
    }
  }
};

}  // namespace

extern constinit const selftest::Case lower_precision{
    .expected = {selftest::Ends::failed, "verify", "reference"},
    .pair =
        {
            .teaches = "rounds its result to 8 bits of mantissa",
            .make = make<LowerPrecision>,
            .baseline = {"slow", call<&LowerPrecision::baseline>},
            .optimized = variants({{"doubled", call<&LowerPrecision::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
        },
};

}  // namespace aisp::ch94
