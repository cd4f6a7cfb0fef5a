// SPDX-License-Identifier: Apache-2.0
// An honest pair.
#include "../doubling.cuh"

namespace aisp::ch98 {
namespace {

class GpuHonest final : public selftest::GpuDoubling {
 public:
  explicit GpuHonest(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
};

}  // namespace

extern constinit const selftest::Case gpu_honest{
    .pair =
        {
            .teaches = "an honest pair",
            .make = make<GpuHonest>,
            .baseline = {"slow", call<&GpuHonest::baseline>},
            .optimized = variants({{"doubled", call<&GpuHonest::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch98
