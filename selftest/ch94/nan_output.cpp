// SPDX-License-Identifier: Apache-2.0
// One element is not a number.
#include "../doubling.hpp"

#include <limits>

namespace aisp::ch94 {
namespace {

class NanOutput final : public selftest::Doubling {
 public:
  explicit NanOutput(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    doubled(launch);
    out_[count_ / 2] = std::numeric_limits<float>::quiet_NaN();
  }
};

}  // namespace

extern constinit const selftest::Case nan_output{
    .expected = {selftest::Ends::failed, "verify", "finite"},
    .pair =
        {
            .teaches = "one element is not a number",
            .make = make<NanOutput>,
            .baseline = {"slow", call<&NanOutput::baseline>},
            .optimized = variants({{"doubled", call<&NanOutput::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch94
