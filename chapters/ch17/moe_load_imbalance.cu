// SPDX-License-Identifier: Apache-2.0
// Routing is skewed: the fullest of 64 experts gets four times the mean. A batched product wants as many rows of each, so that a
// layout which loses nothing is three quarters padding, and its zeros are multiplied as rows are. Packed rows with offsets are
// multiplied as they are by a grouped product (GroupedGemm, chapters/shared/gemm/grouped.hpp). Results stay where each product
// leaves them; for the comparison all variants copy 64 columns of every row, at a place that changes from row to row.
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <numeric>
#include <vector>

#include "gemm/gathered.hpp"
#include "grouped_cublas.hpp"
#include "moe/ragged_groups.hpp"

namespace aisp::ch17 {
namespace {

using gemm::bf16;
constexpr unsigned threads = 128, window = 64, packet = 8;  // columns that are compared; elements of 16 bytes

// The destination of each row of the experts' order: after the one before it, or in its expert's part of `capacity` rows.
struct Layout {
  const int* offsets;
  int experts, capacity;  // 0: packed

  // -1: there is no room.
  __device__ int place(int row) const {
    if (capacity == 0) return row;
    int low = 0, high = experts - 1;  // the last expert that begins at the row or before it
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (offsets[middle] <= row) low = middle;
      else high = middle - 1;
    }
    const int in_expert = row - offsets[low];
    return in_expert < capacity ? low * capacity + in_expert : -1;
  }
};

// A block copies a row to where its expert's product reads it.
__global__ __launch_bounds__(threads) void gather_kernel(const uint4* __restrict__ x, const int* __restrict__ tokens,
                                                         const Layout layout, uint4* __restrict__ rows, unsigned packets) {
  const int row = static_cast<int>(blockIdx.x), place = layout.place(row);
  if (place < 0) return;
  const uint4* const from = x + std::size_t{static_cast<unsigned>(tokens[row])} * packets;
  for (unsigned i = threadIdx.x; i < packets; i += threads)
    rows[std::size_t{static_cast<unsigned>(place)} * packets + i] = from[i];
}

// Eight threads copy a row's window.
__global__ __launch_bounds__(threads) void look_kernel(const uint4* __restrict__ y, const Layout layout,
                                                       uint4* __restrict__ windows, unsigned rows, unsigned row_packets) {
  constexpr unsigned window_packets = window / packet;
  const unsigned i = blockIdx.x * threads + threadIdx.x, row = i / window_packets;
  if (row >= rows) return;
  const std::size_t place = static_cast<unsigned>(layout.place(static_cast<int>(row)));
  windows[i] = y[place * row_packets + row * window_packets % row_packets + i % window_packets];
}

using Rows = gemm::Operand<bf16>;
constexpr gemm::Shape shape{.tile_m = 128, .tile_n = 256, .stages = 4};
using Tile = gemm::Config<Rows, Rows, gemm::InTensorCores, shape>;
using Grouped = gemm::GroupedGemm<Tile>;
using GatheringTile = gemm::Config<Rows, Rows, gemm::GatheredInTensorCores, shape>;
using Gathering = gemm::GatheredGroupedGemm<GatheringTile>;
using Listed = gemm::Gemm<Tile, gemm::GroupedRows, gemm::Identity, gemm::RowsStore<>>;

class MoeLoadImbalance final : public Workload {
 public:
  explicit MoeLoadImbalance(Setup& setup)
      : tokens_{setup.size("tokens")},
        experts_{setup.size("experts")},
        n_{setup.size("n")},
        k_{setup.size("k")},
        rows_{tokens_ * setup.size("experts_a_token")},
        offsets_{moe::offsets_of(counts(setup))},
        order_{order()},
        capacity_{most_rows()},
        small_capacity_{(rows_ * 5 / 4 + experts_ - 1) / experts_},
        x_{setup.input<bf16>(tokens_ * k_, uniform(-1, 1), {.name = "x"})},
        w_{setup.input<bf16>(experts_ * n_ * k_, uniform(-1, 1), {.name = "weights"})},  // [expert][n][k]
        token_of_row_{
            setup.input<int>(rows_, moe::these(order_), {.name = "tokens in the order of their experts", .constant = true})},
        starts_{setup.input<int>(experts_ + 1, moe::these(offsets_), {.name = "offsets", .constant = true})},
        padded_starts_{
            setup.input<int>(experts_ + 1, moe::these(padded_offsets()), {.name = "padded offsets", .constant = true})},
        windows_{setup.output<bf16>(rows_ * window, {.name = "64 columns of every row"})},
        gathered_{setup.scratch<bf16>(rows_ * k_, {.name = "packed rows"})},
        padded_rows_{setup.scratch<bf16>(experts_ * capacity_ * k_, {.name = "padded rows"})},
        fewer_rows_{setup.scratch<bf16>(experts_ * small_capacity_ * k_, {.name = "padded rows of a smaller capacity"})},
        y_{setup.scratch<bf16>(experts_ * capacity_ * n_, {.name = "y"})},
        tiles_{setup.scratch<std::byte>(Grouped::workspace_bytes(experts_ * capacity_, experts_), {.name = "row tiles"})},
        heavy_on_host_{tiles_of_the_fullest_first()},
        heavy_tiles_{setup.input<gemm::RowTile>(
            heavy_on_host_.size(),
            [tiles = heavy_on_host_](std::span<gemm::RowTile> to, std::uint64_t) { std::ranges::copy(tiles, to.begin()); },
            {.name = "row tiles of the fullest first", .constant = true})},
        heavy_count_{setup.input<int>(1, moe::these({static_cast<int>(heavy_on_host_.size())}),
                                      {.name = "their number", .constant = true})},
        cublas_{setup},
        library_{setup, n_, k_, offsets_},
        dropless_{problem(gathered_, rows_), starts_, tiles_},
        padded_{problem(padded_rows_, experts_ * capacity_), padded_starts_, tiles_},
        gathering_{{.a = x_, .b = w_, .c = y_, .m = rows_, .n = n_, .k = k_, .groups = experts_}, token_of_row_, starts_, tiles_},
        heavy_{problem(gathered_, rows_), {.tiles = heavy_tiles_, .count = heavy_count_, .groups = static_cast<int>(experts_)}} {}

  Cost cost() const override {
    const auto bytes = [](std::size_t elements) { return 2.0 * static_cast<double>(elements); };
    return in_turn({{.bytes = bytes(tokens_ * k_ + rows_ * k_)},
                    {.flops = 2.0 * static_cast<double>(rows_ * n_) * static_cast<double>(k_),
                     .math = Math::bf16,
                     .bytes = bytes(rows_ * k_ + rows_ * n_ + used_experts() * n_ * k_)},
                    {.bytes = 2 * bytes(windows_.size())}});
  }
  double expected(std::size_t i) const override {
    const std::size_t row = i / window, column = row * window % n_ + i % window;
    const auto token = static_cast<std::size_t>(order_[row]);
    const auto expert =
        static_cast<std::size_t>(std::ranges::upper_bound(offsets_, static_cast<int>(row)) - offsets_.begin()) - 1;
    double sum = 0;
    for (std::size_t k = 0; k < k_; ++k) sum += x_.host(token * k_ + k) * w_.host((expert * n_ + column) * k_ + k);
    return sum;
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    metrics.report_rate("rows", static_cast<double>(rows_), "rows/s");
    const auto percent = [this](std::size_t part) { return 100 * static_cast<double>(part) / static_cast<double>(rows_); };
    std::size_t multiplied = rows_, dropped = 0;
    if (variant == "padded" || variant == "padded_engine") multiplied = experts_ * capacity_;
    if (variant == "capacity_1_25") {
      multiplied = experts_ * small_capacity_;
      for (std::size_t expert = 0; expert < experts_; ++expert)
        dropped += rows_of(expert) - std::min(rows_of(expert), small_capacity_);
      metrics.report("dropped", percent(dropped), "% of rows", Metrics::Better::lower);
    }
    metrics.report("padding", percent(multiplied - (rows_ - dropped)), "% of rows", Metrics::Better::lower);
  }

  // Padding is zero from here on; rows never change their places.
  void clear(Launch& launch) {
    check(cudaMemsetAsync(padded_rows_, 0, padded_rows_.bytes(), launch.stream));
    check(cudaMemsetAsync(fewer_rows_, 0, fewer_rows_.bytes(), launch.stream));
  }
  void padded(Launch& launch) {
    batched(launch, padded_rows_, capacity_);
    look(launch, capacity_);
  }
  void capacity_1_25(Launch& launch) { batched(launch, fewer_rows_, small_capacity_); }
  void padded_engine(Launch& launch) {
    gather(launch, padded_rows_, capacity_);
    padded_.run(launch.stream);
    look(launch, capacity_);
  }
  void dropless(Launch& launch) {
    gather(launch, gathered_, 0);
    dropless_.run(launch.stream);
    look(launch, 0);
  }
  void gathered_in_product(Launch& launch) {
    gathering_.run(launch.stream);
    look(launch, 0);
  }
  void heavy_first(Launch& launch) {
    gather(launch, gathered_, 0);
    heavy_.run(launch.stream);
    look(launch, 0);
  }
  void list_pointers(Launch&) { library_.set(gathered_, w_, y_); }
  void cublas_grouped(Launch& launch) {
    gather(launch, gathered_, 0);
    library_.run(launch.stream);
    look(launch, 0);
  }

 private:
  std::vector<int> counts(Setup& setup) const {
    if (setup.size("planted") == 1) return moe::planted_counts(rows_, experts_);
    return moe::skewed_counts(rows_, experts_, 0.01 * static_cast<double>(setup.size("most_percent_of_mean")), 17);
  }
  // Each token in as many rows, and no expert has a token twice while it has no more rows than there are tokens.
  std::vector<int> order() const {
    std::vector<int> shuffled(tokens_), rows(rows_);
    std::iota(shuffled.begin(), shuffled.end(), 0);
    for (std::size_t i = tokens_; i > 1; --i) std::swap(shuffled[i - 1], shuffled[random_bits(3, i) % i]);
    for (std::size_t row = 0; row < rows_; ++row) rows[row] = shuffled[row % tokens_];
    for (std::size_t expert = 0; expert < experts_; ++expert)
      std::sort(rows.begin() + offsets_[expert], rows.begin() + offsets_[expert + 1]);
    return rows;
  }
  std::size_t rows_of(std::size_t expert) const { return static_cast<std::size_t>(offsets_[expert + 1] - offsets_[expert]); }
  std::size_t most_rows() const {
    std::size_t most = 1;
    for (std::size_t expert = 0; expert < experts_; ++expert) most = std::max(most, rows_of(expert));
    return most;
  }
  std::size_t used_experts() const {
    std::size_t used = 0;
    for (std::size_t expert = 0; expert < experts_; ++expert) used += rows_of(expert) > 0;
    return used;
  }
  std::vector<int> padded_offsets() const { return moe::offsets_of(std::vector<int>(experts_, static_cast<int>(capacity_))); }
  // As list_row_tiles_kernel makes it, but that experts come in the order of their rows.
  std::vector<gemm::RowTile> tiles_of_the_fullest_first() const {
    std::vector<std::size_t> by_rows(experts_);
    std::iota(by_rows.begin(), by_rows.end(), 0);
    std::ranges::stable_sort(by_rows, std::greater{}, [this](std::size_t expert) { return rows_of(expert); });
    std::vector<gemm::RowTile> tiles;
    for (const std::size_t expert : by_rows) {
      const int begin = offsets_[expert], end = offsets_[expert + 1], own = (end - begin + Tile::tile_m - 1) / Tile::tile_m;
      const int bands = (own + 7) / 8;
      for (int number = 0, i = 0; number < bands; ++number) {
        const int first = static_cast<int>(tiles.size()), height = own / bands + (number < own % bands ? 1 : 0);
        for (const int up_to = i + height; i < up_to; ++i)
          tiles.push_back({begin + i * Tile::tile_m, end, static_cast<int>(expert), first, height});
      }
    }
    return tiles;
  }
  Grouped::Problem problem(const bf16* gathered, std::size_t rows) const {
    return {.a = gathered, .b = w_, .c = y_, .m = rows, .n = n_, .k = k_, .groups = experts_};
  }
  Layout layout(std::size_t capacity) const { return {starts_, static_cast<int>(experts_), static_cast<int>(capacity)}; }

  void gather(Launch& launch, bf16* to, std::size_t capacity) const {
    launch(gather_kernel, {static_cast<unsigned>(rows_), threads}, reinterpret_cast<const uint4*>(x_.get()), token_of_row_,
           layout(capacity), reinterpret_cast<uint4*>(to), k_ / packet);
  }
  void look(Launch& launch, std::size_t capacity) const {
    launch(look_kernel, {static_cast<unsigned>((windows_.size() / packet + threads - 1) / threads), threads},
           reinterpret_cast<const uint4*>(y_.get()), layout(capacity), reinterpret_cast<uint4*>(windows_.get()), rows_,
           n_ / packet);
  }
  void batched(Launch& launch, bf16* gathered, std::size_t capacity) {
    gather(launch, gathered, capacity);
    const float one = 1, zero = 0;
    const int n = static_cast<int>(n_), k = static_cast<int>(k_), m = static_cast<int>(capacity);
    cublas_->use(launch.stream);
    check(Cublas::function<StridedBatched>("cublasGemmStridedBatchedEx")(
        cublas_->handle(), CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &one, w_.get(), CUDA_R_16BF, k, static_cast<long long>(n_ * k_),
        gathered, CUDA_R_16BF, k, static_cast<long long>(capacity * k_), &zero, y_.get(), CUDA_R_16BF, n,
        static_cast<long long>(capacity * n_), static_cast<int>(experts_), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }
  // Spelled out, because the header overloads the name.
  using StridedBatched = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                                        const void*, cudaDataType_t, int, long long, const void*, cudaDataType_t, int, long long,
                                        const void*, void*, cudaDataType_t, int, long long, int, cublasComputeType_t,
                                        cublasGemmAlgo_t);

  std::size_t tokens_, experts_, n_, k_, rows_;
  std::vector<int> offsets_, order_;
  std::size_t capacity_, small_capacity_;
  Input<bf16> x_, w_;
  Input<int> token_of_row_, starts_, padded_starts_;
  Output<bf16> windows_;
  Scratch<bf16> gathered_, padded_rows_, fewer_rows_, y_;
  Scratch<std::byte> tiles_;
  std::vector<gemm::RowTile> heavy_on_host_;
  Input<gemm::RowTile> heavy_tiles_;
  Input<int> heavy_count_;
  Opened<Cublas> cublas_;
  GroupedCublas library_;
  Grouped dropless_, padded_;
  Gathering gathering_;
  Listed heavy_;
};

constexpr Needs by_cublas{.libraries = {Library::cublas}};
constexpr KernelLimits no_spills{.local_bytes = 0};

}  // namespace

extern constinit const Pair moe_load_imbalance{
    .teaches = "capacity for the fullest expert turns skewed routing into padding; packed rows cost the real rows only",
    .lesson = "dropless",
    .make = make<MoeLoadImbalance>,
    .baseline = {.name = "padded",
                 .run = call<&MoeLoadImbalance::padded>,
                 .prepare = call<&MoeLoadImbalance::clear>,
                 .needs = by_cublas},
    .optimized =
        variants({{.name = "dropless", .run = call<&MoeLoadImbalance::dropless>, .needs = Grouped::needs(), .kernels = no_spills},
                  {.name = "gathered_in_product",
                   .run = call<&MoeLoadImbalance::gathered_in_product>,
                   .needs = Gathering::needs(),
                   .same_bits_as = "dropless",
                   .kernels = no_spills}}),
    // The same kernel over the padded rows; a capacity that drops rows; and the order of the tiles, fullest experts first.
    .controls = variants({{.name = "padded_engine",
                           .run = call<&MoeLoadImbalance::padded_engine>,
                           .prepare = call<&MoeLoadImbalance::clear>,
                           .needs = Grouped::needs(),
                           .same_bits_as = "dropless",
                           .kernels = no_spills},
                          {.name = "capacity_1_25",
                           .run = call<&MoeLoadImbalance::capacity_1_25>,
                           .prepare = call<&MoeLoadImbalance::clear>,
                           .needs = by_cublas,
                           .outputs = no_outputs},
                          {.name = "heavy_first",
                           .run = call<&MoeLoadImbalance::heavy_first>,
                           .needs = Grouped::needs(),
                           .same_bits_as = "dropless",
                           .kernels = no_spills}}),
    .libraries = variants({{.name = "cublas_grouped",
                            .run = call<&MoeLoadImbalance::cublas_grouped>,
                            .prepare = call<&MoeLoadImbalance::list_pointers>,
                            .needs = by_cublas}}),
    .bound = Bound::compute,
    .tolerance = rounded_to_bf16,
    .sizes = sizes({{.name = "tokens", .full = 8192},
                    {.name = "experts_a_token", .full = 6, .most = 64, .scales = false},
                    {.name = "experts", .full = 64, .most = 512, .scales = false},
                    {.name = "n", .full = 2816, .multiple = 64, .most = 16384, .scales = false},
                    {.name = "k", .full = 2048, .multiple = 64, .most = 16384, .scales = false},
                    {.name = "most_percent_of_mean", .full = 400, .least = 100, .most = 51200, .scales = false},
                    option("planted")}),
    .sweep = cases({{"even", "most_percent_of_mean=100"},
                    {"twice_the_mean", "most_percent_of_mean=200"},
                    {"four_times", "most_percent_of_mean=400"},
                    {"eight_times", "most_percent_of_mean=800"}}),
    .edges = cases({{"one_token", "tokens=1,experts_a_token=1,experts=3,n=64,k=64"},
                    {"around_tiles", "tokens=300,experts_a_token=3,experts=12,n=192,k=128,planted=1"},
                    {"one_expert_has_all", "tokens=100,experts_a_token=6,experts=8,n=128,k=64,most_percent_of_mean=800"}}),
};

}  // namespace aisp::ch17
