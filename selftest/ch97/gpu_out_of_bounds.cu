// SPDX-License-Identifier: Apache-2.0
// Writes one element behind its output.
#include "../doubling.cuh"

namespace aisp::ch97 {
namespace {

class GpuOutOfBounds final : public selftest::GpuDoubling {
 public:
  explicit GpuOutOfBounds(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    doubled(launch);
    set(count_, 1, 1, launch.stream);
  }
};

}  // namespace

extern constinit const selftest::Case gpu_out_of_bounds{
    .expected = {selftest::Ends::failed, "verify", "red_zones"},
    .pair =
        {
            .teaches = "writes one element behind its output",
            .make = make<GpuOutOfBounds>,
            .baseline = {"slow", call<&GpuOutOfBounds::baseline>},
            .optimized = variants({{"doubled", call<&GpuOutOfBounds::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
