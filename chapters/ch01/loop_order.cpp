// SPDX-License-Identifier: Apache-2.0
// The innermost loop of the textbook product walks down a column of B: each step lands in another cache line, uses four of its 64
// bytes, and waits for the sum of the step before. With the two inner loops exchanged every access has unit stride and the
// compiler fills vector registers by itself: of 16 bytes, which every x86 processor has. interchanged_wide is the same loop
// compiled for the processor's own registers and its fused multiply-add. Tiles go further: sums stay in registers for many steps
// and B in the first cache.
#include <aisp/pair.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

namespace aisp::ch01 {
namespace {

constexpr std::size_t tile_multiple = 48;  // rows and columns of every tile below divide it
constexpr std::size_t strip_rows = 96;     // rows that share one packed panel of B: its packing costs a percent or two
constexpr std::size_t panel_depth = 128;   // 128 x 48 floats fill three quarters of a first-level cache of 32 KiB
constexpr std::size_t widest_panel = 48;

template <int lanes>
struct Lanes {
  typedef float Vector __attribute__((vector_size(lanes * sizeof(float))));
};

// c = a * b for square matrices, with unit stride in the innermost loop.
[[gnu::always_inline]] inline void multiply_by_rows(const float* a, const float* b, float* c, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    float* const row = c + i * n;
    std::fill_n(row, n, 0.0f);
    for (std::size_t k = 0; k < n; ++k) {
      const float factor = a[i * n + k];
      const float* const other = b + k * n;
      for (std::size_t j = 0; j < n; ++j) row[j] += factor * other[j];
    }
  }
}

using MultiplyByRows = void (*)(const float* a, const float* b, float* c, std::size_t n);
void multiply_by_rows_portable(const float* a, const float* b, float* c, std::size_t n) { multiply_by_rows(a, b, c, n); }
#if defined(__x86_64__)
[[gnu::target("avx512f,prefer-vector-width=512")]] void multiply_by_rows_avx512(const float* a, const float* b, float* c,
                                                                                std::size_t n) {
  multiply_by_rows(a, b, c, n);
}
[[gnu::target("avx2,fma")]] void multiply_by_rows_avx2(const float* a, const float* b, float* c, std::size_t n) {
  multiply_by_rows(a, b, c, n);
}
#endif

MultiplyByRows widest_multiply_by_rows() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return multiply_by_rows_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return multiply_by_rows_avx2;
#endif
  return multiply_by_rows_portable;
}

struct TileOperands {
  const float* a;      // row-major, `stride` apart
  const float* panel;  // packed: `depth` rows of the tile's width
  float* c;
  std::size_t stride;
  std::size_t depth;
};

// c += a * panel for one tile. All sums live in vector registers; each step loads a row of the panel once for all rows of the
// tile and a value of A once for all its columns, so arithmetic outnumbers loads. Inlined into functions with the vector unit of
// their own; the unrolled loops are what lets `sum` be registers.
template <int lanes, int rows, int vectors>
[[gnu::always_inline]] inline void multiply_tile(const TileOperands& t) {
  using Vector = typename Lanes<lanes>::Vector;
  Vector sum[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) std::memcpy(&sum[r][v], t.c + r * t.stride + v * lanes, sizeof(Vector));
  for (std::size_t k = 0; k < t.depth; ++k) {
    Vector b[vectors];
    std::memcpy(b, t.panel + k * vectors * lanes, sizeof b);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sum[r][v] += t.a[r * t.stride + k] * b[v];
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) std::memcpy(t.c + r * t.stride + v * lanes, &sum[r][v], sizeof(Vector));
}

struct Tile {
  std::size_t rows, columns;
  void (*multiply)(const TileOperands&);
};

// Tiles as large as the registers allow: 24 of 32, or 12 of 16, hold sums.
#if defined(__x86_64__)
[[gnu::target("avx512f")]] void multiply_avx512(const TileOperands& t) { multiply_tile<16, 8, 3>(t); }
[[gnu::target("avx2,fma")]] void multiply_avx2(const TileOperands& t) { multiply_tile<8, 6, 2>(t); }
#endif
void multiply_portable(const TileOperands& t) { multiply_tile<4, 6, 2>(t); }

Tile best_tile() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {8, 48, multiply_avx512};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {6, 16, multiply_avx2};
#endif
  return {6, 8, multiply_portable};
}

class LoopOrder final : public Workload {
 public:
  explicit LoopOrder(Setup& setup)
      : n_{setup.size("n")},
        a_{setup.input<float>(n_ * n_, uniform(-1, 1))},
        b_{setup.input<float>(n_ * n_, uniform(-1, 1))},
        c_{setup.output<float>(n_ * n_)},
        team_{setup.threads(setup.cpus())},
        multiply_wide_{widest_multiply_by_rows()},
        tile_{best_tile()} {}

  Cost cost() const override { return {.host_bytes = static_cast<double>(a_.bytes() + b_.bytes() + c_.bytes())}; }
  double expected(std::size_t index) const override { return reference_[index]; }
  void compute_reference(Launch&) override {
    std::vector<double> b(n_ * n_);
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = b_.host(i);
    reference_.assign(n_ * n_, 0);
    for (std::size_t i = 0; i < n_; ++i)
      for (std::size_t k = 0; k < n_; ++k) {
        const double a = a_.host(i * n_ + k);
        for (std::size_t j = 0; j < n_; ++j) reference_[i * n_ + j] += a * b[k * n_ + j];
      }
  }

  void textbook(Launch&) {
    const float* const a = a_;
    const float* const b = b_;
    for (std::size_t i = 0; i < n_; ++i)
      for (std::size_t j = 0; j < n_; ++j) {
        float sum = 0;
        for (std::size_t k = 0; k < n_; ++k) sum += a[i * n_ + k] * b[k * n_ + j];
        c_[i * n_ + j] = sum;
      }
  }
  void interchanged(Launch&) { multiply_by_rows_portable(a_, b_, c_, n_); }
  void interchanged_wide(Launch&) { multiply_wide_(a_, b_, c_, n_); }
  void blocked(Launch&) {
    for (std::size_t i = 0; i < blocks(); ++i) multiply_block(i);
  }
  // Blocks of C depend on nothing but the inputs; they are claimed, so that no core waits for a slower one.
  void threaded(Launch&) {
    std::atomic<std::size_t> next{0};
    team_.run([&](int) {
      for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < blocks();) multiply_block(i);
    });
  }

 private:
  std::size_t panels() const { return n_ / tile_.columns; }
  std::size_t blocks() const { return panels() * ((n_ + strip_rows - 1) / strip_rows); }

  // One block of C: a strip of rows times the width of a tile.
  void multiply_block(std::size_t block) const {
    alignas(64) float panel[panel_depth * widest_panel];
    const std::size_t column = block % panels() * tile_.columns, first = block / panels() * strip_rows;
    const std::size_t last = std::min(n_, first + strip_rows);
    for (std::size_t row = first; row < last; ++row) std::fill_n(c_ + row * n_ + column, tile_.columns, 0.0f);
    for (std::size_t k = 0; k < n_; k += panel_depth) {
      const std::size_t depth = std::min(panel_depth, n_ - k);
      // Packed, the rows of B are neighbours: they compete neither for the same sets of the cache nor for its page translations.
      for (std::size_t d = 0; d < depth; ++d) std::copy_n(b_ + (k + d) * n_ + column, tile_.columns, panel + d * tile_.columns);
      for (std::size_t row = first; row < last; row += tile_.rows)
        tile_.multiply({.a = a_ + row * n_ + k, .panel = panel, .c = c_ + row * n_ + column, .stride = n_, .depth = depth});
    }
  }

  std::size_t n_;
  Input<float> a_, b_;
  Output<float> c_;
  ThreadTeam& team_;
  MultiplyByRows multiply_wide_;
  Tile tile_;
  std::vector<double> reference_;
};

}  // namespace

extern constinit const Pair loop_order{
    .teaches = "the same triple loop runs several times as fast when its inner index walks rows",
    .lesson = "interchanged",
    .make = make<LoopOrder>,
    .baseline = {.name = "textbook", .run = call<&LoopOrder::textbook>},
    .optimized = variants({{.name = "interchanged", .run = call<&LoopOrder::interchanged>},
                           {.name = "interchanged_wide", .run = call<&LoopOrder::interchanged_wide>},
                           {.name = "blocked", .run = call<&LoopOrder::blocked>},
                           {.name = "threaded", .run = call<&LoopOrder::threaded>, .needs = {.cpus = 2}}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = within(1e-5),
    .sizes = sizes({{.name = "n", .full = 384, .multiple = tile_multiple, .most = 4096}}),
    .sweep = cases({{"n_48", "n=48"}, {"n_96", "n=96"}, {"n_192", "n=192"}, {"n_288", "n=288"}, {"n_384", "n=384"}}),
    .reference_samples = 384 * 384,
};

}  // namespace aisp::ch01
