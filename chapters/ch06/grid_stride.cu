// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding of queries, [batch and head][position][128] in bf16. With a thread for each pair of values, every
// thread works out a frequency, a sine and a cosine, and uses them for 8 bytes. A grid that covers one plane of positions and
// pairs and strides over batches and heads leaves them valid from step to step; wider steps then put more bytes in flight.
#include <cuda_bf16.h>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>

namespace aisp::ch06 {
namespace {

using bf16 = __nv_bfloat16;
constexpr int threads = 256;
constexpr unsigned pairs = 64, positions = 8192, plane_pairs = pairs * positions;
constexpr int quad = 4;            // neighbouring pairs of 16 bytes
constexpr int planes_at_once = 4;  // of the unrolled kernel

// Cosine and sine of the angle by which the pair at `index` of a plane turns.
__device__ float2 turn(unsigned index) {
  const float frequency = powf(10000.0f, -static_cast<float>(index % pairs) / pairs);
  const float angle = static_cast<float>(index / pairs % positions) * frequency;
  __builtin_assume(!(fabsf(angle) >= 105615.0f));  // spares the code with which sincosf reduces larger ones, and its local memory
  float2 result;
  sincosf(angle, &result.y, &result.x);
  return result;
}

// Additions that are fused by hand, so that all kernels round alike.
__device__ __nv_bfloat162 rotated(__nv_bfloat162 value, float2 by) {
  const float2 v = __bfloat1622float2(value);
  return __floats2bfloat162_rn(fmaf(v.x, by.x, -(v.y * by.y)), fmaf(v.x, by.y, v.y * by.x));
}
__device__ uint4 rotated(uint4 bits, const float2 (&by)[quad]) {
  auto* const values = reinterpret_cast<__nv_bfloat162*>(&bits);
#pragma unroll
  for (int k = 0; k < quad; ++k) values[k] = rotated(values[k], by[k]);
  return bits;
}

__global__ __launch_bounds__(threads) void thread_per_pair_kernel(const __nv_bfloat162* in, __nv_bfloat162* out) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  out[i] = rotated(in[i], turn(i));
}

__global__ __launch_bounds__(threads) void fill_table_kernel(float2* table) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  table[i] = turn(i);
}
__global__ __launch_bounds__(threads) void angle_table_kernel(const __nv_bfloat162* in, const float2* table,
                                                              __nv_bfloat162* out) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  out[i] = rotated(in[i], table[i % plane_pairs]);
}

// blockIdx.y is the first plane; as many as there are of them lie between two of a thread.
__global__ __launch_bounds__(threads) void grid_stride_kernel(const __nv_bfloat162* in, __nv_bfloat162* out, unsigned planes) {
  const unsigned index = blockIdx.x * threads + threadIdx.x;
  const float2 by = turn(index);
  for (unsigned plane = blockIdx.y; plane < planes; plane += gridDim.y) {
    const std::size_t i = std::size_t{plane} * plane_pairs + index;
    out[i] = rotated(in[i], by);
  }
}

__global__ __launch_bounds__(threads) void grid_stride_unrolled_kernel(const __nv_bfloat162* in, __nv_bfloat162* out,
                                                                       unsigned planes) {
  const unsigned index = blockIdx.x * threads + threadIdx.x;
  const float2 by = turn(index);
  for (unsigned plane = blockIdx.y; plane < planes; plane += planes_at_once * gridDim.y) {
    const std::size_t first = std::size_t{plane} * plane_pairs + index, step = std::size_t{gridDim.y} * plane_pairs;
    __nv_bfloat162 values[planes_at_once];
#pragma unroll
    for (unsigned k = 0; k < planes_at_once; ++k)
      if (plane + k * gridDim.y < planes) values[k] = in[first + k * step];
#pragma unroll
    for (unsigned k = 0; k < planes_at_once; ++k)
      if (plane + k * gridDim.y < planes) out[first + k * step] = rotated(values[k], by);
  }
}

// A quarter of the threads, in two halves of the planes: on a large GPU all blocks are resident at once.
__global__ __launch_bounds__(threads) void grid_stride_vec16_kernel(const uint4* in, uint4* out, unsigned planes) {
  const unsigned index = blockIdx.x * threads + threadIdx.x;
  float2 by[quad];
#pragma unroll
  for (int k = 0; k < quad; ++k) by[k] = turn(index * quad + k);
  for (unsigned plane = blockIdx.y; plane < planes; plane += gridDim.y) {
    const std::size_t i = std::size_t{plane} * (plane_pairs / quad) + index;
    out[i] = rotated(in[i], by);
  }
}

class GridStride final : public Workload {
 public:
  explicit GridStride(Setup& setup)
      : planes_{static_cast<unsigned>(setup.scaled(128))},
        strided_{(planes_ - 1) / static_cast<unsigned>(setup.size("reuse")) + 1},
        in_{setup.input<bf16>(std::size_t{2} * plane_pairs * planes_, normal(0, 1), {.name = "queries"})},
        out_{setup.output<bf16>(in_.size(), {.name = "rotated queries"})},
        table_{setup.scratch<float2>(plane_pairs, {.name = "cosines and sines"})} {}

  Cost cost() const override {
    return {.flops = 3.0 * static_cast<double>(in_.size()), .bytes = static_cast<double>(in_.bytes() + out_.bytes())};
  }
  double expected(std::size_t index) const override {
    const std::size_t pair = index / 2;
    const double frequency = std::pow(10000.0, -static_cast<double>(pair % pairs) / pairs);
    const double angle = static_cast<double>(pair / pairs % positions) * frequency;
    const double x = in_.host(2 * pair), y = in_.host(2 * pair + 1);
    return index % 2 == 0 ? x * std::cos(angle) - y * std::sin(angle) : x * std::sin(angle) + y * std::cos(angle);
  }

  void thread_per_pair(Launch& launch) {
    launch(thread_per_pair_kernel, {.blocks = planes_ * (plane_pairs / threads), .threads = threads}, in(), out());
  }
  void grid_stride(Launch& launch) { launch(grid_stride_kernel, plane(strided_), in(), out(), planes_); }
  void grid_stride_unrolled(Launch& launch) { launch(grid_stride_unrolled_kernel, plane(strided_), in(), out(), planes_); }
  void grid_stride_vec16(Launch& launch) {
    const dim3 blocks{plane_pairs / quad / threads, std::min(2 * strided_, planes_)};
    launch(grid_stride_vec16_kernel, {.blocks = blocks, .threads = threads}, reinterpret_cast<const uint4*>(in_.get()),
           reinterpret_cast<uint4*>(out_.get()), planes_);
  }
  void fill_table(Launch& launch) { launch(fill_table_kernel, plane(1), table_); }
  void angle_table(Launch& launch) {
    launch(angle_table_kernel, {.blocks = planes_ * (plane_pairs / threads), .threads = threads}, in(), table_, out());
  }

 private:
  const __nv_bfloat162* in() const { return reinterpret_cast<const __nv_bfloat162*>(in_.get()); }
  __nv_bfloat162* out() const { return reinterpret_cast<__nv_bfloat162*>(out_.get()); }
  static Grid plane(unsigned strided) { return {.blocks = {plane_pairs / threads, strided}, .threads = threads}; }

  unsigned planes_, strided_;  // batches times heads, and how many of them the grid covers
  Input<bf16> in_;
  Output<bf16> out_;
  Scratch<float2> table_;
};

}  // namespace

extern constinit const Pair grid_stride{
    .teaches =
        "with one thread per element, what the thread prepares is used once; in a grid-stride loop whose stride keeps it valid, "
        "many times",
    .lesson = "grid_stride",
    .make = make<GridStride>,
    .baseline = {.name = "thread_per_pair", .run = call<&GridStride::thread_per_pair>},
    .optimized =
        variants({{.name = "grid_stride", .run = call<&GridStride::grid_stride>},
                  {.name = "grid_stride_unrolled", .run = call<&GridStride::grid_stride_unrolled>},
                  {.name = "grid_stride_vec16", .run = call<&GridStride::grid_stride_vec16>, .gains_over = "grid_stride"}}),
    .controls =
        variants({{.name = "angle_table", .run = call<&GridStride::angle_table>, .prepare = call<&GridStride::fill_table>}}),
    .bound = Bound::memory,
    // Angles up to 8191 in fp32 are good to 1e-3, where the outputs are rounded to 8 bits.
    .tolerance = within(4e-3),
    // Planes for which a thread uses its sine and cosine.
    .sizes = sizes({{.name = "reuse", .full = 128, .most = 128, .scales = false}}),
    .sweep = cases({{"reuse_1", "reuse=1"},
                    {"reuse_2", "reuse=2"},
                    {"reuse_4", "reuse=4"},
                    {"reuse_8", "reuse=8"},
                    {"reuse_32", "reuse=32"},
                    {"reuse_128", "reuse=128"}}),
    .edges = cases({{"reuse_1", "reuse=1"}, {"reuse_63", "reuse=63"}}),
};

}  // namespace aisp::ch06
