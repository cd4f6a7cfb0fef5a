// SPDX-License-Identifier: Apache-2.0
// One step of decoding over contexts of which few pages matter. The largest and smallest components of a page's keys bound every
// score in it, and rank all pages for a 64th of the cache's bytes. Used as a mask that saves nothing: hidden keys are read as all
// others. Pages must be left out of the loop and, since the best ones may be neighbours, shared out evenly, as a list. What then
// remains to shorten are the steps before the decoding.
#include <aisp/pair.hpp>

#include <algorithm>
#include <numeric>
#include <vector>

#include "cudnn_attention.hpp"
#include "page_select.cuh"
#include "row_cache.hpp"

namespace aisp::ch18 {
namespace {

using namespace attention;

// KV heads of all sequences count as sequences of one KV head: each has pages of its own.
constexpr int group = 4, heads = group * kv_heads, dense_pieces = 2;

// Scores of pages that were not chosen are hidden once they are computed.
struct HidePages {
  const unsigned* mask;
  template <class S>
  __device__ __forceinline__ void operator()(DecodeWarp<S>& own, float (&scores)[8], int first) const {
    own.score(scores);
    const int page = first / page_keys;
    if (mask[page / 32] >> page % 32 & 1) return;
#pragma unroll
    for (float& score : scores) score = -infinity;
  }
};
using Dense = Decode<ContiguousCache, FixedSplits, float>;
__global__ __launch_bounds__(decode_threads, 2) void masked_kernel(const __grid_constant__ Dense work, const unsigned* masks,
                                                                   int words) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Piece piece;
  work.splits.piece(static_cast<int>(blockIdx.y), piece);
  decode_block<head_size, group, 1>(work, 0, piece, memory, HidePages{masks + std::size_t(piece.sequence) * words});
}

// Pages by their numbers in shared memory.
struct ChosenPages {
  const bf16 *k, *v;
  std::size_t sequence;
  const int* entries;
  __device__ __forceinline__ std::size_t at(int of, int, int row) const {
    return of * sequence + (std::size_t(entries[row / page_keys]) * page_keys + row % page_keys) * head_size;
  }
};
// A block's keys to decode: the pages of its part of the context whose bit is set, and how many keys they have.
struct FromMasks {
  const unsigned* masks;
  int words;
  __device__ __forceinline__ int fetch(const Piece& piece, int* entries) const {
    __shared__ int count;
    const unsigned* const mask = masks + std::size_t(piece.sequence) * words;
    const int lane = static_cast<int>(threadIdx.x) % 32, end = (piece.end + page_keys - 1) / page_keys;
    if (threadIdx.x < 32) {
      int found = 0, keys = 0;
      for (int first = piece.begin / page_keys; first < end; first += 32) {
        const int page = first + lane;
        const bool chosen = page < end && (mask[page / 32] >> page % 32 & 1);
        const unsigned bits = __ballot_sync(~0u, chosen);
        if (chosen) entries[found + __popc(bits & ((1u << lane) - 1))] = page;
        if (chosen) keys += min(page_keys, piece.end - page * page_keys);
        found += __popc(bits);
      }
      keys = device::warp_sum(keys);
      if (lane == 0) count = keys;
    }
    __syncthreads();
    return count;
  }
};
// Or an equal part of the list.
struct FromLists {
  const int* lists;
  int kept;
  __device__ __forceinline__ int fetch(const Piece& piece, int* entries) const {
    const int* const from = lists + std::size_t(piece.sequence) * kept + piece.begin / page_keys;
    for (int i = static_cast<int>(threadIdx.x); i * page_keys < piece.end - piece.begin; i += decode_threads)
      entries[i] = from[i];
    __syncthreads();
    return max(piece.end - piece.begin, 0);
  }
};
template <class Pages, bool dependent>
__global__ __launch_bounds__(decode_threads, 2) void pages_kernel(const __grid_constant__ Dense work, Pages pages) {
  extern __shared__ __align__(1024) unsigned char memory[];
  int* const entries = reinterpret_cast<int*>(memory + decode_shared_bytes<head_size, group, 1>);
  if constexpr (dependent) {
    device::let_dependents_start();
    device::wait_for_previous_kernel();
  }
  Piece piece;
  work.splits.piece(static_cast<int>(blockIdx.y), piece);
  const int keys = pages.fetch(piece, entries);
  const Decode<ChosenPages, FixedSplits, float> chosen{
      work.q,       {work.cache.k, work.cache.v, work.cache.sequence, entries}, work.splits, work.heads, work.scale_log2, work.o,
      work.log_sums};
  decode_block<head_size, group, 1>(chosen, 0, Piece{piece.sequence, 0, keys, piece.slot}, memory);
}

// As merge_states, after a kernel that is still running.
__global__ __launch_bounds__(merge_threads) void dependent_merge_kernel(FixedSplits splits, const float* parts,
                                                                        const float* part_log_sums, bf16* o) {
  static_assert(merge_threads / 32 == group, "a warp merges a head");
  device::wait_for_previous_kernel();
  const int of = static_cast<int>(blockIdx.x), row = static_cast<int>(threadIdx.x) / 32;
  merge_row<head_size>(parts, part_log_sums, group, row, splits.first_state(of), splits.first_state(of + 1),
                       o + (std::size_t(of) * group + row) * head_size, static_cast<float*>(nullptr));
}

class BlockSparseAttention final : public Workload {
 public:
  explicit BlockSparseAttention(Setup& setup)
      : all_{setup.size("batch") * kv_heads},
        context_{setup.size("context")},
        pages_{(context_ + page_keys - 1) / page_keys},
        kept_{setup.size("kept")},
        pieces_{static_cast<int>(setup.size("pieces"))},
        q_{setup.input<bf16>(all_ * group * head_size,
                             integers(-16, 16)
                                 .times(grid_step, all_of(dimensions))
                                 .set(4, at(Axis{group * head_size, kv_heads}, 0, 2), at(dimensions, 0))
                                 .set(4, at(Axis{group * head_size, kv_heads}, 3), at(dimensions, 0)),
                             {.name = "q"})},
        k_{setup.input<bf16>(all_ * capacity() * head_size, keys(), {.name = "k", .constant = true})},
        v_{setup.input<bf16>(k_.size(), with_hidden_rows(normal(0, 1)), {.name = "v"})},
        lengths_{setup.input<int>(all_, constant(static_cast<float>(context_)), {.name = "lengths", .constant = true})},
        o_{setup.output<bf16>(q_.size(), {.name = "o", .groups = {head_size, all_ * group}})},
        masks_{setup.output<unsigned>(all_ * words(), {.name = "chosen pages"})},
        bounds_{setup.scratch<bf16>(2 * all_ * pages_ * head_size, {.name = "bounds"})},
        scores_{setup.scratch<float>(all_ * pages_, {.name = "scores of pages"})},
        parts_{setup.scratch<float>(most_pieces() * q_.size(), {.name = "results of pieces"})},
        part_log_sums_{setup.scratch<float>(most_pieces() * all_ * group, {.name = "log-sum-exps of pieces"})},
        lists_{setup.scratch<int>(all_ * (kept_ + 1), {.name = "lists of pages and counts of keys"})},
        exact_{setup.scratch<double>(all_ * pages_, {.name = "float64 scores"})},
        reproducible_{setup.reproducible()},
        cudnn_{setup, shared::AttentionSizes{all_ / kv_heads, heads, kv_heads, 1, capacity(), head_size}} {}

  Cost cost() const override { return cost_of(std::min(kept_ * page_keys, context_), 2 * pages_); }
  Cost variant_cost(std::string_view variant) const override { return reads_all(variant) ? cost_of(context_, 0) : cost(); }
  void compute_reference(Launch& launch) override {
    rows_.forget(all_ * group);
    std::vector<double> scores(all_ * pages_);
    launch(exact_scores_kernel<group>, {page_grid(pages_), head_size}, q_.get(), k_.get(), context_, capacity(), exact_.get());
    check(cudaStreamSynchronize(launch.stream));
    check(cudaMemcpy(scores.data(), exact_, exact_.bytes(), cudaMemcpyDeviceToHost));
    const std::size_t count = std::min(kept_, pages_);
    chosen_.assign(all_ * kept_ + all_, 0);
    expected_masks_.assign(all_ * words(), 0);
    std::vector<int> order(pages_);
    for (std::size_t of = 0; of < all_; ++of) {
      const double* const score = scores.data() + of * pages_;
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return score[a] > score[b]; });
      std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count));
      std::copy_n(order.begin(), count, chosen_.begin() + static_cast<std::ptrdiff_t>(of * kept_));
      for (std::size_t i = 0; i < count; ++i) {
        const auto page = static_cast<std::size_t>(order[i]);
        expected_masks_[of * words() + page / 32] |= 1u << page % 32;
        chosen_[all_ * kept_ + of] += static_cast<int>(std::min<std::size_t>(page_keys, context_ - page * page_keys));
      }
    }
    measure_captured(launch);
  }
  double expected_output(int output, std::size_t i) const override {
    if (output == 1) return expected_masks_[i];
    const std::size_t row = i / head_size, of = row / group;
    const auto at = [&](std::size_t key, std::size_t d) {
      const auto page = static_cast<std::size_t>(chosen_[of * kept_ + key / page_keys]);
      return (of * capacity() + page * page_keys + key % page_keys) * head_size + d;
    };
    return rows_.of(row, [&] {
      return attend(
          static_cast<std::size_t>(chosen_[all_ * kept_ + of]), [&](std::size_t d) { return q_.host(row * head_size + d); },
          [&](std::size_t key, std::size_t d) { return k_.host(at(key, d)); },
          [&](std::size_t key, std::size_t d) { return v_.host(at(key, d)); });
    })[i % head_size];
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(all_ / kv_heads), "tokens of a layer/s");
    if (!reads_all(variant)) metrics.report("captured_mass", 100 * captured_, "% of all weights", Metrics::Better::higher);
  }

  // Computes the bounds that appending keys keeps up to date.
  void make_bounds(Launch& launch) {
    launch(bounds_kernel, {page_grid(pages_), head_size}, k_.get(), context_, capacity(), bounds_.get(),
           bounds_.get() + bounds_.size() / 2);
  }
  void masked(Launch& launch) {
    score_and_select(launch, nullptr);
    launch(masked_kernel, decode_grid<head_size, group>(1, all() * dense_pieces), dense_work(), masks_.get(), words());
    merge(launch, lengths_, dense_pieces);
  }
  void skip_pages(Launch& launch) {
    score_and_select(launch, nullptr);
    launch(pages_kernel<FromMasks, false>, pages_grid(dense_pieces), dense_work(), FromMasks{masks_, static_cast<int>(words())});
    merge(launch, lengths_, dense_pieces);
  }
  void page_list(Launch& launch) {
    score_and_select(launch, lists_);
    launch(pages_kernel<FromLists, false>, pages_grid(pieces_), listed_work(), from_lists());
    merge(launch, counts(), pieces_);
  }
  void fused_scoring(Launch& launch) {
    fused(launch);
    launch(pages_kernel<FromLists, false>, pages_grid(pieces_), listed_work(), from_lists());
    merge(launch, counts(), pieces_);
  }
  void fused_scoring_pdl(Launch& launch) {
    fused(launch);
    Grid grid = pages_grid(pieces_);
    grid.overlapping = true;
    launch(pages_kernel<FromLists, true>, grid, listed_work(), from_lists());
    launch(dependent_merge_kernel, {.blocks = static_cast<unsigned>(all_), .threads = merge_threads, .overlapping = true},
           FixedSplits{counts(), pieces_}, parts_.get(), part_log_sums_.get(), o_.get());
  }
  void dense(Launch& launch) {
    launch(decode_kernel<head_size, group, 1, ContiguousCache, FixedSplits, float>,
           decode_grid<head_size, group>(1, all() * dense_pieces), dense_work());
    merge(launch, lengths_, dense_pieces);
  }
  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    cudnn_->tune(launch.stream, q_, k_, v_, o_);
  }
  void cudnn_dense(Launch& launch) { cudnn_->run(launch.stream, q_, k_, v_, o_); }

 private:
  static bool reads_all(std::string_view variant) { return variant == "dense" || variant == "cudnn_dense"; }
  std::size_t capacity() const { return pages_ * page_keys; }
  std::size_t words() const { return (pages_ + 31) / 32; }
  std::size_t most_pieces() const { return static_cast<std::size_t>(std::max(pieces_, dense_pieces)); }
  int all() const { return static_cast<int>(all_); }
  int* counts() const { return lists_.get() + all_ * kept_; }
  dim3 page_grid(std::size_t blocks) const { return {static_cast<unsigned>(blocks), static_cast<unsigned>(all_)}; }
  Grid pages_grid(int pieces) const {
    Grid grid = decode_grid<head_size, group>(1, all() * pieces);
    grid.shared_bytes += (pages_ / static_cast<std::size_t>(pieces) + 1) * sizeof(int);
    return grid;
  }
  Dense work(const FixedSplits& splits) const {
    return {q_, {k_, v_, head_size, 0, capacity() * head_size}, splits, group, score_scale_log2(), parts_, part_log_sums_};
  }
  Dense dense_work() const { return work({lengths_, dense_pieces}); }
  Dense listed_work() const { return work({counts(), pieces_}); }
  FromLists from_lists() const { return {lists_, static_cast<int>(kept_)}; }
  Bounds bounds() const { return {bounds_, bounds_.get() + bounds_.size() / 2, static_cast<int>(pages_)}; }
  Selection selection(int* lists) const {
    return {static_cast<int>(pages_), static_cast<int>(kept_), static_cast<int>(context_), masks_, lists, counts()};
  }
  void score_and_select(Launch& launch, int* lists) const {
    launch(score_kernel<group>, {page_grid((pages_ + page_keys - 1) / page_keys), decode_threads}, q_.get(), bounds(),
           scores_.get());
    const float* const scores = scores_;
    launch(select_kernel, {static_cast<unsigned>(all_), select_threads, select_shared_bytes(pages_)}, scores, selection(lists));
  }
  void fused(Launch& launch) const {
    launch(score_and_select_kernel<group>, {static_cast<unsigned>(all_), select_threads, select_shared_bytes(pages_)}, q_.get(),
           bounds(), selection(lists_));
  }
  void merge(Launch& launch, const int* lengths, int pieces) const {
    float* const no_log_sums = nullptr;
    launch(merge_states<head_size, FixedSplits, float, bf16>, merge_grid(group, all()), FixedSplits{lengths, pieces},
           parts_.get(), part_log_sums_.get(), group, o_.get(), no_log_sums);
  }
  // How much of the softmax's weight the chosen pages have, on average over all query heads.
  void measure_captured(Launch& launch) {
    check(cudaMemcpy(lists_, chosen_.data(), chosen_.size() * sizeof(int), cudaMemcpyHostToDevice));
    std::vector<float> log_sums[2];
    for (std::vector<float>& to : log_sums) {
      if (&to == log_sums) launch(pages_kernel<FromLists, false>, pages_grid(1), work({counts(), 1}), from_lists());
      else
        launch(decode_kernel<head_size, group, 1, ContiguousCache, FixedSplits, float>, decode_grid<head_size, group>(1, all()),
               work({lengths_, 1}));
      check(cudaStreamSynchronize(launch.stream));
      to.resize(all_ * group);
      check(cudaMemcpy(to.data(), part_log_sums_, to.size() * sizeof(float), cudaMemcpyDeviceToHost));
    }
    captured_ = 0;
    for (std::size_t i = 0; i < all_ * group; ++i) captured_ += std::exp(double{log_sums[0][i]} - double{log_sums[1][i]});
    captured_ /= static_cast<double>(all_ * group);
  }
  Cost cost_of(std::size_t keys, std::size_t bounds) const {
    const auto rows = static_cast<double>(all_ * keys), of_bounds = static_cast<double>(all_ * bounds);
    return {.flops = (4 * rows + 2 * of_bounds) * group * head_size,
            .math = Math::bf16,
            .bytes = (2 * rows + of_bounds) * head_size * sizeof(bf16) + static_cast<double>(q_.bytes() + o_.bytes())};
  }
  // One of the eight KV heads has its best pages side by side, one spread, one has equal pages and one equal pages after the 20
  // best; in two scores grow or shrink along the context.
  Pattern keys() const {
    const Axis pages{page_keys * head_size, pages_}, of_heads{capacity() * head_size, kv_heads}, rows{head_size, capacity()};
    const std::uint64_t many = std::min<std::uint64_t>(32, pages_ - pages_ / 3);
    const Pattern most = normal(0, 1)
                             .set(24, at(pages, pages_ / 3, many), at(of_heads, 0), at(dimensions, 0))
                             .set(24, drawn(pages, 32), at(of_heads, 1), at(dimensions, 0))
                             .set(0.5, all_of(pages), at(of_heads, 2, 2))
                             .set(4, drawn(pages, 20), at(of_heads, 3), at(dimensions, 0))
                             .times(1, 8, all_of(rows), at(of_heads, 4));
    return capacity() > context_ ? with_hidden_rows(most) : most.times(8, 1, all_of(rows), at(of_heads, 5));
  }
  Pattern with_hidden_rows(const Pattern& pattern) const {
    if (capacity() == context_) return pattern;
    return pattern.set(std::numeric_limits<float>::quiet_NaN(), at(Axis{head_size, capacity()}, context_, capacity() - context_));
  }

  std::size_t all_, context_, pages_, kept_;  // all_: KV heads of all sequences
  int pieces_;
  Input<bf16> q_, k_, v_;  // k and v: [sequence][KV head][row][head_size]
  Input<int> lengths_;
  Output<bf16> o_;
  Output<unsigned> masks_;
  Scratch<bf16> bounds_;
  Scratch<float> scores_, parts_, part_log_sums_;
  Scratch<int> lists_;
  Scratch<double> exact_;
  bool reproducible_;
  Opened<shared::CudnnAttention> cudnn_;
  std::vector<int> chosen_;  // as lists_
  std::vector<unsigned> expected_masks_;
  double captured_ = 0;
  shared::RowCache<Row> rows_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair block_sparse_attention{
    .teaches = "decoding over a long context can choose what it reads: bounds of the keys rank pages, and only the best are read",
    .lesson = "page_list",
    .make = make<BlockSparseAttention>,
    .baseline = {.name = "masked",
                 .run = call<&BlockSparseAttention::masked>,
                 .prepare = call<&BlockSparseAttention::make_bounds>,
                 .kernels = nothing_spilled},
    .optimized = variants({{.name = "skip_pages",
                            .run = call<&BlockSparseAttention::skip_pages>,
                            .prepare = call<&BlockSparseAttention::make_bounds>,
                            .same_bits_as = "masked",
                            .kernels = nothing_spilled},
                           {.name = "page_list",
                            .run = call<&BlockSparseAttention::page_list>,
                            .prepare = call<&BlockSparseAttention::make_bounds>,
                            .kernels = nothing_spilled},
                           {.name = "fused_scoring",
                            .run = call<&BlockSparseAttention::fused_scoring>,
                            .prepare = call<&BlockSparseAttention::make_bounds>,
                            .same_bits_as = "page_list",
                            .kernels = nothing_spilled},
                           {.name = "fused_scoring_pdl",
                            .run = call<&BlockSparseAttention::fused_scoring_pdl>,
                            .prepare = call<&BlockSparseAttention::make_bounds>,
                            .needs = {.min_sm = 90},
                            .same_bits_as = "page_list",
                            .kernels = nothing_spilled}}),
    // The times that selecting must beat: all keys, and no scores of pages.
    .controls =
        variants({{.name = "dense", .run = call<&BlockSparseAttention::dense>, .outputs = no_outputs, .kernels = nothing_spilled},
                  {.name = "cudnn_dense",
                   .run = call<&BlockSparseAttention::cudnn_dense>,
                   .prepare = call<&BlockSparseAttention::tune_cudnn>,
                   .needs = {.libraries = {Library::cudnn}},
                   .outputs = no_outputs}}),
    .bound = Bound::memory,
    // Weights and results are rounded to bf16 once each: 1.6e-3 twice, 2.3e-3 together. A group of 128 elements scatters, and
    // where one key has all the weight its rounding is common to all of them: up to 2^-9. Pages are the same ones.
    .tolerance = per_output({within(5e-3), exact}),
    .sizes = sizes({{.name = "batch", .full = 16, .most = 256},
                    {.name = "context", .full = 65536, .most = 1 << 18, .scales = false},
                    {.name = "kept", .full = 32, .most = 4096, .scales = false},
                    // Into which a KV head's list of pages is cut.
                    {.name = "pieces", .full = 2, .most = 16, .scales = false}}),
    .sweep = cases({{"kept_8", "kept=8"},
                    {"kept_16", "kept=16"},
                    {"kept_32", "kept=32"},
                    {"kept_64", "kept=64"},
                    {"kept_128", "kept=128"},
                    {"kept_256", "kept=256"},
                    {"kept_1024", "kept=1024"}}),
    .edges = cases({{"one_key", "batch=1,context=1"},
                    {"a_page_and_a_key", "batch=2,context=65"},
                    {"as_many_as_kept", "batch=1,context=2048"},
                    {"one_key_more", "batch=2,context=2049"},
                    {"one_page_kept", "batch=3,context=8191,kept=1"},
                    {"uneven_pieces", "batch=2,context=12345,kept=37,pieces=5"}}),
    .reference_samples = 256,
};

}  // namespace aisp::ch18
