// SPDX-License-Identifier: Apache-2.0
// Works at the first execution only and leaves the output alone ever after.
#include "../doubling.hpp"

namespace aisp::ch94 {
namespace {

class SkippedWork final : public selftest::Doubling {
 public:
  explicit SkippedWork(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    if (done_) return;
    doubled(launch);
    done_ = true;
  }

 private:
  bool done_ = false;
};

}  // namespace

extern constinit const selftest::Case skipped_work{
    .expected = {selftest::Ends::failed, "verify", "second_run"},
    .pair =
        {
            .teaches = "works at the first execution only and leaves the output alone ever after",
            .make = make<SkippedWork>,
            .baseline = {"slow", call<&SkippedWork::baseline>},
            .optimized = variants({{"doubled", call<&SkippedWork::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch94
