// SPDX-License-Identifier: Apache-2.0
// A decoder that has a smaller one inside of it: the first layers, and of their matrices the first channels, heads and FFN
// columns. What else there is contributes little, by a factor that decides how often both choose the same token.
#pragma once
#include <aisp/setup.hpp>

#include <cmath>

#include "decoder/decoder.hpp"
#include "decoder/model.hpp"

namespace aisp::ch16 {

using decoder::bf16;

// Up to three runs of a matrix's rows, and the first columns of those.
struct Leading {
  int first[3], count[3];
  int rows, columns;  // of a layer of the larger matrix
  int leading_columns;
};
// blockIdx: the row of the smaller matrix, the layer.
static __global__ void lead_kernel(const bf16* from, bf16* to, Leading of, float factor) {
  int row = static_cast<int>(blockIdx.x), run = 0;
  while (row >= of.count[run]) row -= of.count[run++];
  const bf16* const source = from + (static_cast<std::size_t>(blockIdx.y) * of.rows + of.first[run] + row) * of.columns;
  bf16* const target = to + (static_cast<std::size_t>(blockIdx.y) * gridDim.x + blockIdx.x) * of.leading_columns;
  for (int i = static_cast<int>(threadIdx.x); i < of.leading_columns; i += static_cast<int>(blockDim.x))
    target[i] = __float2bfloat16_rn(static_cast<float>(source[i]) * factor);
}

// Workspaces of a decoder that takes few rows of one short sequence, and its cache.
class SmallBatch {
 public:
  SmallBatch(Setup& setup, const decoder::Shape& shape, int rows, int positions)
      : shape_{shape},
        positions_{positions},
        products_{shape},
        rows_{
            setup.scratch<bf16>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(4 * shape.hidden + shape.qkv_columns() +
                                                                                          shape.q_columns() + 3 * shape.ffn))},
        logits_{setup.scratch<float>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(shape.words))},
        tickets_{setup.scratch<unsigned>(static_cast<std::size_t>(2 * rows * shape.kv_heads))},
        k_{setup.scratch<bf16>(layer_elements() * static_cast<std::size_t>(shape.layers))},
        v_{setup.scratch<bf16>(k_.size())} {
    bf16* next = rows_;
    const auto take = [&](int columns) {
      bf16* const taken = next;
      next += static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
      return taken;
    };
    workspace_.x = take(shape.hidden), workspace_.normed = take(shape.hidden), workspace_.qkv = take(shape.qkv_columns());
    workspace_.attended = take(shape.q_columns()), workspace_.delta = take(shape.hidden);
    workspace_.gate_up = take(2 * shape.ffn), workspace_.active = take(shape.ffn), workspace_.chosen = take(shape.hidden);
    workspace_.logits = logits_;
    workspace_.partials = {nullptr, nullptr, tickets_, 1, 0};  // contexts of one piece
    workspace_.long_tickets = tickets_ + tickets_.size() / 2;
  }
  // In the prepare of each variant.
  void prepare(const CublasLt& lt, cudaStream_t stream, const decoder::Weights& weights, int rows) {
    check(cudaMemsetAsync(tickets_, 0, tickets_.bytes(), stream));
    for (int i = 1; i <= rows; ++i) products_.tune(lt, stream, weights, i, i);
  }
  decoder::Step<attention::ContiguousCache> step(const decoder::Weights& weights, const decoder::Batch& batch, int* next) const {
    const auto head_size = static_cast<std::size_t>(shape_.head_size), head = head_size * static_cast<std::size_t>(positions_);
    return {{shape_, weights, workspace_, &products_},
            batch,
            {k_, v_, head_size, head, head * static_cast<std::size_t>(shape_.kv_heads)},
            layer_elements(),
            next};
  }
  const decoder::Shape& shape() const { return shape_; }
  const float* logits() const { return logits_; }

 private:
  std::size_t layer_elements() const {
    return static_cast<std::size_t>(positions_) * static_cast<std::size_t>(shape_.kv_columns());
  }

  decoder::Shape shape_;
  int positions_;
  decoder::Products products_;
  Scratch<bf16> rows_;
  Scratch<float> logits_;
  Scratch<unsigned> tickets_;
  Scratch<bf16> k_, v_;
  decoder::Workspace workspace_{};
};

// The weights of both. `rest`: the factor of what the draft does not have. `ties`: for each word another has the same row of the
// head.
class DraftAndTarget {
 public:
  DraftAndTarget(Setup& setup, const decoder::Shape& target, const decoder::Shape& draft, float rest, bool ties, int positions)
      : target_{target},
        draft_{draft},
        rest_{rest},
        embedding_{setup.input<bf16>(
            elements(target.words, target.hidden),
            normal(0, 0.3f).times(rest, at(Axis{1, channels()}, leading(draft.hidden), channels() - leading(draft.hidden))),
            {.name = "embedding", .constant = true})},
        norms_{setup.input<bf16>(elements(2 * target.layers + 1, target.hidden), normal(1, 0.1f),
                                 {.name = "norms", .constant = true})},
        qkv_{setup.input<bf16>(layers() * elements(target.qkv_columns(), target.hidden), normal(0, deviation(target.hidden)),
                               {.name = "qkv", .constant = true})},
        o_{into_residual(setup, "o", target.q_columns(), draft.q_columns())},
        gate_up_{setup.input<bf16>(layers() * elements(2 * target.ffn, target.hidden), normal(0, deviation(target.hidden)),
                                   {.name = "gate and up", .constant = true})},
        down_{into_residual(setup, "down", target.ffn, draft.ffn)},
        head_{head(setup, ties)},
        angles_{setup.input<float>(elements(positions, target.head_size), decoder::angles(target.head_size),
                                   {.name = "angles", .constant = true})},
        draft_weights_{setup.scratch<bf16>(elements(2 * draft.words + 2 * draft.layers + 1, draft.hidden) +
                                           static_cast<std::size_t>(draft.layers * draft.layer_weights()))} {}

  decoder::Weights target() const { return {embedding_, norms_, qkv_, o_, gate_up_, down_, head_, angles_}; }
  // Valid after extract_draft().
  decoder::Weights draft() const {
    const decoder::Shape& d = draft_;
    const bf16* next = draft_weights_;
    const auto take = [&](std::size_t count) { return std::exchange(next, next + count); };
    const auto of = static_cast<std::size_t>(d.layers);
    // In the order of the structure's members.
    const bf16 *embedding = take(elements(d.words, d.hidden)), *norms = take(elements(2 * d.layers + 1, d.hidden)),
               *qkv = take(of * elements(d.qkv_columns(), d.hidden)), *o = take(of * elements(d.hidden, d.q_columns())),
               *gate_up = take(of * elements(2 * d.ffn, d.hidden)), *down = take(of * elements(d.hidden, d.ffn));
    return {embedding, norms, qkv, o, gate_up, down, next, angles_};
  }
  void extract_draft(cudaStream_t stream) const {
    const decoder::Shape &t = target_, &d = draft_;
    const decoder::Weights to = draft();
    const auto copy = [&](const bf16* from, const bf16* target, const Leading& of, int layers, float factor) {
      const dim3 blocks{static_cast<unsigned>(of.count[0] + of.count[1] + of.count[2]), static_cast<unsigned>(layers)};
      launch_kernel(stream, lead_kernel, Grid{.blocks = blocks, .threads = 256}, from, const_cast<bf16*>(target), of, factor);
    };
    const Leading words{{0, 0, 0}, {d.words, 0, 0}, t.words, t.hidden, d.hidden};
    copy(embedding_, to.embedding, words, 1, 1);
    copy(head_, to.head, words, 1, 1);
    // The target's mean square is over all channels, of which most are near 0.
    const float share = static_cast<float>(d.hidden) / static_cast<float>(t.hidden);
    copy(norms_, to.norms, {{0, 2 * t.layers, 0}, {2 * d.layers, 1, 0}, 0, t.hidden, d.hidden}, 1,
         1 / std::sqrt(share + (1 - share) * rest_ * rest_));
    copy(qkv_, to.qkv,
         {{0, t.q_columns(), t.q_columns() + t.kv_columns()},
          {d.q_columns(), d.kv_columns(), d.kv_columns()},
          t.qkv_columns(),
          t.hidden,
          d.hidden},
         d.layers, 1);
    copy(o_, to.o, {{0, 0, 0}, {d.hidden, 0, 0}, t.hidden, t.q_columns(), d.q_columns()}, d.layers, 1);
    copy(gate_up_, to.gate_up, {{0, t.ffn, 0}, {d.ffn, d.ffn, 0}, 2 * t.ffn, t.hidden, d.hidden}, d.layers, 1);
    copy(down_, to.down, {{0, 0, 0}, {d.hidden, 0, 0}, t.hidden, t.ffn, d.ffn}, d.layers, 1);
  }
  double head_at(std::size_t i) const { return head_.host(i); }

 private:
  static std::uint64_t leading(int count) { return static_cast<std::uint64_t>(count); }
  std::uint64_t channels() const { return leading(target_.hidden); }
  std::size_t layers() const { return static_cast<std::size_t>(target_.layers); }
  static std::size_t elements(int rows, int columns) {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
  }
  static float deviation(int inputs) { return 1 / std::sqrt(static_cast<float>(inputs)); }
  // [layer][hidden][inputs], of which the first `leading_inputs` count.
  Input<bf16> into_residual(Setup& setup, const char* name, int inputs, int leading_inputs) const {
    const Axis columns{1, leading(inputs)}, rows{leading(inputs), channels()}, all{leading(inputs) * channels(), layers()};
    return setup.input<bf16>(layers() * elements(target_.hidden, inputs),
                             normal(0, deviation(2 * target_.layers * leading_inputs))
                                 .times(rest_, at(columns, leading(leading_inputs), leading(inputs - leading_inputs)))
                                 .times(rest_, at(rows, leading(draft_.hidden), leading(target_.hidden - draft_.hidden)))
                                 .times(rest_, at(all, leading(draft_.layers), leading(target_.layers - draft_.layers))),
                             {.name = name, .constant = true});
  }
  // With ties, the rows of the second half are those of the first.
  Input<bf16> head(Setup& setup, bool ties) const {
    const std::size_t count = elements(target_.words, target_.hidden);
    const BufferOptions options{.name = "head", .constant = true};
    if (!ties) return setup.input<bf16>(count, normal(0, deviation(target_.hidden)), options);
    const float widest = std::sqrt(3.0f) * deviation(target_.hidden);
    const HostFill<bf16> fill{[widest](std::span<bf16> to, std::uint64_t seed) {
      for (std::size_t i = 0; i < to.size(); ++i) {
        const std::uint64_t bits = random_bits(seed, i % (to.size() / 2)) >> 40;
        to[i] = __float2bfloat16_rn((static_cast<float>(bits) * 0x1p-23f - 1) * widest);
      }
    }};
    return setup.input<bf16>(count, fill, options);
  }

  decoder::Shape target_, draft_;
  float rest_;
  Input<bf16> embedding_, norms_, qkv_, o_, gate_up_, down_, head_;
  Input<float> angles_;
  Scratch<bf16> draft_weights_;
};

}  // namespace aisp::ch16
