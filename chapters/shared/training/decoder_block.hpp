// SPDX-License-Identifier: Apache-2.0
// A decoder block, forward and backward: causal attention with a residual connection, then the MLP block.
#pragma once
#include <cmath>

#include "attention/backward.hpp"
#include "attention/forward.hpp"
#include "mlp_block.hpp"

namespace aisp::training {

// y = x + W_out attention(W_qkv rms_norm(x)). Heads are read and written where the projections have them. The parts of dQ are
// added up in the order of the keys, so that equal inputs give equal bits.
template <int head_size>
class AttentionBlock {
 public:
  static constexpr Needs needs() { return {.min_sm = 90, .max_sm = 90, .libraries = {Library::cublaslt}}; }

  AttentionBlock(Setup& setup, const Opened<CublasLt>& lt, const AttentionShape& shape, const LinearTypes& types = bf16_gradients)
      : AttentionBlock{setup, lt, shape, types,
                       attention::backward_scratch(shape.tokens, shape.heads, shape.sequences, head_size)} {}

  void normalize(Launch& launch, const bf16* x, const AttentionWeights& w, const AttentionActivations& to) const {
    norm_.forward(launch, x, w.norm, to.normed, to.inverse_rms);
  }
  void project_in(Launch& launch, const AttentionWeights& w, const AttentionActivations& to) const {
    qkv_.forward(launch.stream, to.normed, w.qkv, to.qkv);
  }
  void attend(Launch& launch, const AttentionActivations& to) const {
    using namespace attention;
    const ForwardPass<head_size, head_size, Causal, Dense, Scaled, true, InOrder> pass{
        {part(to.qkv, 0), part(to.qkv, 1), part(to.qkv, 2), whole(to.attended)},
        {.mask = {},
         .keys = {length(), length()},
         .score = {scale() * log2_e},
         .order = in_order(shape_.tokens, shape_.heads, shape_.sequences),
         .log_sums = to.log_sums,
         .log_sum_strides = log_sum_strides()}};
    pass.run(launch);
  }
  // y is another buffer than x.
  void project_out(Launch& launch, const bf16* x, const AttentionWeights& w, const AttentionActivations& of, bf16* y) const {
    check(cudaMemcpyAsync(y, x, shape_.rows() * shape_.width() * sizeof(bf16), cudaMemcpyDeviceToDevice, launch.stream));
    out_.forward(launch.stream, of.attended, w.out, y, 1);
  }
  void forward(Launch& launch, const bf16* x, const AttentionWeights& w, const AttentionActivations& to, bf16* y) const {
    normalize(launch, x, w, to);
    project_in(launch, w, to);
    attend(launch, to);
    project_out(launch, x, w, to, y);
  }

  void attend_backward(Launch& launch, const AttentionActivations& of, const AttentionWorkspace& space) const {
    using namespace attention;
    Backward<Causal> work{};
    work.lengths = {length(), length()};
    work.scale = scale();
    work.log_sums = of.log_sums, work.log_sum_strides = log_sum_strides();
    work.padded_log_sums = padded_log_sums_, work.deltas = deltas_, work.d_q_sums = d_q_sums_;
    work.added = added_, work.begun = begun_;
    const BackwardPass<head_size, Causal, true> pass{
        {part(of.qkv, 0), part(of.qkv, 1), part(of.qkv, 2), whole(of.attended), whole(space.d_attended), part(space.d_qkv, 0),
         part(space.d_qkv, 1), part(space.d_qkv, 2)},
        work};
    pass.run(launch);
  }
  // dx may be dy.
  void backward(Launch& launch, const bf16* x, const bf16* dy, const AttentionWeights& w, const AttentionActivations& of,
                const AttentionWorkspace& space, const AttentionGradients& to, bf16* dx) const {
    out_.input_gradient(launch.stream, dy, w.out, space.d_attended);
    out_.weight_gradient(launch.stream, dy, of.attended, to.out);
    attend_backward(launch, of, space);
    qkv_.input_gradient(launch.stream, space.d_qkv, w.qkv, space.d_normed);
    qkv_.weight_gradient(launch.stream, space.d_qkv, of.normed, to.qkv);
    norm_.backward(launch, x, w.norm, of.inverse_rms, space.d_normed, dy, dx, to.norm);
  }

  // Takes the fastest algorithm of each product; belongs into `prepare`. Results and gradients are overwritten.
  void tune(Launch& launch, const AttentionWeights& w, const AttentionActivations& of, const AttentionWorkspace& space,
            const AttentionGradients& to, bf16* y) const {
    qkv_.tune(launch.stream, of.normed, w.qkv, space.d_qkv, of.qkv, space.d_normed, to.qkv);
    out_.tune(launch.stream, of.attended, w.out, space.d_normed, y, space.d_attended, to.out);
  }

 private:
  AttentionBlock(Setup& setup, const Opened<CublasLt>& lt, const AttentionShape& shape, const LinearTypes& types,
                 const attention::BackwardScratch& sizes)
      : shape_{shape},
        norm_{setup, shape.rows(), shape.width()},
        qkv_{setup, lt, {shape.rows(), shape.width(), 3 * shape.width()}, types},
        out_{setup, lt, {shape.rows(), shape.width(), shape.width()}, types},
        padded_log_sums_{setup.scratch<float>(sizes.rows)},
        deltas_{setup.scratch<float>(sizes.rows)},
        d_q_sums_{setup.scratch<float>(sizes.d_q_sums)},
        added_{setup.scratch<unsigned>(sizes.added)},
        begun_{setup.scratch<unsigned>(1)} {
    if (shape.head_size != head_size) throw Unsupported{"the block was built for heads of another size"};
  }
  int length() const { return static_cast<int>(shape_.tokens); }
  static float scale() { return 1 / std::sqrt(static_cast<float>(head_size)); }
  attention::Strides log_sum_strides() const { return {1, shape_.tokens, shape_.heads * shape_.tokens}; }
  attention::Tensor whole(const bf16* data) const {
    return attention::rows_first(data, shape_.sequences, shape_.tokens, shape_.heads, head_size);
  }
  attention::Tensor part(const bf16* qkv, std::size_t which) const {
    return attention::rows_first(qkv + which * shape_.width(), shape_.sequences, shape_.tokens, shape_.heads, head_size,
                                 3 * shape_.heads);
  }

  AttentionShape shape_;
  RmsNorm norm_;
  Linear qkv_, out_;
  Scratch<float> padded_log_sums_, deltas_, d_q_sums_;
  Scratch<unsigned> added_, begun_;
};

struct DecoderShape {
  AttentionShape attention;
  std::size_t hidden;

  MlpShape mlp() const { return {attention.rows(), attention.width(), hidden}; }
};
struct DecoderWeights {
  AttentionWeights attention;
  MlpWeights mlp;
};
struct DecoderActivations {
  AttentionActivations attention;
  bf16* between;  // [rows][width]: what attention hands to the MLP
  MlpActivations mlp;
};
struct DecoderGradients {
  AttentionGradients attention;
  MlpGradients mlp;
};
struct DecoderWorkspace {
  AttentionWorkspace attention;
  MlpWorkspace mlp;
};

template <int head_size>
struct DecoderBlock {
  AttentionBlock<head_size> attention;
  MlpBlock mlp;

  static constexpr Needs needs() { return AttentionBlock<head_size>::needs(); }
  DecoderBlock(Setup& setup, const Opened<CublasLt>& lt, const DecoderShape& shape, const LinearTypes& types = bf16_gradients)
      : attention{setup, lt, shape.attention, types}, mlp{setup, lt, shape.mlp(), types} {}

  void forward(Launch& launch, const bf16* x, const DecoderWeights& w, const DecoderActivations& to, bf16* y) const {
    attention.forward(launch, x, w.attention, to.attention, to.between);
    mlp.forward(launch, to.between, w.mlp, to.mlp, y);
  }
  // dx may be dy.
  void backward(Launch& launch, const bf16* x, const bf16* dy, const DecoderWeights& w, const DecoderActivations& of,
                const DecoderWorkspace& space, const DecoderGradients& to, bf16* dx) const {
    mlp.backward(launch, of.between, dy, w.mlp, of.mlp, space.mlp, to.mlp, dx);
    attention.backward(launch, x, dx, w.attention, of.attention, space.attention, to.attention, dx);
  }
};

}  // namespace aisp::training
