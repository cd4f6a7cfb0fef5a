// SPDX-License-Identifier: Apache-2.0
// y = A x with a matrix in compressed rows (CSR) whose rows are as long as a power law says, from one entry to 128 Ki. A warp for
// each row keeps one warp busy with the longest while the rest is done. A merge of the row ends with the entries is a path whose
// equal parts are equal work: each block takes one, sums what it finds, and what belongs to a row that goes on is added later.
#include <aisp/device/reduce.cuh>
#include <aisp/libraries/cusparse.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <chrono>
#include <span>
#include <vector>

#include "power_law_rows.hpp"
#include "row_bins.cuh"

namespace aisp::ch12 {
namespace {

constexpr int threads = 256, warps = threads / device::warp_size;
constexpr int in_flight = 4;
constexpr int degree = 64;  // entries of a row on average
// A thread's steps along the path; odd, so that threads that read shared memory side by side meet no bank twice.
constexpr int items = 7;
constexpr int tile = threads * items;

struct Matrix {
  const int *offsets, *columns;
  const float *values, *x;
  int rows, entries;
};

// The sum of a team of `width` threads over the entries from `begin` to `end`, each thread's part of it.
template <int width>
__device__ float part_of_row(const Matrix& m, int begin, int end, int rank) {
  float sums[in_flight] = {};
  for (int i = begin + rank; i < end; i += width * in_flight) {
    int column[in_flight];
    float value[in_flight];
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      const bool inside = i + k * width < end;
      column[k] = inside ? m.columns[i + k * width] : 0;
      value[k] = inside ? m.values[i + k * width] : 0;
    }
#pragma unroll
    for (int k = 0; k < in_flight; ++k) sums[k] = fmaf(value[k], m.x[column[k]], sums[k]);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

__device__ void row_by_warp(const Matrix& m, int row, float* y) {
  const int lane = threadIdx.x % device::warp_size;
  const float sum = device::warp_sum(part_of_row<device::warp_size>(m, m.offsets[row], m.offsets[row + 1], lane));
  if (lane == 0) y[row] = sum;
}

__global__ __launch_bounds__(threads) void warp_per_row_kernel(Matrix m, float* y) {
  const int row = static_cast<int>(blockIdx.x * warps + threadIdx.x / device::warp_size);
  if (row < m.rows) row_by_warp(m, row, y);
}

// The longest rows come first, since blocks start in the order of their numbers.
__global__ __launch_bounds__(threads) void length_bins_kernel(Matrix m, Bins bins, int of_blocks, int of_warps, int of_threads,
                                                              float* y) {
  __shared__ float of_warp[device::largest_block_in_warps];
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int warp_blocks = (of_warps + warps - 1) / warps;
  if (block < of_blocks) {
    const int row = bins.of_blocks[block];
    const float sum = device::block_sum(part_of_row<threads>(m, m.offsets[row], m.offsets[row + 1], thread), of_warp);
    if (thread == 0) y[row] = sum;
  } else if (block < of_blocks + warp_blocks) {
    const int i = (block - of_blocks) * warps + thread / device::warp_size;
    if (i < of_warps) row_by_warp(m, bins.of_warps[i], y);
  } else {
    const int i = (block - of_blocks - warp_blocks) * threads + thread;
    if (i >= of_threads) return;
    const int row = bins.of_threads[i];
    float sum = 0;
    for (int entry = m.offsets[row], end = m.offsets[row + 1]; entry < end; ++entry)
      sum = fmaf(m.values[entry], m.x[m.columns[entry]], sum);
    y[row] = sum;
  }
}

// Whether the path, `diagonal` steps long, has already passed the end of `row`: all entries of the row and the ends before it.
__device__ bool row_has_ended(const int* ends, int row, int diagonal) { return ends[row] <= diagonal - row - 1; }

// How many rows have ended after `diagonal` steps; by a warp, which divides what is left by 33 in each round.
__device__ int ended_rows(const int* ends, int rows, int entries, int diagonal) {
  int low = max(diagonal - entries, 0), high = min(diagonal, rows);
  while (low < high) {
    const int step = (high - low + 31) / 32;
    const int row = low + (static_cast<int>(device::lane_index()) + 1) * step - 1;
    const int passed = __popc(__ballot_sync(device::whole_warp, row < high && row_has_ended(ends, row, diagonal)));
    low += passed * step;
    high = min(high, low + step - 1);
  }
  return low;
}

// A sum and whether a row has ended in what it is of: then what comes from the left does not belong to it.
struct Part {
  float sum;
  bool ended;
};
__device__ Part after(const Part& left, const Part& right) {
  return {right.ended ? right.sum : left.sum + right.sum, left.ended || right.ended};
}

// A block's sum of the row in which its part of the path ends.
struct Carry {
  int row;
  float sum;
};

__global__ __launch_bounds__(threads) void merge_path_kernel(Matrix m, float* y, Carry* carries) {
  __shared__ int ends[tile];
  __shared__ float products[tile];
  __shared__ int corner[2];
  __shared__ Part of_warps[warps];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / device::warp_size, lane = thread % device::warp_size;
  const int begin = static_cast<int>(blockIdx.x) * tile, end = min(begin + tile, m.rows + m.entries);
  if (warp < 2) {
    const int ended = ended_rows(m.offsets + 1, m.rows, m.entries, warp == 0 ? begin : end);
    if (lane == 0) corner[warp] = ended;
  }
  __syncthreads();
  const int first_row = corner[0], rows = corner[1] - first_row;
  const int first_entry = begin - first_row, entries = end - begin - rows;
#pragma unroll
  for (int k = 0; k < items; ++k) {
    const int i = k * threads + thread;
    if (i < entries) products[i] = m.values[first_entry + i] * m.x[m.columns[first_entry + i]];
  }
  for (int i = thread; i < rows; i += threads) ends[i] = m.offsets[first_row + i + 1] - first_entry;
  __syncthreads();

  const int from = min(thread * items, end - begin), to = min(from + items, end - begin);
  int row = max(from - entries, 0);
  for (int high = min(from, rows); row < high;) {
    const int middle = (row + high) / 2;
    if (row_has_ended(ends, middle, from)) row = middle + 1;
    else high = middle;
  }
  int first_ended = -1;
  float first_sum = 0;
  Part own{0, false};
  for (int step = from, entry = from - row; step < to; ++step) {
    if (row < rows && ends[row] <= entry) {
      if (own.ended) y[first_row + row] = own.sum;
      else first_ended = first_row + row, first_sum = own.sum;
      own = {0, true};
      ++row;
    } else own.sum += products[entry++];
  }

  // The sum that the threads before this one have of the row that this one ends first.
  Part until = own;
#pragma unroll
  for (int distance = 1; distance < device::warp_size; distance *= 2) {
    const Part left{__shfl_up_sync(device::whole_warp, until.sum, distance),
                    __shfl_up_sync(device::whole_warp, static_cast<int>(until.ended), distance) != 0};
    if (lane >= distance) until = after(left, until);
  }
  if (lane == device::warp_size - 1) of_warps[warp] = until;
  Part before{__shfl_up_sync(device::whole_warp, until.sum, 1),
              __shfl_up_sync(device::whole_warp, static_cast<int>(until.ended), 1) != 0};
  if (lane == 0) before = {0, false};
  __syncthreads();
  Part warps_before{0, false};
  for (int w = 0; w < warp; ++w) warps_before = after(warps_before, of_warps[w]);
  if (first_ended >= 0) y[first_ended] = after(warps_before, before).sum + first_sum;
  if (thread == threads - 1) carries[blockIdx.x] = {first_row + rows, after(warps_before, until).sum};
}

// Adds the carries of each row in their order: those of a row are neighbours. Many for one row are a warp's, one is a thread's.
__global__ __launch_bounds__(threads) void add_carries_kernel(const Carry* carries, int count, int rows, float* y) {
  const int i = static_cast<int>(blockIdx.x * threads + threadIdx.x);
  const int row = i < count ? carries[i].row : rows;
  const bool is_first = row < rows && (i == 0 || carries[i - 1].row != row);
  const bool is_alone = is_first && (i + 1 == count || carries[i + 1].row != row);
  if (is_alone) y[row] += carries[i].sum;
  for (unsigned left = __ballot_sync(device::whole_warp, is_first && !is_alone); left != 0; left &= left - 1) {
    const int leader = __ffs(left) - 1;
    const int of_all = __shfl_sync(device::whole_warp, row, leader);
    const int lane = static_cast<int>(device::lane_index());
    float sum = 0;
    for (int k = __shfl_sync(device::whole_warp, i, leader) + lane; k < count && carries[k].row == of_all; k += device::warp_size)
      sum += carries[k].sum;
    sum = device::warp_sum(sum);
    if (lane == 0) y[of_all] += sum;
  }
}

__global__ void list_rows_kernel(Matrix m, int* row_of_entry) {
  const int row = static_cast<int>(blockIdx.x * warps + threadIdx.x / device::warp_size);
  if (row >= m.rows) return;
  for (int i = m.offsets[row] + static_cast<int>(threadIdx.x) % device::warp_size; i < m.offsets[row + 1]; i += device::warp_size)
    row_of_entry[i] = row;
}

class UnevenPartition final : public Workload {
 public:
  explicit UnevenPartition(Setup& setup)
      : rows_{setup.size("rows")},
        entries_{rows_ * degree},
        longest_{std::min(setup.size("longest"), std::max<std::size_t>(entries_ / 8, degree + 2))},
        columns_of_x_{std::max(rows_, 2 * longest_)},
        ends_{power_law_offsets(rows_, entries_, longest_)},
        offsets_{setup.input<int>(
            rows_ + 1, HostFill<int>{[this](std::span<int> to, std::uint64_t) { std::ranges::copy(ends_, to.begin()); }},
            {.name = "offsets", .constant = true})},
        columns_{setup.input<int>(entries_, HostFill<int>{[this](std::span<int> to, std::uint64_t seed) {
                                    fill_banded_columns(to, ends_, columns_of_x_, seed);
                                  }},
                                  {.name = "columns", .constant = true})},
        values_{setup.input<float>(entries_, uniform(-1, 1), {.name = "values", .constant = true})},
        x_{setup.input<float>(columns_of_x_, uniform(-1, 1), {.name = "x"})},
        equal_offsets_{setup.input<int>(rows_ + 1, sequence(0, degree), {.name = "equal offsets", .constant = true})},
        row_of_entry_{setup.scratch<int>(entries_, {.name = "row of each entry"})},
        bins_{setup.scratch<int>(3 * rows_ + 3, {.name = "bins"})},
        carries_{setup.scratch<Carry>(tiles(), {.name = "carries"})},
        y_{setup.output<float>(rows_, {.name = "y"})},
        sparse_{setup},
        csr_{setup, sparse_, problem(offsets_, false)},
        coo_{setup, sparse_, problem(row_of_entry_, true)},
        reproducible_{setup.reproducible()} {}

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(entries_),
            .bytes = static_cast<double>(offsets_.bytes() + columns_.bytes() + values_.bytes() + x_.bytes() + y_.bytes())};
  }
  void compute_reference(Launch&) override {
    x_of_reference_.resize(columns_of_x_);
    for (std::size_t i = 0; i < columns_of_x_; ++i) x_of_reference_[i] = x_.host(i);
  }
  double expected(std::size_t row) const override {
    double sum = 0;
    for (auto i = static_cast<std::size_t>(offsets_.host(row)), end = static_cast<std::size_t>(offsets_.host(row + 1)); i < end;
         ++i)
      sum += values_.host(i) * x_of_reference_[static_cast<std::size_t>(columns_.host(i))];
    return sum;
  }

  void warp_per_row(Launch& launch) { launch(warp_per_row_kernel, {blocks(rows_, warps), threads}, matrix(offsets_), y_); }
  void equal_rows(Launch& launch) { launch(warp_per_row_kernel, {blocks(rows_, warps), threads}, matrix(equal_offsets_), y_); }

  void bin_rows(Launch& launch) {
    check(cudaStreamSynchronize(launch.stream));
    const auto begin = std::chrono::steady_clock::now();
    check(cudaMemsetAsync(bins().counts, 0, sizeof(in_bin_), launch.stream));
    launch(bin_rows_kernel, {blocks(rows_, bin_threads), bin_threads}, offsets_, rows_, bins());
    check(cudaMemcpyAsync(in_bin_, bins().counts, sizeof(in_bin_), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
    bins_us_ = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  }
  void length_bins(Launch& launch) {
    const auto [of_blocks, of_warps, of_threads] = in_bin_;
    const unsigned grid = static_cast<unsigned>(of_blocks) + blocks(static_cast<std::size_t>(of_warps), warps) +
                          blocks(static_cast<std::size_t>(of_threads), threads);
    launch(length_bins_kernel, {grid, threads}, matrix(offsets_), bins(), of_blocks, of_warps, of_threads, y_);
  }
  void merge_path(Launch& launch) {
    launch(merge_path_kernel, {static_cast<unsigned>(tiles()), threads}, matrix(offsets_), y_, carries_);
    launch(add_carries_kernel, {blocks(tiles(), threads), threads}, carries_, tiles(), rows_, y_);
  }

  void choose_csr(Launch& launch) { choose(launch, csr_); }
  void cusparse_csr(Launch& launch) { csr_->run(launch.stream); }
  void choose_coo(Launch& launch) {
    launch(list_rows_kernel, {blocks(rows_, warps), threads}, matrix(offsets_), row_of_entry_);
    choose(launch, coo_);
  }
  void cusparse_coo(Launch& launch) { coo_->run(launch.stream); }

  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant != "equal_rows") metrics.report_rate("rate", 2e-9 * static_cast<double>(entries_), "GFLOP/s");
    const double set_up_us = variant == "length_bins"    ? bins_us_
                             : variant == "cusparse_csr" ? 1e3 * csr_->preprocess_ms()
                             : variant == "cusparse_coo" ? 1e3 * coo_->preprocess_ms()
                                                         : 0;
    if (set_up_us > 0) metrics.report("set_up", set_up_us, "us", Metrics::Better::lower);
  }

 private:
  static unsigned blocks(std::size_t count, std::size_t in_a_block) {
    return static_cast<unsigned>((count + in_a_block - 1) / in_a_block);
  }
  std::size_t tiles() const { return (rows_ + entries_ + tile - 1) / tile; }
  Matrix matrix(const int* offsets) const {
    return {offsets, columns_, values_, x_, static_cast<int>(rows_), static_cast<int>(entries_)};
  }
  Bins bins() const { return {bins_ + 3, bins_ + 3 + rows_, bins_ + 3 + 2 * rows_, bins_}; }
  SpmvProblem problem(const int* rows_of, bool coordinates) const {
    return {static_cast<std::int64_t>(rows_),
            static_cast<std::int64_t>(columns_of_x_),
            static_cast<std::int64_t>(entries_),
            rows_of,
            columns_,
            values_,
            x_,
            y_,
            coordinates};
  }
  void choose(Launch& launch, const Opened<SpmvPlan>& plan) const {
    if (reproducible_) throw Unsupported{not_reproducible};
    plan->choose(launch.stream);
  }

  std::size_t rows_, entries_, longest_, columns_of_x_;
  std::vector<int> ends_;
  Input<int> offsets_, columns_;
  Input<float> values_, x_;
  Input<int> equal_offsets_;
  Scratch<int> row_of_entry_, bins_;
  Scratch<Carry> carries_;
  Output<float> y_;
  Opened<Cusparse> sparse_;
  Opened<SpmvPlan> csr_, coo_;
  bool reproducible_;
  int in_bin_[3] = {};
  double bins_us_ = 0;
  std::vector<double> x_of_reference_;
};

}  // namespace

extern constinit const Pair uneven_partition{
    .teaches = "equal rows are not equal work; a merge path gives each block the same number of entries plus row ends",
    .lesson = "merge_path",
    .make = make<UnevenPartition>,
    .baseline = {.name = "warp_per_row", .run = call<&UnevenPartition::warp_per_row>},
    .optimized = variants(
        {{.name = "length_bins", .run = call<&UnevenPartition::length_bins>, .prepare = call<&UnevenPartition::bin_rows>},
         {.name = "merge_path", .run = call<&UnevenPartition::merge_path>, .gains_over = "warp_per_row"}}),
    // As many entries in rows of equal length, by the baseline's kernel: without imbalance.
    .controls = variants({{.name = "equal_rows", .run = call<&UnevenPartition::equal_rows>, .outputs = no_outputs}}),
    .libraries = variants({{.name = "cusparse_csr",
                            .run = call<&UnevenPartition::cusparse_csr>,
                            .prepare = call<&UnevenPartition::choose_csr>,
                            .needs = {.libraries = {Library::cusparse}},
                            .deterministic = false},
                           {.name = "cusparse_coo",
                            .run = call<&UnevenPartition::cusparse_coo>,
                            .prepare = call<&UnevenPartition::choose_coo>,
                            .needs = {.libraries = {Library::cusparse}},
                            .deterministic = false}}),
    .bound = Bound::memory,
    // For sums of up to 128 Ki products of either sign: partial sums are a hundred times as large as most results, and their
    // rounding is 2.4e-5 of the root mean square. One product more or less is 1e-3 of the longest row's sum and much more of
    // others.
    .tolerance = within(2e-6, 2e-4),
    .sizes = sizes({{.name = "rows", .full = 1 << 20, .most = 1 << 20},
                    {.name = "longest", .full = 128 << 10, .least = degree, .most = 512 << 10, .scales = false}}),
    .sweep = cases({{"longest_64", "longest=64"},
                    {"longest_1024", "longest=1024"},
                    {"longest_16384", "longest=16384"},
                    {"longest_65536", "longest=65536"},
                    {"longest_131072", "longest=131072"},
                    {"longest_524288", "longest=524288"}}),
    .edges = cases({{"one_row", "rows=1"}, {"odd_rows", "rows=4999,longest=5000"}, {"equal", "rows=3000,longest=64"}}),
    .reference_samples = 1 << 20,
};

}  // namespace aisp::ch12
