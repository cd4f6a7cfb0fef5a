// SPDX-License-Identifier: Apache-2.0
// One step of decoding over a cache in pages that a table finds. Gathering them first, as index_select and an attention that
// wants contiguous keys do, sends the cache through memory three times. A kernel that follows the table itself reads it once.
#include <aisp/pair.hpp>

#include <array>
#include <numeric>
#include <type_traits>
#include <vector>

#include "cudnn_paged.hpp"
#include "decode_reference.hpp"
#include "row_cache.hpp"

namespace aisp::ch18 {
namespace {

using namespace attention;

constexpr int group = 4, heads = group * kv_heads;

// The pages of each sequence, to where its rows lie one after the other: [sequence][head][row]. blockIdx.x: the page's number in
// the sequence; blockIdx.y: the sequence.
constexpr int gather_threads = 256;
template <int page_size>
__global__ __launch_bounds__(gather_threads) void gather_kernel(const uint4* pages, const int* table, int table_stride,
                                                                const int* lengths, uint4* to, int longest) {
  constexpr int row_pieces = head_size * static_cast<int>(sizeof(bf16)) / 16, head_pieces = page_size * row_pieces;
  const int sequence = static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.x) * page_size;
  const int rows = lengths[sequence] - first;
  if (rows <= 0) return;
  const std::size_t page = table[std::size_t(sequence) * table_stride + blockIdx.x];
  const uint4* const from = pages + page * kv_heads * head_pieces;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x); i < kv_heads * head_pieces; i += gather_threads) {
    const int head = i / head_pieces, row = i / row_pieces % page_size;
    if (row < rows)
      to[((std::size_t(sequence) * kv_heads + head) * longest + first + row) * row_pieces + i % row_pieces] = from[i];
  }
}

// How long sequences are and where their pages may lie, which follows from the sizes alone. In front there are those that are not
// full, those with equally many rows side by side; then full pages, in random order; then pages that nobody uses.
struct Layout {
  int batch, context, page_size;
  static constexpr int classes = 3, shared_pages = 4;

  // Around a page, and just not the whole context, are always among them.
  int length(int sequence) const {
    const int planted[] = {1, page_size - 1, page_size, page_size + 1, context - context % page_size - 1};
    return sequence < 5 ? std::clamp(planted[sequence], 1, context) : context;
  }
  int rows_of_class(int i) const { return i == 0 ? 1 % page_size : i == 1 ? page_size - 1 : context % page_size; }
  // Returns the class of a sequence by the rows in its last page; a full page has none.
  int class_of(int sequence) const {
    const int rows = length(sequence) % page_size;
    for (int i = 0; i < classes; ++i)
      if (rows != 0 && rows == rows_of_class(i)) return i;
    return classes;
  }
  // Pages before those of class i; with i == classes, of the full ones.
  int first_of(int i) const {
    int count = 0;
    for (int s = 0; s < batch; ++s) count += class_of(s) < i;
    return count;
  }
  int full_pages(int sequence) const { return length(sequence) / page_size; }
  // The last sequence begins with pages of the one before it.
  int shared() const { return batch < 7 ? 0 : std::min(shared_pages, full_pages(batch - 1)); }
  int used_pages() const {
    int count = first_of(classes) - shared();
    for (int s = 0; s < batch; ++s) count += full_pages(s);
    return count;
  }
  int pages() const { return used_pages() + 64; }
  int table_stride() const { return (context / page_size + 4) / 4 * 4; }
};

// Numbers of pages that do not exist stand after the end of each sequence; in a second table after the first one, which is for
// cuDNN, that of a page whose numbers are finite.
HostFill<int> tables(const Layout& layout) {
  return [layout](std::span<int> both, std::uint64_t seed) {
    const auto stride = static_cast<std::size_t>(layout.table_stride()), half = both.size() / 2;
    std::fill(both.begin(), both.begin() + static_cast<std::ptrdiff_t>(half), 1 << 28);
    std::fill(both.begin() + static_cast<std::ptrdiff_t>(half), both.end(), 0);
    const int first_full = layout.first_of(Layout::classes);
    std::vector<int> full(static_cast<std::size_t>(layout.used_pages() - first_full));
    std::iota(full.begin(), full.end(), first_full);
    for (std::size_t i = full.size(); i > 1; --i) std::swap(full[i - 1], full[random_bits(seed, i) % i]);
    std::size_t next = 0;
    std::array<int, Layout::classes> next_of{};
    for (int i = 0; i < Layout::classes; ++i) next_of.at(static_cast<std::size_t>(i)) = layout.first_of(i);
    for (int s = 0; s < layout.batch; ++s) {
      const auto row = static_cast<std::size_t>(s) * stride;
      const int shared = s == layout.batch - 1 ? layout.shared() : 0, pages = layout.full_pages(s);
      const auto set = [&](int at, int page) {
        both[row + static_cast<std::size_t>(at)] = both[half + row + static_cast<std::size_t>(at)] = page;
      };
      for (int i = 0; i < pages; ++i) set(i, i < shared ? both[row - stride + static_cast<std::size_t>(i)] : full[next++]);
      if (const int of = layout.class_of(s); of < Layout::classes) set(pages, next_of.at(static_cast<std::size_t>(of))++);
    }
  };
}

class PagedAttention final : public Workload {
 public:
  explicit PagedAttention(Setup& setup)
      : layout_{static_cast<int>(setup.size("batch")), static_cast<int>(setup.size("context")),
                static_cast<int>(setup.size("page"))},
        batch_{setup.size("batch")},
        q_{setup.input<bf16>(batch_ * heads * head_size, queries_in_motion(group), {.name = "q"})},
        k_{setup.input<bf16>(elements(), with_hidden_rows(keys(), 100), {.name = "k pages"})},
        v_{setup.input<bf16>(elements(), with_hidden_rows(normal(0, 1), 1000), {.name = "v pages"})},
        tables_{
            setup.input<int>(2 * batch_ * static_cast<std::size_t>(layout_.table_stride()), tables(layout_), {.name = "tables"})},
        lengths_{setup.input<int>(batch_, HostFill<int>{[layout = layout_](std::span<int> lengths, std::uint64_t) {
                                    for (std::size_t s = 0; s < lengths.size(); ++s)
                                      lengths[s] = layout.length(static_cast<int>(s));
                                  }},
                                  {.name = "lengths", .constant = true})},
        ones_{setup.input<int>(batch_, constant(1), {.name = "queries of each sequence", .constant = true})},
        o_{setup.output<bf16>(q_.size(), {.name = "o", .groups = {head_size, batch_ * heads}})},
        gathered_k_{setup.scratch<bf16>(batch_ * kv_heads * setup.size("context") * head_size, {.name = "gathered keys"})},
        gathered_v_{setup.scratch<bf16>(gathered_k_.size(), {.name = "gathered values"})},
        reproducible_{setup.reproducible()},
        cudnn_{setup,
               CudnnPagedSizes{batch_, heads, kv_heads, head_size, static_cast<std::size_t>(layout_.pages()),
                               static_cast<std::size_t>(layout_.page_size), static_cast<std::size_t>(layout_.table_stride())}} {
    with_pages([](auto) {});
  }

  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(batch_), "tokens of a layer/s");
  }
  Cost cost() const override {
    double rows = 0;
    for (int s = 0; s < layout_.batch; ++s) rows += layout_.length(s);
    rows -= layout_.shared() * layout_.page_size;
    return {.flops = 4 * rows * heads * head_size,
            .math = Math::bf16,
            .bytes = rows * 2 * kv_heads * head_size * sizeof(bf16) + static_cast<double>(q_.bytes() + o_.bytes())};
  }
  void compute_reference(Launch&) override { rows_.forget(batch_ * heads); }
  double expected(std::size_t i) const override {
    const std::size_t row = i / head_size, sequence = row / heads, head = row % heads / group;
    const auto size = static_cast<std::size_t>(layout_.page_size),
               table = sequence * static_cast<std::size_t>(layout_.table_stride());
    const auto at = [&](std::size_t key, std::size_t d) {
      const auto page = static_cast<std::size_t>(tables_.host(table + key / size));
      return ((page * kv_heads + head) * size + key % size) * head_size + d;
    };
    return rows_.of(row, [&] {
      return attend(
          static_cast<std::size_t>(layout_.length(static_cast<int>(sequence))),
          [&](std::size_t d) { return q_.host(row * head_size + d); },
          [&](std::size_t key, std::size_t d) { return k_.host(at(key, d)); },
          [&](std::size_t key, std::size_t d) { return v_.host(at(key, d)); });
    })[i % head_size];
  }

  void gather(Launch& launch) {
    gather_pages(launch);
    contiguous(launch);
  }
  void gather_pages(Launch& launch) {
    with_pages([&]<int page_size>(std::integral_constant<int, page_size>) {
      const dim3 blocks{static_cast<unsigned>((layout_.context + page_size - 1) / page_size), static_cast<unsigned>(batch_)};
      for (auto [from, to] : {std::pair{k_.get(), gathered_k_.get()}, std::pair{v_.get(), gathered_v_.get()}})
        launch(gather_kernel<page_size>, {blocks, gather_threads}, reinterpret_cast<const uint4*>(from), tables_.get(),
               layout_.table_stride(), lengths_.get(), reinterpret_cast<uint4*>(to), layout_.context);
    });
  }
  void contiguous(Launch& launch) {
    const auto head = static_cast<std::size_t>(layout_.context) * head_size;
    start(launch, ContiguousCache{gathered_k_, gathered_v_, head_size, head, kv_heads * head});
  }
  void block_table(Launch& launch) {
    with_pages([&]<int page_size>(std::integral_constant<int, page_size>) { start(launch, pages<page_size>()); });
  }
  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    cudnn_->tune(launch.stream, cudnn_operands());
  }
  void cudnn_paged(Launch& launch) { cudnn_->run(launch.stream, cudnn_operands()); }

 private:
  std::size_t elements() const {
    return static_cast<std::size_t>(layout_.pages()) * kv_heads * static_cast<std::size_t>(layout_.page_size) * head_size;
  }
  Axis page_axis() const {
    return {kv_heads * static_cast<std::uint64_t>(layout_.page_size) * head_size, static_cast<std::uint64_t>(layout_.pages())};
  }
  Axis head_axis() const { return {static_cast<std::uint64_t>(layout_.page_size) * head_size, kv_heads}; }
  // The table shuffles the pages, so a ramp and a staircase along them make maxima jump.
  Pattern keys() const {
    const auto run = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(layout_.pages()) / 64);
    return normal(0, 1)
        .times(1, 8, all_of(page_axis()), at(head_axis(), 0))
        .plus_steps(staircase_powers / (staircase_query * score_scale_log2()), run, all_of(page_axis()), at(head_axis(), 2, 2),
                    at(dimensions, 0));
  }
  // Behind the last row of a page that is not full there are numbers which would be seen, in pages that nobody uses NaN.
  Pattern with_hidden_rows(Pattern pattern, float hidden) const {
    const auto size = static_cast<std::uint64_t>(layout_.page_size);
    const Axis rows{head_size, size};
    for (int i = 0; i < Layout::classes; ++i) {
      const auto first = static_cast<std::uint64_t>(layout_.first_of(i)),
                 used = static_cast<std::uint64_t>(layout_.rows_of_class(i));
      const std::uint64_t count = static_cast<std::uint64_t>(layout_.first_of(i + 1)) - first;
      if (count > 0) pattern = pattern.set(hidden, at(page_axis(), first, count), at(rows, used, size - used));
    }
    const auto used = static_cast<std::uint64_t>(layout_.used_pages());
    return pattern.set(std::numeric_limits<float>::quiet_NaN(), at(page_axis(), used, page_axis().count - used));
  }
  template <class Act>
  void with_pages(Act act) const {
    switch (layout_.page_size) {
      case 1: return act(std::integral_constant<int, 1>{});
      case 8: return act(std::integral_constant<int, 8>{});
      case 16: return act(std::integral_constant<int, 16>{});
      case 64: return act(std::integral_constant<int, 64>{});
      case 256: return act(std::integral_constant<int, 256>{});
      default: throw Unsupported{"pages are of 1, 8, 16, 64 or 256 tokens"};
    }
  }
  template <int page_size>
  PagedCache<page_size> pages() const {
    return {k_,
            v_,
            head_size,
            std::size_t{page_size} * head_size,
            std::size_t{kv_heads} * page_size * head_size,
            tables_,
            layout_.table_stride()};
  }
  template <class Cache>
  void start(Launch& launch, const Cache& cache) {
    launch(decode_kernel<head_size, group, 1, Cache, FixedSplits, bf16>, decode_grid<head_size, group>(kv_heads, layout_.batch),
           Decode<Cache, FixedSplits, bf16>{q_, cache, {lengths_, 1}, heads, score_scale_log2(), o_, nullptr});
  }
  CudnnPagedOperands cudnn_operands() const {
    const int* const table = tables_.get() + tables_.size() / 2;
    return {q_, k_, v_, o_, table, ones_, lengths_};
  }

  Layout layout_;
  std::size_t batch_;
  Input<bf16> q_, k_, v_;  // k and v: [page][head][row][head_size]
  Input<int> tables_, lengths_, ones_;
  Output<bf16> o_;
  Scratch<bf16> gathered_k_, gathered_v_;
  bool reproducible_;
  Opened<CudnnPaged> cudnn_;
  shared::RowCache<Row> rows_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair paged_attention{
    .teaches = "paging need not cost bandwidth: the kernel follows the block table itself instead of gathering pages first",
    .lesson = "block_table",
    .make = make<PagedAttention>,
    .baseline = {.name = "gather", .run = call<&PagedAttention::gather>, .kernels = nothing_spilled},
    .optimized = variants({{.name = "block_table",
                            .run = call<&PagedAttention::block_table>,
                            .same_bits_as = "gather",
                            .kernels = nothing_spilled}}),
    // The time without paging: the same step over what was gathered before, which may be of inputs that are gone.
    .controls = variants({{.name = "contiguous",
                           .run = call<&PagedAttention::contiguous>,
                           .prepare = call<&PagedAttention::gather_pages>,
                           .outputs = no_outputs,
                           .kernels = nothing_spilled}}),
    .libraries = variants({{.name = "cudnn_paged",
                            .run = call<&PagedAttention::cudnn_paged>,
                            .prepare = call<&PagedAttention::tune_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::memory,
    // Weights and results are rounded to bf16 once each: 1.6e-3 twice, 2.3e-3 together. A group of 128 elements scatters, and
    // where one key has all the weight its rounding is common to all of them: up to 2^-9.
    .tolerance = within(5e-3),
    .sizes = sizes({{.name = "batch", .full = 64, .most = 4096},
                    {.name = "context", .full = 4096, .scales = false},
                    {.name = "page", .full = 16, .most = 256, .scales = false}}),
    .sweep = cases(
        {{"page_1", "page=1"}, {"page_8", "page=8"}, {"page_16", "page=16"}, {"page_64", "page=64"}, {"page_256", "page=256"}}),
    .edges = cases({{"one_key", "batch=1,context=1"},
                    {"tail_rows", "batch=8,context=1021"},
                    {"pages_of_a_row", "batch=8,context=67,page=1"},
                    {"small_pages", "batch=8,context=131,page=8"},
                    {"pages_of_a_tile", "batch=7,context=200,page=64"},
                    {"long_pages", "batch=8,context=513,page=256"}}),
    .reference_samples = 512,
};

}  // namespace aisp::ch18
