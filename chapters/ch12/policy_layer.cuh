// SPDX-License-Identifier: Apache-2.0
// Pieces of a policy network's layer for a batch of eight: products of some columns by one block, LayerNorm of a row by one warp.
#pragma once
#include <aisp/device/reduce.cuh>

namespace aisp::ch12 {

inline constexpr int batch = 8;
inline constexpr float epsilon = 1e-5f;

struct Network {
  const float *in, *weights, *bias, *gain, *shift;  // weights: [layer][input][output]
  float* out;
  int layers;
};

// Products of all rows with `columns` of the weights, by the warps of a block: lanes share out columns, four to each, and groups
// of lanes and warps the inputs. Every thread holds the weights that it alone needs in registers.
template <int width, int columns>
struct Tile {
  static constexpr int lanes_across = columns / 4, groups = device::warp_size / lanes_across;
  static constexpr int all_warps = width * columns / (4 * 4 * device::warp_size);  // with four inputs a thread
  static constexpr int warps = all_warps < 8 ? all_warps : 8;
  static constexpr int inputs = width / (warps * groups);  // of a thread
  static constexpr int outputs = batch * 4 / groups;       // that a lane is left with when the groups have added up
  static_assert(inputs % 4 == 0 && outputs >= 1);

  float4 weights[inputs];

  static __device__ int lane() { return threadIdx.x % device::warp_size; }
  static __device__ int warp() { return threadIdx.x / device::warp_size; }
  // Fours of inputs that lie side by side in the groups of a warp.
  static __device__ int input(int i) {
    return warp() * (inputs * groups) + i / 4 * 4 * groups + lane() / lanes_across * 4 + i % 4;
  }
  __device__ void load(const float* layer_weights, int first_column) {
    if (warp() >= warps) return;
    const float* const mine = layer_weights + first_column + lane() % lanes_across * 4;
#pragma unroll
    for (int i = 0; i < inputs; ++i) weights[i] = *reinterpret_cast<const float4*>(mine + input(i) * width);
  }

  // Each warp's sums: partial[warp][row][column].
  __device__ void multiply(const float* x, float* partial) const {
    if (warp() >= warps) return;
    float sums[batch * 4] = {};
#pragma unroll
    for (int i = 0; i < inputs; i += 4) {
#pragma unroll
      for (int row = 0; row < batch; ++row) {
        const float4 xs = *reinterpret_cast<const float4*>(x + row * width + input(i));
        add(sums + row * 4, xs.x, weights[i]);
        add(sums + row * 4, xs.y, weights[i + 1]);
        add(sums + row * 4, xs.z, weights[i + 2]);
        add(sums + row * 4, xs.w, weights[i + 3]);
      }
    }
    int first = 0;
    exchange<batch * 4, device::warp_size / 2>(sums, first);
    float* const own = partial + (warp() * batch + first / 4) * columns + lane() % lanes_across * 4;
    if constexpr (outputs % 4 == 0) {
#pragma unroll
      for (int i = 0; i < outputs; i += 4)
        *reinterpret_cast<float4*>(own + i / 4 * columns) = make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
    } else {
#pragma unroll
      for (int i = 0; i < outputs; ++i) own[first % 4 + i] = sums[i];
    }
  }
  static __device__ float sum(const float* partial, int row, int column) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) sum += partial[(w * batch + row) * columns + column];
    return sum;
  }

 private:
  static __device__ void add(float* sums, float x, const float4& w) {
    sums[0] = fmaf(x, w.x, sums[0]);
    sums[1] = fmaf(x, w.y, sums[1]);
    sums[2] = fmaf(x, w.z, sums[2]);
    sums[3] = fmaf(x, w.w, sums[3]);
  }
  // Two groups swap halves of their sums: each keeps one half and gives the other away.
  template <int count, int distance>
  static __device__ void exchange(float* sums, int& first) {
    if constexpr (distance >= lanes_across) {
      const bool upper = (lane() & distance) != 0;
#pragma unroll
      for (int i = 0; i < count / 2; ++i) {
        const float low = sums[i], high = sums[i + count / 2];
        sums[i] = (upper ? high : low) + __shfl_xor_sync(device::whole_warp, upper ? low : high, distance);
      }
      if (upper) first += count / 2;
      exchange<count / 2, distance / 2>(sums, first);
    }
  }
};

// x + relu(normalized h) for a row in registers: lane i has columns i, i + 32 and so on.
template <int width>
struct Row {
  static constexpr int values = width / device::warp_size;
  float gain[values], shift[values];

  static __device__ int column(int i) { return i * device::warp_size + threadIdx.x % device::warp_size; }
  __device__ void load(const Network& net, int layer) {
#pragma unroll
    for (int i = 0; i < values; ++i) {
      gain[i] = net.gain[layer * width + column(i)];
      shift[i] = net.shift[layer * width + column(i)];
    }
  }
  static __device__ void normalize(float (&h)[values]) {
    float sum = 0, squares = 0;
#pragma unroll
    for (const float value : h) {
      sum += value;
      squares = fmaf(value, value, squares);
    }
#pragma unroll
    for (int offset = device::warp_size / 2; offset > 0; offset /= 2) {  // two chains of shuffles side by side
      sum += __shfl_xor_sync(device::whole_warp, sum, offset);
      squares += __shfl_xor_sync(device::whole_warp, squares, offset);
    }
    const float mean = sum / width, scale = rsqrtf(fmaf(-mean, mean, squares / width) + epsilon);
#pragma unroll
    for (float& value : h) value = (value - mean) * scale;
  }
  __device__ void add_to(float (&x)[values], float (&h)[values]) const {
    normalize(h);
#pragma unroll
    for (int i = 0; i < values; ++i) x[i] += fmaxf(fmaf(h[i], gain[i], shift[i]), 0.0f);
  }
};

}  // namespace aisp::ch12
