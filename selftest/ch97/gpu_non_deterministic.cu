// SPDX-License-Identifier: Apache-2.0
// Gives other bits every time and claims to be deterministic.
#include "../doubling.cuh"

namespace aisp::ch97 {
namespace {

__global__ void wobble_kernel(const float* in, float* out, float wobble, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i] = 2 * in[i] * wobble;
}

class GpuNonDeterministic final : public selftest::GpuDoubling {
 public:
  explicit GpuNonDeterministic(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    const float wobble = 1 + 1e-7f * static_cast<float>(++executions_ % 3);
    wobble_kernel<<<blocks(), selftest::block_threads, 0, launch.stream>>>(in_, out_, wobble, count_);
  }

 private:
  int executions_ = 0;
};

}  // namespace

extern constinit const selftest::Case gpu_non_deterministic{
    .expected = {selftest::Ends::failed, "verify", "reproducible"},
    .reproducible = true,
    .pair =
        {
            .teaches = "gives other bits every time and claims to be deterministic",
            .make = make<GpuNonDeterministic>,
            .baseline = {"slow", call<&GpuNonDeterministic::baseline>},
            .optimized = variants({{"doubled", call<&GpuNonDeterministic::optimized>}}),
            .tolerance = within(1e-5),
        },
};

}  // namespace aisp::ch97
