// SPDX-License-Identifier: Apache-2.0
// G = X^T X of a matrix with millions of rows and 64 columns, in fp32: 32 FLOP for a byte, which is where FMA units and memory
// take as long as each other. Half of G is enough, since it is symmetric. Tensor cores take more than the FMA units, but only 11
// bits of a value: cut in two parts, fp32 passes as three products, and memory is the limit on an H100; on an H200, whose memory
// is faster, the products still are. They drop bits as they add, so that sums move to fp32 registers every 64 rows.
#include <aisp/device/async_copy.cuh>
#include <aisp/device/warpgroup.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <type_traits>

#include "gram_reference.cuh"
#include "gram_tiles.cuh"

namespace aisp::ch09 {
namespace {

using namespace gram;

// The sums of one warp. On tensor cores X^T and X are fragments of the same values: what A wants of two neighbouring tiles of
// columns is what B wants of them. `t`: sums that have left the tensor cores.
template <int columns, int warp, Units units>
struct Sums {
  using S = Shape<columns>;
  static constexpr int count = S::tiles_of(warp);
  float in_units[count][4] = {}, t[units == Units::fma ? 1 : count][4] = {};

  __device__ void add_chunk(const unsigned char* chunk) {
    if constexpr (units == Units::fma) {
#pragma unroll 1
      for (int first = 0; first < S::chunk_rows; first += 4)
#pragma unroll
        for (int row = 0; row < 4; ++row) add_row(chunk + (first + row) * S::row_bytes, row);
    } else {
#pragma unroll 2
      for (int first = 0; first < S::chunk_rows; first += step) add_step(chunk + first * S::row_bytes);
    }
  }
  // A thread's sums of a tile: rows 2 l and 2 l + 1 of both halves of the tile, column m, of the lane with these numbers. They
  // are dealt out so that pairs of lanes read the same, the next lane or the one after it, whom shared memory serves at once.
  static __device__ int l() { return threadIdx.x % 2 + threadIdx.x / 16 % 2 * 2; }
  static __device__ int m() { return threadIdx.x / 2 % 8; }
  __device__ void add_row(const unsigned char* chunk, int row) {
    const unsigned char* const of_columns_at = chunk + place(row, m()) * 16;
    const unsigned char* const of_rows_at = chunk + place(row, 2 * l()) * 16;
    float of_rows[S::tile_columns][2], of_columns[S::tile_columns];
#pragma unroll
    for (int q = 0; q < S::tile_columns / 4; ++q) {
      spread(load<float4>(of_columns_at + q * 128), [&](int k, float x) { of_columns[q * 4 + k] = x; });
      spread(load<float4>(of_rows_at + q * 128), [&](int k, float x) { of_rows[q * 4 + k][0] = x; });
      spread(load<float4>(of_rows_at + q * 128 + 16), [&](int k, float x) { of_rows[q * 4 + k][1] = x; });
    }
    int n = 0;
#pragma unroll
    for (int i = 0; i < S::tile_rows; ++i)
      if (S::has(warp, i))
#pragma unroll
        for (int j = 0; j < 2 * i + 2; ++j, ++n)
#pragma unroll
          for (int turn = 0; turn < 4; ++turn) {
            const int k = j % 2 == 0 ? turn : 3 - turn;  // one operand is that of the FMA before, which saves reading it
            in_units[n][k] = fmaf(of_rows[2 * i + k / 2][k % 2], of_columns[j], in_units[n][k]);
          }
  }
  // Adds the rows of a step. `high` of A still has the bits that tensor cores ignore; B's do without them, since what is left of
  // a value is to be told. A and B want their registers in different orders, which is why all have their own.
  __device__ void add_step(const unsigned char* chunk) {
    const int lane = threadIdx.x % 32, row = lane % 4, element = lane / 4;
    unsigned a_high[S::tile_rows][4], a_low[S::tile_rows][4], b_high[S::tile_columns][2], b_low[S::tile_columns][2];
    const unsigned char* const at = chunk + row * S::row_bytes + element % 2 * 8;
    const unsigned char* const pair_at[2] = {at + place(row, element / 2) * 16, at + place(row, 4 + element / 2) * 16};
#pragma unroll
    for (int i = 0; i < S::tile_rows; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k) {  // of tile 2 i + k % 2, and of the first or the last four rows
        if (k % 2 == 0) {
          const uint2 two = load<uint2>(pair_at[i % 2] + i / 2 * 128 + k / 2 * 4 * S::row_bytes);
          a_high[i][k] = two.x, a_high[i][k + 1] = two.y;
        }
        if constexpr (units == Units::tf32) a_high[i][k] += half_unit;
        unsigned& high = b_high[2 * i + k % 2][k / 2];
        high = a_high[i][k] & kept_bits;
        if constexpr (units == Units::tf32_three_times) {
          const float value = __uint_as_float(a_high[i][k]);
          if (S::has(warp, i)) a_low[i][k] = __float_as_uint(value - __uint_as_float(high));
          b_low[2 * i + k % 2][k / 2] = __float_as_uint(fmaf(__uint_as_float(high), minus_one, value));
        }
      }
    // The small products first; one after the other for all tiles, so that no instruction waits for the sums of the one before
    // it.
    constexpr int products = units == Units::tf32_three_times ? 3 : 1;
#pragma unroll
    for (int p = products; p > 0; --p) {
      int n = 0;
#pragma unroll
      for (int i = 0; i < S::tile_rows; ++i)
        if (S::has(warp, i))
#pragma unroll
          for (int j = 0; j < 2 * i + 2; ++j, ++n) {
            mma_tf32(in_units[n], p == 3 ? a_low[i] : a_high[i], p != 2 ? b_high[j] : b_low[j]);
          }
    }
  }
  __device__ void leave_units() {
    if constexpr (units != Units::fma) {
#pragma unroll
      for (int n = 0; n < count; ++n)
#pragma unroll
        for (int k = 0; k < 4; ++k) t[n][k] += in_units[n][k], in_units[n][k] = 0;
    }
  }
  // In the order [tile][row][column], in shared memory.
  __device__ void store(float* to) const {
    const int lane = threadIdx.x % 32;
    int n = 0;
#pragma unroll
    for (int i = 0; i < S::tile_rows; ++i)
      if (S::has(warp, i))
#pragma unroll
        for (int j = 0; j < 2 * i + 2; ++j, ++n)
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const int row = k / 2 * 8 + (units == Units::fma ? l() * 2 + k % 2 : lane / 4);
            const int column = units == Units::fma ? m() : lane % 4 * 2 + k % 2;
            to[tile_number(i, j) * tile_size + row * 8 + column] = units == Units::fma ? in_units[n][k] : t[n][k];
          }
  }

 private:
  template <class Use>
  static __device__ void spread(float4 x, const Use& use) {
    use(0, x.x), use(1, x.y), use(2, x.z), use(3, x.w);
  }
};

template <int columns>
__device__ void wait_for_group(int group) {
  if constexpr (Shape<columns>::warps == 1) __syncwarp();
  else device::named_barrier_sync(group + 1, Shape<columns>::warps * 32);
}

// Groups of all blocks take 64 rows in turn; a ring of their own in shared memory hides the way to memory, and no group waits for
// another.
template <int columns, int warp, Units units>
__device__ void stream_rows(const float* x, long long rows, unsigned char* memory) {
  using S = Shape<columns>;
  const int group = threadIdx.x / 32 / S::warps, thread = threadIdx.x % (S::warps * 32);
  unsigned char* const ring = memory + group * S::group_bytes;
  const long long apart = static_cast<long long>(gridDim.x) * S::groups * rows_between_sums;
  const long long begin = (static_cast<long long>(blockIdx.x) * S::groups + group) * rows_between_sums;
  // A chunk is contiguous in memory. `next`: its first row; `left`: chunks until the group's rows go on elsewhere.
  constexpr int lanes = S::warps * 32, rows_at_once = lanes / S::row_chunks;
  static_assert(lanes % S::row_chunks == 0 && 2 * rows_at_once % 4 == 0);
  const int row = thread / S::row_chunks, c = thread % S::row_chunks;
  unsigned char* const even = ring + row * S::row_bytes + place(row, c) * 16;
  unsigned char* const odd = ring + (row + rows_at_once) * S::row_bytes + place(row + rows_at_once, c) * 16;
  long long next = begin;
  int left = S::chunks_between_sums, stage = 0;
  const auto copy = [&] {
    const float* const from = x + next * columns + thread * 4;
    if (next + S::chunk_rows <= rows) {
#pragma unroll
      for (int i = 0; i < S::chunk_rows / rows_at_once; ++i)
        device::copy_async_16((i % 2 == 0 ? even : odd) + stage + i / 2 * 2 * rows_at_once * S::row_bytes, from + i * lanes * 4);
    } else {
#pragma unroll 1
      for (int i = 0; i < S::chunk_rows / rows_at_once; ++i) {
        const bool valid = next + row + i * rows_at_once < rows;  // what is not there adds nothing
        device::copy_async_16_or_zero((i % 2 == 0 ? even : odd) + stage + i / 2 * 2 * rows_at_once * S::row_bytes,
                                      valid ? from + i * lanes * 4 : x, valid);
      }
    }
    device::commit_copies();
    next += S::chunk_rows;
    if (--left == 0) next += apart - rows_between_sums, left = S::chunks_between_sums;
    stage = stage == (stages - 1) * chunk_bytes ? 0 : stage + chunk_bytes;
  };

  Sums<columns, warp, units> sums;
#pragma unroll
  for (int chunk = 0; chunk < stages - 1; ++chunk) copy();
  int current = 0;
  for (long long first = begin; first < rows; first += apart) {
#pragma unroll 1
    for (int chunk = 0; chunk < S::chunks_between_sums; ++chunk) {
      device::wait_copies<stages - 2>();
      wait_for_group<columns>(group);  // this chunk has come, and all are done with the one before it
      copy();
      sums.add_chunk(ring + current);
      current = current == (stages - 1) * chunk_bytes ? 0 : current + chunk_bytes;
    }
    sums.leave_units();
  }
  device::wait_copies<0>();
  device::named_barrier_sync(whole_block, threads);  // the ring is free
  sums.store(reinterpret_cast<float*>(memory) + group * S::sums);
}

template <int columns, Units units>
__global__ __launch_bounds__(threads, 1) void gram_kernel(const float* x, float* partial, long long rows) {
  using S = Shape<columns>;
  static_assert(S::groups * S::sums * 4 <= shared_bytes);
  extern __shared__ __align__(128) unsigned char memory[];
  if constexpr (S::warps == 1) stream_rows<columns, 0, units>(x, rows, memory);
  else switch (threadIdx.x / 32 % 4) {  // which sums a warp has must be known to the compiler
      case 0: stream_rows<columns, 0, units>(x, rows, memory); break;
      case 1: stream_rows<columns, 1, units>(x, rows, memory); break;
      case 2: stream_rows<columns, 2, units>(x, rows, memory); break;
      default: stream_rows<columns, 3, units>(x, rows, memory); break;
    }
  __syncthreads();
  for (int i = threadIdx.x; i < S::sums; i += threads) {
    float sum = 0;
    for (int group = 0; group < S::groups; ++group) {
      const float* const of_group = reinterpret_cast<const float*>(memory) + group * S::sums;
      sum += of_group[i];
    }
    partial[static_cast<std::size_t>(blockIdx.x) * S::sums + i] = sum;
  }
}

__device__ void store_sum(float sum, int row, int column, float* diagonal, float* triangle) {
  if (row == column) diagonal[row] = sum;
  else triangle[max(row, column) * (max(row, column) - 1) / 2 + min(row, column)] = sum;
}

// 32 sums a block; eight threads share the partial sums of one.
template <int columns, Units units>
__global__ __launch_bounds__(threads) void add_partial_kernel(const float* partial, int parts, float* diagonal, float* triangle) {
  using S = Shape<columns>;
  __shared__ float shared[8][32];
  const int lane = threadIdx.x % 32, slice = threadIdx.x / 32, at = static_cast<int>(blockIdx.x) * 32 + lane;
  float sum = 0;
#pragma unroll 4
  for (int part = slice; part < parts; part += 8) sum += partial[static_cast<std::size_t>(part) * S::sums + at];
  shared[slice][lane] = sum;
  __syncthreads();
  if (slice > 0) return;
  for (int other = 1; other < 8; ++other) sum += shared[other][lane];
  int i = 0;
  while (tile_number(i + 1, 0) <= at / tile_size) ++i;
  const int j = at / tile_size - tile_number(i, 0), row = at % tile_size / 8, column = at % 8;
  if (i * 16 + row < j * 8 + column) return;  // above the diagonal
  store_sum(sum, column_of<units>(2 * i + row / 8, row % 8), column_of<units>(j, column), diagonal, triangle);
}

// The lower half of what a library wrote, column by column.
__global__ void take_apart_kernel(const float* g, int columns, float* diagonal, float* triangle) {
  const int row = threadIdx.x, column = blockIdx.x;
  if (row >= column) store_sum(g[column * columns + row], row, column, diagonal, triangle);
}

class TallSkinnyGram final : public Workload {
 public:
  explicit TallSkinnyGram(Setup& setup)
      : rows_{setup.size("rows")},
        columns_{setup.size("columns")},
        x_{setup.input<float>(rows_ * columns_, normal(0, 1), {.name = "x"})},
        g_{setup.scratch<float>(columns_ * columns_, {.name = "g"})},
        partial_{setup.scratch<float>(multiprocessors() * sums(), {.name = "partial sums"})},
        reference_{setup, columns_},
        // In one output the diagonal, thousands of times as large, would hide errors of the rest.
        diagonal_{setup.output<float>(columns_, {.name = "diagonal"})},
        triangle_{setup.output<float>(columns_ * (columns_ - 1) / 2, {.name = "triangle"})},
        cublas_{setup},
        lt_{setup,
            {.m = columns_, .n = columns_, .k = rows_, .operands = CUDA_R_32F, .result = CUDA_R_32F, .a_is_transposed = true}} {
    with_columns([](auto) {});
  }

  Cost cost() const override { return cost_of(1, Math::fp32); }
  Cost variant_cost(std::string_view variant) const override {
    if (variant.starts_with("tf32x3_symmetric")) return cost_of(3, Math::tf32);
    return variant == "tf32x1_symmetric" ? cost_of(1, Math::tf32) : cost();
  }
  double expected_output(int output, std::size_t i) const override { return reference_.of(output, i).x; }
  double expected_quantized(std::string_view, int output, std::size_t i) const override { return reference_.of(output, i).y; }
  void compute_reference(Launch& launch) override { reference_.compute(launch, x_, rows_); }

  // Column-major, as cuBLAS sees it, X has `columns` rows.
  void sgemm(Launch& launch) {
    const auto gemm = Cublas::function<decltype(cublasSgemm_v2)>("cublasSgemm_v2");
    const int n = static_cast<int>(columns_);
    cublas_->use(launch.stream);
    check(gemm(cublas_->handle(), CUBLAS_OP_N, CUBLAS_OP_T, n, n, static_cast<int>(rows_), &one, x_, n, x_, n, &zero, g_, n));
    take_apart(launch);
  }
  void tune(Launch& launch) { lt_.tune(launch, x_, x_, g_); }
  void cublaslt_tuned(Launch& launch) {
    lt_.run_tuned(launch, x_, x_, g_);
    take_apart(launch);
  }

  template <Units units>
  void symmetric(Launch& launch) {
    with_columns([&](auto c) {
      const unsigned blocks = multiprocessors();
      launch(gram_kernel<c, units>, {blocks, threads, shared_bytes}, x_, partial_, rows_);
      launch(add_partial_kernel<c, units>, {Shape<c>::sums / 32, threads}, partial_, blocks, diagonal_, triangle_);
    });
  }

 private:
  static constexpr float one = 1, zero = 0;

  template <class Use>
  void with_columns(const Use& use) const {
    switch (columns_) {
      case 32: return use(std::integral_constant<int, 32>{});
      case 64: return use(std::integral_constant<int, 64>{});
      case 128: return use(std::integral_constant<int, 128>{});
      default: throw Unsupported{"the kernels are compiled for 32, 64 and 128 columns"};
    }
  }
  std::size_t sums() const { return columns_ / 16 * (columns_ / 16 + 1) * tile_size; }
  // Returns the cost of the half of G that is not the mirror of the other.
  Cost cost_of(double times, Math math) const {
    return {.flops = times * static_cast<double>(rows_ * columns_) * static_cast<double>(columns_ + 1),
            .math = math,
            .bytes = static_cast<double>(x_.bytes() + diagonal_.bytes() + triangle_.bytes())};
  }
  void take_apart(Launch& launch) const {
    const auto n = static_cast<unsigned>(columns_);
    launch(take_apart_kernel, {n, n}, g_, columns_, diagonal_, triangle_);
  }

  std::size_t rows_, columns_;
  Input<float> x_;
  Scratch<float> g_, partial_;
  gram::Reference reference_;
  Output<float> diagonal_, triangle_;
  Opened<Cublas> cublas_;
  LibraryMatmul lt_;
};

constexpr KernelLimits no_spills{.local_bytes = 0};

}  // namespace

extern constinit const Pair tall_skinny_gram{
    .teaches =
        "tensor cores raise the roof over an fp32 product to that of memory or near it, and three TF32 products keep its "
        "accuracy",
    .lesson = "tf32x3_symmetric",
    .make = make<TallSkinnyGram>,
    .baseline = {.name = "sgemm", .run = call<&TallSkinnyGram::sgemm>, .needs = {.libraries = {Library::cublas}}},
    .optimized = variants(
        {{.name = "ffma_symmetric", .run = call<&TallSkinnyGram::symmetric<Units::fma>>, .kernels = no_spills},
         {.name = "tf32x3_symmetric", .run = call<&TallSkinnyGram::symmetric<Units::tf32_three_times>>, .kernels = no_spills}}),
    // If it is no faster, memory is the limit, and accuracy costs nothing; its error is what the further products take away.
    .controls = variants({{.name = "tf32x1_symmetric",
                           .run = call<&TallSkinnyGram::symmetric<Units::tf32>>,
                           .changes_precision = true,
                           .kernels = no_spills}}),
    .libraries = variants({{.name = "cublaslt_tuned",
                            .run = call<&TallSkinnyGram::cublaslt_tuned>,
                            .prepare = call<&TallSkinnyGram::tune>,
                            .needs = {.libraries = {Library::cublaslt}}}}),
    // fp32 over chains of 8 Ki to 128 Ki rows is off by 4e-6, plain TF32 by 4e-4 of the triangle.
    .tolerance = per_output({within(5e-6), within(2e-5)}),
    // With 2^25 rows the fp32 sums are farther off than that.
    .sizes = sizes({{.name = "rows", .full = 8388608, .most = 1 << 24},
                    {.name = "columns", .full = 64, .multiple = 32, .most = 128, .scales = false}}),
    .sweep = cases({{"columns_32", "rows=16777216,columns=32"},
                    {"columns_64", "rows=8388608,columns=64"},
                    {"columns_128", "rows=4194304,columns=128"}}),
    .edges = cases({{"one_row", "rows=1"},
                    {"part_of_a_chunk", "rows=63,columns=128"},
                    {"odd_rows", "rows=100003"},
                    {"odd_rows_of_32", "rows=100003,columns=32"}}),
    .reference_samples = 8192,  // all of G
};

}  // namespace aisp::ch09
