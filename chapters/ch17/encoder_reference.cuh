// SPDX-License-Identifier: Apache-2.0
// One layer of BERT-large in float64 for one request, and the mean of its rows.
#pragma once
#include <aisp/device/reduce.cuh>

#include "layers_reference.cuh"

namespace aisp::ch17::encoder {

inline constexpr std::size_t heads = 16, head_size = 64, width = heads * head_size, ffn = 4 * width;
inline constexpr double score_scale = 0.125;
inline constexpr float epsilon = 1e-5f;
inline constexpr int block = 256;

// Products are [in][out]; the norms have no gains.
struct Weights {
  const __nv_bfloat16 *qkv, *out, *up, *down, *qkv_bias, *out_bias, *up_bias, *down_bias;
};

static __global__ void widen_kernel(const __nv_bfloat16* x, double* out, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * block + threadIdx.x;
  if (i < count) out[i] = static_cast<double>(__bfloat162float(x[i]));
}

// A block for each row and head; its scores are in dynamic shared memory.
static __global__ __launch_bounds__(block) void attention_kernel(const double* qkv, double* out, int rows) {
  extern __shared__ double scores[];
  __shared__ double shared[device::largest_block_in_warps], parts[block / head_size][head_size];
  const std::size_t row = blockIdx.x, head = blockIdx.y * head_size, pitch = 3 * width;
  const double* const q = qkv + row * pitch + head;
  double largest = -1e300, sum = 0;
  for (int key = static_cast<int>(threadIdx.x); key < rows; key += block) {
    const double* const k = qkv + static_cast<std::size_t>(key) * pitch + width + head;
    double score = 0;
    for (std::size_t i = 0; i < head_size; ++i) score += q[i] * k[i];
    scores[key] = score * score_scale;
    largest = fmax(largest, scores[key]);
  }
  largest = device::block_max(largest, -1e300, shared);
  for (int key = static_cast<int>(threadIdx.x); key < rows; key += block) sum += scores[key] = exp(scores[key] - largest);
  sum = device::block_sum(sum, shared);
  __syncthreads();
  const std::size_t column = threadIdx.x % head_size, part = threadIdx.x / head_size;
  double value = 0;
  for (std::size_t key = part; key < static_cast<std::size_t>(rows); key += block / head_size)
    value += scores[key] * qkv[key * pitch + 2 * width + head + column];
  parts[part][column] = value;
  __syncthreads();
  if (part > 0) return;
  for (std::size_t p = 1; p < block / head_size; ++p) value += parts[p][column];
  out[row * width + head + column] = value / sum;
}

// x = layer norm of x + y. A block for each row.
static __global__ __launch_bounds__(block) void add_norm_kernel(double* x, const double* y) {
  __shared__ double shared[device::largest_block_in_warps];
  const std::size_t row = blockIdx.x * width;
  double sum = 0, squares = 0;
  for (std::size_t i = threadIdx.x; i < width; i += block) sum += x[row + i] + y[row + i];
  const double mean = device::block_sum(sum, shared) / static_cast<double>(width);
  for (std::size_t i = threadIdx.x; i < width; i += block) {
    const double value = x[row + i] + y[row + i] - mean;
    squares += value * value;
  }
  const double factor = 1 / sqrt(device::block_sum(squares, shared) / static_cast<double>(width) + static_cast<double>(epsilon));
  for (std::size_t i = threadIdx.x; i < width; i += block) x[row + i] = (x[row + i] + y[row + i] - mean) * factor;
}

static __global__ __launch_bounds__(block) void mean_kernel(const double* x, double* mean, int rows) {
  const std::size_t column = std::size_t{blockIdx.x} * block + threadIdx.x;
  double sum = 0;
  for (int row = 0; row < rows; ++row) sum += x[static_cast<std::size_t>(row) * width + column];
  mean[column] = sum / rows;
}

class Reference {
 public:
  // `space`: doubles(longest) of them.
  Reference(const Weights& weights, double* space, std::size_t longest)
      : weights_{weights},
        x_{space},
        wide_{x_ + longest * width},
        narrow_{wide_ + longest * ffn},
        pooled_{narrow_ + longest * width} {}
  static std::size_t doubles(std::size_t longest) { return longest * (2 * width + ffn) + width; }

  void run(cudaStream_t stream, const __nv_bfloat16* tokens, std::size_t rows) const {
    using fp64::After, fp64::multiply;
    const auto blocks = static_cast<unsigned>(rows);
    launch_kernel(stream, widen_kernel, {static_cast<unsigned>((rows * width + block - 1) / block), block}, tokens, x_,
                  rows * width);
    multiply<After::nothing>(stream, x_, weights_.qkv, weights_.qkv_bias, wide_, rows, 3 * width, width);
    launch_kernel(stream, attention_kernel, {dim3{blocks, heads}, block, rows * sizeof(double)}, wide_, narrow_, rows);
    multiply<After::nothing>(stream, narrow_, weights_.out, weights_.out_bias, wide_, rows, width, width);
    launch_kernel(stream, add_norm_kernel, {blocks, block}, x_, wide_);
    multiply<After::gelu>(stream, x_, weights_.up, weights_.up_bias, wide_, rows, ffn, width);
    multiply<After::nothing>(stream, wide_, weights_.down, weights_.down_bias, narrow_, rows, width, ffn);
    launch_kernel(stream, add_norm_kernel, {blocks, block}, x_, narrow_);
    launch_kernel(stream, mean_kernel, {width / block, block}, x_, pooled_, rows);
  }
  const double* pooled() const { return pooled_; }

 private:
  Weights weights_;
  double *x_, *wide_, *narrow_, *pooled_;
};

}  // namespace aisp::ch17::encoder
