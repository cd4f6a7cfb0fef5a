// SPDX-License-Identifier: Apache-2.0
// Declares twice the bytes that it must move: its floor would be twice too high.
#include "../doubling.cuh"

namespace aisp::ch89 {
namespace {

class Overdeclared final : public selftest::GpuDoubling {
 public:
  explicit Overdeclared(Setup& setup) : GpuDoubling{setup} {}
  Cost cost() const override {
    Cost honest = GpuDoubling::cost();
    honest.bytes *= 2;
    return honest;
  }
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
};

}  // namespace

extern constinit const Pair overdeclared{
    .teaches = "declares twice the bytes that it must move",
    .make = make<Overdeclared>,
    .baseline = {"slow", call<&Overdeclared::baseline>},
    .optimized = variants({{"doubled", call<&Overdeclared::optimized>}}),
    .tolerance = exact,
};

}  // namespace aisp::ch89
