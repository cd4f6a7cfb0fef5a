// SPDX-License-Identifier: Apache-2.0
// Every head of every token divided by its length (QK-norm): a million rows of 128 bf16. A block a row has 2 bytes a thread and
// seven barriers to wait at, and a second kernel for the division reads everything again. Sixteen lanes hold a row in 16 bytes
// each, add it up in four shuffles and write it back: no block has to wait, and memory is the limit.
#include <cuda_bf16.h>
#include <aisp/device/vector.cuh>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>

#include "cudnn_rows.hpp"
#include "rows.cuh"

namespace aisp::ch09 {
namespace {

using shared::bf16, shared::packet;

constexpr unsigned row_threads = 128;    // of a block that has one row, an element for each
constexpr unsigned threads = 256;        // of a block with several rows
constexpr unsigned most_threads = 1024;  // of a block that has one row, 16 bytes for each
constexpr unsigned most_loads = 32;      // that a lane has in flight, over all its rows
constexpr float epsilon = 1e-6f;         // what is added to a sum of squares: rows of zeros stay zeros

__device__ __forceinline__ float reciprocal_length(float sum_of_squares) { return rsqrtf(sum_of_squares + epsilon); }

// The sum of a row's squares by a tree in shared memory.
__device__ __forceinline__ float tree_sum_of_squares(const bf16* row, unsigned columns) {
  __shared__ float sums[row_threads];
  float sum = 0;
  for (unsigned i = threadIdx.x; i < columns; i += row_threads) {
    const float x = __bfloat162float(row[i]);
    sum = fmaf(x, x, sum);
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned half = row_threads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  return sums[0];
}

__global__ __launch_bounds__(row_threads) void lengths_kernel(const bf16* in, float* factors, unsigned columns) {
  const float sum = tree_sum_of_squares(in + std::size_t{blockIdx.x} * columns, columns);
  if (threadIdx.x == 0) factors[blockIdx.x] = reciprocal_length(sum);
}

__global__ __launch_bounds__(threads) void scale_kernel(const uint4* in, const float* factors, uint4* out, unsigned row_packets,
                                                        std::size_t packets) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= packets) return;
  const float factor = factors[i / row_packets];
  float x[packet];
  shared::unpack(in[i], x);
#pragma unroll
  for (float& value : x) value *= factor;
  out[i] = shared::pack(x);
}

__global__ __launch_bounds__(row_threads) void block_per_row_kernel(const bf16* in, bf16* out, unsigned columns) {
  const bf16* const from = in + std::size_t{blockIdx.x} * columns;
  const float factor = reciprocal_length(tree_sum_of_squares(from, columns));
  for (unsigned i = threadIdx.x; i < columns; i += row_threads)
    out[std::size_t{blockIdx.x} * columns + i] = __float2bfloat16_rn(__bfloat162float(from[i]) * factor);
}

// As many threads as 16 bytes of a row.
__global__ __launch_bounds__(most_threads) void block_vec16_kernel(const uint4* in, uint4* out, unsigned row_packets) {
  __shared__ float sums[device::largest_block_in_warps];
  const bool is_mine = threadIdx.x < row_packets;
  const std::size_t i = std::size_t{blockIdx.x} * row_packets + threadIdx.x;
  float x[packet];
  shared::unpack(is_mine ? in[i] : uint4{}, x);
  const float factor = reciprocal_length(device::block_sum(shared::sum_of_squares(x), sums));
#pragma unroll
  for (float& value : x) value *= factor;
  if (is_mine) out[i] = shared::pack(x);
}

// A barrier for the compiler: elements stay as they came until they are needed again. Unpacked, they take twice the registers.
__device__ __forceinline__ void keep_packed(unsigned& pair) { asm volatile("" : "+r"(pair)); }
__device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(unsigned pair) { return __uint_as_float(pair & 0xFFFF0000u); }

// `lanes` neighbouring lanes have a row: each loads `loads` times as many words of two elements. They do so for several rows
// before the first sum. Without `factors` rows are scaled, with it only what they are to be scaled by is written.
template <int words, int lanes, int loads, int at_once, bool scales>
__global__ __launch_bounds__(threads) void lanes_per_row_kernel(const unsigned* in, unsigned* out, float* factors,
                                                                unsigned rows) {
  using Words = device::Vector<unsigned, words>;
  constexpr unsigned groups = threads / lanes;
  const unsigned lane = threadIdx.x % lanes, first = blockIdx.x * groups * at_once + threadIdx.x / lanes;
  const auto place = [&](int k, int j) {
    return (std::size_t{first + k * groups} * loads * lanes + j * lanes + lane) * static_cast<unsigned>(words);
  };
  Words x[at_once][loads];
#pragma unroll
  for (int k = 0; k < at_once; ++k)
#pragma unroll
    for (int j = 0; j < loads; ++j)
      x[k][j] = first + k * groups < rows ? *reinterpret_cast<const Words*>(in + place(k, j)) : Words{};
#pragma unroll
  for (int k = 0; k < at_once; ++k) {
    float sums[2] = {};
#pragma unroll
    for (int j = 0; j < loads; ++j)
#pragma unroll
      for (int w = 0; w < words; ++w) {
        sums[0] = fmaf(low(x[k][j][w]), low(x[k][j][w]), sums[0]);
        sums[1] = fmaf(high(x[k][j][w]), high(x[k][j][w]), sums[1]);
      }
    const float factor = reciprocal_length(device::warp_sum<lanes>(sums[0] + sums[1]));
    if (first + k * groups >= rows) continue;
    if constexpr (scales) {
#pragma unroll
      for (int j = 0; j < loads; ++j) {
        Words scaled;
#pragma unroll
        for (int w = 0; w < words; ++w) {
          keep_packed(x[k][j][w]);
          scaled[w] = device::narrow_bf16(low(x[k][j][w]) * factor, high(x[k][j][w]) * factor);
        }
        *reinterpret_cast<Words*>(out + place(k, j)) = scaled;
      }
    } else if (lane == 0) factors[first + k * groups] = factor;
  }
}

class FusedL2norm final : public Workload {
 public:
  explicit FusedL2norm(Setup& setup)
      : columns_{setup.size("columns")},
        rows_{std::max<std::size_t>(setup.size("elements") / columns_, 1)},
        // Rows of very different lengths, and some of zeros.
        in_{setup.input<bf16>(
            rows_ * columns_,
            normal(0, 1).times(0.01f, 100, all_of(Axis{columns_, rows_})).set(0, at(Axis{columns_, rows_}, 5, rows_ / 1000 + 1)),
            {.name = "rows"})},
        // For the library, whose norm is of the mean instead of the sum.
        scale_{setup.input<bf16>(columns_, constant(1 / std::sqrt(static_cast<float>(columns_))), {.name = "scale"})},
        out_{setup.output<bf16>(rows_ * columns_, {.name = "normalized rows"})},
        factors_{setup.scratch<float>(rows_, {.name = "reciprocal lengths"})},
        cudnn_{setup, rows_, columns_, static_cast<double>(epsilon) / static_cast<double>(columns_)},
        reproducible_{setup.reproducible()} {}

  Cost cost() const override {
    return {.flops = 3 * static_cast<double>(in_.size()), .bytes = static_cast<double>(in_.bytes() + out_.bytes())};
  }
  double expected(std::size_t i) const override {
    double sum = static_cast<double>(epsilon);
    for (std::size_t k = i / columns_ * columns_; k < (i / columns_ + 1) * columns_; ++k) sum += in_.host(k) * in_.host(k);
    return in_.host(i) / std::sqrt(sum);
  }

  void two_kernels(Launch& launch) {
    launch(lengths_kernel, {.blocks = rows(), .threads = row_threads}, in_, factors_, columns_);
    scale(launch);
  }
  void block_per_row(Launch& launch) {
    launch(block_per_row_kernel, {.blocks = rows(), .threads = row_threads}, in_, out_, columns_);
  }
  void subwarp_row(Launch& launch) { subwarps<1, true>(launch); }
  void subwarp_row_ilp4(Launch& launch) { subwarps<4, true>(launch); }
  void subwarp_two_kernels(Launch& launch) {
    subwarps<1, false>(launch);
    scale(launch);
  }
  // A whole warp a row, with narrower loads where rows are short.
  void warp_row(Launch& launch) {
    switch (columns_) {
      case 64: return lanes_each<1, 32, 1, 1, true>(launch);
      case 128: return lanes_each<2, 32, 1, 1, true>(launch);
      case 32: throw Unsupported{"a row of 32 is a bf16 for each lane of a warp, and lanes load words of two"};
      default: return subwarps<1, true>(launch);
    }
  }
  void block_vec16(Launch& launch) {
    const auto row_packets = static_cast<unsigned>(columns_ / packet);
    const unsigned block = (row_packets + 31) / 32 * 32;
    launch(block_vec16_kernel, {.blocks = rows(), .threads = block}, packets(in_.get()), packets(out_.get()), row_packets);
  }
  void tune(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    cudnn_->tune(launch.stream, in_.get(), scale_.get(), out_.get());
  }
  void cudnn_rms_norm(Launch& launch) { cudnn_->run(launch.stream, in_.get(), scale_.get(), out_.get()); }

 private:
  unsigned rows() const { return static_cast<unsigned>(rows_); }
  static const uint4* packets(const bf16* of) { return reinterpret_cast<const uint4*>(of); }
  static uint4* packets(bf16* of) { return reinterpret_cast<uint4*>(of); }

  void scale(Launch& launch) {
    const std::size_t count = in_.size() / packet;
    launch(scale_kernel, {static_cast<unsigned>((count + threads - 1) / threads), threads}, packets(in_.get()), factors_,
           packets(out_.get()), columns_ / packet, count);
  }
  template <int words, int lanes, int loads, int at_once, bool scales>
  void lanes_each(Launch& launch) {
    constexpr unsigned of_block = threads / lanes * at_once;
    launch(lanes_per_row_kernel<words, lanes, loads, at_once, scales>, {(rows() + of_block - 1) / of_block, threads},
           reinterpret_cast<const unsigned*>(in_.get()), reinterpret_cast<unsigned*>(out_.get()), factors_, rows_);
  }
  // As few lanes as hold a row in 16 bytes each, at most a warp; `at_once`: rows, where a lane has registers for so many.
  template <int at_once, bool scales>
  void subwarps(Launch& launch) {
    switch (columns_) {
      case 32: return lanes_each<4, 4, 1, at_once, scales>(launch);
      case 64: return lanes_each<4, 8, 1, at_once, scales>(launch);
      case 128: return lanes_each<4, 16, 1, at_once, scales>(launch);
      case 512: return lanes_each<4, 32, 2, at_once, scales>(launch);
      case 2048: return lanes_each<4, 32, 8, std::min<int>(at_once, most_loads / 8), scales>(launch);
      case 8192: return lanes_each<4, 32, 32, std::min<int>(at_once, most_loads / 32), scales>(launch);
      default: throw Unsupported{"kernels are compiled for rows of 32, 64, 128, 512, 2048 and 8192"};
    }
  }

  std::size_t columns_, rows_;
  Input<bf16> in_, scale_;
  Output<bf16> out_;
  Scratch<float> factors_;
  Opened<CudnnRmsNorm> cudnn_;
  bool reproducible_;
};

}  // namespace

extern constinit const Pair fused_l2norm{
    .teaches = "short rows need neither blocks nor shared memory: a few lanes hold a row, add by shuffles and write it back",
    .lesson = "subwarp_row",
    .make = make<FusedL2norm>,
    .baseline = {.name = "two_kernels", .run = call<&FusedL2norm::two_kernels>},
    .optimized =
        variants({{.name = "block_per_row", .run = call<&FusedL2norm::block_per_row>, .kernels = {.local_bytes = 0}},
                  {.name = "subwarp_row", .run = call<&FusedL2norm::subwarp_row>, .kernels = {.local_bytes = 0}},
                  {.name = "subwarp_row_ilp4", .run = call<&FusedL2norm::subwarp_row_ilp4>, .kernels = {.local_bytes = 0}}}),
    // Sub-warps without the fusion, and wider teams for a row.
    .controls = variants({{.name = "subwarp_two_kernels", .run = call<&FusedL2norm::subwarp_two_kernels>},
                          {.name = "warp_row", .run = call<&FusedL2norm::warp_row>},
                          {.name = "block_vec16", .run = call<&FusedL2norm::block_vec16>}}),
    .libraries = variants({{.name = "cudnn_rms_norm",
                            .run = call<&FusedL2norm::cudnn_rms_norm>,
                            .prepare = call<&FusedL2norm::tune>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::memory,
    // One rounding to bf16 is 1.6e-3; the library's scale is rounded, too.
    .tolerance = within(4e-3),
    .sizes = sizes({{.name = "elements", .full = 16384 * 64 * 128, .multiple = 32, .most = 1u << 30},
                    {.name = "columns", .full = 128, .multiple = 32, .most = 8192, .scales = false}}),
    .sweep = cases({{"columns_32", "columns=32"},
                    {"columns_64", "columns=64"},
                    {"columns_128", "columns=128"},
                    {"columns_512", "columns=512"},
                    {"columns_2048", "columns=2048"},
                    {"columns_8192", "columns=8192"}}),
    .edges = cases({{"one_row", "elements=128"},
                    {"odd_rows", "elements=4736"},
                    {"odd_narrow_rows", "elements=8096,columns=32"},
                    {"odd_long_rows", "elements=24576,columns=8192"}}),
};

}  // namespace aisp::ch09
