// SPDX-License-Identifier: Apache-2.0
// The training step of fp8_training_step in float64 on the host, with operands as they are, or as they are cast: rounded to bf16
// and to FP8 where the kernels round.
#pragma once
#include <cuda_bf16.h>
#include "fp8_casts.cuh"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace aisp::ch19 {

struct StepShape {
  std::size_t tokens, microbatches, depth, width;
  std::size_t rows() const { return tokens / microbatches; }
};

enum StepTensor : unsigned { of_x, of_a, of_dy, of_dh, of_w1, of_w2 };
inline constexpr unsigned recorded_tensors = 4;  // the first ones, of every micro-batch

using Values = std::vector<double>;
struct StepInputs {
  Values x, dy, w1, w2, dw1, dw2, history_maxima;
};
struct StepResults {
  Values y, dx, dw1, dw2, amaxes;
};

enum class Casts { none, current, delayed };

class StepReference {
 public:
  StepReference(const StepShape& shape, const StepInputs& in, Casts casts) : shape_{shape}, in_{in}, casts_{casts} {}

  StepResults compute() {
    const auto [tokens, microbatches, depth, width] = shape_;
    const std::size_t rows = shape_.rows();
    StepResults out{.dw1 = in_.dw1, .dw2 = in_.dw2, .amaxes = Values(microbatches * recorded_tensors)};
    const Values w1 = cast<e4m3>(in_.w1, maximum_of(in_.w1)), w2 = cast<e4m3>(in_.w2, maximum_of(in_.w2));
    for (std::size_t b = 0; b < microbatches; ++b) {
      double* const amaxes = &out.amaxes[b * recorded_tensors];
      const Values x = cast_recorded<e4m3>(part(in_.x, b), of_x, amaxes);
      const Values h = stored(product(x, w1, rows, 2 * width, depth, {.b_is_transposed = true}));
      Values a(rows * width);
      for (std::size_t t = 0; t < rows; ++t)
        for (std::size_t j = 0; j < width; ++j) a[t * width + j] = silu(h[t * 2 * width + j]) * h[(t * 2 + 1) * width + j];
      const Values cast_a = cast_recorded<e4m3>(stored(std::move(a)), of_a, amaxes);
      append(out.y, product(cast_a, w2, rows, depth, width, {.b_is_transposed = true}));

      const Values dy = cast_recorded<e5m2>(part(in_.dy, b), of_dy, amaxes);
      const Values da = stored(product(dy, w2, rows, width, depth, {}));
      Values dh(rows * 2 * width);
      for (std::size_t t = 0; t < rows; ++t)
        for (std::size_t j = 0; j < width; ++j) {
          const double gate = h[t * 2 * width + j], up = h[(t * 2 + 1) * width + j], d = da[t * width + j];
          dh[t * 2 * width + j] = d * up * silu_slope(gate);
          dh[(t * 2 + 1) * width + j] = d * silu(gate);
        }
      const Values cast_dh = cast_recorded<e5m2>(stored(std::move(dh)), of_dh, amaxes);
      append(out.dx, product(cast_dh, w1, rows, depth, 2 * width, {}));
      add(out.dw2, product(dy, cast_a, depth, width, rows, {.a_is_transposed = true}));
      add(out.dw1, product(cast_dh, x, 2 * width, depth, rows, {.a_is_transposed = true}));
    }
    return out;
  }

 private:
  struct Order {
    bool a_is_transposed = false, b_is_transposed = false;
  };

  Values part(const Values& of, std::size_t b) const {
    const std::size_t count = of.size() / shape_.microbatches;
    return {of.begin() + static_cast<std::ptrdiff_t>(b * count), of.begin() + static_cast<std::ptrdiff_t>((b + 1) * count)};
  }
  static void append(Values& to, const Values& more) { to.insert(to.end(), more.begin(), more.end()); }
  static void add(Values& to, const Values& more) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += more[i];
  }
  static double maximum_of(const Values& of) {
    double maximum = 0;
    for (const double x : of) maximum = std::max(maximum, std::abs(x));
    return maximum;
  }
  static double silu(double x) { return x / (1 + std::exp(-x)); }
  static double silu_slope(double x) {
    const double s = 1 / (1 + std::exp(-x));
    return s + s * (x - x * s);
  }

  // To memory, as bf16.
  Values stored(Values of) const {
    if (casts_ != Casts::none)
      for (double& x : of) x = static_cast<double>(__bfloat162float(__double2bfloat16(x)));
    return of;
  }
  template <class Code>
  Values cast(Values of, double maximum) const {
    if (casts_ == Casts::none) return of;
    const float scale = scale_of<Code>(static_cast<float>(maximum)), inverse = inverse_of<Code>(static_cast<float>(maximum));
    for (double& x : of)
      x = static_cast<double>(static_cast<float>(Code{static_cast<float>(x) * scale})) * static_cast<double>(inverse);
    return of;
  }
  template <class Code>
  Values cast_recorded(Values of, StepTensor tensor, double* amaxes) const {
    amaxes[tensor] = maximum_of(of);
    const double maximum = casts_ == Casts::delayed ? in_.history_maxima[tensor] : amaxes[tensor];
    return cast<Code>(std::move(of), maximum);
  }
  // c[m][n], of a[m][k] or a[k][m] and b[k][n] or b[n][k].
  static Values product(const Values& a, const Values& b, std::size_t m, std::size_t n, std::size_t k, const Order& order) {
    Values c(m * n);
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t p = 0; p < k; ++p) {
        const double factor = order.a_is_transposed ? a[p * m + i] : a[i * k + p];
        for (std::size_t j = 0; j < n; ++j) c[i * n + j] += factor * (order.b_is_transposed ? b[j * k + p] : b[p * n + j]);
      }
    return c;
  }

  StepShape shape_;
  const StepInputs& in_;
  Casts casts_;
};

}  // namespace aisp::ch19
