// SPDX-License-Identifier: Apache-2.0
// One step of decoding for sequences whose contexts differ a hundredfold. Without a reason to split, as there are blocks enough
// for all multiprocessors, one block reads the longest context alone, and the step takes as long as that. Equally many pieces of
// each sequence make short ones shorter, too. Pieces of equal length make work even, whatever lengths are; they are listed on the
// GPU, since lengths change with every step, and their states are merged.
#include <aisp/device_attribute.hpp>
#include <aisp/pair.hpp>

#include <array>
#include <numeric>
#include <vector>

#include "cudnn_paged.hpp"
#include "decode_reference.hpp"
#include "row_cache.hpp"

namespace aisp::ch18 {
namespace {

using namespace attention;

constexpr int group = 4, heads = group * kv_heads, page_rows = 16, fixed_pieces = 16;
using Cache = PagedCache<page_rows>;

// The sequences as they are, the longest first.
struct ByLength {
  const int *lengths, *order;
  __device__ __forceinline__ bool piece(int index, Piece& piece) const {
    const int sequence = order[index];
    piece = {sequence, 0, lengths[sequence], sequence};
    return true;
  }
};
constexpr int order_threads = 256;
__global__ __launch_bounds__(order_threads) void order_kernel(const int* lengths, int sequences, int* order) {
  for (int i = static_cast<int>(threadIdx.x); i < sequences; i += order_threads) {
    int place = 0;
    for (int j = 0; j < sequences; ++j) place += lengths[j] > lengths[i] || (lengths[j] == lengths[i] && j < i);
    order[place] = i;
  }
}

// A piece as in decode_kernel. Whoever finishes the last piece of a sequence's KV head merges them all, in their order, and
// leaves the count at 0 for the next run.
__global__ __launch_bounds__(decode_threads,
                             2) void last_merges_kernel(const __grid_constant__ Decode<Cache, ListedSplits, float> work, bf16* o,
                                                        unsigned* finished) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ bool last;
  const int head = static_cast<int>(blockIdx.x);
  Piece piece;
  if (!work.splits.piece(static_cast<int>(blockIdx.y), piece)) return;
  decode_block<head_size, group, 1>(work, head, piece, memory);
  __syncthreads();
  const int first = work.splits.first_state(piece.sequence), end = work.splits.first_state(piece.sequence + 1);
  if (threadIdx.x == 0) {
    unsigned& count = finished[piece.sequence * kv_heads + head];
    __threadfence();
    last = atomicAdd(&count, 1) == static_cast<unsigned>(end - first - 1);
    if (last) count = 0;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  static_assert(decode_warps == group, "a warp merges a head");
  const int row = head * group + static_cast<int>(threadIdx.x) / 32;
  merge_row<head_size>(work.o, work.log_sums, heads, row, first, end, o + (std::size_t(piece.sequence) * heads + row) * head_size,
                       static_cast<float*>(nullptr));
}

// Sizes that follow from the options alone.
struct Layout {
  std::size_t batch, total, longest;
  std::size_t pages() const { return total / page_rows + batch; }
  std::size_t table_stride() const { return (longest / page_rows + 4) / 4 * 4; }  // cuDNN wants addresses of 16 bytes
};

// Log-normal lengths, none above `longest`, that together with one of `longest` and, where there is room, some planted ones make
// up `total`.
std::vector<int> lengths_of(const Layout& layout, std::uint64_t seed) {
  std::vector<int> lengths(layout.batch, 0);
  lengths[0] = static_cast<int>(std::min(layout.longest, layout.total));
  constexpr std::array planted{0, 1, 2, 15, 16, 17};
  std::size_t fixed = 1;
  if (layout.batch > planted.size() + 1)
    for (const int length : planted) lengths[fixed++] = std::min(length, static_cast<int>(layout.longest));
  const double left = static_cast<double>(layout.total) - std::accumulate(lengths.begin(), lengths.end(), 0.0);
  std::vector<double> weights(layout.batch - fixed);
  for (std::size_t i = 0; i < weights.size(); ++i)
    weights[i] = std::exp(static_cast<double>(pattern_value<float>(normal(0, 1), seed, i)));
  // The excess cut off at the longest is given to the others; a few rounds are enough.
  double scale = 0;
  for (int round = 0; round < 8; ++round) {
    double free = 0, cut = 0;
    for (const double weight : weights)
      if (weight * scale >= static_cast<double>(layout.longest)) cut += static_cast<double>(layout.longest);
      else free += weight;
    if (free > 0) scale = std::max(0.0, left - cut) / free;
  }
  double rest = left;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double length = std::min({std::floor(weights[i] * scale), static_cast<double>(layout.longest), std::floor(rest)});
    lengths[fixed + i] = static_cast<int>(std::max(0.0, length));
    rest -= lengths[fixed + i];
  }
  for (std::size_t i = lengths.size(); i > 1; --i) std::swap(lengths[i - 1], lengths[random_bits(~seed, i) % i]);
  return lengths;
}

// A table of pages for each sequence, in random order; entries after its end name the first page. Then the lengths.
HostFill<int> tables_and_lengths(const Layout& layout) {
  return [layout](std::span<int> values, std::uint64_t seed) {
    const std::vector<int> lengths = lengths_of(layout, seed);
    std::vector<int> pages(layout.pages());
    std::iota(pages.begin(), pages.end(), 0);
    for (std::size_t i = pages.size(); i > 1; --i) std::swap(pages[i - 1], pages[random_bits(seed, i) % i]);
    std::ranges::fill(values, 0);
    std::size_t next = 0;
    for (std::size_t s = 0; s < layout.batch; ++s) {
      const auto length = static_cast<std::size_t>(lengths[s]);
      for (std::size_t i = 0; i * page_rows < length; ++i) values[s * layout.table_stride() + i] = pages[next++];
      values[layout.batch * layout.table_stride() + s] = lengths[s];
    }
  };
}

class RaggedDecodeBalance final : public Workload {
 public:
  explicit RaggedDecodeBalance(Setup& setup)
      : layout_{setup.size("batch"), setup.size("total"), setup.size("longest")},
        batch_{static_cast<int>(layout_.batch)},
        wanted_{std::max(1, static_cast<int>(setup.size("waves") * 2 * multiprocessors() / kv_heads))},
        q_{setup.input<bf16>(layout_.batch * heads * head_size, queries_in_motion(group), {.name = "q"})},
        k_{setup.input<bf16>(layout_.pages() * page_elements, keys(), {.name = "k pages"})},
        v_{setup.input<bf16>(k_.size(), normal(0, 1), {.name = "v pages"})},
        tables_{setup.input<int>(layout_.batch * (layout_.table_stride() + 1), tables_and_lengths(layout_),
                                 {.name = "tables and lengths"})},
        ones_{setup.input<int>(layout_.batch, constant(1), {.name = "queries of each sequence", .constant = true})},
        o_{setup.output<bf16>(q_.size(), {.name = "o", .groups = {head_size, layout_.batch * heads}})},
        parts_{setup.scratch<float>(most_pieces() * heads * head_size, {.name = "results of pieces"})},
        part_log_sums_{setup.scratch<float>(most_pieces() * heads, {.name = "log-sum-exps of pieces"})},
        list_{setup.scratch<Piece>(listed_pieces(), {.name = "pieces"})},
        begins_{setup.scratch<int>(layout_.batch + 1, {.name = "first pieces"})},
        order_{setup.scratch<int>(layout_.batch, {.name = "order"})},
        finished_{setup.scratch<unsigned>(layout_.batch * kv_heads, {.name = "finished pieces"})},
        reproducible_{setup.reproducible()},
        cudnn_{setup,
               CudnnPagedSizes{layout_.batch, heads, kv_heads, head_size, layout_.pages(), page_rows, layout_.table_stride()}} {
    if (layout_.longest > layout_.total) throw Unsupported{"the longest context is part of the total"};
  }

  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(layout_.batch), "tokens of a layer/s");
  }
  Cost cost() const override {
    const auto rows = static_cast<double>(layout_.total);
    return {.flops = 4 * rows * heads * head_size,
            .math = Math::bf16,
            .bytes = rows * 2 * kv_heads * head_size * sizeof(bf16) + static_cast<double>(q_.bytes() + o_.bytes())};
  }
  void compute_reference(Launch&) override { rows_.forget(layout_.batch * heads); }
  double expected(std::size_t i) const override {
    const std::size_t row = i / head_size, sequence = row / heads, head = row % heads / group;
    const auto at = [&](std::size_t key, std::size_t d) {
      const auto page = static_cast<std::size_t>(tables_.host(sequence * layout_.table_stride() + key / page_rows));
      return page * page_elements + (head * page_rows + key % page_rows) * head_size + d;
    };
    return rows_.of(row, [&] {
      return attend(
          static_cast<std::size_t>(tables_.host(layout_.batch * layout_.table_stride() + sequence)),
          [&](std::size_t d) { return q_.host(row * head_size + d); },
          [&](std::size_t key, std::size_t d) { return k_.host(at(key, d)); },
          [&](std::size_t key, std::size_t d) { return v_.host(at(key, d)); });
    })[i % head_size];
  }

  void whole_sequences(Launch& launch) { decode<FixedSplits, bf16>(launch, {lengths(), 1}, batch_, o_, nullptr); }
  void longest_first(Launch& launch) {
    launch(order_kernel, {1, order_threads}, lengths(), batch_, order_.get());
    decode<ByLength, bf16>(launch, {lengths(), order_}, batch_, o_, nullptr);
  }
  void fixed_split(Launch& launch) {
    const FixedSplits splits{lengths(), fixed_pieces};
    decode<FixedSplits, float>(launch, splits, batch_ * fixed_pieces, parts_, part_log_sums_);
    merge(launch, splits);
  }
  void balanced_split(Launch& launch) {
    list(launch);
    decode<ListedSplits, float>(launch, listed(), static_cast<int>(listed_pieces()), parts_, part_log_sums_);
    merge(launch, listed());
  }
  // Once: each run leaves the counts as they were.
  void clear_finished(Launch& launch) { check(cudaMemsetAsync(finished_, 0, finished_.bytes(), launch.stream)); }
  void last_merges(Launch& launch) {
    list(launch);
    launch(last_merges_kernel, decode_grid<head_size, group>(kv_heads, static_cast<int>(listed_pieces())),
           work<ListedSplits, float>(listed(), parts_, part_log_sums_), o_, finished_);
  }
  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    cudnn_->tune(launch.stream, {q_, k_, v_, o_, tables_, ones_, lengths()});
  }
  void cudnn_paged(Launch& launch) { cudnn_->run(launch.stream, {q_, k_, v_, o_, tables_, ones_, lengths()}); }

 private:
  static constexpr std::size_t page_elements = std::size_t{kv_heads} * page_rows * head_size;
  // The table shuffles the pages, so a ramp and a staircase along them make maxima jump.
  Pattern keys() const {
    const Axis pages{page_elements, layout_.pages()}, of_heads{page_rows * head_size, kv_heads};
    return normal(0, 1)
        .times(1, 8, all_of(pages), at(of_heads, 0))
        .plus_steps(staircase_powers / (staircase_query * score_scale_log2()), std::max<std::size_t>(1, layout_.pages() / 64),
                    all_of(pages), at(of_heads, 2, 2), at(dimensions, 0));
  }
  std::size_t listed_pieces() const { return static_cast<std::size_t>(wanted_) + layout_.batch; }
  std::size_t most_pieces() const { return std::max(listed_pieces(), layout_.batch * fixed_pieces); }
  const int* lengths() const { return tables_.get() + layout_.batch * layout_.table_stride(); }
  ListedSplits listed() const { return {lengths(), list_, begins_, batch_}; }
  void list(Launch& launch) const {
    launch(list_pieces, list_pieces_grid(batch_), lengths(), batch_, wanted_, list_.get(), begins_.get());
  }
  template <class Splits, class Out>
  Decode<Cache, Splits, Out> work(const Splits& splits, Out* o, float* log_sums) const {
    const Cache cache{k_, v_, head_size, page_rows * head_size, page_elements, tables_, static_cast<int>(layout_.table_stride())};
    return {q_, cache, splits, heads, score_scale_log2(), o, log_sums};
  }
  template <class Splits, class Out>
  void decode(Launch& launch, const Splits& splits, int pieces, Out* o, float* log_sums) const {
    launch(decode_kernel<head_size, group, 1, Cache, Splits, Out>, decode_grid<head_size, group>(kv_heads, pieces),
           work<Splits, Out>(splits, o, log_sums));
  }
  template <class Splits>
  void merge(Launch& launch, const Splits& splits) const {
    float* const no_log_sums = nullptr;
    launch(merge_states<head_size, Splits, float, bf16>, merge_grid(heads, batch_), splits, parts_.get(), part_log_sums_.get(),
           heads, o_.get(), no_log_sums);
  }

  Layout layout_;
  int batch_, wanted_;
  Input<bf16> q_, k_, v_;  // k and v: [page][head][row][head_size]
  Input<int> tables_, ones_;
  Output<bf16> o_;
  Scratch<float> parts_, part_log_sums_;
  Scratch<Piece> list_;
  Scratch<int> begins_, order_;
  Scratch<unsigned> finished_;
  bool reproducible_;
  Opened<CudnnPaged> cudnn_;
  shared::RowCache<Row> rows_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair ragged_decode_balance{
    .teaches = "a full grid is not a balanced one: one long context is the tail, until sequences are split",
    .lesson = "fixed_split",
    .make = make<RaggedDecodeBalance>,
    .baseline = {.name = "whole_sequences", .run = call<&RaggedDecodeBalance::whole_sequences>, .kernels = nothing_spilled},
    .optimized =
        variants({{.name = "fixed_split", .run = call<&RaggedDecodeBalance::fixed_split>, .kernels = nothing_spilled},
                  {.name = "balanced_split", .run = call<&RaggedDecodeBalance::balanced_split>, .kernels = nothing_spilled},
                  {.name = "last_merges",
                   .run = call<&RaggedDecodeBalance::last_merges>,
                   .prepare = call<&RaggedDecodeBalance::clear_finished>,
                   .same_bits_as = "balanced_split",
                   .kernels = nothing_spilled}}),
    // The order alone: the longest context begins first, but still one block reads all of it.
    .controls = variants({{.name = "longest_first",
                           .run = call<&RaggedDecodeBalance::longest_first>,
                           .same_bits_as = "whole_sequences",
                           .kernels = nothing_spilled}}),
    .libraries = variants({{.name = "cudnn_paged",
                            .run = call<&RaggedDecodeBalance::cudnn_paged>,
                            .prepare = call<&RaggedDecodeBalance::tune_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::memory,
    // Weights and results are rounded to bf16 once each: 1.6e-3 twice, 2.3e-3 together. A group of 128 elements scatters, and
    // where one key has all the weight its rounding is common to all of them: up to 2^-9.
    .tolerance = within(5e-3),
    .sizes = sizes({{.name = "batch", .full = 64, .most = 1024, .scales = false},
                    {.name = "total", .full = 344064, .most = 1 << 20},
                    {.name = "longest", .full = 131072, .most = 1 << 19},
                    // Waves of pieces, each multiprocessor having two blocks at once.
                    {.name = "waves", .full = 4, .most = 64, .scales = false}}),
    .sweep = cases({{"longest_8192", "longest=8192"},
                    {"longest_32768", "longest=32768"},
                    {"longest_131072", "longest=131072"},
                    {"longest_262144", "longest=262144"}}),
    .edges = cases({{"one_key", "batch=1,total=1,longest=1"},
                    {"one_sequence", "batch=1,total=1021,longest=1021"},
                    {"few_long_pieces", "batch=9,total=4099,longest=3000,waves=1"},
                    {"nothing_planted", "batch=3,total=777,longest=500"}}),
    .reference_samples = 512,
};

}  // namespace aisp::ch18
