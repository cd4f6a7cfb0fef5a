// SPDX-License-Identifier: Apache-2.0
// A GPT's weights in one piece, and its products by cuBLASLt: with biases in their epilogues, as nn.Linear has them, and also
// with GELU and its gradient in the epilogue and gradients of biases as by-products.
#pragma once
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/opened.hpp>

#include <cstddef>
#include <vector>

#include "rows.cuh"

namespace aisp::ch20::gpt {

using shared::bf16;

struct Shape {
  std::size_t layers, width, words, sequences, length;
  std::size_t rows() const { return sequences * length; }
  std::size_t heads() const { return width / 64; }

  // Offsets of weights, each tensor's and then those of the layers; a bias follows the weights that it belongs to.
  std::size_t places_at() const { return words * width; }
  std::size_t layers_at() const { return places_at() + length * width; }
  std::size_t layer_size() const { return 12 * width * width + 13 * width; }
  std::size_t last_norm_at() const { return layers_at() + layers * layer_size(); }
  std::size_t size() const { return last_norm_at() + 2 * width; }
};

// A layer's weights or their gradients.
template <class T>
struct Layer {
  T *norm_1, *qkv, *qkv_bias, *out, *out_bias, *norm_2, *up, *up_bias, *down, *down_bias;

  Layer(const Shape& s, T* all, std::size_t layer) {
    const std::size_t w = s.width;
    T* next = all + s.layers_at() + layer * s.layer_size();
    const auto take = [&](std::size_t count) {
      T* const here = next;
      next += count;
      return here;
    };
    norm_1 = take(2 * w), qkv = take(3 * w * w), qkv_bias = take(3 * w), out = take(w * w), out_bias = take(w);
    norm_2 = take(2 * w), up = take(4 * w * w), up_bias = take(4 * w), down = take(4 * w * w), down_bias = take(w);
  }
};

// The values that a layer keeps for its backward pass.
struct Kept {
  bf16 *x, *normed_1, *qkv, *attended, *middle, *normed_2, *h, *active;
  float2 *moments_1, *moments_2;
  float* log_sums;

  static constexpr std::size_t planes = 16;  // of [rows][width]
  Kept(const Shape& s, std::size_t layer, bf16* activations, float2* moments, float* log_sums_of_all) {
    bf16* next = activations + layer * planes * s.rows() * s.width;
    const auto take = [&](std::size_t count) {
      bf16* const here = next;
      next += count * s.rows() * s.width;
      return here;
    };
    x = take(1), normed_1 = take(1), qkv = take(3), attended = take(1);
    middle = take(1), normed_2 = take(1), h = take(4), active = take(4);
    moments_1 = moments + 2 * layer * s.rows(), moments_2 = moments_1 + s.rows();
    log_sums = log_sums_of_all + layer * s.rows() * s.heads();
  }
};
struct Spaces {
  bf16 *logits, *last_normed;
  float* words_gradient;
  bf16 *delta, *d_wide, *d_normed, *d_x;  // [rows][width], but d_wide: [rows][4 width]
};

// The products of a layer, of which `fused` ones have epilogues of their own.
class LayerProducts {
 public:
  LayerProducts(Setup& setup, const Opened<CublasLt>& lt, const Shape& s, const Layer<const bf16>& w, const Layer<bf16>& g,
                const Kept& kept)
      : w_{w},
        g_{g},
        kept_{kept},
        qkv_{forward(setup, lt, s, 3 * s.width, s.width, w.qkv_bias)},
        out_{forward(setup, lt, s, s.width, s.width, w.out_bias)},
        up_{forward(setup, lt, s, 4 * s.width, s.width, w.up_bias)},
        up_gelu_{forward(setup, lt, s, 4 * s.width, s.width, w.up_bias, kept.h)},
        down_{forward(setup, lt, s, s.width, 4 * s.width, w.down_bias)},
        d_qkv_{backward(setup, lt, s, s.width, 3 * s.width)},
        d_out_{backward(setup, lt, s, s.width, s.width)},
        d_up_{backward(setup, lt, s, s.width, 4 * s.width)},
        d_down_{backward(setup, lt, s, 4 * s.width, s.width)},
        d_down_gelu_{backward(setup, lt, s, 4 * s.width, s.width, kept.h, g.up_bias)},
        w_qkv_{weights(setup, lt, s, 3 * s.width, s.width)},
        w_out_{weights(setup, lt, s, s.width, s.width)},
        w_up_{weights(setup, lt, s, 4 * s.width, s.width)},
        w_down_{weights(setup, lt, s, s.width, 4 * s.width)},
        w_qkv_bias_{weights(setup, lt, s, 3 * s.width, s.width, g.qkv_bias)},
        w_out_bias_{weights(setup, lt, s, s.width, s.width, g.out_bias)},
        w_down_bias_{weights(setup, lt, s, s.width, 4 * s.width, g.down_bias)} {}

  void tune(cudaStream_t stream, const Spaces& at) {
    for_all(at, [&](MatmulPlan& plan, const void* a, const void* b, void* c) { plan.tune(stream, a, b, c); });
  }
  void project_in(cudaStream_t stream) const { qkv_->run(stream, kept_.normed_1, w_.qkv, kept_.qkv); }
  void project_out(cudaStream_t stream, bf16* to) const { out_->run(stream, kept_.attended, w_.out, to); }
  void up(cudaStream_t stream, bool fused) const {
    if (fused) up_gelu_->run(stream, kept_.normed_2, w_.up, kept_.active);
    else up_->run(stream, kept_.normed_2, w_.up, kept_.h);
  }
  void down(cudaStream_t stream, bf16* to) const { down_->run(stream, kept_.active, w_.down, to); }

  void down_backward(cudaStream_t stream, const bf16* dx, bf16* d_h, bool fused) const {
    (fused ? w_down_bias_ : w_down_)->run(stream, dx, kept_.active, g_.down);
    (fused ? d_down_gelu_ : d_down_)->run(stream, dx, w_.down, d_h);
  }
  void up_backward(cudaStream_t stream, const bf16* d_h, bf16* d_normed) const {
    w_up_->run(stream, d_h, kept_.normed_2, g_.up);
    d_up_->run(stream, d_h, w_.up, d_normed);
  }
  void out_backward(cudaStream_t stream, const bf16* dx, bf16* d_attended, bool fused) const {
    (fused ? w_out_bias_ : w_out_)->run(stream, dx, kept_.attended, g_.out);
    d_out_->run(stream, dx, w_.out, d_attended);
  }
  void in_backward(cudaStream_t stream, const bf16* d_qkv, bf16* d_normed, bool fused) const {
    (fused ? w_qkv_bias_ : w_qkv_)->run(stream, d_qkv, kept_.normed_1, g_.qkv);
    d_qkv_->run(stream, d_qkv, w_.qkv, d_normed);
  }

 private:
  using Plan = Opened<MatmulPlan>;
  // y = x W^T + bias; with a place for what GELU is applied to, y = gelu(x W^T + bias).
  static Plan forward(Setup& setup, const Opened<CublasLt>& lt, const Shape& s, std::size_t out, std::size_t in, const bf16* bias,
                      const bf16* before = nullptr) {
    return Plan{setup, lt,
                MatmulProblem{.m = s.rows(),
                              .n = out,
                              .k = in,
                              .b_is_transposed = true,
                              .epilogue = before != nullptr ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_BIAS,
                              .bias = bias,
                              .before_activation = before}};
  }
  static Plan backward(Setup& setup, const Opened<CublasLt>& lt, const Shape& s, std::size_t in, std::size_t out,
                       const bf16* before = nullptr, bf16* bias_gradient = nullptr) {
    return Plan{setup, lt,
                MatmulProblem{.m = s.rows(),
                              .n = in,
                              .k = out,
                              .epilogue = before != nullptr ? CUBLASLT_EPILOGUE_DGELU_BGRAD : CUBLASLT_EPILOGUE_DEFAULT,
                              .before_activation = before,
                              .bias_gradient = bias_gradient}};
  }
  // dW = dy^T x, and the sums of dy's columns. The library's B is our A.
  static Plan weights(Setup& setup, const Opened<CublasLt>& lt, const Shape& s, std::size_t out, std::size_t in,
                      bf16* bias_gradient = nullptr) {
    return Plan{setup, lt,
                MatmulProblem{.m = out,
                              .n = in,
                              .k = s.rows(),
                              .a_is_transposed = true,
                              .epilogue = bias_gradient != nullptr ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_DEFAULT,
                              .bias_gradient = bias_gradient}};
  }
  template <class Use>
  void for_all(const Spaces& at, const Use& use) {
    use(*qkv_, kept_.normed_1, w_.qkv, kept_.qkv);
    use(*out_, kept_.attended, w_.out, at.delta);
    use(*up_, kept_.normed_2, w_.up, kept_.h);
    use(*up_gelu_, kept_.normed_2, w_.up, kept_.active);
    use(*down_, kept_.active, w_.down, at.delta);
    for (Plan* const plan : {&w_down_, &w_down_bias_}) use(**plan, at.d_x, kept_.active, g_.down);
    for (Plan* const plan : {&d_down_, &d_down_gelu_}) use(**plan, at.d_x, w_.down, at.d_wide);
    use(*w_up_, at.d_wide, kept_.normed_2, g_.up);
    use(*d_up_, at.d_wide, w_.up, at.d_normed);
    for (Plan* const plan : {&w_out_, &w_out_bias_}) use(**plan, at.d_x, kept_.attended, g_.out);
    use(*d_out_, at.d_x, w_.out, at.d_normed);
    for (Plan* const plan : {&w_qkv_, &w_qkv_bias_}) use(**plan, at.d_wide, kept_.normed_1, g_.qkv);
    use(*d_qkv_, at.d_wide, w_.qkv, at.d_normed);
  }

  Layer<const bf16> w_;
  Layer<bf16> g_;
  Kept kept_;
  Plan qkv_, out_, up_, up_gelu_, down_, d_qkv_, d_out_, d_up_, d_down_, d_down_gelu_;
  Plan w_qkv_, w_out_, w_up_, w_down_, w_qkv_bias_, w_out_bias_, w_down_bias_;
};

}  // namespace aisp::ch20::gpt
