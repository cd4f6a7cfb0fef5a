// SPDX-License-Identifier: Apache-2.0
// Attention with a mask and a change of scores that no kernel was written for: documents packed into one sequence, and a soft
// cap. As a tensor the mask is a quarter of a gigabyte, and every tile of keys is computed. As a function that is inlined it
// takes no bytes; lists of the tiles that exist leave the others out, and mark those that are seen whole, which need no test.
// The functions may also be text, compiled when the program runs.
#include <aisp/libraries/nvrtc.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "attention/forward.hpp"
#include "attention_rows.hpp"

namespace aisp::ch18 {
namespace {

using attention::bf16, attention::Lengths, attention::tile_keys, attention::TileList, attention::TileSpan;

// The functions of a user: who sees whom, and what becomes of a score. Nothing depends on whether a key is after the row, so
// that documents are read without a branch.
struct SameDocument {
  const int* document;
  __device__ __forceinline__ bool operator()(int, int, int row, int key) const {
    return static_cast<int>(key <= row) & static_cast<int>(document[key] == document[row]);
  }
};
// cap * tanh(product * scale / cap), in one instruction of the units that take the softmax's exponentials, too.
struct SoftCap {
  float scale_by_cap, cap_log2;  // scale / cap, and cap * log2_e
  static constexpr bool changes = true;
  __device__ __forceinline__ float exponent_scale() const { return cap_log2; }
  __device__ __forceinline__ SoftCap of_head(int, int) const { return *this; }
  __device__ __forceinline__ float operator()(float product, const attention::At&) const {
    return __tanhf(product * scale_by_cap);
  }
};
// The same as text, of which each is the expression after `return`.
constexpr std::string_view same_document = "int(key <= row) & int(document[key] == document[row])";
constexpr std::string_view soft_cap = "__tanhf(product * scale_by_cap)";

__device__ __forceinline__ TileSpan every_tile(const Lengths& lengths) {
  const int tiles = (lengths.keys + tile_keys - 1) / tile_keys;
  return {tiles, tiles - 1, -1, 0, 0};
}

// A byte for each row and key, padded to whole tiles.
struct MaskTensor {
  const unsigned char* visible;
  int pitch;
};
__device__ __forceinline__ TileSpan tiles_of(const MaskTensor&, int, int, int, int, const Lengths& lengths) {
  return every_tile(lengths);
}
template <int count>
__device__ __forceinline__ void hide(const MaskTensor& mask, float (&scores)[count], int, int, int row, int first_key, int column,
                                     const Lengths&, float hidden) {
#pragma unroll
  for (int i = 0; i < count; i += 2) {
    const std::size_t place = static_cast<std::size_t>(row + i / 2 % 2 * 8) * mask.pitch + first_key + column + i / 4 * 8;
    const unsigned short both = *reinterpret_cast<const unsigned short*>(mask.visible + place);
    if ((both & 0xFF) == 0) scores[i] = hidden;
    if (both >> 8 == 0) scores[i + 1] = hidden;
  }
}

__global__ void make_mask_kernel(SameDocument visible, unsigned char* mask, int length, int pitch) {
  const int row = static_cast<int>(blockIdx.x);
  for (int key = static_cast<int>(threadIdx.x); key < pitch; key += static_cast<int>(blockDim.x))
    mask[static_cast<std::size_t>(row) * pitch + key] = row < length && key < length && visible(0, 0, row, key) ? 1 : 0;
}

// The function, asked for each score of all tiles, or of those up to the diagonal.
template <bool causal>
struct InlinedMask {
  SameDocument visible;
};
template <bool causal>
__device__ __forceinline__ TileSpan tiles_of(const InlinedMask<causal>&, int sequence, int head, int first_row, int rows,
                                             const Lengths& lengths) {
  TileSpan tiles = every_tile(lengths);
  if constexpr (causal) tiles = attention::tiles_of(attention::Causal{}, sequence, head, first_row, rows, lengths);
  tiles.full_begin = tiles.full_end = 0;
  return tiles;
}
template <bool causal, int count>
__device__ __forceinline__ void hide(const InlinedMask<causal>& mask, float (&scores)[count], int sequence, int head, int row,
                                     int first_key, int column, const Lengths& lengths, float hidden) {
  attention::hide(TileList<SameDocument>{nullptr, nullptr, 0, 0, mask.visible}, scores, sequence, head, row, first_key, column,
                  lengths, hidden);
}

using attention::LongestFirst, attention::MostTilesFirst;
template <class Mask, class Order = LongestFirst>
using Pass = attention::ForwardPass<head_size, head_size, Mask, attention::Dense, SoftCap, false, Order>;
template <class Order>
using ListPass = Pass<TileList<SameDocument>, Order>;
using ListKernel = void(attention::Maps, ListPass<LongestFirst>::Work);

// The engine's kernel for a mask and a score that are text. Its classes have the members of SameDocument and SoftCap.
KernelSource source_of(std::string_view visible, std::string_view score) {
  std::string text = R"(#include "attention/forward.cuh"
using namespace aisp::attention;
struct Visible {
  const int* document;
  __device__ __forceinline__ bool operator()(int sequence, int head, int row, int key) const { return )";
  text.append(visible).append(R"(; }
};
struct Score {
  float scale_by_cap, cap_log2;
  static constexpr bool changes = true;
  __device__ __forceinline__ float exponent_scale() const { return cap_log2; }
  __device__ __forceinline__ Score of_head(int, int) const { return *this; }
  __device__ __forceinline__ float operator()(float product, const At& at) const { return )");
  text.append(score).append("; }\n};\n");
  return {.name = "flex_attention.cu",
          .text = text,
          .kernel = "forward_kernel<128, 128, TileList<Visible>, Dense, Score, false, LongestFirst>"};
}

class FlexAttention final : public Workload {
 public:
  explicit FlexAttention(Setup& setup)
      : heads_{setup.size("heads")},
        length_{setup.size("tokens")},
        documents_{std::min(setup.size("documents"), length_)},
        tiles_{(length_ + tile_keys - 1) / tile_keys},
        rows_{rows_of_heads(heads_, length_)},
        q_{setup.input<bf16>(rows_.elements(), queries(rows_), {.name = "q"})},
        k_{setup.input<bf16>(rows_.elements(), keys(rows_, Along::varied), {.name = "k"})},
        v_{setup.input<bf16>(rows_.elements(), normal(0, 1), {.name = "v"})},
        document_{setup.input<int>(pitch(), document_of_tokens(), {.name = "document of each token", .constant = true})},
        o_{setup.output<bf16>(rows_.elements(), {.name = "o", .groups = rows_.head_axis()})},
        mask_{setup.scratch<unsigned char>(pitch() * pitch(), {.name = "mask"})},
        begins_{setup.scratch<int>(tiles_ + 1, {.name = "begins of the lists"})},
        untold_{setup.scratch<int>(tiles_ * tiles_, {.name = "lists of tiles"})},
        told_apart_{setup.scratch<int>(tiles_ * tiles_, {.name = "lists of full and partial tiles"})},
        by_tiles_{setup.scratch<int>(tiles_, {.name = "blocks of rows by their tiles"})},
        taken_{setup.scratch<unsigned>(1, {.name = "taken"})},
        cpus_{setup.cpus()},
        reference_{rows_},
        nvrtc_{setup} {}

  Cost cost() const override {
    double seen = 0;  // keys, by all rows of a head
    for (std::size_t row = 0, begin = 0; row < length_; ++row) {
      if (document_.host(row) != document_.host(begin)) begin = row;
      seen += static_cast<double>(row - begin + 1);
    }
    return {.flops = 4 * static_cast<double>(heads_) * seen * static_cast<double>(head_size),
            .math = Math::bf16,
            .bytes = static_cast<double>(q_.bytes() + k_.bytes() + v_.bytes() + o_.bytes())};
  }
  void compute_reference(Launch&) override {
    reference_.keep(k_, v_, cpus_);
    std::vector<std::size_t> rows{0, length_ - 1};  // and both ends of each document
    for (std::size_t row = 1; row < length_; ++row)
      if (document_.host(row) != document_.host(row - 1)) rows.insert(rows.end(), {row - 1, row});
    checked_.compute(rows_, rows, cpus_, [&](std::size_t head, std::size_t row) { return expected_row(head, row); });
  }
  double expected(std::size_t i) const override {
    return expected_row(i / (length_ * head_size), i / head_size % length_)[i % head_size];
  }
  void validate(std::string_view) override { checked_.compare(o_, row_limit + cap * off_by); }
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant == "nvrtc_mods") compiled_.report(metrics);
  }

  void make_mask(Launch& launch) {
    launch(make_mask_kernel, {static_cast<unsigned>(pitch()), 256}, visible(), mask_, length_, pitch());
    clear_taken(launch);
  }
  // Once: each run leaves it as it was.
  void clear_taken(Launch& launch) { check(cudaMemsetAsync(taken_, 0, taken_.bytes(), launch.stream)); }
  void mask_tensor(Launch& launch) { pass(MaskTensor{mask_, static_cast<int>(pitch())}, in_turn()).run(launch); }
  void template_mods(Launch& launch) { pass(InlinedMask<false>{visible()}, in_turn()).run(launch); }
  void causal_loop(Launch& launch) { pass(InlinedMask<true>{visible()}, in_turn()).run(launch); }
  void make_lists(Launch& launch) {
    copy_lists(launch, untold_, false);
    copy_lists(launch, told_apart_, true);
    clear_taken(launch);
  }
  void block_mask(Launch& launch) { list_pass(untold_, in_turn()).run(launch); }
  void full_tiles(Launch& launch) { list_pass(told_apart_, in_turn()).run(launch); }
  void most_tiles_first(Launch& launch) { list_pass(told_apart_, most_tiles()).run(launch); }
  void compile(Launch& launch) {
    make_lists(launch);
    if (!compiled_) compiled_ = nvrtc_->kernel<ListKernel>(source_of(same_document, soft_cap));
  }
  void nvrtc_mods(Launch& launch) {
    const ListPass<LongestFirst> list = list_pass(told_apart_, in_turn());
    launch(compiled_.entry, list.grid(), list.maps(), list.work);
  }

 private:
  static constexpr double cap = 20, off_by = 0x1p-11;  // the latter: tanh.approx, of its result

  std::size_t pitch() const { return tiles_ * tile_keys; }
  // Documents of very different lengths, the second one shorter than a tile. Rows after the last token belong to the last
  // document, so that rows there see whole tiles: when a warp rescales its sums, they have a say.
  HostFill<int> document_of_tokens() const {
    return [length = length_, documents = documents_](std::span<int> of, std::uint64_t) {
      constexpr double shorter_than_a_tile = 0.025;  // of an average document of 2048 tokens
      std::vector<double> ends;
      double sum = 0;
      for (std::size_t i = 0; i < documents; ++i) {
        constexpr std::uint64_t any = 18;
        const double drawn = 1 + 9 * static_cast<double>(random_bits(any, i) >> 40) * 0x1p-24;
        ends.push_back(sum += i == 1 ? shorter_than_a_tile * 5.5 : drawn);
      }
      for (std::size_t token = 0, document = 0; token < of.size(); ++token) {
        while (document + 1 < documents && static_cast<double>(token) >= ends[document] / sum * static_cast<double>(length))
          ++document;
        of[token] = static_cast<int>(document);
      }
    };
  }
  SameDocument visible() const { return {document_}; }
  ResultRow expected_row(std::size_t head, std::size_t row) const {
    std::size_t begin = row;
    while (begin > 0 && document_.host(begin - 1) == document_.host(row)) --begin;
    return reference_.row(q_, rows_.begin(head, row), head, begin, row + 1,
                          [](double scaled, std::size_t) { return cap * std::tanh(scaled / cap); });
  }

  // For each block of rows the tiles of which any row sees any key, from the last to the first.
  void copy_lists(Launch& launch, int* to, bool mark_full) {
    std::vector<int> begins{0}, entries;
    const auto sees = [&](std::size_t row, std::size_t key) { return key <= row && document_.host(key) == document_.host(row); };
    for (std::size_t block = 0; block < tiles_; ++block) {
      const std::size_t first_row = block * tile_keys, end_row = std::min(first_row + tile_keys, length_);
      for (std::size_t tile = block + 1; tile-- > 0;) {
        const std::size_t first_key = tile * tile_keys, last_key = std::min(first_key + tile_keys, length_) - 1;
        // Documents are one after the other, and rows see none of what follows them: the block's first row comes nearest to a
        // tile before it, and if that sees the first key and the last row does, all see all.
        const bool any = tile == block || sees(first_row, last_key);
        const bool all = tile < block && sees(first_row, first_key) && sees(end_row - 1, first_key);
        if (any) entries.push_back(static_cast<int>(tile) * 2 + (mark_full && all ? 0 : 1));
      }
      begins.push_back(static_cast<int>(entries.size()));
    }
    check(cudaMemcpyAsync(begins_, begins.data(), begins.size() * sizeof(int), cudaMemcpyHostToDevice, launch.stream));
    check(cudaMemcpyAsync(to, entries.data(), entries.size() * sizeof(int), cudaMemcpyHostToDevice, launch.stream));
    std::vector<int> blocks(tiles_);
    std::iota(blocks.begin(), blocks.end(), 0);
    const auto tiles = [&](int block) {
      return begins[static_cast<std::size_t>(block) + 1] - begins[static_cast<std::size_t>(block)];
    };
    std::ranges::stable_sort(blocks, {}, tiles);
    check(cudaMemcpyAsync(by_tiles_, blocks.data(), blocks.size() * sizeof(int), cudaMemcpyHostToDevice, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
  }
  LongestFirst in_turn() const { return attention::longest_first(length_, length_, 2 * head_size, heads_, 1, 1, taken_.get()); }
  MostTilesFirst most_tiles() const { return {in_turn(), by_tiles_}; }
  template <class Mask, class Order>
  Pass<Mask, Order> pass(const Mask& mask, const Order& order) const {
    const auto tensor = [&](const bf16* data) { return attention::heads_first(data, 1, heads_, length_, head_size); };
    const auto length = static_cast<int>(length_);
    return {{tensor(q_), tensor(k_), tensor(v_), tensor(o_)},
            {.mask = mask,
             .keys = {length, length},
             .score = {static_cast<float>(score_scale / cap), static_cast<float>(cap * log2_of_e)},
             .order = order}};
  }
  template <class Order>
  ListPass<Order> list_pass(const int* entries, const Order& order) const {
    return pass(TileList<SameDocument>{begins_, entries, 0, 0, visible()}, order);
  }

  std::size_t heads_, length_, documents_, tiles_;  // tiles_: of keys, and blocks of rows
  RowLayout rows_;
  Input<bf16> q_, k_, v_;
  Input<int> document_;
  Output<bf16> o_;
  Scratch<unsigned char> mask_;
  Scratch<int> begins_, untold_, told_apart_;  // the lists, whose entries say which tiles are full or do not
  Scratch<int> by_tiles_;
  Scratch<unsigned> taken_;
  int cpus_;
  RowReference reference_;
  CheckedRows checked_;
  Opened<Nvrtc> nvrtc_;
  CompiledKernel<ListKernel> compiled_{};
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair flex_attention{
    .teaches = "any mask and any change of scores is two inlined functions, and a list of the tiles of keys that exist",
    .lesson = "block_mask",
    .make = make<FlexAttention>,
    .baseline = {.name = "mask_tensor",
                 .run = call<&FlexAttention::mask_tensor>,
                 .prepare = call<&FlexAttention::make_mask>,
                 .kernels = nothing_spilled},
    .optimized = variants({{.name = "template_mods",
                            .run = call<&FlexAttention::template_mods>,
                            .prepare = call<&FlexAttention::clear_taken>,
                            .kernels = nothing_spilled},
                           {.name = "block_mask",
                            .run = call<&FlexAttention::block_mask>,
                            .prepare = call<&FlexAttention::make_lists>,
                            .kernels = nothing_spilled},
                           {.name = "full_tiles",
                            .run = call<&FlexAttention::full_tiles>,
                            .prepare = call<&FlexAttention::make_lists>,
                            .same_bits_as = "block_mask",
                            .kernels = nothing_spilled},
                           {.name = "nvrtc_mods",
                            .run = call<&FlexAttention::nvrtc_mods>,
                            .prepare = call<&FlexAttention::compile>,
                            .needs = {.libraries = {Library::nvrtc}},
                            .same_bits_as = "full_tiles",
                            .kernels = nothing_spilled}}),
    // The kernel without a list: bounds as for any causal mask, and the documents tested in every tile.
    .controls = variants({{.name = "causal_loop",
                           .run = call<&FlexAttention::causal_loop>,
                           .prepare = call<&FlexAttention::clear_taken>,
                           .kernels = nothing_spilled},
                          // The same tiles in another order.
                          {.name = "most_tiles_first",
                           .run = call<&FlexAttention::most_tiles_first>,
                           .prepare = call<&FlexAttention::make_lists>,
                           .same_bits_as = "full_tiles",
                           .kernels = nothing_spilled}}),
    .bound = Bound::compute,
    // As with_short_rows; and scores are off by up to 2^-11 of themselves, which is 1e-2 where they come near to the cap. Weights
    // are off by as much there, half of that on average, and so are results, as each key's error is its own.
    .tolerance = within(1e-2, 0.4),
    .needs = {.min_sm = 90, .max_sm = 90},
    .sizes = sizes({{.name = "heads", .full = 16, .most = 256, .scales = false},
                    {.name = "tokens", .full = 16384},
                    {.name = "documents", .full = 8, .most = 1024, .scales = false}}),
    .sweep = cases({{"documents_1", "documents=1"},
                    {"documents_2", "documents=2"},
                    {"documents_4", "documents=4"},
                    {"documents_8", "documents=8"},
                    {"documents_16", "documents=16"},
                    {"documents_32", "documents=32"}}),
    .edges = cases({{"one_token", "heads=1,tokens=1"},
                    {"one_document", "heads=1,tokens=512,documents=1"},
                    {"tail", "heads=5,tokens=2713"},
                    {"a_document_each", "heads=2,tokens=300,documents=300"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch18
