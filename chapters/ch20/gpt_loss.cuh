// SPDX-License-Identifier: Apache-2.0
// The loss of a language model and the gradient of its logits: one operation a kernel, over tensors of fp32 or bf16, and all of
// it in place of the logits. A label below 0 is masked. Then what an optimizer of one operation a kernel does.
#pragma once
#include "gpt_rows.cuh"
#include "training/adamw.cuh"

namespace aisp::ch20::gpt {

// As many as an SM holds at most twice: the rows under way fit into L2 together.
inline constexpr unsigned loss_threads = 1024;

__device__ __forceinline__ void load(const bf16* row, int i, float (&x)[packet]) {
  shared::unpack(reinterpret_cast<const uint4*>(row)[i], x);
}
__device__ __forceinline__ void load(const float* row, int i, float (&x)[packet]) {
  const float4 a = reinterpret_cast<const float4*>(row)[2 * i], b = reinterpret_cast<const float4*>(row)[2 * i + 1];
  x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
__device__ __forceinline__ void store(bf16* row, int i, const float (&x)[packet]) {
  reinterpret_cast<uint4*>(row)[i] = shared::pack(x);
}
__device__ __forceinline__ void store(float* row, int i, const float (&x)[packet]) {
  reinterpret_cast<float4*>(row)[2 * i] = make_float4(x[0], x[1], x[2], x[3]);
  reinterpret_cast<float4*>(row)[2 * i + 1] = make_float4(x[4], x[5], x[6], x[7]);
}

// Logarithm of the sum of exponentials of the block's row.
template <class T>
__device__ float log_sum(const T* row, int packets) {
  __shared__ shared::MaxSum parts[device::largest_block_in_warps];
  shared::MaxSum seen = shared::nothing_seen();
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += loss_threads) {
    float x[packet];
    load(row, i, x);
    shared::add(seen, x);
  }
  seen = shared::block_merge(seen, parts);
  return seen.maximum + logf(seen.sum);
}

// One block: one over the number of labels that count.
static __global__ __launch_bounds__(loss_threads) void count_labels_kernel(const int* labels, float* inverse_count, int rows) {
  __shared__ int parts[device::largest_block_in_warps];
  int count = 0;
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += loss_threads) count += labels[row] >= 0;
  count = device::block_sum(count, parts);
  if (threadIdx.x == 0) *inverse_count = 1 / static_cast<float>(max(count, 1));
}

template <class T>
__global__ __launch_bounds__(loss_threads) void log_softmax_kernel(const T* logits, T* log_probabilities, int packets) {
  const std::size_t first = std::size_t{blockIdx.x} * packets * packet;
  const float below = log_sum(logits + first, packets);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += loss_threads) {
    float x[packet];
    load(logits + first, i, x);
#pragma unroll
    for (float& value : x) value -= below;
    store(log_probabilities + first, i, x);
  }
}
template <class T>
__global__ __launch_bounds__(threads) void pick_labels_kernel(const T* log_probabilities, const int* labels, float* losses,
                                                              int rows, int words) {
  const int row = static_cast<int>(blockIdx.x * threads + threadIdx.x);
  if (row < rows)
    losses[row] =
        labels[row] < 0 ? 0 : -static_cast<float>(log_probabilities[static_cast<std::size_t>(row) * words + labels[row]]);
}
// One block.
static __global__ __launch_bounds__(loss_threads) void mean_kernel(const float* losses, const float* inverse_count, float* mean,
                                                                   int rows) {
  __shared__ float parts[device::largest_block_in_warps];
  float sum = 0;
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += loss_threads) sum += losses[row];
  sum = device::block_sum(sum, parts);
  if (threadIdx.x == 0) *mean = sum * *inverse_count;
}
// Expects `d` to be zero before.
template <class T>
__global__ __launch_bounds__(threads) void pick_backward_kernel(const int* labels, const float* inverse_count, T* d, int rows,
                                                                int words) {
  const int row = static_cast<int>(blockIdx.x * threads + threadIdx.x);
  if (row < rows && labels[row] >= 0) d[static_cast<std::size_t>(row) * words + labels[row]] = static_cast<T>(-*inverse_count);
}
// `d`: of the log-probabilities before, of the logits after.
template <class T>
__global__ __launch_bounds__(loss_threads) void log_softmax_backward_kernel(const T* log_probabilities, T* d, int packets) {
  __shared__ float parts[device::largest_block_in_warps];
  const std::size_t first = std::size_t{blockIdx.x} * packets * packet;
  float sum = 0, x[packet], p[packet];
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += loss_threads) {
    load(d + first, i, x);
#pragma unroll
    for (const float value : x) sum += value;
  }
  sum = device::block_sum(sum, parts);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += loss_threads) {
    load(d + first, i, x);
    load(log_probabilities + first, i, p);
#pragma unroll
    for (int k = 0; k < packet; ++k) x[k] -= __expf(p[k]) * sum;
    store(d + first, i, x);
  }
}

// All of it: a row is read for its sum, and once more, from L2, for its gradient.
static __global__ __launch_bounds__(loss_threads) void fused_loss_kernel(bf16* logits, const int* labels,
                                                                         const float* inverse_count, float* losses, int packets) {
  bf16* const row = logits + std::size_t{blockIdx.x} * packets * packet;
  const int label = labels[blockIdx.x];
  if (label < 0) {
    for (int i = static_cast<int>(threadIdx.x); i < packets; i += loss_threads)
      reinterpret_cast<uint4*>(row)[i] = uint4{0, 0, 0, 0};
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    return;
  }
  const float of_label = __bfloat162float(row[label]), below = log_sum(row, packets), scale = *inverse_count;
  const float offset = below * shared::log2_e;
  if (threadIdx.x == 0) losses[blockIdx.x] = below - of_label;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += loss_threads) {
    float x[packet];
    load(row, i, x);
#pragma unroll
    for (int k = 0; k < packet; ++k) x[k] = (shared::exponential(x[k], offset) - (i * packet + k == label ? 1.0f : 0.0f)) * scale;
    store(row, i, x);
  }
}

// a[i] = f(a[i], b[i], c[i]), of as many tensors as there are: one operation of an optimizer over all weights.
template <class F>
__global__ __launch_bounds__(threads) void each_kernel(float4* a, const float4* b, const float4* c, unsigned quads, const F f) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= quads) return;
  float4 x{};
  if constexpr (!requires { F::overwrites; }) x = a[i];
  const float4 y = b != nullptr ? b[i] : x, z = c != nullptr ? c[i] : x;
  a[i] = make_float4(f(x.x, y.x, z.x), f(x.y, y.y, z.y), f(x.z, y.z, z.z), f(x.w, y.w, z.w));
}
struct Times {
  float by;
  __device__ float operator()(float a, float, float) const { return a * by; }
};
struct Towards {
  float share;
  __device__ float operator()(float a, float b, float) const { return a + share * (b - a); }
};
struct AddSquare {
  float by;
  __device__ float operator()(float a, float b, float) const { return fmaf(by * b, b, a); }
};
struct RootOf {
  static constexpr bool overwrites = true;
  __device__ float operator()(float, float b, float) const { return sqrtf(b); }
};
struct Plus {
  float addend;
  __device__ float operator()(float a, float, float) const { return a + addend; }
};
struct AddQuotient {
  float by;
  __device__ float operator()(float a, float b, float c) const { return a + by * (b / c); }
};

// All of AdamW, in one pass.
static __global__ __launch_bounds__(threads) void adamw_kernel(float4* weights, const uint2* gradients, float4* firsts,
                                                               float4* seconds, unsigned quads, const training::AdamWStep step) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= quads) return;
  float4 w = weights[i], m = firsts[i], v = seconds[i];
  const uint2 four = gradients[i];
  step.update(w.x, __uint_as_float(four.x << 16), m.x, v.x);
  step.update(w.y, __uint_as_float(four.x & 0xFFFF0000u), m.y, v.y);
  step.update(w.z, __uint_as_float(four.y << 16), m.z, v.z);
  step.update(w.w, __uint_as_float(four.y & 0xFFFF0000u), m.w, v.w);
  weights[i] = w;
  firsts[i] = m;
  seconds[i] = v;
}

}  // namespace aisp::ch20::gpt
