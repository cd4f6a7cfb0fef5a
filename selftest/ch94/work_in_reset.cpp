// SPDX-License-Identifier: Apache-2.0
// Does the measured work in reset, and nothing when measured.
#include "../doubling.hpp"

namespace aisp::ch94 {
namespace {

class WorkInReset final : public selftest::Doubling {
 public:
  explicit WorkInReset(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void reset(Launch& launch) { doubled(launch); }
  void optimized(Launch&) {}
};

}  // namespace

extern constinit const selftest::Case work_in_reset{
    .expected = {selftest::Ends::failed, "verify", "written"},
    .pair =
        {
            .teaches = "does the measured work in reset, and nothing when measured",
            .make = make<WorkInReset>,
            .baseline = {"slow", call<&WorkInReset::baseline>},
            .optimized =
                variants({{.name = "doubled", .run = call<&WorkInReset::optimized>, .reset = call<&WorkInReset::reset>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch94
