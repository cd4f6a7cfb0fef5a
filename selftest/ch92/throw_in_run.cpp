// SPDX-License-Identifier: Apache-2.0
// Throws in a measured function.
#include "../doubling.hpp"

#include <stdexcept>

namespace aisp::ch92 {
namespace {

class ThrowInRun final : public selftest::Doubling {
 public:
  explicit ThrowInRun(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) { throw std::runtime_error{"the gears are jammed"}; }
};

}  // namespace

extern constinit const selftest::Case throw_in_run{
    .expected = {selftest::Ends::failed, "verify", "run"},
    .pair =
        {
            .teaches = "throws in a measured function",
            .make = make<ThrowInRun>,
            .baseline = {"slow", call<&ThrowInRun::baseline>},
            .optimized = variants({{"doubled", call<&ThrowInRun::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch92
