// SPDX-License-Identifier: Apache-2.0
// A convolutional network's kernels between its convolutions, for images of 14 x 14 pixels in either order of their channels:
// batch norm, ReLU and residual additions as kernels of their own, and as epilogues of the GEMM engine.
#pragma once
#include <cuda_bf16.h>

#include "gemm/exchange.cuh"
#include "rows.cuh"

namespace aisp::ch20::resnet {

using shared::bf16, shared::packet;
inline constexpr unsigned threads = 256;
inline constexpr int side = 14, pixels = side * side;
inline constexpr float norm_epsilon = 1e-5f;

// For each channel.
struct Norm {
  const float *mean, *variance, *gain, *bias;
  __host__ __device__ float scale(int channel) const { return gain[channel] / sqrtf(variance[channel] + norm_epsilon); }
};

__device__ __forceinline__ void widen(const uint2& from, float (&x)[4]) {
  x[0] = __uint_as_float(from.x << 16), x[1] = __uint_as_float(from.x & 0xFFFF0000u);
  x[2] = __uint_as_float(from.y << 16), x[3] = __uint_as_float(from.y & 0xFFFF0000u);
}
__device__ __forceinline__ uint2 narrow(const float (&x)[4]) {
  return make_uint2(device::narrow_bf16(x[0], x[1]), device::narrow_bf16(x[2], x[3]));
}

// For channels first: four neighbours of one channel a thread.
static __global__ __launch_bounds__(threads) void planes_norm_kernel(uint2* x, const Norm norm, int channels, unsigned fours) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= fours) return;
  const int channel = static_cast<int>(i / (pixels / 4) % channels);
  const float scale = norm.scale(channel), shift = norm.bias[channel] - norm.mean[channel] * scale;
  float values[4];
  widen(x[i], values);
#pragma unroll
  for (float& value : values) value = fmaf(value, scale, shift);
  x[i] = narrow(values);
}

// For channels last: the norm, or what folding has left of it, a bias. With `finishes`, the residual, where there is one, and
// ReLU as well. A thread has the same eight channels of `line_pixels` pixels, so that it loads their norm once.
inline constexpr int line_pixels = 4;
static_assert(pixels % line_pixels == 0);
template <bool folded, bool finishes>
__global__ __launch_bounds__(threads) void channels_norm_kernel(uint4* x, const Norm norm, const float* bias,
                                                                const uint4* residual, int channels, unsigned packets) {
  const unsigned t = blockIdx.x * threads + threadIdx.x, line = static_cast<unsigned>(channels) / packet;
  if (t >= packets / line_pixels) return;
  const unsigned first = t / line * line_pixels * line + t % line;
  uint4 loaded[line_pixels], more[line_pixels] = {};
#pragma unroll
  for (int r = 0; r < line_pixels; ++r) {
    loaded[r] = x[first + r * line];
    if (finishes && residual != nullptr) more[r] = residual[first + r * line];
  }
  float scale[packet], shift[packet];
#pragma unroll
  for (int k = 0; k < packet; ++k) {
    const int channel = static_cast<int>(t % line) * packet + k;
    scale[k] = folded ? 1 : norm.scale(channel);
    shift[k] = folded ? bias[channel] : norm.bias[channel] - norm.mean[channel] * scale[k];
  }
#pragma unroll
  for (int r = 0; r < line_pixels; ++r) {
    float values[packet], added[packet];
    shared::unpack(loaded[r], values);
    shared::unpack(more[r], added);
#pragma unroll
    for (int k = 0; k < packet; ++k) {
      values[k] = fmaf(values[k], scale[k], shift[k]);
      if (finishes) values[k] = fmaxf(values[k] + added[k], 0);
    }
    x[first + r * line] = shared::pack(values);
  }
}
static __global__ __launch_bounds__(threads) void relu_kernel(uint4* x, unsigned packets) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= packets) return;
  float values[packet];
  shared::unpack(x[i], values);
#pragma unroll
  for (float& value : values) value = fmaxf(value, 0);
  x[i] = shared::pack(values);
}
static __global__ __launch_bounds__(threads) void add_kernel(uint4* x, const uint4* residual, unsigned packets) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= packets) return;
  float values[packet], more[packet];
  shared::unpack(x[i], values);
  shared::unpack(residual[i], more);
#pragma unroll
  for (int k = 0; k < packet; ++k) values[k] += more[k];
  x[i] = shared::pack(values);
}
// Weights [out][taps][in], times the scale of the norm after them; and what is left of that norm. A block for each output
// channel.
static __global__ __launch_bounds__(threads) void fold_kernel(const bf16* w, const Norm norm, bf16* folded, float* bias,
                                                              int depth) {
  const int out = static_cast<int>(blockIdx.x);
  const float scale = norm.scale(out);
  for (int i = static_cast<int>(threadIdx.x); i < depth; i += threads) {
    const std::size_t at = static_cast<std::size_t>(out) * depth + i;
    folded[at] = __float2bfloat16_rn(__bfloat162float(w[at]) * scale);
  }
  if (threadIdx.x == 0) bias[out] = norm.bias[out] - norm.mean[out] * scale;
}
// [outer][a][b] to [outer][b][a].
static __global__ __launch_bounds__(threads) void transpose_kernel(const bf16* from, bf16* to, int a, int b, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x, plane = static_cast<std::size_t>(a) * b;
  if (i >= count) return;
  const std::size_t in_plane = i % plane;
  to[i / plane * plane + in_plane % b * a + in_plane / b] = from[i];
}

// The pixels that are compared: the corners of each image, and others that change from image to image.
inline constexpr int looks = 12;
__host__ __device__ inline int looked_at(std::size_t image, int look) {
  constexpr int corners[] = {0, side - 1, pixels - side, pixels - 1};
  return look < 4 ? corners[look] : static_cast<int>((image * 31 + static_cast<std::size_t>(look) * 17) % pixels);
}
// blockIdx: the image, the look.
template <bool channels_first>
__global__ __launch_bounds__(threads) void look_kernel(const bf16* x, bf16* out, int channels) {
  const std::size_t image = blockIdx.x, pixel = static_cast<std::size_t>(looked_at(image, static_cast<int>(blockIdx.y)));
  for (int c = static_cast<int>(threadIdx.x); c < channels; c += threads)
    out[(image * looks + blockIdx.y) * channels + c] =
        x[channels_first ? (image * channels + c) * pixels + pixel : (image * pixels + pixel) * channels + c];
}

// Epilogues of products whose tiles have whole columns.
template <int count>
__device__ __forceinline__ void add_bias(float (&sums)[count], const gemm::Fragment& at, const float* bias) {
#pragma unroll
  for (int i = 0; i < count; i += 4) {
    const float2 b = *reinterpret_cast<const float2*>(bias + at.column(i));
    sums[i] += b.x, sums[i + 1] += b.y, sums[i + 2] += b.x, sums[i + 3] += b.y;
  }
}
template <int count>
__device__ __forceinline__ void clip(float (&sums)[count]) {
#pragma unroll
  for (float& sum : sums) sum = fmaxf(sum, 0);
}
struct BiasRelu {
  static constexpr int narrowing = 1;
  const float* bias = nullptr;
  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const gemm::Fragment& at) const {
    add_bias(sums, at, bias);
    clip(sums);
  }
};
// With the store TmaExchange, which brings the residual.
struct BiasResidualRelu {
  static constexpr int narrowing = 1;
  template <int columns>
  using Kept = gemm::Nothing;
  const float* bias = nullptr;
  template <int count, class Other>
  __device__ __forceinline__ void operator()(float (&sums)[count], const gemm::Fragment& at, const Other& other,
                                             gemm::Nothing&) const {
    add_bias(sums, at, bias);
#pragma unroll
    for (int i = 0; i < count; i += 8) {
      float values[8];
      other.load(i, values);
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[i + j] = fmaxf(sums[i + j] + values[j], 0);
    }
  }
  template <int columns>
  __device__ __forceinline__ void end_tile(gemm::Nothing&, const gemm::Fragment&, const gemm::Meeting&) const {}
};

}  // namespace aisp::ch20::resnet
