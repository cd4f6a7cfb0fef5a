// SPDX-License-Identifier: Apache-2.0
// Claims to move a thousand times the bytes that it moves.
#include "../doubling.cuh"

namespace aisp::ch97 {
namespace {

class GpuImpossibleTime final : public selftest::GpuDoubling {
 public:
  explicit GpuImpossibleTime(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
  Cost cost() const override { return {.bytes = 1000.0 * static_cast<double>(in_.bytes() + out_.bytes())}; }
};

}  // namespace

extern constinit const selftest::Case gpu_impossible_time{
    .expected = {selftest::Ends::failed, "audit", "possible_time"},
    .pair =
        {
            .teaches = "claims to move a thousand times the bytes that it moves",
            .make = make<GpuImpossibleTime>,
            .baseline = {"slow", call<&GpuImpossibleTime::baseline>},
            .optimized = variants({{"doubled", call<&GpuImpossibleTime::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
