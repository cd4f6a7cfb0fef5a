// SPDX-License-Identifier: Apache-2.0
// A GPT's kernels between its products, forward and backward: LayerNorm alone and with the residual addition before it, GELU,
// sums of columns for the gradients of biases, and both embeddings. Rows of bf16 are multiples of 8 elements and have 1024 at
// most. A norm's gain is 1 plus its weight.
#pragma once
#include <aisp/device/reduce.cuh>
#include <aisp/device/vector.cuh>

#include "gemm/epilogue.cuh"
#include "rows.cuh"

namespace aisp::ch20::gpt {

using shared::bf16, shared::packet;
inline constexpr unsigned threads = 256, row_warps = threads / device::warp_size;
inline constexpr int lane_packets = 4;  // of a warp that has a row
inline constexpr std::size_t widest_row = std::size_t{lane_packets} * device::warp_size * packet;
inline constexpr unsigned norm_blocks = 264, column_parts = 64;  // whose sums of columns are added by another kernel
inline constexpr float norm_epsilon = 1e-5f;

inline unsigned blocks_for(std::size_t count) { return static_cast<unsigned>((count + threads - 1) / threads); }

__device__ inline int lane() { return static_cast<int>(threadIdx.x % device::warp_size); }
__device__ inline int warp() { return static_cast<int>(threadIdx.x / device::warp_size); }

// Calls use(number, place in the row) for the packets of a row that are this lane's.
template <class Use>
__device__ __forceinline__ void for_lane_packets(int packets, const Use& use) {
#pragma unroll
  for (int p = 0; p < lane_packets; ++p)
    if (p * device::warp_size + lane() < packets) use(p, p * device::warp_size + lane());
}

struct Norm {
  const uint4 *x, *delta;  // delta: what the layer's half before has computed; null: nothing to add
  uint4* sum;              // x + delta
  const uint4 *weight, *bias;
  uint4* normed;
  float2* moments;  // mean and 1 / deviation of each row
  int rows, packets;
};
static __global__ __launch_bounds__(threads) void norm_kernel(const Norm work) {
  const int row = static_cast<int>(blockIdx.x * row_warps) + warp();
  if (row >= work.rows) return;
  const std::size_t first = static_cast<std::size_t>(row) * work.packets;
  float values[lane_packets][packet] = {}, sum = 0, squares = 0;
  for_lane_packets(work.packets, [&](int p, int i) {
    shared::unpack(work.x[first + i], values[p]);
    if (work.delta != nullptr) {
      float more[packet];
      shared::unpack(work.delta[first + i], more);
#pragma unroll
      for (int k = 0; k < packet; ++k) values[p][k] += more[k];
      const uint4 rounded = shared::pack(values[p]);
      work.sum[first + i] = rounded;
      shared::unpack(rounded, values[p]);
    }
#pragma unroll
    for (const float value : values[p]) sum += value;
  });
  const float count = static_cast<float>(work.packets * packet), mean = device::warp_sum(sum) / count;
  for_lane_packets(work.packets, [&](int p, int) {
#pragma unroll
    for (float& value : values[p]) {
      value -= mean;
      squares = fmaf(value, value, squares);
    }
  });
  const float inverse = rsqrtf(device::warp_sum(squares) / count + norm_epsilon);
  for_lane_packets(work.packets, [&](int p, int i) {
    float weight[packet], bias[packet];
    shared::unpack(work.weight[i], weight);
    shared::unpack(work.bias[i], bias);
#pragma unroll
    for (int k = 0; k < packet; ++k) weight[k] = fmaf(values[p][k] * inverse, 1 + weight[k], bias[k]);
    work.normed[first + i] = shared::pack(weight);
  });
  if (lane() == 0) work.moments[row] = make_float2(mean, inverse);
}

struct NormBackward {
  const uint4 *x, *dy, *passed;  // passed: the gradient that the residual connection hands on; null: none
  const uint4* weight;
  const float2* moments;
  uint4* dx;        // may be `passed`
  float* partials;  // [block][gradient of the weight, of the bias]
  int rows, packets;
};
static __global__ __launch_bounds__(threads) void norm_backward_kernel(const NormBackward work) {
  __shared__ float sums[2 * widest_row];
  float of_weight[lane_packets][packet] = {}, of_bias[lane_packets][packet] = {};
  const float share = 1 / static_cast<float>(work.packets * packet);
  for (int row = static_cast<int>(blockIdx.x * row_warps) + warp(); row < work.rows;
       row += static_cast<int>(gridDim.x * row_warps)) {
    const std::size_t first = static_cast<std::size_t>(row) * work.packets;
    const float2 moments = work.moments[row];
    float normed[lane_packets][packet] = {}, scaled[lane_packets][packet] = {}, mean = 0, dot = 0;
    for_lane_packets(work.packets, [&](int p, int i) {
      float by[packet];
      shared::unpack(work.x[first + i], normed[p]);
      shared::unpack(work.dy[first + i], scaled[p]);
      shared::unpack(work.weight[i], by);
#pragma unroll
      for (int k = 0; k < packet; ++k) {
        normed[p][k] = (normed[p][k] - moments.x) * moments.y;
        of_weight[p][k] = fmaf(scaled[p][k], normed[p][k], of_weight[p][k]);
        of_bias[p][k] += scaled[p][k];
        scaled[p][k] *= 1 + by[k];
        mean += scaled[p][k];
        dot = fmaf(scaled[p][k], normed[p][k], dot);
      }
    });
    mean = device::warp_sum(mean) * share;
    dot = device::warp_sum(dot) * share;
    for_lane_packets(work.packets, [&](int p, int i) {
      float result[packet] = {};
      if (work.passed != nullptr) shared::unpack(work.passed[first + i], result);
#pragma unroll
      for (int k = 0; k < packet; ++k) result[k] = fmaf(moments.y, scaled[p][k] - mean - normed[p][k] * dot, result[k]);
      work.dx[first + i] = shared::pack(result);
    });
  }
  const int width = work.packets * packet;
  for (int w = 0; w < static_cast<int>(row_warps); ++w) {  // one warp after the other, so that equal inputs give equal bits
    if (w == warp())
      for_lane_packets(work.packets, [&](int p, int i) {
#pragma unroll
        for (int k = 0; k < packet; ++k) {
          float &weight = sums[i * packet + k], &bias = sums[width + i * packet + k];
          weight = (w == 0 ? 0 : weight) + of_weight[p][k];
          bias = (w == 0 ? 0 : bias) + of_bias[p][k];
        }
      });
    __syncthreads();
  }
  for (int i = static_cast<int>(threadIdx.x); i < 2 * width; i += threads)
    work.partials[static_cast<std::size_t>(blockIdx.x) * 2 * width + i] = sums[i];
}

// Sums of a part of the rows, [column_parts][columns]: blockIdx.x: 32 packets of columns; blockIdx.y: the part.
static __global__ __launch_bounds__(threads) void column_sums_kernel(const uint4* rows, float* partials, int count, int packets) {
  __shared__ float sums[row_warps][device::warp_size * packet];
  const int column = static_cast<int>(blockIdx.x) * device::warp_size + lane();
  float own[packet] = {};
  if (column < packets)
    for (int row = static_cast<int>(blockIdx.y * row_warps) + warp(); row < count;
         row += static_cast<int>(gridDim.y * row_warps)) {
      float x[packet];
      shared::unpack(rows[static_cast<std::size_t>(row) * packets + column], x);
#pragma unroll
      for (int k = 0; k < packet; ++k) own[k] += x[k];
    }
#pragma unroll
  for (int k = 0; k < packet; ++k) sums[warp()][lane() * packet + k] = own[k];
  __syncthreads();
  const int at = static_cast<int>(blockIdx.x * device::warp_size * packet + threadIdx.x);
  float sum = 0;
#pragma unroll
  for (int w = 0; w < static_cast<int>(row_warps); ++w) sum += sums[w][threadIdx.x];
  if (at < packets * packet) partials[static_cast<std::size_t>(blockIdx.y) * packets * packet + at] = sum;
}
// Adds up partial sums. A block has 32 columns.
static __global__ __launch_bounds__(threads) void sum_partials_kernel(const float* partials, bf16* sums, int parts, int columns) {
  __shared__ float of_warps[row_warps][device::warp_size];
  const int column = static_cast<int>(blockIdx.x) * device::warp_size + lane();
  float sum = 0;
#pragma unroll 4
  for (int part = warp(); part < parts; part += row_warps) sum += partials[static_cast<std::size_t>(part) * columns + column];
  of_warps[warp()][lane()] = sum;
  __syncthreads();
  if (warp() > 0) return;
  sum = 0;
#pragma unroll
  for (const auto& of_warp : of_warps) sum += of_warp[lane()];
  sums[column] = __float2bfloat16_rn(sum);
}

static __global__ __launch_bounds__(threads) void add_kernel(const uint4* a, const uint4* b, uint4* sums, unsigned packets) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= packets) return;
  float x[packet], y[packet];
  shared::unpack(a[i], x);
  shared::unpack(b[i], y);
#pragma unroll
  for (int k = 0; k < packet; ++k) x[k] += y[k];
  sums[i] = shared::pack(x);
}

// GELU in the approximation by tanh, as GPT-2 and cuBLASLt's epilogues have it.
static __global__ __launch_bounds__(threads) void gelu_kernel(const uint4* h, uint4* active, unsigned packets) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= packets) return;
  float x[packet];
  shared::unpack(h[i], x);
#pragma unroll
  for (float& value : x) value = gemm::Gelu::of(value);
  active[i] = shared::pack(x);
}
static __global__ __launch_bounds__(threads) void gelu_backward_kernel(const uint4* h, uint4* d, unsigned packets) {
  constexpr float root_2_over_pi = 0.7978845608f, cubic = 0.044715f;
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= packets) return;
  float x[packet], dy[packet];
  shared::unpack(h[i], x);
  shared::unpack(d[i], dy);
#pragma unroll
  for (int k = 0; k < packet; ++k) {
    const float square = x[k] * x[k], t = __tanhf(root_2_over_pi * x[k] * fmaf(cubic, square, 1));
    const float slope = root_2_over_pi * fmaf(3 * cubic, square, 1);
    dy[k] *= 0.5f * (1 + t) + 0.5f * x[k] * (1 - t * t) * slope;
  }
  d[i] = shared::pack(dy);
}

// A warp for each row: the word's and the place's embeddings.
static __global__ __launch_bounds__(threads) void embed_kernel(const int* tokens, const uint4* words, const uint4* places,
                                                               uint4* x, int rows, int length, int packets) {
  const int row = static_cast<int>(blockIdx.x * row_warps) + warp();
  if (row >= rows) return;
  for (int i = lane(); i < packets; i += device::warp_size) {
    float word[packet], place[packet];
    shared::unpack(words[static_cast<std::size_t>(tokens[row]) * packets + i], word);
    shared::unpack(places[static_cast<std::size_t>(row % length) * packets + i], place);
#pragma unroll
    for (int k = 0; k < packet; ++k) word[k] += place[k];
    x[static_cast<std::size_t>(row) * packets + i] = shared::pack(word);
  }
}
// Adds rows to their words' gradients, which are fp32: the head that shares the words has left its own there.
static __global__ __launch_bounds__(threads) void words_backward_kernel(const int* tokens, const uint4* dx, float* words,
                                                                        int rows, int packets) {
  const int row = static_cast<int>(blockIdx.x * row_warps) + warp();
  if (row >= rows) return;
  for (int i = lane(); i < packets; i += device::warp_size) {
    float d[packet];
    shared::unpack(dx[static_cast<std::size_t>(row) * packets + i], d);
    float* const to = words + (static_cast<std::size_t>(tokens[row]) * packets + i) * packet;
    device::add_to_global(to, d[0], d[1], d[2], d[3]);
    device::add_to_global(to + 4, d[4], d[5], d[6], d[7]);
  }
}
// A thread has a packet of a place, of which each sequence has one.
static __global__ __launch_bounds__(threads) void places_backward_kernel(const uint4* dx, uint4* places, int sequences,
                                                                         unsigned packets) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= packets) return;
  float sum[packet] = {};
  for (int s = 0; s < sequences; ++s) {
    float d[packet];
    shared::unpack(dx[static_cast<std::size_t>(s) * packets + i], d);
#pragma unroll
    for (int k = 0; k < packet; ++k) sum[k] += d[k];
  }
  places[i] = shared::pack(sum);
}

}  // namespace aisp::ch20::gpt
