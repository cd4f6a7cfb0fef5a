// SPDX-License-Identifier: Apache-2.0
// Does the measured work in prepare, and nothing when measured.
#include "../doubling.hpp"

namespace aisp::ch94 {
namespace {

class WorkInPrepare final : public selftest::Doubling {
 public:
  explicit WorkInPrepare(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void prepare(Launch& launch) { doubled(launch); }
  void optimized(Launch&) {}
};

}  // namespace

extern constinit const selftest::Case work_in_prepare{
    .expected = {selftest::Ends::failed, "verify", "written"},
    .pair =
        {
            .teaches = "does the measured work in prepare, and nothing when measured",
            .make = make<WorkInPrepare>,
            .baseline = {"slow", call<&WorkInPrepare::baseline>},
            .optimized = variants({{"doubled", call<&WorkInPrepare::optimized>, call<&WorkInPrepare::prepare>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch94
