// SPDX-License-Identifier: Apache-2.0
// Blocks of a model in float64 by plain kernels on the GPU: references at a check shape, where the CPU would take minutes. The
// tests hold them against loops on the CPU and differences of those.
#pragma once
#include <aisp/check.hpp>

#include <cmath>
#include <cstddef>
#include <vector>

#include "mlp_block.hpp"

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

// C[m][n] = added + A B; a thread has an element.
template <class A, class B>
__global__ __launch_bounds__(threads) void matmul_kernel(View<A> a, View<B> b, const double* added, double* c, std::size_t m,
                                                         std::size_t n, std::size_t k) {
  const std::size_t at = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (at >= m * n) return;
  const A* const row = a.data + at / n * a.row;
  const B* const column = b.data + at % n * b.column;
  double sum = added != nullptr ? added[at] : 0;
  for (std::size_t i = 0; i < k; ++i) sum = fma(wide(row[i * a.column]), wide(column[i * b.row]), sum);
  c[at] = sum;
}
template <class A, class B>
void matmul(cudaStream_t stream, const View<A>& a, const View<B>& b, double* c, std::size_t m, std::size_t n, std::size_t k,
            const double* added = nullptr) {
  matmul_kernel<A, B><<<blocks(m * n), threads, 0, stream>>>(a, b, added, c, m, n, k);
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

}  // namespace aisp::training
