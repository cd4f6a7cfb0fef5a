// SPDX-License-Identifier: Apache-2.0
// Hangs in an exit handler, after the result was sent.
#include "../doubling.hpp"

#include <cstdlib>

namespace aisp::ch91 {
namespace {

class HangAtExit final : public fixtures::Doubling {
 public:
  explicit HangAtExit(Setup& setup) : Doubling{setup} {
    std::atexit(+[] { fixtures::hang(); });
  }
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
};

}  // namespace

extern constinit const Pair hang_at_exit{
    .teaches = "hangs in an exit handler, after the result was sent",
    .make = make<HangAtExit>,
    .baseline = {"slow", call<&HangAtExit::baseline>},
    .optimized = variants({{"doubled", call<&HangAtExit::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch91
