// SPDX-License-Identifier: Apache-2.0
// Causal attention in which a row sees only the last 1024 keys, as most layers of many models have it. As a mask the window saves
// nothing: work stays quadratic in the context. As the bounds of the loop over tiles of keys it makes work linear: nine tiles for
// each block of rows. Of them seven are seen whole, and need no test.
#include <aisp/pair.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "attention/forward.hpp"
#include "attention_rows.hpp"
#include "cudnn_attention.hpp"

namespace aisp::ch18 {
namespace {

using attention::bf16, attention::Lengths, attention::TileSpan, attention::Window;

// A causal kernel with one more condition in its mask: all tiles up to the diagonal, and the test in each.
struct WindowAsMask : Window {};
__device__ __forceinline__ TileSpan tiles_of(const WindowAsMask&, int sequence, int head, int first_row, int rows,
                                             const Lengths& lengths) {
  TileSpan tiles = attention::tiles_of(attention::Causal{}, sequence, head, first_row, rows, lengths);
  tiles.full_begin = tiles.full_end = 0;
  return tiles;
}

// The window's tiles, and the test in each.
struct WindowAsBounds : Window {};
__device__ __forceinline__ TileSpan tiles_of(const WindowAsBounds& mask, int sequence, int head, int first_row, int rows,
                                             const Lengths& lengths) {
  TileSpan tiles = attention::tiles_of(static_cast<const Window&>(mask), sequence, head, first_row, rows, lengths);
  tiles.full_begin = tiles.full_end = 0;
  return tiles;
}

// As many tiles, and no test at all.
struct Untested : Window {};
__device__ __forceinline__ TileSpan tiles_of(const Untested& mask, int sequence, int head, int first_row, int rows,
                                             const Lengths& lengths) {
  TileSpan tiles = attention::tiles_of(static_cast<const Window&>(mask), sequence, head, first_row, rows, lengths);
  tiles.full_begin = 0;
  tiles.full_end = tiles.first + 1;
  return tiles;
}

class SlidingWindowAttention final : public Workload {
 public:
  explicit SlidingWindowAttention(Setup& setup)
      : batch_{setup.size("batch")},
        heads_{setup.size("heads")},
        kv_heads_{shared_heads(heads_, setup.size("kv_heads"))},
        length_{setup.size("tokens")},
        window_{std::min(setup.size("window"), length_)},
        rows_{rows_of_heads(batch_ * heads_, length_)},
        key_rows_{rows_of_heads(batch_ * kv_heads_, length_)},
        q_{setup.input<bf16>(rows_.elements(), queries(rows_), {.name = "q"})},
        k_{setup.input<bf16>(key_rows_.elements(), keys(key_rows_, Along::varied), {.name = "k"})},
        v_{setup.input<bf16>(key_rows_.elements(), normal(0, 1), {.name = "v"})},
        o_{setup.output<bf16>(rows_.elements(), {.name = "o", .groups = rows_.head_axis()})},
        taken_{setup.scratch<unsigned>(1, {.name = "taken"})},
        cpus_{setup.cpus()},
        reproducible_{setup.reproducible()},
        reference_{key_rows_},
        cudnn_{setup, shared::AttentionSizes{batch_, heads_, kv_heads_, length_, length_, head_size}, shared::Mask::causal,
               shared::AttentionScores{.window = window_}} {}

  Cost cost() const override {
    const auto length = static_cast<double>(length_), window = static_cast<double>(window_);
    const double seen = length * window - window * (window - 1) / 2;  // by all rows of a head
    return {.flops = 4 * static_cast<double>(rows_.heads) * seen * static_cast<double>(head_size),
            .math = Math::bf16,
            .bytes = static_cast<double>(q_.bytes() + k_.bytes() + v_.bytes() + o_.bytes())};
  }
  void compute_reference(Launch&) override {
    reference_.keep(k_, v_, cpus_);
    std::vector<std::size_t> rows = border_rows(length_);
    rows.insert(rows.end(), {window_ - 1, window_, window_ + 1});
    checked_.compute(rows_, rows, cpus_, [&](std::size_t head, std::size_t row) { return expected_row(head, row); });
  }
  double expected(std::size_t i) const override {
    return expected_row(i / (length_ * head_size), i / head_size % length_)[i % head_size];
  }
  void validate(std::string_view) override { checked_.compare(o_, row_limit); }

  // Once: each run leaves it as it was.
  void clear_taken(Launch& launch) { check(cudaMemsetAsync(taken_, 0, taken_.bytes(), launch.stream)); }
  template <class Mask>
  void engine(Launch& launch) {
    const auto tensor = [&](const bf16* data, std::size_t heads) {
      return attention::heads_first(data, batch_, heads, length_, head_size);
    };
    const auto length = static_cast<int>(length_);
    attention::ForwardPass<head_size, head_size, Mask, attention::Dense, attention::Scaled, false, attention::LongestFirst>{
        {tensor(q_, heads_), tensor(k_, kv_heads_), tensor(v_, kv_heads_), tensor(o_, heads_)},
        {.mask = Mask{{static_cast<int>(window_) - 1, 0}},
         .keys = {length, length},
         .score = {static_cast<float>(score_scale * log2_of_e)},
         .order = attention::longest_first(length_, length_, 2 * head_size, heads_, static_cast<int>(heads_ / kv_heads_), batch_,
                                           taken_.get())}}
        .run(launch);
  }
  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    cudnn_->tune(launch.stream, q_, k_, v_, o_);
  }
  void cudnn_tuned(Launch& launch) { cudnn_->run(launch.stream, q_, k_, v_, o_); }

 private:
  static std::size_t shared_heads(std::size_t heads, std::size_t kv_heads) {
    if (heads % kv_heads != 0)
      throw Unsupported{std::to_string(heads) + " heads cannot share " + std::to_string(kv_heads) + " heads of keys evenly"};
    return kv_heads;
  }
  ResultRow expected_row(std::size_t head, std::size_t row) const {
    return reference_.row(q_, rows_.begin(head, row), head * kv_heads_ / heads_, row < window_ ? 0 : row - window_ + 1, row + 1);
  }

  std::size_t batch_, heads_, kv_heads_, length_, window_;
  RowLayout rows_, key_rows_;
  Input<bf16> q_, k_, v_;
  Output<bf16> o_;
  Scratch<unsigned> taken_;
  int cpus_;
  bool reproducible_;
  RowReference reference_;
  CheckedRows checked_;
  Opened<shared::CudnnAttention> cudnn_;
};

// The engine's own Window: a test only where the window begins and ends.
struct EdgeTiles : Window {};
__device__ __forceinline__ TileSpan tiles_of(const EdgeTiles& mask, int sequence, int head, int first_row, int rows,
                                             const Lengths& lengths) {
  return attention::tiles_of(static_cast<const Window&>(mask), sequence, head, first_row, rows, lengths);
}

template <class Mask>
constexpr Variant with_mask(std::string_view name, std::string_view same_bits_as = {}, std::uint32_t outputs = all_outputs) {
  return {.name = name,
          .run = call<&SlidingWindowAttention::engine<Mask>>,
          .prepare = call<&SlidingWindowAttention::clear_taken>,
          .same_bits_as = same_bits_as,
          .outputs = outputs,
          .kernels = {.local_bytes = 0}};
}

}  // namespace

extern constinit const Pair sliding_window_attention{
    .teaches = "a window of keys is the bounds of a loop, and no mask: cost grows with the context, and not with its square",
    .lesson = "window_bounds",
    .make = make<SlidingWindowAttention>,
    .baseline = with_mask<WindowAsMask>("window_mask"),
    .optimized = variants({with_mask<WindowAsBounds>("window_bounds"), with_mask<EdgeTiles>("edge_masks", "window_bounds")}),
    .controls = variants({with_mask<Untested>("untested_tiles", {}, no_outputs)}),
    .libraries = variants({{.name = "cudnn_tuned",
                            .run = call<&SlidingWindowAttention::cudnn_tuned>,
                            .prepare = call<&SlidingWindowAttention::tune_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::compute,
    .tolerance = with_short_rows,
    .needs = {.min_sm = 90, .max_sm = 90},
    .sizes = sizes({{.name = "batch", .full = 1, .most = 256, .scales = false},
                    {.name = "heads", .full = 32, .most = 256, .scales = false},
                    {.name = "kv_heads", .full = 8, .most = 256, .scales = false},
                    {.name = "tokens", .full = 16384},
                    {.name = "window", .full = 1024, .most = 1u << 16, .scales = false}}),
    .sweep = cases({{"window_128", "window=128"},
                    {"window_256", "window=256"},
                    {"window_512", "window=512"},
                    {"window_1000", "window=1000"},
                    {"window_1024", "window=1024"},
                    {"window_4096", "window=4096"},
                    {"window_16384", "window=16384"}}),
    .edges = cases({{"one_token", "heads=1,kv_heads=1,tokens=1"},
                    {"own_key_alone", "heads=1,kv_heads=1,tokens=200,window=1"},
                    {"tail", "batch=2,heads=8,kv_heads=4,tokens=713,window=130"},
                    {"window_of_all", "heads=4,kv_heads=4,tokens=300,window=4096"},
                    {"borders_of_tiles", "heads=8,kv_heads=8,tokens=640,window=128"}}),
    .reference_samples = 2048,
};

}  // namespace aisp::ch18
