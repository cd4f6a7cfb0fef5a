// SPDX-License-Identifier: Apache-2.0
// Gradient descent that is exact to describe and as long as one likes: each weight learns the targets of a batch from one
// feature, by least squares. A tensor's step is one kernel, which also sums up its loss and the norm of its gradient.
#pragma once
#include <aisp/device/reduce.cuh>
#include <aisp/launch.hpp>

#include <cmath>
#include <cstddef>
#include <vector>

namespace aisp::ch13 {

inline constexpr unsigned features = 256, rows_of_block = 8;  // a thread has the weights of one feature in eight rows
inline constexpr std::size_t weights_of_block = std::size_t{features} * rows_of_block;

struct Batch {
  const float* x;  // [samples][features]
  const float* y;  // [samples]
  int samples;
};

// Sums that the blocks of one kernel leave to the last of them. Starts as zeros.
struct BlockSums {
  unsigned blocks_done;
  float2 sums[1024];  // squares of the gradient, and of the errors
};

// Weight i learns y from x[i % features]: its error is w x - y, its gradient the mean of error times x. The last block writes the
// norm of the tensor's gradient, and adds its mean squared error to *loss, or to `initial_loss` in the first tensor of a step.
static __global__ __launch_bounds__(features) void descend_kernel(float* weights, Batch batch, float rate, BlockSums* partial,
                                                                  float* norm, float* loss, const float* initial_loss) {
  __shared__ float shared[device::largest_block_in_warps];
  __shared__ bool is_last;
  float* const own = weights + blockIdx.x * weights_of_block + threadIdx.x;
  float w[rows_of_block], gradient[rows_of_block]{}, squares = 0;
#pragma unroll
  for (unsigned r = 0; r < rows_of_block; ++r) w[r] = own[r * features];
#pragma unroll 4
  for (int s = 0; s < batch.samples; ++s) {
    const float x = batch.x[s * features + threadIdx.x], y = batch.y[s];
#pragma unroll
    for (unsigned r = 0; r < rows_of_block; ++r) {
      const float error = w[r] * x - y;
      gradient[r] += error * x;
      squares += error * error;
    }
  }
  const float mean = 1.0f / static_cast<float>(batch.samples);
  float norm_squares = 0;
#pragma unroll
  for (unsigned r = 0; r < rows_of_block; ++r) {
    const float g = gradient[r] * mean;
    own[r * features] = w[r] - rate * g;
    norm_squares += g * g;
  }
  norm_squares = device::block_sum(norm_squares, shared);
  squares = device::block_sum(squares * mean, shared);
  if (threadIdx.x == 0) {
    partial->sums[blockIdx.x] = make_float2(norm_squares, squares);
    __threadfence();
    is_last = atomicInc(&partial->blocks_done, gridDim.x - 1) == gridDim.x - 1;  // and back to zero for the next kernel
  }
  __syncthreads();
  if (!is_last) return;
  float2 sum{};
  for (unsigned b = threadIdx.x; b < gridDim.x; b += features) {
    const float2 of_block = __ldcg(&partial->sums[b]);
    sum.x += of_block.x, sum.y += of_block.y;
  }
  sum.x = device::block_sum(sum.x, shared);
  sum.y = device::block_sum(sum.y, shared);
  if (threadIdx.x != 0) return;
  *norm = sqrtf(sum.x);
  const float before = initial_loss != nullptr ? *initial_loss : *loss;
  *loss = before + sum.y / (static_cast<float>(gridDim.x) * weights_of_block);
}

// The same in float64. What a batch does to a weight is affine, so that the sums over a tensor's weights of one feature, of their
// values and of their squares, say all about its loss and its gradient.
struct Moments {
  double xx = 0, xy = 0, yy = 0;  // means over the samples of a batch, for one feature
};
struct WeightSums {
  double count = 0, values = 0, squares = 0;
};

template <class X, class Y>
std::vector<Moments> moments_of(std::size_t samples, const X& x, const Y& y) {
  std::vector<Moments> all(features);
  for (std::size_t s = 0; s < samples; ++s)
    for (std::size_t f = 0; f < features; ++f) {
      const double of_x = x(s * features + f), of_y = y(s), share = 1.0 / static_cast<double>(samples);
      all[f].xx += of_x * of_x * share, all[f].xy += of_x * of_y * share, all[f].yy += of_y * of_y * share;
    }
  return all;
}

inline double descended(double weight, const Moments& m, double rate) { return weight - rate * (weight * m.xx - m.xy); }

struct TensorStep {
  double loss = 0, norm_squares = 0;
};
// One step of a tensor whose weights have these sums, feature by feature; the sums are changed.
inline TensorStep descend(std::vector<WeightSums>& tensor, const std::vector<Moments>& batch, double rate) {
  TensorStep result;
  double weights = 0;
  for (std::size_t f = 0; f < features; ++f) {
    WeightSums& w = tensor[f];
    const Moments& m = batch[f];
    result.loss += w.squares * m.xx - 2 * w.values * m.xy + w.count * m.yy;
    result.norm_squares += w.squares * m.xx * m.xx - 2 * w.values * m.xx * m.xy + w.count * m.xy * m.xy;
    weights += w.count;
    const double factor = 1 - rate * m.xx, shift = rate * m.xy;
    w.squares = factor * factor * w.squares + 2 * factor * shift * w.values + w.count * shift * shift;
    w.values = factor * w.values + w.count * shift;
  }
  result.loss /= weights;
  return result;
}

}  // namespace aisp::ch13
