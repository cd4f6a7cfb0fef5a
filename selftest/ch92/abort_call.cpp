// SPDX-License-Identifier: Apache-2.0
// Calls abort().
#include "../doubling.hpp"

#include <cstdlib>

namespace aisp::ch92 {
namespace {

class AbortCall final : public selftest::Doubling {
 public:
  explicit AbortCall(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) { std::abort(); }
};

}  // namespace

extern constinit const selftest::Case abort_call{
    .expected = {selftest::Ends::crashed, "verify", "signal"},
    .pair =
        {
            .teaches = "calls abort()",
            .make = make<AbortCall>,
            .baseline = {"slow", call<&AbortCall::baseline>},
            .optimized = variants({{"doubled", call<&AbortCall::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch92
