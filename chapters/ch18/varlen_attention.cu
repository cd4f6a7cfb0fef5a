// SPDX-License-Identifier: Apache-2.0
// Causal attention of sequences whose lengths differ a hundredfold. Padded to the longest, they are one batch for a kernel that
// knows no lengths, and nearly all of what it computes is padding, as the square of a length. With the offsets of packed
// sequences one launch takes each as it is; then blocks of rows are unequal, and a list that the GPU makes puts the longest
// first.
#include <aisp/pair.hpp>
#include <aisp/ragged.hpp>

#include <cmath>
#include <string_view>
#include <vector>

#include "attention/forward.hpp"
#include "attention/varlen.cuh"
#include "attention_rows.hpp"

namespace aisp::ch18 {
namespace {

using attention::bf16, attention::Causal, attention::Lengths, attention::Place, attention::tile_keys, attention::TileSpan,
    attention::Varlen;

// Packed rows to [sequence][longest] rows of 16-byte chunks, and back. `fill`: zeros after a sequence's last row.
template <bool fill>
__global__ void pad_kernel(const int* begins, const uint4* packed, uint4* padded, int longest, int chunks) {
  const int row = static_cast<int>(blockIdx.x), sequence = static_cast<int>(blockIdx.y), begin = begins[sequence];
  const bool is_real = row < begins[sequence + 1] - begin;
  if (!fill && !is_real) return;
  const uint4* const from = packed + static_cast<std::size_t>(begin + row) * chunks;
  uint4* const to = padded + (static_cast<std::size_t>(sequence) * longest + row) * chunks;
  for (int i = static_cast<int>(threadIdx.x); i < chunks; i += static_cast<int>(blockDim.x))
    to[i] = is_real ? from[i] : uint4{0, 0, 0, 0};
}
__global__ void unpad_kernel(const int* begins, const uint4* padded, uint4* packed, int longest, int chunks) {
  const int row = static_cast<int>(blockIdx.x), sequence = static_cast<int>(blockIdx.y), begin = begins[sequence];
  if (row >= begins[sequence + 1] - begin) return;
  const uint4* const from = padded + (static_cast<std::size_t>(sequence) * longest + row) * chunks;
  uint4* const to = packed + static_cast<std::size_t>(begin + row) * chunks;
  for (int i = static_cast<int>(threadIdx.x); i < chunks; i += static_cast<int>(blockDim.x)) to[i] = from[i];
}

// Causal, and of the padded keys only the real ones: a test where a tile is on the diagonal or has padding.
struct KeyPadding {
  const int* begins;
};
__device__ __forceinline__ TileSpan tiles_of(const KeyPadding& mask, int sequence, int head, int first_row, int rows,
                                             const Lengths& lengths) {
  TileSpan tiles = attention::tiles_of(Causal{}, sequence, head, first_row, rows, lengths);
  const int real_tiles = (mask.begins[sequence + 1] - mask.begins[sequence]) / tile_keys;
  if (real_tiles < tiles.full_end) tiles.full_end = real_tiles;
  return tiles;
}
template <int count>
__device__ __forceinline__ void hide(const KeyPadding& mask, float (&scores)[count], int sequence, int, int row, int first_key,
                                     int column, const Lengths&, float hidden) {
  const int real = mask.begins[sequence + 1] - mask.begins[sequence] - first_key - column;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const int key = i / 4 * 8 + i % 2, own = row + i / 2 % 2 * 8 - first_key - column;
    if (key > own || key >= real) scores[i] = hidden;
  }
}

// Sequences at equal distances, of which the lengths say how much is real.
struct PaddedSequences {
  const int* begins;

  static constexpr int box_rows = tile_keys;
  static constexpr bool clips_queries = true, clips_keys = false;  // results in the padding are nobody's
  __device__ __forceinline__ Lengths lengths(int sequence) const {
    const int length = begins[sequence + 1] - begins[sequence];
    return {length, length};
  }
  __device__ __forceinline__ Place query(int sequence, int row) const { return {row, sequence}; }
  __device__ __forceinline__ Place key(int sequence, int row) const { return {row, sequence}; }
};

class VarlenAttention final : public Workload {
 public:
  explicit VarlenAttention(Setup& setup)
      : sequences_{setup.size("sequences")},
        heads_{setup.size("heads")},
        longest_{setup.size("longest")},
        most_rows_{sequences_ * std::min(longest_, longest_ / 4 + room_for_planted)},
        rows_{heads_of_rows(heads_, most_rows_)},
        begins_{setup.input<int>(sequences_ + 1, offsets(setup), {.name = "begins of the sequences"})},
        q_{setup.input<bf16>(rows_.elements(), queries(rows_), {.name = "q"})},
        k_{setup.input<bf16>(rows_.elements(), keys(stairs(), Along::varied), {.name = "k"})},
        v_{setup.input<bf16>(rows_.elements(), normal(0, 1), {.name = "v"})},
        o_{setup.output<bf16>(rows_.elements(), {.name = "o", .groups = rows_.head_axis()})},
        padded_{padded(setup, "padded q"), padded(setup, "padded k"), padded(setup, "padded v"), padded(setup, "padded o")},
        list_{setup.scratch<int2>(most_blocks(), {.name = "list of blocks"})},
        list_length_{setup.scratch<int>(1, {.name = "length of the list"})},
        taken_{setup.scratch<unsigned>(1, {.name = "taken"})},
        cpus_{setup.cpus()},
        reference_{rows_} {}

  Cost cost() const override {
    double seen = 0;  // keys, by all rows of a head
    for (std::size_t i = 0; i < sequences_; ++i) {
      const auto length = static_cast<double>(begins_.host(i + 1) - begins_.host(i));
      seen += length * (length + 1) / 2;
    }
    return {.flops = 4 * static_cast<double>(heads_) * seen * static_cast<double>(head_size),
            .math = Math::bf16,
            .bytes = 4 * static_cast<double>(real_elements() * sizeof(bf16))};
  }
  Cost variant_cost(std::string_view variant) const override {
    if (variant == "copies_alone") return {.bytes = 8 * static_cast<double>(real_elements() * sizeof(bf16))};
    return cost();
  }
  std::size_t output_length(int) const override { return real_elements(); }
  void compute_reference(Launch&) override {
    reference_.keep(k_, v_, cpus_);
    std::vector<std::size_t> rows;  // each sequence's first and last
    for (std::size_t i = 0; i < sequences_; ++i)
      if (begin(i + 1) > begin(i)) rows.insert(rows.end(), {begin(i), begin(i + 1) - 1});
    checked_.compute(rows_, rows, cpus_, [&](std::size_t head, std::size_t row) { return expected_row(head, row); });
  }
  double expected(std::size_t i) const override {
    return expected_row(i / head_size % heads_, i / head_size / heads_)[i % head_size];
  }
  void validate(std::string_view) override { checked_.compare(o_, row_limit); }
  void metrics(std::string_view, Metrics& metrics) override {
    int rows = 0;
    check(cudaMemcpy(&rows, begins_ + sequences_, sizeof rows, cudaMemcpyDeviceToHost));
    metrics.report("real_tokens", 100 * static_cast<double>(rows) / static_cast<double>(sequences_ * longest_),
                   "% of padded ones", Metrics::Better::higher);
  }

  // Once: each run leaves it as it was.
  void clear_taken(Launch& launch) { check(cudaMemsetAsync(taken_, 0, taken_.bytes(), launch.stream)); }
  void padded_mask(Launch& launch) {
    const auto longest = static_cast<int>(longest_);
    pad<true>(launch);
    on_padded(KeyPadding{begins_}, attention::Dense{longest, longest}).run(launch);
    unpad(launch);
  }
  void padded_lengths(Launch& launch) {
    pad<false>(launch);
    on_padded(Causal{}, PaddedSequences{begins_}).run(launch);
    unpad(launch);
  }
  void copies_alone(Launch& launch) {
    pad<false>(launch);
    unpad(launch);
  }
  void packed(Launch& launch) { on_packed(attention::in_order(longest_, heads_, sequences_)).run(launch); }
  void packed_longest_first(Launch& launch) {
    make_list(launch);
    on_packed(in_list()).run(launch);
  }

 private:
  // Rows of a sequence on average, beyond the mean of what is drawn.
  static constexpr std::size_t room_for_planted = 640;

  // Most sequences are short and a few are long. The mean stays, whatever the spread is.
  HostFill<int> offsets(Setup& setup) const {
    const double spread = static_cast<double>(setup.size("spread_percent")) / 100, longest = static_cast<double>(longest_);
    const double mean = longest * 900 / 4096, median = std::max(mean / std::exp(spread * spread / 2), 1.0);
    std::vector<std::int64_t> always;
    for (const std::int64_t length : {0, 1, 2, 127, 128, 129})
      if (length < static_cast<std::int64_t>(longest_)) always.push_back(length);
    always.push_back(static_cast<std::int64_t>(longest_));
    return ragged_offsets<int>(log_normal(median, spread, 1, static_cast<std::int64_t>(longest_)),
                               static_cast<std::int64_t>(most_rows_), always);
  }
  // Ramps and staircases begin anew with every 8192 rows, so that scores stay small enough for sums in fp32.
  RowLayout stairs() const { return {heads_, std::min<std::size_t>(most_rows_, 8192), rows_.head, rows_.row}; }
  Scratch<bf16> padded(Setup& setup, const char* name) const {
    return setup.scratch<bf16>(sequences_ * longest_ * heads_ * head_size, {.name = name});
  }
  std::size_t begin(std::size_t sequence) const { return static_cast<std::size_t>(begins_.host(sequence)); }
  std::size_t real_elements() const { return begin(sequences_) * heads_ * head_size; }
  std::size_t most_blocks() const { return most_rows_ / 128 + sequences_; }
  ResultRow expected_row(std::size_t head, std::size_t row) const {
    std::size_t first = 0;
    for (std::size_t i = 0; i < sequences_ && begin(i) <= row; ++i) first = begin(i);
    return reference_.row(q_, rows_.begin(head, row), head, first, row + 1);
  }

  Grid copies() const { return {{static_cast<unsigned>(longest_), static_cast<unsigned>(sequences_)}, 256}; }
  std::size_t chunks() const { return heads_ * head_size / 8; }
  template <bool fill>
  void pad(Launch& launch) {
    const bf16* const from[] = {q_, k_, v_};
    for (std::size_t i = 0; i < std::size(from); ++i)
      launch(pad_kernel<fill>, copies(), begins_, reinterpret_cast<const uint4*>(from[i]),
             reinterpret_cast<uint4*>(padded_[i].get()), longest_, chunks());
  }
  void unpad(Launch& launch) {
    launch(unpad_kernel, copies(), begins_, reinterpret_cast<const uint4*>(padded_[3].get()), reinterpret_cast<uint4*>(o_.get()),
           longest_, chunks());
  }
  void make_list(Launch& launch) {
    launch(attention::list_row_blocks<Causal, Varlen>, {1, attention::list_threads, attention::list_shared_bytes}, Causal{},
           Varlen{begins_, begins_}, sequences_, list_, list_length_);
  }
  attention::Listed in_list() const { return {list_, list_length_, static_cast<int>(heads_), taken_}; }

  template <class Mask, class Keys, class Order>
  using Pass = attention::ForwardPass<head_size, head_size, Mask, Keys, attention::Scaled, false, Order>;
  static constexpr attention::Scaled scaled{static_cast<float>(score_scale * log2_of_e)};
  template <class Mask, class Keys>
  Pass<Mask, Keys, attention::LongestFirst> on_padded(const Mask& mask, const Keys& layout) const {
    const auto tensor = [&](const Scratch<bf16>& data) {
      return attention::rows_first(data, sequences_, longest_, heads_, head_size);
    };
    return {{tensor(padded_[0]), tensor(padded_[1]), tensor(padded_[2]), tensor(padded_[3])},
            {.mask = mask,
             .keys = layout,
             .score = scaled,
             .order = attention::longest_first(longest_, longest_, 2 * head_size, heads_, 1, sequences_, taken_.get())}};
  }
  template <class Order>
  Pass<Causal, Varlen, Order> on_packed(const Order& order) const {
    const auto tensor = [&](const bf16* data) { return attention::rows_first(data, 1, most_rows_, heads_, head_size); };
    return {{tensor(q_), tensor(k_), tensor(v_), tensor(o_)},
            {.mask = {}, .keys = {begins_, begins_}, .score = scaled, .order = order}};
  }

  std::size_t sequences_, heads_, longest_, most_rows_;
  RowLayout rows_;
  Input<int> begins_;
  Input<bf16> q_, k_, v_;
  Output<bf16> o_;
  Scratch<bf16> padded_[4];  // q, k, v, o
  Scratch<int2> list_;
  Scratch<int> list_length_;
  Scratch<unsigned> taken_;
  int cpus_;
  RowReference reference_;
  CheckedRows checked_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair varlen_attention{
    .teaches = "padding costs the square of the longest sequence; offsets let one launch take each sequence as long as it is",
    .lesson = "packed",
    .make = make<VarlenAttention>,
    .baseline = {.name = "padded_mask",
                 .run = call<&VarlenAttention::padded_mask>,
                 .prepare = call<&VarlenAttention::clear_taken>,
                 .kernels = nothing_spilled},
    .optimized = variants({{.name = "packed", .run = call<&VarlenAttention::packed>, .kernels = nothing_spilled},
                           {.name = "packed_longest_first",
                            .run = call<&VarlenAttention::packed_longest_first>,
                            .prepare = call<&VarlenAttention::clear_taken>,
                            .same_bits_as = "packed",
                            .kernels = nothing_spilled}}),
    // The padded layout with loops that end at each sequence's length, and what copying into that layout and back takes of it.
    // Its bits are its own: when a warp rescales its sums, rows after the sequence's last have a say, and those are others here.
    .controls = variants({{.name = "padded_lengths",
                           .run = call<&VarlenAttention::padded_lengths>,
                           .prepare = call<&VarlenAttention::clear_taken>,
                           .kernels = nothing_spilled},
                          {.name = "copies_alone", .run = call<&VarlenAttention::copies_alone>, .outputs = no_outputs}}),
    .bound = Bound::compute,
    .tolerance = with_short_rows,
    .needs = {.min_sm = 90, .max_sm = 90},
    .sizes = sizes({{.name = "sequences", .full = 32, .multiple = 8, .most = 512, .scales = false},
                    {.name = "heads", .full = 16, .most = 128, .scales = false},
                    {.name = "longest", .full = 4096, .most = 32768},
                    {.name = "spread_percent", .full = 100, .most = 200, .scales = false}}),
    .sweep = cases({{"nearly_equal", "spread_percent=1"},
                    {"spread_50", "spread_percent=50"},
                    {"spread_100", "spread_percent=100"},
                    {"spread_150", "spread_percent=150"}}),
    .edges = cases({{"one_token_each", "sequences=8,heads=1,longest=1"},
                    {"one_head", "sequences=8,heads=1,longest=512"},
                    {"tail", "sequences=16,heads=5,longest=713"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch18
