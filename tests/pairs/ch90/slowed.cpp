// SPDX-License-Identifier: Apache-2.0
// A pair whose optimized variant is slow in processes that find AISP_FIXTURE_SLOWED in their environment: the code of another
// commit, as far as a comparison of two executables can tell.
#include <cstdlib>

#include "../doubling.hpp"

namespace aisp::ch90 {
namespace {

class Slowed final : public fixtures::Doubling {
  bool slow_ = std::getenv("AISP_FIXTURE_SLOWED") != nullptr;

 public:
  explicit Slowed(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    if (slow_) slow(launch);
    doubled(launch);
  }
};

}  // namespace

extern constinit const Pair slowed{
    .teaches = "a commit may make a pair slower",
    .make = make<Slowed>,
    .baseline = {"slow", call<&Slowed::baseline>},
    .optimized = variants({{"doubled", call<&Slowed::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch90
