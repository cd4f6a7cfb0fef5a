// SPDX-License-Identifier: Apache-2.0
// Their results are wrong every time they run.
#include "doubling.cuh"

#include <cuda_bf16.h>

#include <limits>

namespace aisp::ch97 {
namespace {

using namespace selftest;

__global__ void rough_kernel(const float* in, float* out, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i] = 2 * __bfloat162float(__float2bfloat16(in[i]));
}

__global__ void wobble_kernel(const float* in, float* out, float wobble, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i] = 2 * in[i] * wobble;
}

class Wrong final : public GpuDoubling {
 public:
  using GpuDoubling::GpuDoubling;
  void with_zeros(Launch& launch) { check(cudaMemsetAsync(out_, 0, out_.bytes(), launch.stream)); }
  void with_one_element(Launch& launch) {
    doubled(launch);
    set(count_ / 3, 5, 1, launch.stream);  // no input doubles to it
  }
  void with_nan(Launch& launch) {
    doubled(launch);
    set(count_ / 2, std::numeric_limits<float>::quiet_NaN(), 1, launch.stream);
  }
  void without_the_last(Launch& launch) { double_on(launch.stream, count_ - 1000); }
  void in_precision(Launch& launch) { rough_kernel<<<blocks(), block_threads, 0, launch.stream>>>(in_, out_, count_); }
  void in_bits(Launch& launch) {
    const float wobble = 1 + 1e-7f * static_cast<float>(++executions_ % 3);
    wobble_kernel<<<blocks(), block_threads, 0, launch.stream>>>(in_, out_, wobble, count_);
  }
  void in_inputs(Launch& launch) {
    doubled(launch);
    check(cudaMemsetAsync(const_cast<float*>(in_.get()) + 7, 0, sizeof(float), launch.stream));
  }
  void beyond_the_end(Launch& launch) {
    doubled(launch);
    set(count_, 1, 1, launch.stream);
  }

 private:
  int executions_ = 0;
};

}  // namespace

extern constinit const selftest::Case gpu_zeros =
    pair_of<&Wrong::with_zeros>({.does = "writes zeros", .must = fails("verify/reference")});
extern constinit const selftest::Case gpu_one_wrong_element =
    pair_of<&Wrong::with_one_element>({.does = "one element of four million is wrong", .must = fails("verify/baseline")});
extern constinit const selftest::Case gpu_nan_output =
    pair_of<&Wrong::with_nan>({.does = "one element is not a number", .must = fails("verify/finite")});
extern constinit const selftest::Case gpu_skipped_elements =
    pair_of<&Wrong::without_the_last>({.does = "leaves the last thousand elements out", .must = fails("verify/written")});
extern constinit const selftest::Case gpu_lower_precision = pair_of<&Wrong::in_precision>(
    {.does = "computes in bf16 and says float", .must = fails("verify/reference"), .tolerance = automatic});
extern constinit const selftest::Case gpu_non_deterministic =
    pair_of<&Wrong::in_bits>({.does = "gives other bits every time and claims to be deterministic",
                              .must = fails("verify/reproducible"),
                              .tolerance = within(1e-5),
                              .reproducible = true});
extern constinit const selftest::Case gpu_modified_inputs =
    pair_of<&Wrong::in_inputs>({.does = "changes its input after it has used it", .must = fails("verify/inputs_unchanged")});
extern constinit const selftest::Case gpu_out_of_bounds =
    pair_of<&Wrong::beyond_the_end>({.does = "writes one element behind its output", .must = fails("verify/red_zones")});

}  // namespace aisp::ch97
