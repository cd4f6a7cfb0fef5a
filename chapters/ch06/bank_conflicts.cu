// SPDX-License-Identifier: Apache-2.0
// Running sums along rows of 32 values. A tile in shared memory lets threads load and store whole lines and yet walk a row each.
// Shared memory has 32 banks of 4 bytes: where rows are 32 words apart, the 32 threads of a warp always want the same bank, and
// are served one by one. One word of padding, or columns mixed with the row's number, spreads them over all banks.
#include <aisp/device/reduce.cuh>
#include <aisp/pair.hpp>

#include <cub/block/block_load.cuh>
#include <cub/block/block_store.cuh>

namespace aisp::ch06 {
namespace {

constexpr int columns = 32;
constexpr int threads = 128;             // and rows of a tile
constexpr int rows_per_warp = 8;         // of the kernel without a tile, requested at once
constexpr int tile = threads * columns;  // values

template <int pitch>
struct Pitched {
  static constexpr int words = threads * pitch;
  static __device__ int place(int row, int column) { return row * pitch + column; }
};

struct Swizzled {
  static constexpr int words = tile;
  static __device__ int place(int row, int column) { return row * columns + (column ^ row % columns); }
};

// Eight loads a thread are in flight, so that registers leave room for as many blocks as shared memory does.
template <class Layout>
__global__ __launch_bounds__(threads, 12) void tiled_kernel(const float* in, float* out) {
  __shared__ float shared[Layout::words];
  const std::size_t first = std::size_t{blockIdx.x} * tile + threadIdx.x;
  const int lane = threadIdx.x % columns, warp = threadIdx.x / columns;
  constexpr int warps = threads / columns;
#pragma unroll 8
  for (int row = 0; row < threads; row += warps) shared[Layout::place(row + warp, lane)] = in[first + row * columns];
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int column = 0; column < columns; ++column) {
    float& value = shared[Layout::place(threadIdx.x, column)];
    sum += value;
    value = sum;
  }
  __syncthreads();
#pragma unroll 8
  for (int row = 0; row < threads; row += warps) out[first + row * columns] = shared[Layout::place(row + warp, lane)];
}

// A lane has a column, and five shuffles add up the lanes before it.
__global__ __launch_bounds__(threads) void warp_scan_kernel(const float* in, float* out) {
  const std::size_t warp = (std::size_t{blockIdx.x} * threads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  const std::size_t first = warp * rows_per_warp * columns + lane;
  float sums[rows_per_warp];
#pragma unroll
  for (int row = 0; row < rows_per_warp; ++row) sums[row] = in[first + row * columns];
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2)
#pragma unroll
    for (float& sum : sums) {
      const float before = __shfl_up_sync(device::whole_warp, sum, offset);
      if (lane >= offset) sum += before;
    }
#pragma unroll
  for (int row = 0; row < rows_per_warp; ++row) out[first + row * columns] = sums[row];
}

// CUB's exchange between lines and rows, a warp at a time.
__global__ __launch_bounds__(threads) void cub_kernel(const float* in, float* out) {
  using Load = cub::BlockLoad<float, threads, columns, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
  using Store = cub::BlockStore<float, threads, columns, cub::BLOCK_STORE_WARP_TRANSPOSE>;
  __shared__ union {
    typename Load::TempStorage load;
    typename Store::TempStorage store;
  } shared;
  const std::size_t first = std::size_t{blockIdx.x} * tile;
  float row[columns];
  Load{shared.load}.Load(in + first, row);
#pragma unroll
  for (int column = 1; column < columns; ++column) row[column] += row[column - 1];
  __syncthreads();
  Store{shared.store}.Store(out + first, row);
}

class BankConflicts final : public Workload {
 public:
  explicit BankConflicts(Setup& setup)
      : pitch_{setup.size("pitch")},
        rows_{setup.scaled(8 << 20, threads)},
        in_{setup.input<float>(rows_ * columns, uniform(0, 1), {.name = "values"})},
        out_{setup.output<float>(rows_ * columns, {.name = "running sums"})} {}

  Cost cost() const override {
    return {.flops = static_cast<double>(in_.size()), .bytes = static_cast<double>(in_.bytes() + out_.bytes())};
  }
  double expected(std::size_t index) const override {
    double sum = 0;
    for (std::size_t i = index / columns * columns; i <= index; ++i) sum += in_.host(i);
    return sum;
  }

  void unpadded(Launch& launch) {
    switch (pitch_) {
      case 32: return tiled<Pitched<32>>(launch);
      case 33: return tiled<Pitched<33>>(launch);
      case 34: return tiled<Pitched<34>>(launch);
      case 36: return tiled<Pitched<36>>(launch);
      case 40: return tiled<Pitched<40>>(launch);
      case 48: return tiled<Pitched<48>>(launch);
      default: throw Unsupported("pitch must be 32, 33, 34, 36, 40 or 48");
    }
  }
  void padded(Launch& launch) { tiled<Pitched<33>>(launch); }
  void swizzled(Launch& launch) { tiled<Swizzled>(launch); }
  void warp_scan(Launch& launch) {
    launch(warp_scan_kernel, {.blocks = blocks(rows_per_warp * threads / 32), .threads = threads}, in_, out_);
  }
  void cub_transpose(Launch& launch) { launch(cub_kernel, {.blocks = blocks(threads), .threads = threads}, in_, out_); }

 private:
  unsigned blocks(std::size_t rows_per_block) const { return static_cast<unsigned>(rows_ / rows_per_block); }
  template <class Layout>
  void tiled(Launch& launch) {
    launch(tiled_kernel<Layout>, {.blocks = blocks(threads), .threads = threads}, in_, out_);
  }

  std::size_t pitch_, rows_;
  Input<float> in_;
  Output<float> out_;
};

}  // namespace

extern constinit const Pair bank_conflicts{
    .teaches =
        "shared memory has 32 banks of 4 bytes: threads that walk the rows of a 32-wide array all hit one bank, until a word "
        "of padding spreads them",
    .lesson = "padded",
    .make = make<BankConflicts>,
    .baseline = {.name = "unpadded", .run = call<&BankConflicts::unpadded>},
    .optimized = variants({{.name = "padded", .run = call<&BankConflicts::padded>},
                           {.name = "swizzled", .run = call<&BankConflicts::swizzled>, .gains_over = "unpadded"}}),
    .controls = variants({{.name = "warp_scan", .run = call<&BankConflicts::warp_scan>}}),
    .libraries = variants({{.name = "cub_warp_transpose", .run = call<&BankConflicts::cub_transpose>}}),
    .bound = Bound::memory,
    // Sums of at most 32 values that are not negative: no digits cancel.
    .tolerance = within(1e-6),
    // Words between the rows of the baseline's tile: conflicts of 32, 1, 2, 4, 8 and 16 threads.
    .sizes = sizes({{.name = "pitch", .full = 32, .most = 48, .scales = false}}),
    .sweep = cases({{"pitch_32", "pitch=32"},
                    {"pitch_33", "pitch=33"},
                    {"pitch_34", "pitch=34"},
                    {"pitch_36", "pitch=36"},
                    {"pitch_40", "pitch=40"},
                    {"pitch_48", "pitch=48"}}),
    .edges = cases({{"pitch_1", "pitch=1"}, {"pitch_15", "pitch=15"}}),
    .reference_samples = 1 << 20,
};

}  // namespace aisp::ch06
