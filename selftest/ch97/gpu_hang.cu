// SPDX-License-Identifier: Apache-2.0
// Keeps the GPU busy for two minutes.
#include "../doubling.cuh"

namespace aisp::ch97 {
namespace {

class GpuHang final : public selftest::GpuDoubling {
 public:
  explicit GpuHang(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { spin(120'000'000'000ull, launch.stream); }
};

}  // namespace

extern constinit const selftest::Case gpu_hang{
    .expected = {selftest::Ends::timeout, "verify", "stage_limit"},
    .limit_s = 3,
    .pair =
        {
            .teaches = "keeps the GPU busy for two minutes",
            .make = make<GpuHang>,
            .baseline = {"slow", call<&GpuHang::baseline>},
            .optimized = variants({{"doubled", call<&GpuHang::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
