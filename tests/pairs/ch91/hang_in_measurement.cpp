// SPDX-License-Identifier: Apache-2.0
// Hangs at the 30th execution: in the measurement when --warmup is small.
#include "../doubling.hpp"

namespace aisp::ch91 {
namespace {

class HangInMeasurement final : public fixtures::Doubling {
 public:
  explicit HangInMeasurement(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    if (++executions_ == 30) fixtures::hang();
    doubled(launch);
  }

 private:
  int executions_ = 0;
};

}  // namespace

extern constinit const Pair hang_in_measurement{
    .teaches = "hangs at the 30th execution: in the measurement when --warmup is small",
    .make = make<HangInMeasurement>,
    .baseline = {"slow", call<&HangInMeasurement::baseline>},
    .optimized = variants({{"doubled", call<&HangInMeasurement::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch91
