// SPDX-License-Identifier: Apache-2.0
// A pair with a variant that nobody has run, for a machine that nobody has.
#include "../doubling.hpp"

namespace aisp::ch88 {
namespace {

class Untried final : public fixtures::Doubling {
 public:
  explicit Untried(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) {
    for (int i = 0; i < 8; ++i) doubled(launch);
  }
};

}  // namespace

extern constinit const Pair untried{
    .teaches = "once is faster than many times",
    .lesson = "tried",
    .make = make<Untried>,
    .baseline = {"many", call<&Untried::baseline>},
    .optimized = variants({{.name = "tried", .run = call<&Untried::doubled>},
                           {.name = "elsewhere", .run = call<&Untried::doubled>, .needs = {.cpus = 1 << 20}, .not_run = true}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch88
