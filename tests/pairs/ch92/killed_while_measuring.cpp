// SPDX-License-Identifier: Apache-2.0
// Dies 2.5 s after its set-up, when many samples were taken.
#include "../doubling.hpp"

#include <signal.h>

namespace aisp::ch92 {
namespace {

class KilledWhileMeasuring final : public fixtures::Doubling {
 public:
  explicit KilledWhileMeasuring(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    if (Clock::now() - set_up_ > std::chrono::milliseconds{2500}) ::raise(SIGKILL);
    doubled(launch);
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point set_up_ = Clock::now();
};

}  // namespace

extern constinit const Pair killed_while_measuring{
    .teaches = "dies when many samples were taken",
    .make = make<KilledWhileMeasuring>,
    .baseline = {"slow", call<&KilledWhileMeasuring::baseline>},
    .optimized = variants({{"doubled", call<&KilledWhileMeasuring::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch92
