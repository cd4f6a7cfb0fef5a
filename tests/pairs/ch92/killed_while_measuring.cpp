// SPDX-License-Identifier: Apache-2.0
// Dies after some samples were taken.
#include "../doubling.hpp"

#include <signal.h>

namespace aisp::ch92 {
namespace {

class KilledWhileMeasuring final : public fixtures::Doubling {
 public:
  explicit KilledWhileMeasuring(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    if (++executions_ == 1200) ::raise(SIGKILL);
    doubled(launch);
  }

 private:
  int executions_ = 0;
};

}  // namespace

extern constinit const Pair killed_while_measuring{
    .teaches = "dies after some samples were taken",
    .make = make<KilledWhileMeasuring>,
    .baseline = {"slow", call<&KilledWhileMeasuring::baseline>},
    .optimized = variants({{"doubled", call<&KilledWhileMeasuring::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch92
