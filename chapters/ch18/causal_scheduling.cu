// SPDX-License-Identifier: Apache-2.0
// Causal attention: a row sees its own key and those before it. A test for each score hides the others, but what is hidden has
// been computed. Loops that end at the diagonal leave half of it out, and only tiles on the diagonal need the test. Then blocks
// of rows are unequal, up to 64 times: the longest must begin first, or SMs wait for it at the end. But begun over all heads they
// share no keys in L2, so it is the longest of as many heads as fit.
#include <aisp/pair.hpp>

#include <string_view>
#include <vector>

#include "attention/forward.hpp"
#include "attention_rows.hpp"
#include "cudnn_attention.hpp"

namespace aisp::ch18 {
namespace {

using attention::bf16, attention::Causal, attention::Lengths, attention::RowBlock, attention::TileSpan;

// All tiles, from the last to the first, and the test in each.
struct AllTiles : Causal {};
__device__ __forceinline__ TileSpan tiles_of(const AllTiles&, int, int, int, int, const Lengths& lengths) {
  const int tiles = (lengths.keys + attention::tile_keys - 1) / attention::tile_keys;
  return {tiles, tiles - 1, -1, 0, 0};
}

// Those up to the diagonal.
struct TilesToDiagonal : Causal {};
__device__ __forceinline__ TileSpan tiles_of(const TilesToDiagonal& mask, int sequence, int head, int first_row, int rows,
                                             const Lengths& lengths) {
  TileSpan tiles = attention::tiles_of(static_cast<const Causal&>(mask), sequence, head, first_row, rows, lengths);
  tiles.full_begin = tiles.full_end = 0;
  return tiles;
}

// Orders for a grid with a block of threads for each turn, which the GPU hands out as SMs come free.
struct Longest : attention::LongestFirst {
  __device__ __forceinline__ int next(int turn) const { return turn + static_cast<int>(gridDim.x); }
};
struct Shortest : Longest {
  __device__ __forceinline__ RowBlock at(int turn, int block_rows) const {
    RowBlock block = Longest::at(turn, block_rows);
    block.first_row = (blocks_of_a_head - 1) * block_rows - block.first_row;
    return block;
  }
};

class CausalScheduling final : public Workload {
 public:
  explicit CausalScheduling(Setup& setup)
      : batch_{setup.size("batch")},
        heads_{setup.size("heads")},
        length_{setup.size("tokens")},
        rows_{rows_of_heads(batch_ * heads_, length_)},
        q_{setup.input<bf16>(rows_.elements(), queries(rows_).set(4, at({1, head_size}, 1)), {.name = "q"})},
        k_{setup.input<bf16>(rows_.elements(), planted_keys(), {.name = "k"})},
        v_{setup.input<bf16>(rows_.elements(), normal(0, 1), {.name = "v"})},
        o_{setup.output<bf16>(rows_.elements(), {.name = "o", .groups = rows_.head_axis()})},
        taken_{setup.scratch<unsigned>(1, {.name = "taken"})},
        cpus_{setup.cpus()},
        reproducible_{setup.reproducible()},
        reference_{rows_},
        cudnn_{setup, batch_, heads_, length_, head_size, shared::Mask::causal},
        tuned_cudnn_{setup, batch_, heads_, length_, head_size, shared::Mask::causal} {}

  Cost cost() const override {
    const auto length = static_cast<double>(length_);
    return {.flops = 4 * static_cast<double>(rows_.heads) * length * (length + 1) / 2 * static_cast<double>(head_size),
            .math = Math::bf16,
            .bytes = static_cast<double>(q_.bytes() + k_.bytes() + v_.bytes() + o_.bytes())};
  }
  void compute_reference(Launch&) override {
    reference_.keep(k_, v_, cpus_);
    std::vector<std::size_t> rows = border_rows(length_);
    for (std::size_t row = 1; row < rows_.rows; ++row)  // the first two whose next key is a planted one
      if (is_planted(row + 1) && (rows.size() < 10)) rows.push_back(row);
    checked_.compute(rows_, rows, cpus_, [&](std::size_t head, std::size_t row) { return expected_row(head, row); });
  }
  double expected(std::size_t i) const override {
    return expected_row(i / (length_ * head_size), i / head_size % length_)[i % head_size];
  }
  void validate(std::string_view) override { checked_.compare(o_, row_limit); }

  void all_tiles(Launch& launch) { run_turns<AllTiles>(launch, in_order()); }
  void skip_tiles(Launch& launch) { run_turns<TilesToDiagonal>(launch, in_order()); }
  void test_diagonal(Launch& launch) { run_turns<Causal>(launch, in_order()); }
  void longest_first(Launch& launch) {
    Longest order{by_length()};
    order.together = order.heads * order.sequences;
    run_turns<Causal>(launch, order);
  }
  void heads_in_l2(Launch& launch) { run_turns<Causal>(launch, Longest{by_length()}); }
  void shortest_first(Launch& launch) { run_turns<Causal>(launch, Shortest{{by_length()}}); }
  // Once: each run leaves it as it was.
  void clear_taken(Launch& launch) { check(cudaMemsetAsync(taken_, 0, taken_.bytes(), launch.stream)); }
  void ticket(Launch& launch) { pass<Causal>(by_length()).run(launch); }
  void plan_cudnn(Launch&) { cudnn_->plan(); }
  void cudnn(Launch& launch) { cudnn_->run(launch.stream, q_, k_, v_, o_); }
  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    tuned_cudnn_->tune(launch.stream, q_, k_, v_, o_);
  }
  void cudnn_tuned(Launch& launch) { tuned_cudnn_->run(launch.stream, q_, k_, v_, o_); }

 private:
  // In the fifth head one key in 127 outweighs all that are not planted: a row that sees one key too many is wrong as a whole.
  static constexpr std::size_t planted_head = 4, every = 127;
  bool is_planted(std::size_t key) const { return (planted_head * length_ + key) % every == 0; }
  Pattern planted_keys() const {
    return keys(rows_, Along::varied)
        .set(40, at({1, head_size}, 1), at({head_size, every}, 0), at(rows_.head_axis(), planted_head));
  }
  ResultRow expected_row(std::size_t head, std::size_t row) const {
    return reference_.row(q_, rows_.begin(head, row), head, 0, row + 1);
  }

  attention::InOrder in_order() const { return attention::in_order(length_, heads_, batch_); }
  attention::LongestFirst by_length() const {
    return attention::longest_first(length_, length_, 2 * head_size, heads_, 1, batch_, taken_.get());
  }
  template <class Mask, class Order>
  using Pass = attention::ForwardPass<head_size, head_size, Mask, attention::Dense, attention::Scaled, false, Order>;
  template <class Mask, class Order>
  Pass<Mask, Order> pass(const Order& order) const {
    const auto tensor = [&](const bf16* data) { return attention::heads_first(data, batch_, heads_, length_, head_size); };
    const auto length = static_cast<int>(length_);
    return {{tensor(q_), tensor(k_), tensor(v_), tensor(o_)},
            {.mask = {}, .keys = {length, length}, .score = {static_cast<float>(score_scale * log2_of_e)}, .order = order}};
  }
  template <class Mask, class Order>
  void run_turns(Launch& launch, const Order& order) const {
    pass<Mask>(order).run(launch, static_cast<unsigned>(order.blocks_of_a_head * order.heads * order.sequences));
  }

  std::size_t batch_, heads_, length_;
  RowLayout rows_;
  Input<bf16> q_, k_, v_;
  Output<bf16> o_;
  Scratch<unsigned> taken_;
  int cpus_;
  bool reproducible_;
  RowReference reference_;
  CheckedRows checked_;
  Opened<shared::CudnnAttention> cudnn_, tuned_cudnn_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair causal_scheduling{
    .teaches = "a causal mask halves the work only if the tiles that it hides are left out; order and L2 are worth percents then",
    .lesson = "skip_tiles",
    .make = make<CausalScheduling>,
    .baseline = {.name = "all_tiles", .run = call<&CausalScheduling::all_tiles>, .kernels = nothing_spilled},
    // Which keys a row adds up, and in which order, is the same in all of them.
    .optimized = variants({{.name = "skip_tiles", .run = call<&CausalScheduling::skip_tiles>, .kernels = nothing_spilled},
                           {.name = "test_diagonal",
                            .run = call<&CausalScheduling::test_diagonal>,
                            .same_bits_as = "skip_tiles",
                            .kernels = nothing_spilled},
                           {.name = "longest_first",
                            .run = call<&CausalScheduling::longest_first>,
                            .same_bits_as = "skip_tiles",
                            .kernels = nothing_spilled},
                           {.name = "heads_in_l2",
                            .run = call<&CausalScheduling::heads_in_l2>,
                            .same_bits_as = "skip_tiles",
                            .kernels = nothing_spilled},
                           {.name = "ticket",
                            .run = call<&CausalScheduling::ticket>,
                            .prepare = call<&CausalScheduling::clear_taken>,
                            .same_bits_as = "skip_tiles",
                            .kernels = nothing_spilled}}),
    // The natural order of rows, of the same heads at a time as in heads_in_l2.
    .controls = variants({{.name = "shortest_first",
                           .run = call<&CausalScheduling::shortest_first>,
                           .same_bits_as = "skip_tiles",
                           .kernels = nothing_spilled}}),
    .libraries = variants({{.name = "cudnn",
                            .run = call<&CausalScheduling::cudnn>,
                            .prepare = call<&CausalScheduling::plan_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}},
                           {.name = "cudnn_tuned",
                            .run = call<&CausalScheduling::cudnn_tuned>,
                            .prepare = call<&CausalScheduling::tune_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::compute,
    .tolerance = with_short_rows,
    .needs = {.min_sm = 90, .max_sm = 90},
    .sizes = sizes({{.name = "batch", .full = 2, .most = 256, .scales = false},
                    {.name = "heads", .full = 16, .most = 256, .scales = false},
                    {.name = "tokens", .full = 8192, .most = 32768}}),
    // 16384 tokens in all.
    .sweep = cases({{"tokens_512", "batch=32,tokens=512"},
                    {"tokens_1024", "batch=16,tokens=1024"},
                    {"tokens_2048", "batch=8,tokens=2048"},
                    {"tokens_4096", "batch=4,tokens=4096"},
                    {"tokens_8192", "batch=2,tokens=8192"},
                    {"tokens_16384", "batch=1,tokens=16384"}}),
    .edges = cases({{"one_token", "batch=1,heads=1,tokens=1"},
                    {"one_head", "batch=1,heads=1,tokens=512"},
                    {"tail", "batch=3,heads=5,tokens=713"}}),
    .reference_samples = 2048,
};

}  // namespace aisp::ch18
