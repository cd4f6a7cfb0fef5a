// SPDX-License-Identifier: Apache-2.0
// The decoder in float64 on the GPU: whole sequences from their first token on, products by cublasDgemm, everything else by plain
// kernels. Weights are the bf16 that the decoder has, nothing else is rounded.
#pragma once
#include <aisp/launch.hpp>
#include <aisp/libraries/cublas.hpp>

#include <cmath>
#include <span>
#include <vector>

#include "decoder.hpp"

namespace aisp::decoder::reference {

constexpr int threads = 256;

static __global__ void widen_kernel(const bf16* from, double* to, std::size_t count) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += std::size_t{gridDim.x} * blockDim.x)
    to[i] = static_cast<double>(static_cast<float>(from[i]));
}
static __global__ void embed_kernel(const int* tokens, const bf16* table, double* x, int hidden) {
  for (int i = static_cast<int>(threadIdx.x); i < hidden; i += threads)
    x[static_cast<std::size_t>(blockIdx.x) * hidden + i] =
        static_cast<double>(static_cast<float>(table[static_cast<std::size_t>(tokens[blockIdx.x]) * hidden + i]));
}
__device__ inline double block_sum(double value) {
  __shared__ double shared[threads];
  __syncthreads();
  shared[threadIdx.x] = value;
  for (int step = threads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < step) shared[threadIdx.x] += shared[threadIdx.x + step];
  }
  __syncthreads();
  return shared[0];
}
// x += delta where there is one; normed = x / rms(x) * weight.
static __global__ void norm_kernel(double* x, const double* delta, double* normed, const bf16* weight, int hidden) {
  double* const row = x + static_cast<std::size_t>(blockIdx.x) * hidden;
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < hidden; i += threads) {
    if (delta != nullptr) row[i] += delta[static_cast<std::size_t>(blockIdx.x) * hidden + i];
    sum += row[i] * row[i];
  }
  const double scale = 1 / sqrt(block_sum(sum) / hidden + 1e-5);
  for (int i = static_cast<int>(threadIdx.x); i < hidden; i += threads)
    normed[static_cast<std::size_t>(blockIdx.x) * hidden + i] =
        row[i] * scale * static_cast<double>(static_cast<float>(weight[i]));
}
// Pairs of queries' and keys' heads, in place. blockIdx.x: the row.
static __global__ void rotate_kernel(double* qkv, const int* positions, int columns, int rotated, int head_size, double base) {
  for (int i = static_cast<int>(threadIdx.x) * 2; i < rotated; i += threads * 2) {
    double* const at = qkv + static_cast<std::size_t>(blockIdx.x) * columns + i;
    // In half turns, since the range reduction of sincos wants local memory.
    const double half_turns =
        positions[blockIdx.x] * pow(base, -static_cast<double>(i % head_size) / head_size) / 3.14159265358979323846;
    const double a = at[0], b = at[1];
    double s, c;
    sincospi(half_turns, &s, &c);
    at[0] = a * c - b * s, at[1] = b * c + a * s;
  }
}
// blockIdx: the row, the query head. The keys of a row are the `positions[row]` rows before it and itself.
static __global__ void attend_kernel(const double* qkv, const int* positions, double* out, double* scores, int longest,
                                     int columns, int heads, int kv_heads, int head_size) {
  const int head = static_cast<int>(blockIdx.y), kv_head = head / (heads / kv_heads), keys = positions[blockIdx.x] + 1;
  const double* const first = qkv + (static_cast<std::size_t>(blockIdx.x) - static_cast<std::size_t>(keys - 1)) * columns;
  const double* const q = qkv + static_cast<std::size_t>(blockIdx.x) * columns + head * head_size;
  const double* const k = first + (heads + kv_head) * head_size;
  const double* const v = first + (heads + kv_heads + kv_head) * head_size;
  double* const own = scores + (static_cast<std::size_t>(blockIdx.x) * heads + head) * longest;
  double sum = 0;
  for (int key = static_cast<int>(threadIdx.x); key < keys; key += threads) {
    double product = 0;
    for (int i = 0; i < head_size; ++i) product += q[i] * k[static_cast<std::size_t>(key) * columns + i];
    own[key] = exp(product / sqrt(static_cast<double>(head_size)));  // float64 reaches to exp(709)
    sum += own[key];
  }
  sum = block_sum(sum);
  for (int i = static_cast<int>(threadIdx.x); i < head_size; i += threads) {
    double value = 0;
    for (int key = 0; key < keys; ++key) value += own[key] * v[static_cast<std::size_t>(key) * columns + i];
    out[static_cast<std::size_t>(blockIdx.x) * heads * head_size + head * head_size + i] = value / sum;
  }
}
static __global__ void swiglu_kernel(const double* gate_up, double* active, int ffn) {
  const double* const row = gate_up + static_cast<std::size_t>(blockIdx.x) * 2 * ffn;
  for (int i = static_cast<int>(threadIdx.x); i < ffn; i += threads)
    active[static_cast<std::size_t>(blockIdx.x) * ffn + i] = row[i] / (1 + exp(-row[i])) * row[ffn + i];
}

class Memory {
 public:
  explicit Memory(std::size_t count) { check(cudaMalloc(&data_, count * sizeof(double))); }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  operator double*() const { return data_; }

 private:
  double* data_ = nullptr;
};

struct Results {
  std::vector<double> normed;            // [row][hidden]: after the last norm
  std::vector<std::vector<double>> qkv;  // [layer]: [row][qkv_columns], keys rotated; of the layers that were asked for
};

// `tokens` of sequences one after the other, of which `lengths` are long: each begins at position 0. Rows are computed together,
// so that what is long should be given in several calls.
inline Results forward(Cublas& cublas, cudaStream_t stream, const Shape& s, const Weights& w, std::span<const int> tokens,
                       std::span<const int> lengths, bool keep_qkv = false) {
  std::vector<int> positions;
  int longest = 0;
  for (const int length : lengths) {
    for (int i = 0; i < length; ++i) positions.push_back(i);
    longest = std::max(longest, length);
  }
  const std::size_t rows = positions.size(), hidden = static_cast<std::size_t>(s.hidden),
                    columns = static_cast<std::size_t>(s.qkv_columns());
  const auto blocks = static_cast<unsigned>(rows);
  const std::size_t largest = hidden * std::max<std::size_t>(2 * static_cast<std::size_t>(s.ffn), columns);
  const Memory x{rows * hidden}, normed{rows * hidden}, qkv{rows * columns},
      attended{rows * static_cast<std::size_t>(s.q_columns())}, delta{rows * hidden},
      gate_up{rows * 2 * static_cast<std::size_t>(s.ffn)}, active{rows * static_cast<std::size_t>(s.ffn)}, matrix{largest},
      scores{rows * static_cast<std::size_t>(s.heads) * static_cast<std::size_t>(longest)}, integers{rows};
  int* const device_tokens = reinterpret_cast<int*>(static_cast<double*>(integers));
  int* const device_positions = device_tokens + rows;
  check(cudaMemcpyAsync(device_tokens, tokens.data(), rows * sizeof(int), cudaMemcpyHostToDevice, stream));
  check(cudaMemcpyAsync(device_positions, positions.data(), rows * sizeof(int), cudaMemcpyHostToDevice, stream));
  cublas.use(stream);
  static const auto gemm = Cublas::function<decltype(cublasDgemm_v2)>("cublasDgemm_v2");
  const auto multiply = [&](const bf16* weights, int layer, int outputs, int depth, const double* from, double* to) {
    const std::size_t count = static_cast<std::size_t>(outputs) * static_cast<std::size_t>(depth);
    widen_kernel<<<4096, threads, 0, stream>>>(weights + static_cast<std::size_t>(layer) * count, matrix, count);
    const double one = 1, zero = 0;
    check(gemm(cublas.handle(), CUBLAS_OP_T, CUBLAS_OP_N, outputs, static_cast<int>(rows), depth, &one, matrix, depth, from,
               depth, &zero, to, outputs));
  };
  Results results;
  embed_kernel<<<blocks, threads, 0, stream>>>(device_tokens, w.embedding, x, s.hidden);
  norm_kernel<<<blocks, threads, 0, stream>>>(x, nullptr, normed, w.norms, s.hidden);
  for (int layer = 0; layer < s.layers; ++layer) {
    multiply(w.qkv, layer, s.qkv_columns(), s.hidden, normed, qkv);
    rotate_kernel<<<blocks, threads, 0, stream>>>(qkv, device_positions, s.qkv_columns(), s.q_columns() + s.kv_columns(),
                                                  s.head_size, 500000.0);
    attend_kernel<<<dim3{blocks, static_cast<unsigned>(s.heads)}, threads, 0, stream>>>(
        qkv, device_positions, attended, scores, longest, s.qkv_columns(), s.heads, s.kv_heads, s.head_size);
    multiply(w.o, layer, s.hidden, s.q_columns(), attended, delta);
    norm_kernel<<<blocks, threads, 0, stream>>>(x, delta, normed, w.norms + static_cast<std::size_t>(2 * layer + 1) * hidden,
                                                s.hidden);
    multiply(w.gate_up, layer, 2 * s.ffn, s.hidden, normed, gate_up);
    swiglu_kernel<<<blocks, threads, 0, stream>>>(gate_up, active, s.ffn);
    multiply(w.down, layer, s.hidden, s.ffn, active, delta);
    norm_kernel<<<blocks, threads, 0, stream>>>(x, delta, normed, w.norms + static_cast<std::size_t>(2 * layer + 2) * hidden,
                                                s.hidden);
    check(cudaGetLastError());
    if (keep_qkv) {
      results.qkv.emplace_back(rows * columns);
      check(cudaMemcpyAsync(results.qkv.back().data(), qkv, rows * columns * sizeof(double), cudaMemcpyDeviceToHost, stream));
    }
  }
  results.normed.resize(rows * hidden);
  check(cudaMemcpyAsync(results.normed.data(), normed, rows * hidden * sizeof(double), cudaMemcpyDeviceToHost, stream));
  check(cudaStreamSynchronize(stream));
  return results;
}

}  // namespace aisp::decoder::reference
