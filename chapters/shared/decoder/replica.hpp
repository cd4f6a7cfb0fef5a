// SPDX-License-Identifier: Apache-2.0
// A model on a further GPU of a pair: copies of its weights, and workspaces and products of its own.
#pragma once
#include <aisp/opened.hpp>
#include <aisp/peer.hpp>

#include <optional>

#include "model.hpp"

namespace aisp::decoder {

// The library with a handle and a workspace on the GPU with this CUDA ordinal.
class CublasLtOn {
 public:
  static constexpr Library library = Library::cublaslt;
  explicit CublasLtOn(int ordinal) {
    const SelectedGpu selected{ordinal};
    lt_.emplace();
  }
  operator const CublasLt&() const { return *lt_; }

 private:
  std::optional<CublasLt> lt_;
};

class Replica {
 public:
  Replica(Setup& setup, const Shape& shape, const Capacity& capacity, int device)
      : shape_{shape},
        products_{shape},
        embedding_{weights(setup, device, shape.vocabulary(), shape.hidden)},
        norms_{weights(setup, device, 2 * shape.layers + 1, shape.hidden)},
        qkv_{weights(setup, device, shape.layers * shape.qkv_columns(), shape.hidden)},
        o_{weights(setup, device, shape.layers * shape.hidden, shape.q_columns())},
        gate_up_{weights(setup, device, shape.layers * 2 * shape.ffn, shape.hidden)},
        down_{weights(setup, device, shape.layers * shape.hidden, shape.ffn)},
        head_{weights(setup, device, std::max(shape.words, 1), shape.hidden)},
        angles_{setup.scratch<float>(static_cast<std::size_t>(capacity.positions) * static_cast<std::size_t>(shape.head_size),
                                     {.device = device})},
        workspaces_{setup, shape, capacity, device} {}

  // In the prepare of each variant; `stream` is one of this GPU's, which is selected.
  void copy(cudaStream_t stream, const Weights& from) const {
    const auto one = [&](const auto& to, const void* source) {
      if (source != nullptr) check(cudaMemcpyAsync(to, source, to.bytes(), cudaMemcpyDefault, stream));
    };
    one(embedding_, from.embedding), one(norms_, from.norms), one(qkv_, from.qkv), one(o_, from.o);
    one(gate_up_, from.gate_up), one(down_, from.down), one(head_, from.head), one(angles_, from.angles);
    workspaces_.clear(stream);
  }
  void tune(const CublasLt& lt, cudaStream_t stream, int rows, int chosen) {
    products_.tune(lt, stream, weights(), rows, chosen);
  }
  Weights weights() const {
    return {embedding_, norms_, qkv_, o_, gate_up_, down_, shape_.words > 0 ? head_.get() : nullptr, angles_};
  }
  Model model() const { return {shape_, weights(), workspaces_.view(), &products_}; }

 private:
  static Scratch<bf16> weights(Setup& setup, int device, int rows, int columns) {
    return setup.scratch<bf16>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns), {.device = device});
  }

  Shape shape_;
  Products products_;
  Scratch<bf16> embedding_, norms_, qkv_, o_, gate_up_, down_, head_;
  Scratch<float> angles_;
  Workspaces workspaces_;
};

}  // namespace aisp::decoder
