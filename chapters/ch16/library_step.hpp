// SPDX-License-Identifier: Apache-2.0
// A decode step whose products are cuBLASLt's fastest, in whatever order they add: beside it a step whose bits depend on nothing
// but its row shows what that costs.
#pragma once
#include <aisp/libraries/cublaslt.hpp>

#include "decoder/decoder.hpp"

namespace aisp::ch16 {

// The five products of a step of `rows` rows.
class LibraryProducts {
 public:
  LibraryProducts(Setup& setup, const decoder::Shape& s, int rows)
      : qkv{setup, problem(rows, s.qkv_columns(), s.hidden)},
        o{setup, problem(rows, s.hidden, s.q_columns())},
        gate_up{setup, problem(rows, 2 * s.ffn, s.hidden)},
        down{setup, problem(rows, s.hidden, s.ffn)},
        head{setup, problem(rows, s.words, s.hidden, CUDA_R_32F)} {}
  void tune(Launch& launch, const decoder::Weights& w, const decoder::Workspace& to) const {
    qkv.tune(launch, to.normed, w.qkv, to.qkv);
    o.tune(launch, to.attended, w.o, to.delta);
    gate_up.tune(launch, to.normed, w.gate_up, to.gate_up);
    down.tune(launch, to.active, w.down, to.delta);
    head.tune(launch, to.chosen, w.head, to.logits);
  }
  LibraryMatmul qkv, o, gate_up, down, head;

 private:
  static MatmulProblem problem(int rows, int outputs, int depth, cudaDataType_t result = CUDA_R_16BF) {
    MatmulProblem problem{.m = static_cast<std::size_t>(rows), .n = static_cast<std::size_t>(outputs)};
    problem.k = static_cast<std::size_t>(depth), problem.result = result, problem.b_is_transposed = true;
    return problem;
  }
};

template <class Cache>
struct LibraryStep : decoder::Step<Cache> {
  using Base = decoder::Step<Cache>;
  Launch* launch;
  const LibraryProducts* products;

  void project(cudaStream_t, int layer) const {
    multiply(products->qkv, w().normed, weights().qkv, layer, this->model.shape.qkv_columns(), this->model.shape.hidden, w().qkv);
  }
  void finish(cudaStream_t stream, int layer) const {
    const decoder::Shape& s = this->model.shape;
    multiply(products->o, w().attended, weights().o, layer, s.hidden, s.q_columns(), w().delta);
    norm(stream, 2 * layer + 1, w().normed);
    multiply(products->gate_up, w().normed, weights().gate_up, layer, 2 * s.ffn, s.hidden, w().gate_up);
    const dim3 blocks{static_cast<unsigned>((s.ffn / shared::packet + decoder::swiglu_threads - 1) / decoder::swiglu_threads),
                      static_cast<unsigned>(this->batch.rows)};
    launch_kernel(stream, decoder::swiglu_kernel, this->grid(blocks, decoder::swiglu_threads), w().gate_up, w().active, s.ffn);
    multiply(products->down, w().active, weights().down, layer, s.hidden, s.ffn, w().delta);
    if (layer + 1 < s.layers) norm(stream, 2 * layer + 2, w().normed);
  }
  // All rows are chosen.
  void choose(cudaStream_t stream) const {
    const decoder::Shape& s = this->model.shape;
    norm(stream, 2 * s.layers, w().chosen);
    multiply(products->head, w().chosen, weights().head, 0, s.words, s.hidden, w().logits);
    launch_kernel(stream, decoder::choose_kernel<float>,
                  this->grid(static_cast<unsigned>(this->batch.rows), decoder::choose_threads), w().logits, s.words,
                  decoder::Choice{this->next, nullptr, nullptr});
  }

 private:
  const decoder::Workspace& w() const { return this->model.workspace; }
  const decoder::Weights& weights() const { return this->model.weights; }
  void multiply(const LibraryMatmul& product, const decoder::bf16* x, const decoder::bf16* matrices, int layer, int outputs,
                int depth, void* y) const {
    product.run_tuned(
        *launch, x,
        matrices + static_cast<std::size_t>(layer) * static_cast<std::size_t>(outputs) * static_cast<std::size_t>(depth), y);
  }
  void norm(cudaStream_t stream, int number, decoder::bf16* to) const {
    const int hidden = this->model.shape.hidden;
    launch_kernel(
        stream, decoder::norm_kernel, this->grid(static_cast<unsigned>(this->batch.rows), decoder::norm_threads),
        decoder::Norm{nullptr, nullptr, w().delta, w().x, to,
                      weights().norms + static_cast<std::size_t>(number) * static_cast<std::size_t>(hidden), nullptr, hidden});
  }
};

}  // namespace aisp::ch16
