// SPDX-License-Identifier: Apache-2.0
// Hangs in the workload's destructor.
#include "../doubling.hpp"

namespace aisp::ch91 {
namespace {

class HangInTeardown final : public fixtures::Doubling {
 public:
  explicit HangInTeardown(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
  ~HangInTeardown() override { fixtures::hang(); }
};

}  // namespace

extern constinit const Pair hang_in_teardown{
    .teaches = "hangs in the workload's destructor",
    .make = make<HangInTeardown>,
    .baseline = {"slow", call<&HangInTeardown::baseline>},
    .optimized = variants({{"doubled", call<&HangInTeardown::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch91
