// SPDX-License-Identifier: Apache-2.0
// Hangs at the 40th execution: in the warm-up when --warmup is larger than that.
#include "../doubling.hpp"

namespace aisp::ch91 {
namespace {

class HangInWarmup final : public fixtures::Doubling {
 public:
  explicit HangInWarmup(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    if (++executions_ == 40) fixtures::hang();
    doubled(launch);
  }

 private:
  int executions_ = 0;
};

}  // namespace

extern constinit const Pair hang_in_warmup{
    .teaches = "hangs at the 40th execution: in the warm-up when --warmup is larger than that",
    .make = make<HangInWarmup>,
    .baseline = {"slow", call<&HangInWarmup::baseline>},
    .optimized = variants({{"doubled", call<&HangInWarmup::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch91
