// SPDX-License-Identifier: Apache-2.0
// One step of decoding for requests that share a long prompt. Request by request its keys are read again and again, at best from
// L2, for four query rows each. All requests' queries together are a matrix: one pass of it over the prompt reads the keys twice
// and turns them into a matrix product, the rest of each request is decoded alone, and the two states are merged by their
// log-sum-exps. What limits then is arithmetic, which wgmma does faster.
#include <aisp/device/fence.cuh>
#include <aisp/pair.hpp>

#include <optional>

#include "attention/forward.hpp"
#include "cudnn_paged.hpp"
#include "decode_reference.hpp"
#include "mma_tiles.cuh"
#include "row_cache.hpp"
#include "shared_prefix.hpp"

namespace aisp::ch18 {
namespace {

using namespace attention;

constexpr int group = 4, heads = group * kv_heads, page_elements = kv_heads * page_rows * head_size;
using Cache = PagedCache<page_rows>;

// decode_kernel with another order of blocks: all sequences of a KV head, one after the other.
__global__ __launch_bounds__(decode_threads,
                             2) void heads_in_step_kernel(const __grid_constant__ Decode<Cache, FixedSplits, bf16> work) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Piece piece;
  work.splits.piece(static_cast<int>(blockIdx.x), piece);
  decode_block<head_size, group, 1>(work, static_cast<int>(blockIdx.y), piece, memory);
}

// The pass over the prefix: 128 rows, of which row r is the query head r % group of a KV head's for the request r / group.
// blockIdx.x: the KV head; blockIdx.y: the block of rows; blockIdx.z: the part of the keys.
constexpr int pass_splits = 16, row_pieces = mma_tiles::row_chunks;
struct Prefix {
  const bf16 *q, *k, *v;
  const int* table;
  int length, requests;
  float scale_log2;
  float *parts, *log_sums;  // [split][request][head][head_size], [split][request][head]
  // Of a row of the block among the queries of all requests, or none.
  __device__ __forceinline__ int query(int row) const {
    row += static_cast<int>(blockIdx.y) * mma_tiles::query_rows;
    return row / group < requests ? row / group * heads + static_cast<int>(blockIdx.x) * group + row % group : -1;
  }
};
__device__ __forceinline__ void copy_queries(unsigned char* memory, const Prefix& prefix) {
  const int t = static_cast<int>(threadIdx.x), row = t / 16;
  unsigned char* const to = memory + row * mma_tiles::pitch + (t % 16 ^ row) * 16;
#pragma unroll 1
  for (int i = 0; i < mma_tiles::query_rows; i += 8) {
    const int query = prefix.query(row + i);
    const uint4* const from = reinterpret_cast<const uint4*>(prefix.q) + max(query, 0) * row_pieces + t % 16;
    device::copy_async_16_or_zero(to + i * mma_tiles::pitch, from, query >= 0);
  }
  device::commit_copies();
}
__global__ __launch_bounds__(mma_tiles::threads, 2) void prefix_pass_kernel(const __grid_constant__ Prefix prefix) {
  extern __shared__ __align__(1024) unsigned char memory[];
  copy_queries(memory, prefix);
  const mma_tiles::Lanes lanes{memory};
  constexpr int keys = mma_tiles::keys;
  const int of_part = ((prefix.length + keys - 1) / keys + pass_splits - 1) / pass_splits * keys,
            begin = static_cast<int>(blockIdx.z) * of_part, length = min(of_part, prefix.length - begin);
  float sums[2][head_size / 2] = {};
  Rows rows[2];
  if (length > 0)
    mma_tiles::sum_values(
        sums, memory, lanes, prefix.k, prefix.v,
        mma_tiles::InPages<page_elements / 8>{prefix.table, begin / page_rows, blockIdx.x * (page_rows * row_pieces)}, length,
        [&](int i, float(&scores)[keys / 2], float(&sum)[head_size / 2]) {
          float factor[2];
          if (online_softmax(scores, rows[i], prefix.scale_log2, factor)) rescale(sum, factor);
        });
  device::wait_copies<0>();
  const int lane = static_cast<int>(threadIdx.x) % 32,
            first = static_cast<int>(threadIdx.x) / 32 * mma_tiles::warp_rows + lane / 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    whole_sums(rows[i]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = prefix.query(first + i * 16 + half * 8);
      if (query < 0) continue;
      const std::size_t to = std::size_t{blockIdx.z} * prefix.requests * heads + query;
      const float factor = reciprocal(rows[i].sum[half]);
#pragma unroll
      for (int n = 0; n < head_size / 8; ++n)
        *reinterpret_cast<float2*>(prefix.parts + to * head_size + n * 8 + lane % 4 * 2) =
            float2{sums[i][n * 4 + half * 2] * factor, sums[i][n * 4 + half * 2 + 1] * factor};
      if (lane % 4 == 0) prefix.log_sums[to] = log_sum_exp(rows[i].maximum[half], rows[i].sum[half], prefix.scale_log2);
    }
  }
}

// For the engine's forward kernel: rows of a KV head's queries together, once for each part of the keys, [KV head][part][row].
constexpr int copy_threads = 256;
__global__ __launch_bounds__(copy_threads) void pack_queries_kernel(const uint4* q, uint4* packed, int requests) {
  const int i = static_cast<int>(blockIdx.x * copy_threads + threadIdx.x), piece = i % row_pieces, rows = requests * group;
  const int row = i / row_pieces % rows, head = i / row_pieces / rows / prefix_splits;
  if (head < kv_heads) packed[i] = q[(row / group * heads + head * group + row % group) * row_pieces + piece];
}
// And back: to where prefix_pass_kernel leaves its results.
__global__ __launch_bounds__(copy_threads) void merge_packed_kernel(const bf16* packed, const float* packed_log_sums,
                                                                    const float* suffix, const float* suffix_log_sums, bf16* o,
                                                                    int requests) {
  const int lane = static_cast<int>(threadIdx.x) % 32, query = static_cast<int>(blockIdx.x * copy_threads + threadIdx.x) / 32;
  const int rows = requests * group;
  if (query >= requests * heads) return;
  const int head = query % heads / group, row = query / heads * group + query % group;
  const auto at = [&](int part) { return static_cast<std::size_t>((head * prefix_splits + part) * rows + row); };
  float maximum = suffix_log_sums[query], sum = 0, values[head_size / 32] = {};
  for (int part = 0; part < prefix_splits; ++part) maximum = fmaxf(maximum, packed_log_sums[at(part)]);
  const auto add = [&](const auto* from, float log_sum) {
    const float weight = device::exp2_approximate((log_sum - base_of(maximum)) * log2_e);
    sum += weight;
#pragma unroll
    for (int i = 0; i < head_size / 32; ++i) values[i] += weight * widened(from[lane * (head_size / 32) + i]);
  };
  for (int part = 0; part < prefix_splits; ++part) add(packed + at(part) * head_size, packed_log_sums[at(part)]);
  add(suffix + std::size_t(query) * head_size, suffix_log_sums[query]);
  store_row(o + std::size_t(query) * head_size + lane * (head_size / 32), values, reciprocal(sum));
}

// The next kernel may begin while this one runs.
struct InOrderAndNext : InOrder {
  __device__ __forceinline__ int turns() const {
    device::let_dependents_start();
    return InOrder::turns();
  }
};
// Decoding that begins under a kernel that it does not depend on. Only its last block waits, so that whatever follows it comes
// after both.
using SuffixWork = Decode<Cache, FixedSplits, float>;
__global__ __launch_bounds__(decode_threads, 2) void suffix_under_pass_kernel(const __grid_constant__ SuffixWork work) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Piece piece;
  work.splits.piece(static_cast<int>(blockIdx.y), piece);
  decode_block<head_size, group, 1>(work, static_cast<int>(blockIdx.x), piece, memory);
  if (blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1) device::wait_for_previous_kernel();
}

class CascadeAttention final : public Workload {
  template <class Order>
  using Pass = ForwardPass<head_size, head_size, NoMask, Paged<page_rows>, Scaled, true, Order>;

 public:
  explicit CascadeAttention(Setup& setup)
      : layout_{setup.size("batch"), setup.size("prefix"), setup.size("suffix")},
        rows_{layout_.batch * heads},
        q_{setup.input<bf16>(rows_ * head_size, queries_in_motion(group), {.name = "q"})},
        k_{setup.input<bf16>(layout_.pages() * page_elements, keys(), {.name = "k pages"})},
        v_{setup.input<bf16>(k_.size(), normal(0, 1), {.name = "v pages"})},
        tables_{setup.input<int>(layout_.batch * layout_.table_stride(), tables(layout_), {.name = "tables"})},
        lengths_{
            lengths(setup, "lengths", layout_.batch, [l = layout_](std::size_t s) { return l.prefix + l.suffix_length(s); })},
        suffix_lengths_{
            lengths(setup, "suffix lengths", layout_.batch, [l = layout_](std::size_t s) { return l.suffix_length(s); })},
        ones_{lengths(setup, "queries of each request", layout_.batch, [](std::size_t) { return 1; })},
        part_begins_{
            lengths(setup, "rows of each part", prefix_splits + 1, [l = layout_](std::size_t i) { return i * l.batch * group; })},
        part_lengths_{lengths(setup, "keys of each part", prefix_splits,
                              [l = layout_](std::size_t i) {
                                const std::size_t keys = l.part_pages() * page_rows, begin = std::min(i * keys, l.prefix);
                                return std::min(keys, l.prefix - begin);
                              })},
        o_{setup.output<bf16>(q_.size(), {.name = "o", .groups = {head_size, rows_}})},
        parts_{setup.scratch<float>((pass_splits + 1) * q_.size(), {.name = "states"})},
        log_sums_{setup.scratch<float>((pass_splits + 1) * rows_, {.name = "log-sum-exps"})},
        packed_q_{setup.scratch<bf16>(prefix_splits * q_.size(), {.name = "packed queries"})},
        packed_o_{setup.scratch<bf16>(prefix_splits * q_.size(), {.name = "packed results"})},
        reproducible_{setup.reproducible()},
        cudnn_{setup,
               CudnnPagedSizes{layout_.batch, heads, kv_heads, head_size, layout_.pages(), page_rows, layout_.table_stride()}} {}

  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(layout_.batch), "tokens of a layer/s");
  }
  Cost cost() const override {
    double own = 0;
    for (std::size_t s = 0; s < layout_.batch; ++s) own += static_cast<double>(layout_.suffix_length(s));
    const auto prefix = static_cast<double>(layout_.prefix);
    return {.flops = 4 * (prefix * static_cast<double>(layout_.batch) + own) * heads * head_size,
            .math = Math::bf16,
            .bytes = (prefix + own) * 2 * kv_heads * head_size * sizeof(bf16) + static_cast<double>(q_.bytes() + o_.bytes())};
  }
  void compute_reference(Launch&) override { reference_.forget(rows_); }
  double expected(std::size_t i) const override {
    const std::size_t row = i / head_size, request = row / heads, head = row % heads / group;
    const auto at = [&](std::size_t key, std::size_t d) {
      const auto page = static_cast<std::size_t>(tables_.host(request * layout_.table_stride() + key / page_rows));
      return page * page_elements + (head * page_rows + key % page_rows) * head_size + d;
    };
    return reference_.of(row, [&] {
      return attend(
          layout_.prefix + layout_.suffix_length(request), [&](std::size_t d) { return q_.host(row * head_size + d); },
          [&](std::size_t key, std::size_t d) { return k_.host(at(key, d)); },
          [&](std::size_t key, std::size_t d) { return v_.host(at(key, d)); });
    })[i % head_size];
  }

  void request_by_request(Launch& launch) {
    launch(decode_kernel<head_size, group, 1, Cache, FixedSplits, bf16>, decode_grid<head_size, group>(kv_heads, batch()),
           whole(o_.get()));
  }
  void heads_in_step(Launch& launch) {
    Grid grid = decode_grid<head_size, group>(kv_heads, batch());
    std::swap(grid.blocks.x, grid.blocks.y);
    launch(heads_in_step_kernel, grid, whole(o_.get()));
  }
  void two_level(Launch& launch) {
    const std::size_t row_blocks = (layout_.batch * group + mma_tiles::query_rows - 1) / mma_tiles::query_rows;
    launch(prefix_pass_kernel,
           {{kv_heads, static_cast<unsigned>(row_blocks), pass_splits}, mma_tiles::threads, mma_tiles::shared_bytes},
           Prefix{q_, k_, v_, tables_, static_cast<int>(layout_.prefix), batch(), score_scale_log2(), parts_, log_sums_});
    decode_suffixes(launch);
    float* const no_log_sums = nullptr;
    const auto rows = static_cast<int>(rows_);
    launch(merge_states<head_size, FixedSplits, float, bf16>, merge_grid(rows, 1), FixedSplits{nullptr, pass_splits + 1},
           parts_.get(), log_sums_.get(), rows, o_.get(), no_log_sums);
  }
  void map_tensors(Launch&) {
    pass_.emplace(pass(pass_order()));
    overlapped_pass_.emplace(pass(InOrderAndNext{pass_order()}));
  }
  void prefix_wgmma(Launch& launch) {
    pack_queries(launch);
    pass_->run(launch);
    decode_suffixes(launch);
    merge_packed(launch);
  }
  void suffix_under_pass(Launch& launch) {
    pack_queries(launch);
    overlapped_pass_->run(launch);
    Grid grid = decode_grid<head_size, group>(kv_heads, batch());
    grid.overlapping = true;
    launch(suffix_under_pass_kernel, grid, suffixes());
    merge_packed(launch);
  }
  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    cudnn_->tune(launch.stream, {q_, k_, v_, o_, tables_, ones_, lengths_});
  }
  void cudnn_paged(Launch& launch) { cudnn_->run(launch.stream, {q_, k_, v_, o_, tables_, ones_, lengths_}); }

 private:
  template <class Length>
  static Input<int> lengths(Setup& setup, const char* name, std::size_t count, Length length) {
    return setup.input<int>(count, HostFill<int>{[length](std::span<int> values, std::uint64_t) {
                              for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int>(length(i));
                            }},
                            {.name = name, .constant = true});
  }
  // Along the pages, those of the prefix first: a ramp, a staircase that gives the requests' own keys all of the weight and one
  // that gives it to the prefix.
  Pattern keys() const {
    const Axis pages{page_elements, layout_.pages()}, of_heads{page_rows * head_size, kv_heads};
    const float step = staircase_powers / (staircase_query * score_scale_log2());
    const std::uint64_t run = std::max<std::size_t>(1, layout_.pages() / 64);
    return normal(0, 1)
        .times(1, 8, all_of(pages), at(of_heads, 0))
        .plus_steps(step, run, all_of(pages), at(of_heads, 2), at(dimensions, 0))
        .plus_steps(-step, run, all_of(pages), at(of_heads, 3), at(dimensions, 0));
  }
  int batch() const { return static_cast<int>(layout_.batch); }
  float* suffix_parts() const { return parts_.get() + pass_splits * q_.size(); }
  float* suffix_log_sums() const { return log_sums_.get() + pass_splits * rows_; }
  Cache cache(std::size_t first_entry) const {
    return {k_,
            v_,
            head_size,
            page_rows * head_size,
            page_elements,
            tables_.get() + first_entry,
            static_cast<int>(layout_.table_stride())};
  }
  Decode<Cache, FixedSplits, bf16> whole(bf16* o) const {
    return {q_, cache(0), {lengths_, 1}, heads, score_scale_log2(), o, nullptr};
  }
  SuffixWork suffixes() const {
    return {
        q_, cache(layout_.prefix_pages()), {suffix_lengths_, 1}, heads, score_scale_log2(), suffix_parts(), suffix_log_sums()};
  }
  void decode_suffixes(Launch& launch) const {
    launch(decode_kernel<head_size, group, 1, Cache, FixedSplits, float>, decode_grid<head_size, group>(kv_heads, batch()),
           suffixes());
  }
  void pack_queries(Launch& launch) const {
    const auto pieces = static_cast<unsigned>(packed_q_.bytes() / sizeof(uint4));
    launch(pack_queries_kernel, {(pieces + copy_threads - 1) / copy_threads, copy_threads},
           reinterpret_cast<const uint4*>(q_.get()), reinterpret_cast<uint4*>(packed_q_.get()), batch());
  }
  void merge_packed(Launch& launch) const {
    launch(merge_packed_kernel, {static_cast<unsigned>((rows_ * 32 + copy_threads - 1) / copy_threads), copy_threads},
           packed_o_.get(), log_sums_.get(), suffix_parts(), suffix_log_sums(), o_.get(), batch());
  }
  InOrder pass_order() const { return in_order(layout_.batch * group, kv_heads, prefix_splits); }
  // Parts of the prefix are sequences to the forward kernel, KV heads its heads.
  template <class Order>
  Pass<Order> pass(const Order& order) const {
    const std::size_t rows = layout_.batch * group, all = prefix_splits * rows;
    const Tensor q = heads_first(packed_q_, 1, kv_heads, all, head_size), o = heads_first(packed_o_, 1, kv_heads, all, head_size);
    const auto in_pages = [&](const bf16* data) { return heads_first(data, layout_.pages(), kv_heads, page_rows, head_size); };
    return {{q, in_pages(k_), in_pages(v_), o},
            {.mask = {},
             .keys = {part_begins_, part_lengths_, tables_, static_cast<int>(layout_.part_pages())},
             .score = {score_scale_log2()},
             .order = order,
             .log_sums = log_sums_,
             .log_sum_strides = {1, all, 0}}};
  }

  SharedPrefix layout_;
  std::size_t rows_;       // query heads of all requests
  Input<bf16> q_, k_, v_;  // k and v: [page][head][row][head_size]
  Input<int> tables_, lengths_, suffix_lengths_, ones_, part_begins_, part_lengths_;
  Output<bf16> o_;
  Scratch<float> parts_, log_sums_;
  Scratch<bf16> packed_q_, packed_o_;
  bool reproducible_;
  std::optional<Pass<InOrder>> pass_;
  std::optional<Pass<InOrderAndNext>> overlapped_pass_;
  Opened<CudnnPaged> cudnn_;
  shared::RowCache<Row> reference_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair cascade_attention{
    .teaches = "a prompt that requests share turns its part of decoding from vectors that wait for memory into a matrix product",
    .lesson = "two_level",
    .make = make<CascadeAttention>,
    .baseline = {.name = "request_by_request", .run = call<&CascadeAttention::request_by_request>, .kernels = nothing_spilled},
    .optimized = variants({{.name = "two_level", .run = call<&CascadeAttention::two_level>, .kernels = nothing_spilled},
                           {.name = "prefix_wgmma",
                            .run = call<&CascadeAttention::prefix_wgmma>,
                            .prepare = call<&CascadeAttention::map_tensors>,
                            .needs = {.min_sm = 90, .max_sm = 90},
                            .kernels = nothing_spilled},
                           {.name = "suffix_under_pass",
                            .run = call<&CascadeAttention::suffix_under_pass>,
                            .prepare = call<&CascadeAttention::map_tensors>,
                            .needs = {.min_sm = 90, .max_sm = 90},
                            .same_bits_as = "prefix_wgmma",
                            .kernels = nothing_spilled}}),
    // Every hit in L2 that the order of blocks can give.
    .controls = variants({{.name = "heads_in_step",
                           .run = call<&CascadeAttention::heads_in_step>,
                           .same_bits_as = "request_by_request",
                           .kernels = nothing_spilled}}),
    .libraries = variants({{.name = "cudnn_paged",
                            .run = call<&CascadeAttention::cudnn_paged>,
                            .prepare = call<&CascadeAttention::tune_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::memory,
    // Weights, results and, of prefix_wgmma, the states between are rounded to bf16 once each: 1.6e-3 three times, 2.8e-3
    // together. A group of 128 elements scatters, and where one key has all the weight its rounding is common to all of them: up
    // to 2^-9.
    .tolerance = within(5e-3),
    .sizes = sizes({{.name = "batch", .full = 64, .most = 1024, .scales = false},
                    {.name = "prefix", .full = 32768, .multiple = page_rows, .most = 1 << 18},
                    {.name = "suffix", .full = 512, .most = 1 << 16, .scales = false}}),
    .sweep = cases({{"batch_1", "batch=1"},
                    {"batch_4", "batch=4"},
                    {"batch_16", "batch=16"},
                    {"batch_64", "batch=64"},
                    {"batch_256", "batch=256"}}),
    .edges = cases({{"one_page", "batch=5,prefix=16,suffix=17"},
                    {"one_request", "batch=1,prefix=144,suffix=1"},
                    {"tails", "batch=67,prefix=1040,suffix=33"}}),
    .reference_samples = 512,
};

}  // namespace aisp::ch18
