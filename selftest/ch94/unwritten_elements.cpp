// SPDX-License-Identifier: Apache-2.0
// The last element is never written.
#include "../doubling.hpp"

namespace aisp::ch94 {
namespace {

class UnwrittenElements final : public selftest::Doubling {
 public:
  explicit UnwrittenElements(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) {
    for (std::size_t i = 0; i + 1 < count_; ++i) out_[i] = 2 * in_.get()[i];
  }
};

}  // namespace

extern constinit const selftest::Case unwritten_elements{
    .expected = {selftest::Ends::failed, "verify", "written"},
    .pair =
        {
            .teaches = "the last element is never written",
            .make = make<UnwrittenElements>,
            .baseline = {"slow", call<&UnwrittenElements::baseline>},
            .optimized = variants({{"doubled", call<&UnwrittenElements::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch94
