// SPDX-License-Identifier: Apache-2.0
// A gated MLP block, y = x + W_down swiglu(W_gate_up rms_norm(x)), forward and backward, in parts that a pair calls one by one.
#pragma once
#include "linear.hpp"
#include "rms_norm.hpp"
#include "shapes.hpp"

namespace aisp::training {

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

  void product_gradient(Launch& launch, const bf16* dy, const MlpWeights& w, const MlpWorkspace& to) const {
    down_.input_gradient(launch.stream, dy, w.down, to.d_product);
  }
  // With `rebuild` the product, which was not kept, is computed again into its place.
  void gate_backward(Launch& launch, const MlpActivations& of, const MlpWorkspace& space, bool rebuild = false) const {
    launch(swiglu_backward_kernel, products(), reinterpret_cast<const uint4*>(of.gate_up),
           reinterpret_cast<const uint4*>(space.d_product), reinterpret_cast<uint4*>(space.d_gate_up),
           rebuild ? reinterpret_cast<uint4*>(of.product) : nullptr, shape_.hidden / packet,
           shape_.tokens * shape_.hidden / packet);
  }
  void down_gradient(Launch& launch, const bf16* dy, const MlpActivations& of, const MlpGradients& to) const {
    down_.weight_gradient(launch.stream, dy, of.product, to.down);
  }
  void up_gradients(Launch& launch, const MlpWeights& w, const MlpActivations& of, const MlpWorkspace& space,
                    const MlpGradients& to) const {
    gate_up_.input_gradient(launch.stream, space.d_gate_up, w.gate_up, space.d_normed);
    gate_up_.weight_gradient(launch.stream, space.d_gate_up, of.normed, to.gate_up);
  }
  // dx may be dy.
  void norm_backward(Launch& launch, const bf16* x, const bf16* dy, const MlpWeights& w, const MlpActivations& of,
                     const MlpWorkspace& space, const MlpGradients& to, bf16* dx) const {
    norm_.backward(launch, x, w.norm, of.inverse_rms, space.d_normed, dy, dx, to.norm);
  }
  void backward(Launch& launch, const bf16* x, const bf16* dy, const MlpWeights& w, const MlpActivations& of,
                const MlpWorkspace& space, const MlpGradients& to, bf16* dx, bool rebuild = false) const {
    product_gradient(launch, dy, w, space);
    gate_backward(launch, of, space, rebuild);
    down_gradient(launch, dy, of, to);
    up_gradients(launch, w, of, space, to);
    norm_backward(launch, x, dy, w, of, space, to, dx);
  }

  // Takes the fastest algorithm of each product; belongs into `prepare`. Results and gradients are overwritten.
  void tune(Launch& launch, const MlpWeights& w, const MlpActivations& of, const MlpWorkspace& space, const MlpGradients& to,
            bf16* y) const {
    gate_up_.tune(launch.stream, of.normed, w.gate_up, space.d_gate_up, of.gate_up, space.d_normed, to.gate_up);
    down_.tune(launch.stream, of.product, w.down, space.d_normed, y, space.d_product, to.down);
  }

 private:
  Grid products() const {
    const std::size_t packets = shape_.tokens * shape_.hidden / packet;
    return {static_cast<unsigned>((packets + row_threads - 1) / row_threads), row_threads};
  }

  MlpShape shape_;
  RmsNorm norm_;
  Linear gate_up_, down_;
};

}  // namespace aisp::training
