// SPDX-License-Identifier: Apache-2.0
// Finds out at set-up that this machine cannot run it.
#include "../doubling.hpp"

namespace aisp::ch95 {
namespace {

class UnsupportedHere final : public fixtures::Doubling {
 public:
  explicit UnsupportedHere(Setup& setup) : Doubling{setup} { throw Unsupported{"io_uring is refused by the kernel (EPERM)"}; }
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
};

}  // namespace

extern constinit const Pair unsupported{
    .teaches = "finds out at set-up that this machine cannot run it",
    .make = make<UnsupportedHere>,
    .baseline = {"slow", call<&UnsupportedHere::baseline>},
    .optimized = variants({{"doubled", call<&UnsupportedHere::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch95
