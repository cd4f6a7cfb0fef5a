// SPDX-License-Identifier: Apache-2.0
// An honest pair that declares its host callback.
#include "../doubling.cuh"

namespace aisp::ch98 {
namespace {

class GpuHonestCallback final : public selftest::GpuDoubling {
 public:
  explicit GpuHonestCallback(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    doubled(launch);
    check(cudaLaunchHostFunc(
        launch.stream, [](void*) {}, nullptr));
  }
};

}  // namespace

extern constinit const selftest::Case gpu_honest_callback{
    .pair =
        {
            .teaches = "an honest pair that declares its host callback",
            .make = make<GpuHonestCallback>,
            .baseline = {"slow", call<&GpuHonestCallback::baseline>},
            .optimized = variants({{.name = "doubled", .run = call<&GpuHonestCallback::optimized>, .host_callbacks = true}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch98
