// SPDX-License-Identifier: Apache-2.0
// Blocks of a model in float64 by plain kernels on the GPU: references at a check shape, where the CPU would take minutes. The
// tests hold them against loops on the CPU and differences of those.
#pragma once
#include <aisp/check.hpp>

#include <cmath>
#include <cstddef>
#include <vector>

#include "row_kernels.cuh"
#include "shapes.hpp"

namespace aisp::training {

class Doubles {
 public:
  explicit Doubles(std::size_t count) : count_{count} { check(cudaMalloc(&data_, count * sizeof(double))); }
  explicit Doubles(const std::vector<double>& values) : Doubles{values.size()} {
    check(cudaMemcpy(data_, values.data(), count_ * sizeof(double), cudaMemcpyHostToDevice));
  }
  ~Doubles() { cudaFree(data_); }
  Doubles(const Doubles&) = delete;
  Doubles& operator=(const Doubles&) = delete;
  operator double*() const { return data_; }
  std::vector<double> host() const {
    std::vector<double> values(count_);
    check(cudaMemcpy(values.data(), data_, count_ * sizeof(double), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  std::size_t count_;
  double* data_ = nullptr;
};

namespace reference {

inline constexpr unsigned threads = 128;
inline unsigned blocks(std::size_t count) { return static_cast<unsigned>((count + threads - 1) / threads); }

__device__ inline double wide(double x) { return x; }
__device__ inline double wide(bf16 x) { return static_cast<double>(__bfloat162float(x)); }

// A matrix in memory: element (i, j) is i * row + j * column.
template <class T>
struct View {
  const T* data;
  std::size_t row, column;
};
template <class T>
View<T> rows_of(const T* data, std::size_t columns) {
  return {data, columns, 1};
}
template <class T>
View<T> columns_of(const T* data, std::size_t columns) {
  return {data, 1, columns};
}

// C[m][n] = added + A B, where rows of C are `pitch` apart and those of `added` n; a thread has an element.
template <class A, class B>
__global__ __launch_bounds__(threads) void matmul_kernel(View<A> a, View<B> b, const double* added, double* c, std::size_t pitch,
                                                         std::size_t m, std::size_t n, std::size_t k) {
  const std::size_t at = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (at >= m * n) return;
  const A* const row = a.data + at / n * a.row;
  const B* const column = b.data + at % n * b.column;
  double sum = added != nullptr ? added[at] : 0;
  for (std::size_t i = 0; i < k; ++i) sum = fma(wide(row[i * a.column]), wide(column[i * b.row]), sum);
  c[at / n * pitch + at % n] = sum;
}
template <class A, class B>
void matmul(cudaStream_t stream, const View<A>& a, const View<B>& b, double* c, std::size_t m, std::size_t n, std::size_t k,
            const double* added = nullptr, std::size_t pitch = 0) {
  matmul_kernel<A, B><<<blocks(m * n), threads, 0, stream>>>(a, b, added, c, pitch > 0 ? pitch : n, m, n, k);
  check(cudaGetLastError());
}

// A thread has a row.
static __global__ __launch_bounds__(threads) void rms_norm_kernel(const double* x, const bf16* weights, double* out,
                                                                  double* inverse_rms, std::size_t rows, std::size_t width) {
  const std::size_t row = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (row >= rows) return;
  double squares = 0;
  for (std::size_t i = 0; i < width; ++i) squares += x[row * width + i] * x[row * width + i];
  const double inverse = 1 / sqrt(squares / static_cast<double>(width) + static_cast<double>(norm_epsilon));
  for (std::size_t i = 0; i < width; ++i) out[row * width + i] = x[row * width + i] * inverse * wide(weights[i]);
  inverse_rms[row] = inverse;
}
static __global__ __launch_bounds__(threads) void rms_norm_backward_kernel(const double* x, const bf16* weights,
                                                                           const double* inverse_rms, const double* dy,
                                                                           const double* passed, double* dx, std::size_t rows,
                                                                           std::size_t width) {
  const std::size_t row = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (row >= rows) return;
  const double inverse = inverse_rms[row];
  double dot = 0;
  for (std::size_t i = row * width; i < (row + 1) * width; ++i) dot += dy[i] * wide(weights[i - row * width]) * x[i] * inverse;
  dot /= static_cast<double>(width);
  for (std::size_t i = row * width; i < (row + 1) * width; ++i)
    dx[i] = passed[i] + inverse * (dy[i] * wide(weights[i - row * width]) - x[i] * inverse * dot);
}
// A thread has a column.
static __global__ __launch_bounds__(threads) void rms_norm_weights_kernel(const double* x, const double* inverse_rms,
                                                                          const double* dy, double* d_weights, std::size_t rows,
                                                                          std::size_t width) {
  const std::size_t column = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (column >= width) return;
  double sum = 0;
  for (std::size_t row = 0; row < rows; ++row) sum += dy[row * width + column] * x[row * width + column] * inverse_rms[row];
  d_weights[column] = sum;
}

__device__ inline double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static __global__ __launch_bounds__(threads) void swiglu_kernel(const double* h, double* product, std::size_t hidden,
                                                                std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= count) return;
  const double* const gate = h + i + i / hidden * hidden;
  product[i] = gate[0] * sigmoid(gate[0]) * gate[hidden];
}
static __global__ __launch_bounds__(threads) void swiglu_backward_kernel(const double* h, const double* d_product, double* dh,
                                                                         std::size_t hidden, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= count) return;
  const std::size_t at = i + i / hidden * hidden;
  const double gate = h[at], s = sigmoid(gate);
  dh[at] = d_product[i] * h[at + hidden] * s * (1 + gate * (1 - s));
  dh[at + hidden] = d_product[i] * gate * s;
}

// Rows of a head's scores become weights: row r sees keys 0 to r. A thread has a row.
static __global__ __launch_bounds__(threads) void causal_softmax_kernel(double* scores, double scale, std::size_t tokens) {
  const std::size_t row = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (row >= tokens) return;
  double* const of = scores + row * tokens;
  double highest = of[0] * scale, sum = 0;
  for (std::size_t key = 0; key <= row; ++key) highest = fmax(highest, of[key] * scale);
  for (std::size_t key = 0; key <= row; ++key) sum += exp(of[key] * scale - highest);
  for (std::size_t key = 0; key < tokens; ++key) of[key] = key <= row ? exp(of[key] * scale - highest) / sum : 0;
}
// Gradients of weights become those of the products of Q and K.
static __global__ __launch_bounds__(threads) void softmax_backward_kernel(const double* weights, double* d, double scale,
                                                                          std::size_t tokens) {
  const std::size_t row = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (row >= tokens) return;
  double sum = 0;
  for (std::size_t i = row * tokens; i < (row + 1) * tokens; ++i) sum += weights[i] * d[i];
  for (std::size_t i = row * tokens; i < (row + 1) * tokens; ++i) d[i] = weights[i] * (d[i] - sum) * scale;
}

}  // namespace reference

// The block of mlp_block.hpp. forward() keeps what backward() reads.
class MlpReference {
 public:
  explicit MlpReference(const MlpShape& shape)
      : shape_{shape},
        x_{shape.tokens * shape.width},
        normed_{shape.tokens * shape.width},
        inverse_rms_{shape.tokens},
        gate_up_{shape.tokens * 2 * shape.hidden},
        product_{shape.tokens * shape.hidden} {}

  void forward(cudaStream_t stream, const double* x, const MlpWeights& w, double* y) const {
    using namespace reference;
    const auto [tokens, width, hidden] = shape_;
    check(cudaMemcpyAsync(x_, x, tokens * width * sizeof(double), cudaMemcpyDeviceToDevice, stream));
    rms_norm_kernel<<<blocks(tokens), threads, 0, stream>>>(x_, w.norm, normed_, inverse_rms_, tokens, width);
    matmul(stream, rows_of<double>(normed_, width), columns_of(w.gate_up, width), gate_up_, tokens, 2 * hidden, width);
    swiglu_kernel<<<blocks(tokens * hidden), threads, 0, stream>>>(gate_up_, product_, hidden, tokens * hidden);
    matmul(stream, rows_of<double>(product_, hidden), columns_of(w.down, hidden), y, tokens, width, hidden, x_);
  }
  struct Gradients {
    double *norm, *gate_up, *down;
  };
  // dx is another buffer than dy.
  void backward(cudaStream_t stream, const double* dy, const MlpWeights& w, const Gradients& to, double* dx) const {
    using namespace reference;
    const auto [tokens, width, hidden] = shape_;
    const Doubles d_product{tokens * hidden}, dh{tokens * 2 * hidden}, d_normed{tokens * width};
    matmul(stream, rows_of(dy, width), rows_of(w.down, hidden), d_product, tokens, hidden, width);
    matmul(stream, columns_of(dy, width), rows_of<double>(product_, hidden), to.down, width, hidden, tokens);
    swiglu_backward_kernel<<<blocks(tokens * hidden), threads, 0, stream>>>(gate_up_, d_product, dh, hidden, tokens * hidden);
    matmul(stream, rows_of<double>(dh, 2 * hidden), rows_of(w.gate_up, width), d_normed, tokens, width, 2 * hidden);
    matmul(stream, columns_of<double>(dh, 2 * hidden), rows_of<double>(normed_, width), to.gate_up, 2 * hidden, width, tokens);
    rms_norm_backward_kernel<<<blocks(tokens), threads, 0, stream>>>(x_, w.norm, inverse_rms_, d_normed, dy, dx, tokens, width);
    rms_norm_weights_kernel<<<blocks(width), threads, 0, stream>>>(x_, inverse_rms_, d_normed, to.norm, tokens, width);
    check(cudaStreamSynchronize(stream));
  }

 private:
  MlpShape shape_;
  Doubles x_, normed_, inverse_rms_, gate_up_, product_;
};

// The block of decoder_block.hpp before its MLP.
class AttentionReference {
 public:
  explicit AttentionReference(const AttentionShape& shape)
      : shape_{shape},
        x_{shape.rows() * shape.width()},
        normed_{shape.rows() * shape.width()},
        inverse_rms_{shape.rows()},
        qkv_{shape.rows() * 3 * shape.width()},
        attended_{shape.rows() * shape.width()},
        weights_{shape.sequences * shape.heads * shape.tokens * shape.tokens} {}

  void forward(cudaStream_t stream, const double* x, const AttentionWeights& w, double* y) const {
    using namespace reference;
    const std::size_t rows = shape_.rows(), width = shape_.width(), tokens = shape_.tokens, size = shape_.head_size;
    check(cudaMemcpyAsync(x_, x, rows * width * sizeof(double), cudaMemcpyDeviceToDevice, stream));
    rms_norm_kernel<<<blocks(rows), threads, 0, stream>>>(x_, w.norm, normed_, inverse_rms_, rows, width);
    matmul(stream, rows_of<double>(normed_, width), columns_of(w.qkv, width), qkv_, rows, 3 * width, width);
    for_each_head([&](const Head& head) {
      matmul(stream, rows_of<double>(head.q, 3 * width), columns_of<double>(head.k, 3 * width), head.weights, tokens, tokens,
             size);
      causal_softmax_kernel<<<blocks(tokens), threads, 0, stream>>>(head.weights, scale(), tokens);
      matmul(stream, rows_of<double>(head.weights, tokens), rows_of<double>(head.v, 3 * width), attended_ + head.out, tokens,
             size, tokens, nullptr, width);
    });
    matmul(stream, rows_of<double>(attended_, width), columns_of(w.out, width), y, rows, width, width, x_);
  }
  struct Gradients {
    double *norm, *qkv, *out;
  };
  // dx is another buffer than dy.
  void backward(cudaStream_t stream, const double* dy, const AttentionWeights& w, const Gradients& to, double* dx) const {
    using namespace reference;
    const std::size_t rows = shape_.rows(), width = shape_.width(), tokens = shape_.tokens, size = shape_.head_size;
    const Doubles d_attended{rows * width}, d_qkv{rows * 3 * width}, d_normed{rows * width}, d{tokens * tokens};
    matmul(stream, rows_of(dy, width), rows_of(w.out, width), d_attended, rows, width, width);
    matmul(stream, columns_of(dy, width), rows_of<double>(attended_, width), to.out, width, width, rows);
    for_each_head([&](const Head& head) {
      const double* const d_o = d_attended + head.out;
      double* const d_head = d_qkv + (head.q - qkv_);
      matmul(stream, rows_of(d_o, width), columns_of<double>(head.v, 3 * width), d, tokens, tokens, size);
      matmul(stream, columns_of<double>(head.weights, tokens), rows_of(d_o, width), d_head + 2 * width, tokens, size, tokens,
             nullptr, 3 * width);
      softmax_backward_kernel<<<blocks(tokens), threads, 0, stream>>>(head.weights, d, scale(), tokens);
      matmul(stream, rows_of<double>(d, tokens), rows_of<double>(head.k, 3 * width), d_head, tokens, size, tokens, nullptr,
             3 * width);
      matmul(stream, columns_of<double>(d, tokens), rows_of<double>(head.q, 3 * width), d_head + width, tokens, size, tokens,
             nullptr, 3 * width);
    });
    matmul(stream, rows_of<double>(d_qkv, 3 * width), rows_of(w.qkv, width), d_normed, rows, width, 3 * width);
    matmul(stream, columns_of<double>(d_qkv, 3 * width), rows_of<double>(normed_, width), to.qkv, 3 * width, width, rows);
    rms_norm_backward_kernel<<<blocks(rows), threads, 0, stream>>>(x_, w.norm, inverse_rms_, d_normed, dy, dx, rows, width);
    rms_norm_weights_kernel<<<blocks(width), threads, 0, stream>>>(x_, inverse_rms_, d_normed, to.norm, rows, width);
    check(cudaStreamSynchronize(stream));
  }

 private:
  struct Head {
    double *q, *k, *v, *weights;
    std::size_t out;  // where its result begins
  };
  double scale() const { return 1 / std::sqrt(static_cast<double>(shape_.head_size)); }
  template <class Act>
  void for_each_head(const Act& act) const {
    const std::size_t width = shape_.width(), tokens = shape_.tokens;
    for (std::size_t sequence = 0; sequence < shape_.sequences; ++sequence)
      for (std::size_t head = 0; head < shape_.heads; ++head) {
        double* const q = qkv_ + sequence * tokens * 3 * width + head * shape_.head_size;
        act(Head{q, q + width, q + 2 * width, weights_ + (sequence * shape_.heads + head) * tokens * tokens,
                 sequence * tokens * width + head * shape_.head_size});
      }
  }

  AttentionShape shape_;
  Doubles x_, normed_, inverse_rms_, qkv_, attended_, weights_;
};

}  // namespace aisp::training
