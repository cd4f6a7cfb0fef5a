// SPDX-License-Identifier: Apache-2.0
// The float64 references of the blocks: forward against loops on the CPU, gradients against differences of those loops.
#include "training/reference.cuh"

#include <algorithm>

#include "device/gpu_test.hpp"
#include "values.hpp"

namespace aisp::training::test {
namespace {

class TrainingReference : public GpuTest<8> {};

// x[rows][in] W^T
Values times_transposed(const Values& x, const Values& w, std::size_t in) {
  const std::size_t rows = x.size() / in, out = w.size() / in;
  Values y(rows * out);
  for (std::size_t i = 0; i < y.size(); ++i)
    for (std::size_t k = 0; k < in; ++k) y[i] += x[i / out * in + k] * w[i % out * in + k];
  return y;
}
Values normalized(const Values& x, const Values& weights) {
  const std::size_t width = weights.size();
  Values y(x.size());
  for (std::size_t row = 0; row < x.size() / width; ++row) {
    double squares = 0;
    for (std::size_t i = 0; i < width; ++i) squares += x[row * width + i] * x[row * width + i];
    for (std::size_t i = 0; i < width; ++i)
      y[row * width + i] =
          x[row * width + i] * weights[i] / std::sqrt(squares / static_cast<double>(width) + double{norm_epsilon});
  }
  return y;
}
Values sum(const Values& a, const Values& b) {
  Values result = a;
  for (std::size_t i = 0; i < a.size(); ++i) result[i] += b[i];
  return result;
}

constexpr MlpShape mlp{5, 16, 24};
constexpr AttentionShape attention_shape{2, 5, 2, 8};

// Inputs: x, norm and two matrices of weights.
using Inputs = std::vector<Values>;

Values mlp_on_cpu(const Inputs& in) {
  const Values h = times_transposed(normalized(in[0], in[1]), in[2], mlp.width);
  Values product(mlp.tokens * mlp.hidden);
  for (std::size_t i = 0; i < product.size(); ++i) {
    const std::size_t at = i / mlp.hidden * 2 * mlp.hidden + i % mlp.hidden;
    product[i] = h[at] / (1 + std::exp(-h[at])) * h[at + mlp.hidden];
  }
  return sum(in[0], times_transposed(product, in[3], mlp.hidden));
}

Values attention_on_cpu(const Inputs& in) {
  const auto [sequences, tokens, heads, size] = attention_shape;
  const std::size_t width = heads * size;
  const Values qkv = times_transposed(normalized(in[0], in[1]), in[2], width);
  Values attended(sequences * tokens * width);
  for (std::size_t row = 0; row < sequences * tokens; ++row)
    for (std::size_t head = 0; head < heads; ++head) {
      const auto at = [&](std::size_t of, std::size_t part, std::size_t i) {
        return qkv[of * 3 * width + part * width + head * size + i];
      };
      double weights = 0;
      for (std::size_t key = row / tokens * tokens; key <= row; ++key) {
        double score = 0;
        for (std::size_t i = 0; i < size; ++i) score += at(row, 0, i) * at(key, 1, i);
        const double weight = std::exp(score / std::sqrt(static_cast<double>(size)));
        weights += weight;
        for (std::size_t i = 0; i < size; ++i) attended[row * width + head * size + i] += weight * at(key, 2, i);
      }
      for (std::size_t i = 0; i < size; ++i) attended[row * width + head * size + i] /= weights;
    }
  return sum(in[0], times_transposed(attended, in[3], width));
}

// The derivative of sum(dy * y) by each of some elements of an input.
template <class Forward>
void expect_gradient(const Forward& forward, Inputs in, std::size_t which, const Values& dy, const Values& found) {
  ASSERT_EQ(found.size(), in[which].size());
  const auto loss = [&] {
    const Values y = forward(in);
    double value = 0;
    for (std::size_t i = 0; i < y.size(); ++i) value += dy[i] * y[i];
    return value;
  };
  double largest = 0;
  for (const double value : found) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < found.size(); i += std::max<std::size_t>(found.size() / 97, 1)) {
    constexpr double step = 1e-5;
    const double before = in[which][i];
    in[which][i] = before + step;
    const double above = loss();
    in[which][i] = before - step;
    const double below = loss();
    in[which][i] = before;
    EXPECT_NEAR(found[i], (above - below) / (2 * step), 1e-7 * largest) << "element " << i << " of input " << which;
  }
}

TEST_F(TrainingReference, MlpBlockIsWhatLoopsOnTheCpuGive) {
  Inputs in{drawn(mlp.tokens * mlp.width, 1, 1), drawn(mlp.width, 2, 0.3, 1), drawn(2 * mlp.hidden * mlp.width, 3, 0.5),
            drawn(mlp.width * mlp.hidden, 4, 0.3)};
  for (std::size_t i = mlp.width; i < 2 * mlp.width; ++i) in[0][i] *= 0.1;  // a row in which epsilon shows
  const Values dy = drawn(mlp.tokens * mlp.width, 5, 1);
  const OnGpu<bf16> norm{narrow(in[1])}, gate_up{narrow(in[2])}, down{narrow(in[3])};
  const Doubles x{in[0]}, d{dy}, y{dy.size()}, dx{dy.size()}, d_norm{in[1].size()}, d_gate_up{in[2].size()}, d_down{in[3].size()};
  const MlpWeights weights{norm.get(), gate_up.get(), down.get()};
  const MlpReference reference{mlp};
  reference.forward(nullptr, x, weights, y);
  reference.backward(nullptr, d, weights, {d_norm, d_gate_up, d_down}, dx);
  EXPECT_LE(distance(y.host(), mlp_on_cpu(in)), 1e-13);
  expect_gradient(mlp_on_cpu, in, 0, dy, dx.host());
  expect_gradient(mlp_on_cpu, in, 1, dy, d_norm.host());
  expect_gradient(mlp_on_cpu, in, 2, dy, d_gate_up.host());
  expect_gradient(mlp_on_cpu, in, 3, dy, d_down.host());
}

TEST_F(TrainingReference, AttentionBlockIsWhatLoopsOnTheCpuGive) {
  const std::size_t rows = attention_shape.rows(), width = attention_shape.width();
  const Inputs in{drawn(rows * width, 1, 1), drawn(width, 2, 0.3, 1), drawn(3 * width * width, 3, 0.5),
                  drawn(width * width, 4, 0.3)};
  const Values dy = drawn(rows * width, 5, 1);
  const OnGpu<bf16> norm{narrow(in[1])}, qkv{narrow(in[2])}, out{narrow(in[3])};
  const Doubles x{in[0]}, d{dy}, y{dy.size()}, dx{dy.size()}, d_norm{in[1].size()}, d_qkv{in[2].size()}, d_out{in[3].size()};
  const AttentionWeights weights{norm.get(), qkv.get(), out.get()};
  const AttentionReference reference{attention_shape};
  reference.forward(nullptr, x, weights, y);
  reference.backward(nullptr, d, weights, {d_norm, d_qkv, d_out}, dx);
  EXPECT_LE(distance(y.host(), attention_on_cpu(in)), 1e-13);
  expect_gradient(attention_on_cpu, in, 0, dy, dx.host());
  expect_gradient(attention_on_cpu, in, 1, dy, d_norm.host());
  expect_gradient(attention_on_cpu, in, 2, dy, d_qkv.host());
  expect_gradient(attention_on_cpu, in, 3, dy, d_out.host());
}

}  // namespace
}  // namespace aisp::training::test
