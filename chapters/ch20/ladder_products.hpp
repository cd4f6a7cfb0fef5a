// SPDX-License-Identifier: Apache-2.0
// The products of a decoding step of some rows: by the library, of the matrices as they are stored and of their parts, and of
// weights in e4m3 by a kernel of our own.
#pragma once
#include <cuda_fp8.h>
#include <aisp/setup.hpp>

#include "fp8_rows.cuh"
#include "ladder_passes.cuh"
#include "library_product.hpp"

namespace aisp::ch20 {

using decoder::Shape;
using e4m3 = __nv_fp8_e4m3;

// The library's products for so many rows: of the matrices as they are stored, and of their parts.
struct Products {
  LibraryProduct<bf16> q, kv, qkv, o, half, gate_up, down;
  Products(Setup& setup, const Opened<Cublas>& cublas, const Shape& s, int rows)
      : q{setup, cublas, {rows, s.q_columns(), s.hidden, s.qkv_columns()}},
        kv{setup, cublas, {rows, s.kv_columns(), s.hidden, s.qkv_columns()}},
        qkv{setup, cublas, {rows, s.qkv_columns(), s.hidden}},
        o{setup, cublas, {rows, s.hidden, s.q_columns()}},
        half{setup, cublas, {rows, s.ffn, s.hidden, 2 * s.ffn}},
        gate_up{setup, cublas, {rows, 2 * s.ffn, s.hidden}},
        down{setup, cublas, {rows, s.hidden, s.ffn}} {}

  static std::size_t size(int outputs, int inputs) {
    return static_cast<std::size_t>(outputs) * static_cast<std::size_t>(inputs);
  }
  void choose(cudaStream_t stream, const decoder::Model& model) {
    const Shape& s = model.shape;
    const decoder::Workspace& w = model.workspace;
    const auto layers = static_cast<std::size_t>(s.layers);
    const std::size_t of_qkv = size(s.qkv_columns(), s.hidden), of_gate_up = size(2 * s.ffn, s.hidden);
    q.choose(stream, model.weights.qkv, layers, of_qkv, w.normed, w.qkv);
    kv.choose(stream, model.weights.qkv + size(s.q_columns(), s.hidden), layers, of_qkv, w.normed, w.qkv);
    qkv.choose(stream, model.weights.qkv, layers, of_qkv, w.normed, w.qkv);
    o.choose(stream, model.weights.o, layers, size(s.hidden, s.q_columns()), w.attended, w.delta);
    half.choose(stream, model.weights.gate_up, layers, of_gate_up, w.normed, w.gate_up);
    gate_up.choose(stream, model.weights.gate_up, layers, of_gate_up, w.normed, w.gate_up);
    down.choose(stream, model.weights.down, layers, size(s.hidden, s.ffn), w.active, w.delta);
  }
  void run(cudaStream_t stream, const decoder::Model& model, Matrix matrix, int layer, const bf16* x, bf16* y) const {
    const Shape& s = model.shape;
    const decoder::Weights& w = model.weights;
    const auto l = static_cast<std::size_t>(layer);
    const bf16 *const of_qkv = w.qkv + l * size(s.qkv_columns(), s.hidden), *const of_k = of_qkv + size(s.q_columns(), s.hidden),
                      *const of_gate = w.gate_up + l * size(2 * s.ffn, s.hidden);
    switch (matrix) {
      case Matrix::q: return q.run(stream, of_qkv, x, y);
      case Matrix::k: return kv.run(stream, of_k, x, y);
      case Matrix::v: return kv.run(stream, of_k + size(s.kv_columns(), s.hidden), x, y);
      case Matrix::qkv: return qkv.run(stream, of_qkv, x, y);
      case Matrix::o: return o.run(stream, w.o + l * size(s.hidden, s.q_columns()), x, y);
      case Matrix::gate: return half.run(stream, of_gate, x, y);
      case Matrix::up: return half.run(stream, of_gate + size(s.ffn, s.hidden), x, y);
      case Matrix::gate_up: return gate_up.run(stream, of_gate, x, y);
      case Matrix::down: return down.run(stream, w.down + l * size(s.hidden, s.ffn), x, y);
    }
  }
};

// All layers of one kind of matrix in e4m3, and what they say in bf16.
struct Quantized {
  Scratch<e4m3> codes;
  Scratch<float> scales;
  Scratch<bf16> said;
  int outputs, inputs;
  Quantized(Setup& setup, int layers, int of_outputs, int of_inputs)
      : codes{setup.scratch<e4m3>(static_cast<std::size_t>(layers) * Products::size(of_outputs, of_inputs))},
        scales{setup.scratch<float>(static_cast<std::size_t>(layers * of_outputs))},
        said{setup.scratch<bf16>(codes.size())},
        outputs{of_outputs},
        inputs{of_inputs} {}
  void make(cudaStream_t stream, const bf16* weights) const {
    launch_kernel(stream, quantize_channels_kernel, {static_cast<unsigned>(scales.size()), quantizing_threads},
                  reinterpret_cast<const uint4*>(weights), reinterpret_cast<uint2*>(codes.get()), scales.get(),
                  reinterpret_cast<uint4*>(said.get()), inputs / packet);
  }
  void run(cudaStream_t stream, int layer, const bf16* x, bf16* y, int rows) const {
    const auto l = static_cast<std::size_t>(layer);
    multiply_fp8(stream, {reinterpret_cast<const uint4*>(codes + l * Products::size(outputs, inputs)),
                          scales + l * static_cast<std::size_t>(outputs), x, y, outputs, inputs, rows});
  }
};

struct QuantizedWeights {
  Quantized qkv, o, gate_up, down;
  QuantizedWeights(Setup& setup, const Shape& s)
      : qkv{setup, s.layers, s.qkv_columns(), s.hidden},
        o{setup, s.layers, s.hidden, s.q_columns()},
        gate_up{setup, s.layers, 2 * s.ffn, s.hidden},
        down{setup, s.layers, s.hidden, s.ffn} {}
  void make(cudaStream_t stream, const decoder::Weights& from) const {
    qkv.make(stream, from.qkv);
    o.make(stream, from.o);
    gate_up.make(stream, from.gate_up);
    down.make(stream, from.down);
  }
  // Lets a model read what the codes say in place of the weights.
  void say(decoder::Weights& to) const { to.qkv = qkv.said, to.o = o.said, to.gate_up = gate_up.said, to.down = down.said; }
  const Quantized& of(Matrix matrix) const {
    switch (matrix) {
      case Matrix::qkv: return qkv;
      case Matrix::o: return o;
      case Matrix::down: return down;
      default: return gate_up;
    }
  }
};

// Returns the product function that the passes call.
inline auto by_library(const Products& products, const decoder::Model& model, cudaStream_t stream) {
  return [&products, model, stream](Matrix matrix, int layer, const bf16* x, bf16* y) {
    products.run(stream, model, matrix, layer, x, y);
  };
}
inline auto by_codes(const QuantizedWeights& codes, int rows, cudaStream_t stream) {
  return [&codes, rows, stream](Matrix matrix, int layer, const bf16* x, bf16* y) {
    codes.of(matrix).run(stream, layer, x, y, rows);
  };
}

}  // namespace aisp::ch20
