// SPDX-License-Identifier: Apache-2.0
// A gated MLP block, y = x + W_down swiglu(W_gate_up rms_norm(x)), forward and backward, in parts that a pair calls one by one.
#pragma once
#include <aisp/device_attribute.hpp>

#include <algorithm>
#include <stdexcept>

#include "linear.hpp"
#include "row_kernels.cuh"

namespace aisp::training {

struct MlpShape {
  std::size_t tokens, width, hidden;
};
struct MlpWeights {
  const bf16 *norm, *gate_up, *down;  // [width], [gates, ups][width], [width][hidden]
};
// What the forward pass computes on its way and the backward pass reads. What is not kept is computed again.
struct MlpActivations {
  bf16* normed;        // [tokens][width]
  float* inverse_rms;  // [tokens]
  bf16* gate_up;       // [tokens][gates, ups]
  bf16* product;       // [tokens][hidden]
};
struct MlpGradients {
  float* norm;
  bf16 *gate_up, *down;
};
// Gradients of activations, which a block leaves to the next one to overwrite.
struct MlpWorkspace {
  bf16 *d_normed, *d_gate_up, *d_product;
};

// RMSNorm's backward pass: dx = `passed` + its gradient of x, and the gradient of its weights.
class RmsNorm {
 public:
  RmsNorm(Setup& setup, std::size_t rows, std::size_t width)
      : rows_{rows}, width_{width}, partials_{setup.scratch<float>(most_blocks * width)} {
    if (width % packet != 0 || width > widest_row) throw Unsupported{"rows of a norm have 8 to 8192 elements, by 8"};
  }
  void forward(Launch& launch, const bf16* x, const bf16* weights, bf16* out, float* inverse_rms) const {
    launch(rms_norm_kernel, {static_cast<unsigned>(rows_), row_threads}, packets(x), packets(weights), packets(out), inverse_rms,
           width_ / packet);
  }
  void backward(Launch& launch, const bf16* x, const bf16* weights, const float* inverse_rms, const bf16* dy, const bf16* passed,
                bf16* dx, float* d_weights) const {
    const unsigned blocks = std::min({static_cast<unsigned>(rows_), 2 * multiprocessors(), most_blocks});
    launch(rms_norm_backward_kernel, {blocks, row_threads}, packets(x), packets(weights), inverse_rms, packets(dy),
           packets(passed), packets(dx), reinterpret_cast<float4*>(partials_.get()), rows_, width_ / packet);
    launch(sum_partials_kernel, {static_cast<unsigned>((width_ + row_threads - 1) / row_threads), row_threads}, partials_.get(),
           d_weights, blocks, width_);
  }

 private:
  static constexpr unsigned most_blocks = 512;
  static const uint4* packets(const bf16* of) { return reinterpret_cast<const uint4*>(of); }
  static uint4* packets(bf16* of) { return reinterpret_cast<uint4*>(of); }

  std::size_t rows_, width_;
  Scratch<float> partials_;
};

class MlpBlock {
 public:
  MlpBlock(Setup& setup, const Opened<CublasLt>& lt, const MlpShape& shape, const LinearTypes& types = bf16_gradients)
      : shape_{shape},
        norm_{setup, shape.tokens, shape.width},
        gate_up_{setup, lt, {shape.tokens, shape.width, 2 * shape.hidden}, types},
        down_{setup, lt, {shape.tokens, shape.hidden, shape.width}, types} {}

  void normalize(Launch& launch, const bf16* x, const MlpWeights& w, const MlpActivations& to) const {
    norm_.forward(launch, x, w.norm, to.normed, to.inverse_rms);
  }
  void project_up(Launch& launch, const MlpWeights& w, const MlpActivations& to) const {
    gate_up_.forward(launch.stream, to.normed, w.gate_up, to.gate_up);
  }
  void gate(Launch& launch, const MlpActivations& to) const {
    launch(swiglu_kernel, products(), reinterpret_cast<const uint4*>(to.gate_up), reinterpret_cast<uint4*>(to.product),
           shape_.hidden / packet, shape_.tokens * shape_.hidden / packet);
  }
  // y is another buffer than x.
  void project_down(Launch& launch, const bf16* x, const MlpWeights& w, const MlpActivations& of, bf16* y) const {
    check(cudaMemcpyAsync(y, x, shape_.tokens * shape_.width * sizeof(bf16), cudaMemcpyDeviceToDevice, launch.stream));
    down_.forward(launch.stream, of.product, w.down, y, 1);
  }
  void forward(Launch& launch, const bf16* x, const MlpWeights& w, const MlpActivations& to, bf16* y) const {
    normalize(launch, x, w, to);
    project_up(launch, w, to);
    gate(launch, to);
    project_down(launch, x, w, to, y);
  }

  // dx may be dy. Without the product among what was kept, it is computed again into the same place.
  void backward(Launch& launch, const bf16* x, const bf16* dy, const MlpWeights& w, const MlpActivations& of,
                const MlpWorkspace& space, const MlpGradients& to, bf16* dx, bool has_product = true) const {
    down_.input_gradient(launch.stream, dy, w.down, space.d_product);
    launch(swiglu_backward_kernel, products(), reinterpret_cast<const uint4*>(of.gate_up),
           reinterpret_cast<const uint4*>(space.d_product), reinterpret_cast<uint4*>(space.d_gate_up),
           has_product ? nullptr : reinterpret_cast<uint4*>(of.product), shape_.hidden / packet,
           shape_.tokens * shape_.hidden / packet);
    down_.weight_gradient(launch.stream, dy, of.product, to.down);
    gate_up_.input_gradient(launch.stream, space.d_gate_up, w.gate_up, space.d_normed);
    gate_up_.weight_gradient(launch.stream, space.d_gate_up, of.normed, to.gate_up);
    norm_.backward(launch, x, w.norm, of.inverse_rms, space.d_normed, dy, dx, to.norm);
  }

  // Takes the fastest algorithm of each product; belongs into `prepare`. Results and gradients are overwritten.
  void tune(Launch& launch, const MlpWeights& w, const MlpActivations& of, const MlpWorkspace& space, const MlpGradients& to,
            bf16* y) const {
    gate_up_.tune(launch.stream, of.normed, w.gate_up, space.d_gate_up, of.gate_up, space.d_normed, to.gate_up);
    down_.tune(launch.stream, of.product, w.down, space.d_normed, y, space.d_product, to.down);
  }

 private:
  static constexpr LinearTypes bf16_gradients{.weight_gradient = CUDA_R_16BF};
  Grid products() const {
    const std::size_t packets = shape_.tokens * shape_.hidden / packet;
    return {static_cast<unsigned>((packets + row_threads - 1) / row_threads), row_threads};
  }

  MlpShape shape_;
  RmsNorm norm_;
  Linear gate_up_, down_;
};

}  // namespace aisp::training
