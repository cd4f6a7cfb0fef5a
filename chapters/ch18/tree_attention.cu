// SPDX-License-Identifier: Apache-2.0
// Verification of a tree of draft tokens, as speculative decoding does it. Path by path, as sequences that share a context, the
// context is read again for each leaf, and nodes that paths share are computed again. All nodes together are the rows of one
// matrix product over the context, which every node sees whole: a word of 64 bits for each node says which of the last keys are
// its ancestors, and nothing else needs a mask. What limits is arithmetic then, which wgmma does faster.
#include <aisp/pair.hpp>

#include <bit>
#include <vector>

#include "attention/forward.hpp"
#include "cudnn_attention.hpp"
#include "decode_reference.hpp"
#include "draft_paths.cuh"
#include "draft_trees.hpp"
#include "mma_tiles.cuh"
#include "row_cache.hpp"

namespace aisp::ch18 {
namespace {

using attention::infinity, attention::Lengths, attention::Rows, attention::TileSpan;

// Stores the first of results that several paths have. in_step: all paths of a KV head, one after the other, instead of all KV
// heads of a path.
template <bool in_step>
__global__ __launch_bounds__(path_threads, 6) void path_kernel(const __grid_constant__ Draft draft, const std::uint64_t* blocks) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& tiles = *reinterpret_cast<PathTiles*>(memory);
  const auto path_of_block = [&] { return Path{blocks, in_step ? blockIdx.x : blockIdx.y}; };
  const Path path = path_of_block();
  if (path.length == 0) return;
  const int head = static_cast<int>(in_step ? blockIdx.y : blockIdx.x);
  const int end = draft.context + min(path.length, path.first + path_positions);
  unsigned q[head_size / 16][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool exists = path.position(half) < path.length;
    const bf16* const from = draft.q + (exists ? path.element(draft.nodes, head, half) : 0);
#pragma unroll
    for (int i = 0; i < head_size / 16; ++i)
#pragma unroll
      for (int side = 0; side < 2; ++side)
        q[i][side * 2 + half] = exists ? *reinterpret_cast<const unsigned*>(from + i * 16 + side * 8) : 0;
  }
  Rows rows;
  float sums[head_size / 8][4] = {};
  copy_path_tile(draft, path, tiles, 0, head, 0, end);
  device::commit_copies();
#pragma unroll 1
  for (int first = 0, slot = 0; first < end; first += path_keys, slot ^= 1) {
    if (first + path_keys < end) copy_path_tile(draft, path, tiles, slot ^ 1, head, first + path_keys, end);
    device::commit_copies();
    device::wait_copies<1>();
    __syncthreads();
    const unsigned from_k = device::shared_address(tiles.k[slot]) + row_tiles::lanes_by_columns(),
                   from_v = device::shared_address(tiles.v[slot]) + row_tiles::lanes_by_rows();
    float scores[path_keys / 2] = {};
#pragma unroll
    for (int i = 0; i < head_size / 16; ++i)
#pragma unroll
      for (int n = 0; n < path_keys / 16; ++n) {
        unsigned m[4];
        device::load_matrices(m, (from_k ^ i * 32) + n * 16 * row_tiles::pitch);
        device::mma_bf16(&scores[n * 8], q[i], m[0], m[1]);
        device::mma_bf16(&scores[n * 8 + 4], q[i], m[2], m[3]);
      }
    if (first + path_keys > draft.context) {
      const int column = first + mma_tiles::thread_again() % 4 * 2 - draft.context;
#pragma unroll
      for (int i = 0; i < path_keys / 2; ++i)
        if (column + i / 4 * 8 + i % 2 > path.position(i / 2 % 2)) scores[i] = -infinity;
    }
    float factor[2];
    if (attention::online_softmax(scores, rows, draft.scale_log2, factor)) {
#pragma unroll
      for (auto& of : sums) attention::rescale(of, factor);
    }
#pragma unroll
    for (int k = 0; k < path_keys / 16; ++k) {
      unsigned weights[4];
      attention::narrow(weights, scores, k);
#pragma unroll
      for (int n = 0; n < head_size / 16; ++n) {
        unsigned m[4];
        device::load_matrices_transposed(m, (from_v ^ n * 32) + k * 16 * row_tiles::pitch);
        device::mma_bf16(sums[n * 2], weights, m[0], m[1]);
        device::mma_bf16(sums[n * 2 + 1], weights, m[2], m[3]);
      }
    }
    __syncthreads();  // before the next but one tile comes to where this one was
  }
  attention::whole_sums(rows);
  const Path own = path_of_block();  // read again, so that no register holds it over the loop
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (own.position(half) >= own.length || own.position(half) < own.first_own) continue;
    bf16* const to = draft.o + own.element(draft.nodes, head, half);
    const float factor = attention::reciprocal(rows.sum[half]);
#pragma unroll
    for (int n = 0; n < head_size / 8; ++n)
      *reinterpret_cast<unsigned*>(to + n * 8) = device::narrow_bf16(sums[n][half * 2] * factor, sums[n][half * 2 + 1] * factor);
  }
}

// Which of 64 keys a node sees, as bits, the first of which is `first_node` nodes after the context, or below 0 within it: what
// is before the nodes is seen, what is after them is not.
__device__ __forceinline__ std::uint64_t seen_keys(std::uint64_t word, int first_node) {
  if (first_node >= 0) return first_node < 64 ? word >> first_node : 0;
  return first_node > -64 ? ~(~word << -first_node) : ~std::uint64_t{0};
}
// Hides others from one of a thread's two rows, of 64 keys.
template <int count>
__device__ __forceinline__ void hide_others(float (&scores)[count], int first, std::uint64_t seen) {
  const auto low = static_cast<unsigned>(seen), high = static_cast<unsigned>(seen >> 32);
#pragma unroll
  for (int i = 0; i < 32; i += 4)
#pragma unroll
    for (int j = 0; j < 2; ++j)
      if (((i < 16 ? low : high) >> (i / 4 * 8 + j) % 32 & 1) == 0) scores[first + i + j] = -infinity;
}

// Both ways to hide what is no ancestor, from the 16 rows from `row` on of a tile of keys from `first_key` on.
struct MaskTensor {
  const bf16* bias;
  int pitch;
  template <int count>
  __device__ __forceinline__ void operator()(float (&scores)[count], const Draft& draft, int sequence, int row,
                                             int first_key) const {
    const int lane = mma_tiles::thread_again() % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int node = (row + half * 8 + lane / 4) % draft.nodes;
      const bf16* const from = bias + static_cast<std::size_t>(sequence * draft.nodes + node) * pitch + first_key + lane % 4 * 2;
#pragma unroll
      for (int i = 2 * half; i < count; i += 4) {
        const unsigned both = *reinterpret_cast<const unsigned*>(from + i / 4 * 8);
        scores[i] += __uint_as_float(both << 16);
        scores[i + 1] += __uint_as_float(both & 0xFFFF0000);
      }
    }
  }
};
struct AncestorBits {
  const std::uint64_t* words;
  template <int count>
  __device__ __forceinline__ void operator()(float (&scores)[count], const Draft& draft, int sequence, int row,
                                             int first_key) const {
    if (first_key + mma_tiles::keys <= draft.context) return;
    const int lane = mma_tiles::thread_again() % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint64_t word = words[sequence * draft.nodes + (row + half * 8 + lane / 4) % draft.nodes];
      hide_others(scores, 2 * half, seen_keys(word, first_key + lane % 4 * 2 - draft.context));
    }
  }
};

// blockIdx.x: the block of rows; blockIdx.y: the KV head of all sequences'. Row r is of head r / nodes of the group and of node
// r % nodes.
template <class Hide>
__global__ __launch_bounds__(mma_tiles::threads, 2) void tree_kernel(const __grid_constant__ Draft draft, const Hide hide) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const auto first_row = [] { return static_cast<int>(blockIdx.x) * mma_tiles::query_rows; };
  const auto queries = [&] { return blockIdx.y * static_cast<unsigned>(group * draft.nodes); };  // before this KV head's
  mma_tiles::copy_rows<mma_tiles::query_rows>(memory, draft.q, (queries() + first_row()) * mma_tiles::row_chunks,
                                              group * draft.nodes - first_row());
  const mma_tiles::Lanes lanes{memory};
  float sums[2][head_size / 2] = {};
  Rows rows[2];
  int first_key = 0;
  const int keys = draft.context + draft.nodes;
  mma_tiles::sum_values(sums, memory, lanes, draft.k, draft.v,
                        mma_tiles::InOnePiece{blockIdx.y * static_cast<unsigned>(keys) * mma_tiles::row_chunks}, keys,
                        [&](int i, float(&scores)[mma_tiles::keys / 2], float(&sum)[head_size / 2]) {
                          hide(scores, draft, static_cast<int>(blockIdx.y) / kv_heads,
                               first_row() + mma_tiles::thread_again() / 32 * mma_tiles::warp_rows + i * 16, first_key);
                          float factor[2];
                          if (attention::online_softmax(scores, rows[i], draft.scale_log2, factor))
                            attention::rescale(sum, factor);
                          if (i == 1) first_key += mma_tiles::keys;
                        });
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    attention::whole_sums(rows[i]);
    const float factor[2] = {attention::reciprocal(rows[i].sum[0]), attention::reciprocal(rows[i].sum[1])};
    attention::rescale(sums[i], factor);
  }
  mma_tiles::store_rows(sums, memory, draft.o + std::size_t{queries()} * head_size, first_row(), group * draft.nodes);
}

// The same for the engine: only tiles with keys of nodes are hidden in part.
struct TreeMask {
  const std::uint64_t* words;
  int nodes, context;
};
__device__ __forceinline__ TileSpan tiles_of(const TreeMask& mask, int, int, int, int, const Lengths& lengths) {
  const int tiles = (lengths.keys + attention::tile_keys - 1) / attention::tile_keys;
  return {tiles, tiles - 1, -1, 0, mask.context / attention::tile_keys};
}
template <int count>
__device__ __forceinline__ void hide(const TreeMask& mask, float (&scores)[count], int sequence, int, int row, int first_key,
                                     int column, const Lengths&, float) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint64_t word = mask.words[sequence * mask.nodes + (row + half * 8) % mask.nodes];
#pragma unroll
    for (int part = 0; part < count / 32; ++part)
      hide_others(scores, part * 32 + 2 * half, seen_keys(word, first_key + part * 64 + column - mask.context));
  }
}

class TreeAttention final : public Workload {
  using Pass =
      attention::ForwardPass<head_size, head_size, TreeMask, attention::Dense, attention::Scaled, false, attention::InOrder>;

 public:
  explicit TreeAttention(Setup& setup)
      : trees_{setup.size("batch"), setup.size("nodes"), setup.size("context"), setup.size("extremes") != 0},
        q_{setup.input<bf16>(trees_.batch * heads * trees_.nodes * head_size, queries(), {.name = "q"})},
        k_{setup.input<bf16>(trees_.batch * kv_heads * trees_.keys() * head_size, keys(), {.name = "k"})},
        v_{setup.input<bf16>(k_.size(), normal(0, 1), {.name = "v"})},
        words_{setup.input<std::uint64_t>(trees_.words(), trees_and_masks(trees_), {.name = "trees"})},
        o_{setup.output<bf16>(q_.size(), {.name = "o", .groups = {trees_.nodes * head_size, trees_.batch * heads}})},
        reproducible_{setup.reproducible()},
        cudnn_{setup, shared::AttentionSizes{trees_.batch, heads, kv_heads, trees_.nodes, trees_.keys(), head_size},
               shared::Mask::none,
               shared::AttentionScores{.bias_pitch = trees_.pitch(), .biases = shared::AttentionScores::Biases::by_sequence}} {}

  Cost cost() const override {
    double seen = 0;  // keys, by all nodes
    for (std::size_t i = 0; i < trees_.batch * trees_.nodes; ++i)
      seen += static_cast<double>(trees_.context) + std::popcount(words_.host(i));
    return {.flops = 4 * seen * heads * head_size,
            .math = Math::bf16,
            .bytes = static_cast<double>(q_.bytes() + k_.bytes() + v_.bytes() + o_.bytes())};
  }
  void compute_reference(Launch&) override { rows_.forget(trees_.batch * heads * trees_.nodes); }
  double expected(std::size_t i) const override {
    const std::size_t row = i / head_size, node = row % trees_.nodes, head = row / trees_.nodes;
    const std::uint64_t word = words_.host(head / heads * trees_.nodes + node);
    return rows_.of(row, [&] {
      std::vector<std::size_t> ancestors;
      for (std::size_t bit = 0; bit < trees_.nodes; ++bit)
        if ((word >> bit & 1) != 0) ancestors.push_back(bit);
      const auto at = [&](std::size_t key, std::size_t d) {
        const std::size_t place = key < trees_.context ? key : trees_.context + ancestors[key - trees_.context];
        return (head / group * trees_.keys() + place) * head_size + d;
      };
      return attend(
          trees_.context + ancestors.size(), [&](std::size_t d) { return q_.host(row * head_size + d); },
          [&](std::size_t key, std::size_t d) { return k_.host(at(key, d)); },
          [&](std::size_t key, std::size_t d) { return v_.host(at(key, d)); });
    })[i % head_size];
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("draft_tokens", static_cast<double>(trees_.batch * trees_.nodes), "draft tokens of a layer/s");
  }

  void path_by_path(Launch& launch) {
    const dim3 blocks{kv_heads, static_cast<unsigned>(trees_.path_blocks())};
    launch(path_kernel<false>, {blocks, path_threads, sizeof(PathTiles)}, draft(), words_.get() + trees_.paths_begin());
  }
  void paths_in_step(Launch& launch) {
    const dim3 blocks{static_cast<unsigned>(trees_.path_blocks()), kv_heads};
    launch(path_kernel<true>, {blocks, path_threads, sizeof(PathTiles)}, draft(), words_.get() + trees_.paths_begin());
  }
  void dense_mask(Launch& launch) { in_one_pass(launch, MaskTensor{mask(), static_cast<int>(trees_.pitch())}); }
  void ancestor_bits(Launch& launch) { in_one_pass(launch, AncestorBits{words_}); }
  void tree_wgmma(Launch& launch) {
    const auto nodes = static_cast<int>(trees_.nodes), context = static_cast<int>(trees_.context);
    const std::size_t rows = group * trees_.nodes;
    const auto queries = [&](const bf16* data) { return attention::heads_first(data, trees_.batch, kv_heads, rows, head_size); };
    const auto cached = [&](const bf16* data) {
      return attention::heads_first(data, trees_.batch, kv_heads, trees_.keys(), head_size);
    };
    const Pass pass{{queries(q_), cached(k_), cached(v_), queries(o_)},
                    {.mask = {words_, nodes, context},
                     .keys = {group * nodes, context + nodes},
                     .score = {score_scale_log2()},
                     .order = attention::in_order(rows, kv_heads, trees_.batch)}};
    pass.run(launch);
  }
  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    cudnn_->tune(launch.stream, q_, k_, v_, o_, mask());
  }
  void cudnn_bias(Launch& launch) { cudnn_->run(launch.stream, q_, k_, v_, o_, mask()); }

 private:
  // A component of all queries that gives the keys of nodes as much weight as the context has: a wrong ancestor changes results.
  Pattern queries() const {
    return normal(0, 1).times(0.5, 2, all_of(Axis{trees_.nodes * head_size, group})).set(staircase_query, at(dimensions, 0));
  }
  Pattern keys() const {
    constexpr float of_nodes = 13.5;
    const Axis rows{head_size, trees_.keys()};
    return keys_in_motion(rows, {trees_.keys() * head_size, kv_heads})
        .set(of_nodes, at(rows, trees_.context, trees_.nodes), at(dimensions, 0));
  }
  Draft draft() const {
    return {q_, k_, v_, o_, static_cast<int>(trees_.nodes), static_cast<int>(trees_.context), score_scale_log2()};
  }
  const bf16* mask() const { return reinterpret_cast<const bf16*>(words_.get() + trees_.mask_begin()); }
  template <class Hide>
  void in_one_pass(Launch& launch, const Hide& hide) const {
    const auto rows = static_cast<unsigned>(group * trees_.nodes);
    const dim3 blocks{(rows + mma_tiles::query_rows - 1) / mma_tiles::query_rows, static_cast<unsigned>(trees_.batch * kv_heads)};
    launch(tree_kernel<Hide>, {blocks, mma_tiles::threads, mma_tiles::shared_bytes}, draft(), hide);
  }

  DraftTrees trees_;
  Input<bf16> q_, k_, v_;
  Input<std::uint64_t> words_;
  Output<bf16> o_;
  bool reproducible_;
  Opened<shared::CudnnAttention> cudnn_;
  shared::RowCache<Row> rows_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair tree_attention{
    .teaches = "a tree of draft tokens is verified in one pass over the context: a word of ancestors per node is all its mask",
    .lesson = "ancestor_bits",
    .make = make<TreeAttention>,
    .baseline = {.name = "path_by_path", .run = call<&TreeAttention::path_by_path>, .kernels = nothing_spilled},
    .optimized = variants({{.name = "dense_mask", .run = call<&TreeAttention::dense_mask>, .kernels = nothing_spilled},
                           {.name = "ancestor_bits",
                            .run = call<&TreeAttention::ancestor_bits>,
                            .same_bits_as = "dense_mask",
                            .kernels = nothing_spilled},
                           {.name = "tree_wgmma",
                            .run = call<&TreeAttention::tree_wgmma>,
                            .needs = {.min_sm = 90, .max_sm = 90},
                            .kernels = nothing_spilled}}),
    // Every hit in L2 that the order of blocks can give: what is read again costs L2 and products then, and no device memory.
    .controls = variants({{.name = "paths_in_step",
                           .run = call<&TreeAttention::paths_in_step>,
                           .same_bits_as = "path_by_path",
                           .kernels = nothing_spilled}}),
    .libraries = variants({{.name = "cudnn_bias",
                            .run = call<&TreeAttention::cudnn_bias>,
                            .prepare = call<&TreeAttention::tune_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::compute,
    // Weights and results are rounded to bf16 once each: 1.6e-3 twice, 2.3e-3 together. A row of 128 elements scatters, and where
    // one key has all the weight its rounding is common to all of them: up to 2^-9.
    .tolerance = within(5e-3),
    .sizes = sizes({{.name = "batch", .full = 16, .most = 1024},
                    {.name = "nodes", .full = most_nodes, .most = most_nodes, .scales = false},
                    {.name = "context", .full = 8192, .most = 1 << 17, .scales = false},
                    option("extremes")}),
    .sweep = cases({{"nodes_1", "nodes=1"}, {"nodes_4", "nodes=4"}, {"nodes_16", "nodes=16"}, {"nodes_64", "nodes=64"}}),
    .edges = cases({{"one_key", "batch=3,context=1,extremes=1"},
                    {"a_key_less", "batch=3,context=127,extremes=1"},
                    {"one_node", "batch=2,nodes=1,context=130"},
                    {"odd_nodes", "batch=5,nodes=37,context=1000,extremes=1"}}),
    .reference_samples = 512,
};

}  // namespace aisp::ch18
