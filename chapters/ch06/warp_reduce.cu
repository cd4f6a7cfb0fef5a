// SPDX-License-Identifier: Apache-2.0
// Sums of many short rows. The textbook's tree in shared memory takes eight steps with a barrier of the whole block each, while
// one value a thread is in flight. Shuffles hand registers from lane to lane: one barrier is left, and none where a warp takes
// the whole row, whose lanes then request all their values before the first addition.
#include <aisp/device/reduce.cuh>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <cub/device/device_segmented_reduce.cuh>

#include <algorithm>
#include <bit>

#include "generated.cuh"

namespace aisp::ch06 {
namespace {

constexpr int most_threads = 256, warps = most_threads / 32;
constexpr int loads = 8;  // of 4 bytes that a lane has in flight: a warp's cover 256 elements

// Returns the sum of one thread of a block: a single value if the row is not longer than the block.
__device__ float sum_of_thread(const float* row, unsigned columns) {
  float sum = 0;
  for (unsigned i = threadIdx.x; i < columns; i += blockDim.x) sum += row[i];
  return sum;
}

__global__ __launch_bounds__(most_threads) void shared_tree_kernel(const float* in, float* sums, unsigned columns) {
  __shared__ float shared[most_threads];
  shared[threadIdx.x] = sum_of_thread(in + std::size_t{blockIdx.x} * columns, columns);
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = shared[0];
}

__global__ __launch_bounds__(most_threads) void shuffle_block_kernel(const float* in, float* sums, unsigned columns) {
  __shared__ float shared[warps];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float sum = device::warp_sum(sum_of_thread(in + std::size_t{blockIdx.x} * columns, columns));
  if (lane == 0) shared[warp] = sum;
  __syncthreads();
  if (warp != 0) return;
  sum = device::warp_sum<warps>(lane < blockDim.x / 32 ? shared[lane] : 0);
  if (lane == 0) sums[blockIdx.x] = sum;
}

// Returns the sum of one lane of a row that its warp has for itself.
__device__ float sum_of_lane(const float* row, unsigned columns) {
  float sum = 0;
  for (unsigned first = threadIdx.x % 32; first < columns; first += 32 * loads) {
    float values[loads];
#pragma unroll
    for (unsigned k = 0; k < loads; ++k) values[k] = first + 32 * k < columns ? row[first + 32 * k] : 0;
#pragma unroll
    for (const float value : values) sum += value;
  }
  return sum;
}

__device__ float sum_of_lane(const float4* row, unsigned columns) {
  float sum = 0;
  for (unsigned first = threadIdx.x % 32; first < columns / 4; first += 64) {
    const float4 a = row[first];
    const float4 b = first + 32 < columns / 4 ? row[first + 32] : make_float4(0, 0, 0, 0);
    sum += ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
  }
  return sum;
}

template <class Packet>
__global__ __launch_bounds__(most_threads) void warp_per_row_kernel(const float* in, float* sums, unsigned rows,
                                                                    unsigned columns) {
  const unsigned row = blockIdx.x * warps + threadIdx.x / 32;
  if (row >= rows) return;
  const float sum = device::warp_sum(sum_of_lane(reinterpret_cast<const Packet*>(in + std::size_t{row} * columns), columns));
  if (threadIdx.x % 32 == 0) sums[row] = sum;
}

// The mapping of warp_per_row with the exchange of the baseline, in shared memory of the warp's own.
__global__ __launch_bounds__(most_threads) void warp_per_row_shared_kernel(const float* in, float* sums, unsigned rows,
                                                                           unsigned columns) {
  __shared__ float shared[warps][32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x * warps + warp;
  if (row >= rows) return;
  shared[warp][lane] = sum_of_lane(in + std::size_t{row} * columns, columns);
  __syncwarp();
  for (unsigned half = 16; half > 0; half /= 2) {
    if (lane < half) shared[warp][lane] += shared[warp][lane + half];
    __syncwarp();
  }
  if (lane == 0) sums[row] = shared[warp][0];
}

// Returns the beginning of a row, for CUB.
struct RowStart {
  std::int64_t columns;
  __host__ __device__ std::int64_t operator()(std::ptrdiff_t row) const { return row * columns; }
};

class WarpReduce final : public Workload {
 public:
  explicit WarpReduce(Setup& setup)
      : columns_{setup.size("columns")},
        rows_{std::max(setup.scaled(std::size_t{256} << 20) / columns_, std::size_t{1})},
        threads_{static_cast<unsigned>(std::bit_floor(std::min<std::size_t>(columns_, most_threads)))},
        in_{setup.input<float>(rows_ * columns_, uniform(-1, 1), {.name = "rows"})},
        ones_{setup.input<float>(columns_, constant(1), {.name = "ones", .constant = true})},
        sums_{setup.output<float>(rows_, {.name = "sums"})},
        cub_bytes_{cub_sum(nullptr, 0, nullptr)},
        cub_space_{setup.scratch<std::uint8_t>(std::max(cub_bytes_, std::size_t{1}))},
        cublas_{setup} {}

  Cost cost() const override {
    return {.flops = static_cast<double>(in_.size()), .bytes = static_cast<double>(in_.bytes() + sums_.bytes())};
  }
  double expected(std::size_t row) const override {
    double sum = 0;
    for (std::size_t i = row * columns_; i < (row + 1) * columns_; ++i) sum += in_.host(i);
    return sum;
  }

  void shared_tree(Launch& launch) { launch(shared_tree_kernel, {.blocks = rows(), .threads = threads_}, in_, sums_, columns_); }
  void shuffle_block(Launch& launch) {
    launch(shuffle_block_kernel, {.blocks = rows(), .threads = threads_}, in_, sums_, columns_);
  }
  void warp_per_row(Launch& launch) { warp_each(launch, warp_per_row_kernel<float>); }
  void warp_per_row_vec16(Launch& launch) { warp_each(launch, warp_per_row_kernel<float4>); }
  void warp_per_row_shared(Launch& launch) { warp_each(launch, warp_per_row_shared_kernel); }
  void cub_segmented(Launch& launch) { cub_sum(cub_space_, cub_bytes_, launch.stream); }
  // The matrix times a vector of ones; to cuBLAS, whose matrices are column-major, it is transposed.
  void cublas_gemv(Launch& launch) {
    const float one = 1, zero = 0;
    const auto columns = static_cast<int>(columns_);
    const auto gemv = Cublas::function<decltype(cublasSgemv)>("cublasSgemv_v2");
    cublas_->use(launch.stream);
    check(gemv(cublas_->handle(), CUBLAS_OP_T, columns, static_cast<int>(rows_), &one, in_, columns, ones_, 1, &zero, sums_, 1));
  }

 private:
  unsigned rows() const { return static_cast<unsigned>(rows_); }
  template <class Kernel>
  void warp_each(Launch& launch, Kernel kernel) {
    launch(kernel, {.blocks = (rows() + warps - 1) / warps, .threads = most_threads}, in_, sums_, rows_, columns_);
  }
  // Returns the workspace that it needs; does nothing else when there is none.
  std::size_t cub_sum(void* space, std::size_t bytes, cudaStream_t stream) {
    const Generated starts{RowStart{static_cast<std::int64_t>(columns_)}};
    check(cub::DeviceSegmentedReduce::Sum(space, bytes, in_.get(), sums_.get(), static_cast<std::int64_t>(rows_), starts,
                                          starts + 1, stream));
    return bytes;
  }

  std::size_t columns_, rows_;
  unsigned threads_;  // of a block that has one row
  Input<float> in_, ones_;
  Output<float> sums_;
  std::size_t cub_bytes_;
  Scratch<std::uint8_t> cub_space_;
  Opened<Cublas> cublas_;
};

}  // namespace

extern constinit const Pair warp_reduce{
    .teaches = "a warp that sums its own row needs no barrier, so that eight loads are in flight before anything is added",
    .lesson = "warp_per_row",
    .make = make<WarpReduce>,
    .baseline = {.name = "shared_tree", .run = call<&WarpReduce::shared_tree>},
    .optimized = variants({{.name = "shuffle_block", .run = call<&WarpReduce::shuffle_block>},
                           {.name = "warp_per_row", .run = call<&WarpReduce::warp_per_row>},
                           {.name = "warp_per_row_vec16", .run = call<&WarpReduce::warp_per_row_vec16>}}),
    .controls = variants({{.name = "warp_per_row_shared", .run = call<&WarpReduce::warp_per_row_shared>}}),
    .libraries =
        variants({{.name = "cub_segmented_reduce", .run = call<&WarpReduce::cub_segmented>},
                  {.name = "cublas_gemv", .run = call<&WarpReduce::cublas_gemv>, .needs = {.libraries = {Library::cublas}}}}),
    .bound = Bound::memory,
    // At most 128 values are added one after another, everything else in trees.
    .tolerance = within(1e-6),
    .sizes = sizes({{.name = "columns", .full = 256, .multiple = 32, .most = 4096, .scales = false}}),
    .sweep = cases({{"columns_32", "columns=32"},
                    {"columns_64", "columns=64"},
                    {"columns_128", "columns=128"},
                    {"columns_256", "columns=256"},
                    {"columns_512", "columns=512"},
                    {"columns_1024", "columns=1024"},
                    {"columns_4096", "columns=4096"}}),
    .edges = cases({{"columns_32", "columns=32"}, {"columns_96", "columns=96"}}),
    .reference_samples = 1 << 20,
};

}  // namespace aisp::ch06
