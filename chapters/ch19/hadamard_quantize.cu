// SPDX-License-Identifier: Apache-2.0
// Rows with outlier channels are rotated by a Hadamard matrix, which spreads them, and become INT4 with a scale of each row. As a
// GEMM the rotation is n multiply-adds an element; the matrix has the structure of an FFT without its factors, log n additions.
// What is left is moving values between threads: a step of the textbook's butterfly doubles the distance and goes through shared
// memory each time. With 32 values in a thread's registers five steps need no move at all.
#include <cuda_bf16.h>
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "hadamard_codes.hpp"
#include "hadamard_products.cuh"
#include "hadamard_rows.cuh"
#include "row_cache.hpp"

namespace aisp::ch19 {
namespace {

using shared::bf16, shared::packet;
constexpr int shortest_log = 7, longest_log = 15;

__global__ __launch_bounds__(threads) void hadamard_matrix_kernel(bf16* matrix, unsigned columns) {
  const unsigned row = blockIdx.x;
  for (unsigned i = threadIdx.x; i < columns; i += threads)
    matrix[std::size_t{row} * columns + i] = __float2bfloat16((__popc(row & i) & 1) != 0 ? -1.0f : 1.0f);
}

// A block has a row, which its second pass finds in L1 or L2.
__global__ __launch_bounds__(threads) void quantize_rows_kernel(const uint4* __restrict__ rotated, unsigned* __restrict__ codes,
                                                                float* __restrict__ scales, unsigned packets) {
  __shared__ float maxima[device::largest_block_in_warps];
  const std::size_t row = std::size_t{blockIdx.x} * packets;
  float x[packet], largest = 0;
  for (unsigned i = threadIdx.x; i < packets; i += threads) {
    shared::unpack(rotated[row + i], x);
    largest = fmaxf(largest, largest_magnitude(x));
  }
  const Quantizer quantizer{device::block_max(largest, 0.0f, maxima), 1};
  for (unsigned i = threadIdx.x; i < packets; i += threads) {
    shared::unpack(rotated[row + i], x);
    codes[row + i] = pack_codes(quantizer.four_codes(x[0], x[1], x[2], x[3]), quantizer.four_codes(x[4], x[5], x[6], x[7]));
  }
  if (threadIdx.x == 0) scales[blockIdx.x] = quantizer.scale;
}

// The textbook's transform: a row in shared memory, log n steps with a barrier after each.
__global__ __launch_bounds__(threads) void textbook_kernel(const uint4* __restrict__ x, uint4* __restrict__ rotated,
                                                           unsigned columns, float norm) {
  extern __shared__ float4 row_memory[];
  float* const row = reinterpret_cast<float*>(row_memory);
  const unsigned packets = columns / packet;
  float values[packet];
  for (unsigned i = threadIdx.x; i < packets; i += threads) {
    shared::unpack(x[std::size_t{blockIdx.x} * packets + i], values);
    row_memory[2 * i] = make_float4(values[0], values[1], values[2], values[3]);
    row_memory[2 * i + 1] = make_float4(values[4], values[5], values[6], values[7]);
  }
  for (unsigned distance = 1; distance < columns; distance *= 2) {
    __syncthreads();
    for (unsigned i = threadIdx.x; i < columns / 2; i += threads) {
      const unsigned first = (i & ~(distance - 1)) * 2 + (i & (distance - 1));
      const float a = row[first], b = row[first + distance];
      row[first] = a + b;
      row[first + distance] = a - b;
    }
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < packets; i += threads) {
    const float4 low = row_memory[2 * i], high = row_memory[2 * i + 1];
    const float scaled[packet] = {low.x * norm,  low.y * norm,  low.z * norm,  low.w * norm,
                                  high.x * norm, high.y * norm, high.z * norm, high.w * norm};
    rotated[std::size_t{blockIdx.x} * packets + i] = shared::pack(scaled);
  }
}

struct Results {
  bf16* rotated;  // or these two
  uint2* codes;
  float* scales;
};

template <int log, bool tensor_cores, bool quantize>
__global__ __launch_bounds__(Row<log>::block, 1024 / Row<log>::block) void rotate_kernel(const uint4* __restrict__ x,
                                                                                         Results results, float norm,
                                                                                         unsigned rows) {
  using Of = Row<log>;
  extern __shared__ __align__(128) unsigned char space[];
  Of& shared = *reinterpret_cast<Of*>(space);
  const unsigned t = threadIdx.x % Of::team, team_row = threadIdx.x / Of::team;
  const std::size_t row = std::size_t{blockIdx.x} * Of::rows + team_row;
  const bool inside = row < rows;
  uint4 loaded[4] = {};
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (inside) loaded[j] = x[row * Of::packets + t + j * Of::team];
  float values[held];
  if constexpr (tensor_cores) {
    unsigned hadamard[4];
    hadamard_fragment(hadamard);
#pragma unroll
    for (int j = 0; j < 4; ++j) tensor_steps(loaded[j], hadamard, values + j * packet);
    butterflies<3, held_log>(values);
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) shared::unpack(loaded[j], *reinterpret_cast<float(*)[packet]>(values + j * packet));
    butterflies<0, held_log>(values);
    Of::Loaded::store(values, shared.values[team_row] + word_of(Of::Loaded::of_thread(t)));
    __syncthreads();
    float* const middle = shared.values[team_row] + word_of(Of::Middle::of_thread(t));
    Of::Middle::load(values, middle);
    butterflies<Of::Middle::first_step(), held_log>(values);
    if constexpr (Of::last_bits > 0) Of::Middle::store(values, middle);
  }
  if constexpr (Of::last_bits > 0) {
    if constexpr (tensor_cores) Of::Loaded::store(values, shared.values[team_row] + word_of(Of::Loaded::of_thread(t)));
    __syncthreads();
    Of::Last::load(values, shared.values[team_row] + word_of(Of::Last::of_thread(t)));
    butterflies<Of::Last::first_step(), held_log>(values);
  }
  using Held = std::conditional_t<(Of::last_bits > 0), typename Of::Last,
                                  std::conditional_t<tensor_cores, typename Of::Loaded, typename Of::Middle>>;
  if constexpr (quantize)
    store_quantized<log, Held>(values, norm, shared, t, inside, results.codes + row * (Of::columns / 16), results.scales + row);
  else if (inside) store_rotated<Held>(values, norm, results.rotated + row * Of::columns + Held::of_thread(t));
}

class HadamardQuantize final : public Workload {
 public:
  explicit HadamardQuantize(Setup& setup)
      : rows_{setup.size("rows")},
        columns_{setup.size("columns")},
        outlier_{static_cast<float>(setup.size("outlier"))},
        x_{setup.input<bf16>(rows_ * columns_, values(), {.name = "x"})},
        codes_{setup.output<std::uint8_t>(rows_ * columns_ / 2, {.name = "codes"})},
        scales_{setup.output<float>(rows_, {.name = "scales"})},
        matrix_{setup.scratch<bf16>(columns_ * columns_, {.name = "Hadamard matrix"})},
        rotated_{setup.scratch<bf16>(rows_ * columns_, {.name = "rotated x"})},
        half_rotated_{setup.scratch<bf16>(rows_ * columns_, {.name = "half rotated x"})},
        cublas_{setup},
        product_{setup, {.m = rows_, .n = columns_, .k = columns_}} {
    if (!std::has_single_bit(columns_)) throw Unsupported{"rows are not of a power of two"};
  }

  Cost cost() const override { return {.bytes = static_cast<double>(x_.bytes() + codes_.bytes() + scales_.bytes())}; }
  void compute_reference(Launch&) override { reference_.forget(rows_); }
  double expected_output(int output, std::size_t i) const override {
    const Reference& row = of_row(output == 0 ? i / (columns_ / 2) : i);
    if (output == 1) return row.scale;
    const std::size_t first = i % (columns_ / 2) * 2;
    return row.code(first) + 16 * row.code(first + 1);
  }
  // Bytes of two codes say little about steps of one: some rows are looked at code by code.
  void validate(std::string_view variant) override {
    const std::size_t most = std::min<std::size_t>(rows_, 16);
    std::vector<std::uint8_t> found(columns_ / 2);
    std::size_t moved = 0;
    double lost = 0, lost_without = 0, all = 0;
    for (std::size_t k = 0; k < most; ++k) {
      const std::size_t row = k * (rows_ - 1) / std::max<std::size_t>(most - 1, 1);
      check(cudaMemcpy(found.data(), codes_.get() + row * found.size(), found.size(), cudaMemcpyDeviceToHost));
      const Reference& reference = of_row(row);
      for (std::size_t i = 0; i < columns_; ++i) {
        const int code = found[i / 2] >> (i % 2 * 4) & 15;
        const double steps = std::abs(code - reference.code(i));
        moved += steps != 0;
        if (steps > 1) throw std::runtime_error{"code " + std::to_string(i) + " of row " + std::to_string(row) + " is far off"};
        const double error = (code - double{codes_each_side}) * reference.scale - reference.rotated[i];
        lost += error * error;
        all += reference.rotated[i] * reference.rotated[i];
      }
      lost_without += error_without_rotation(row);
    }
    if (static_cast<double>(moved) > most_changed_codes(most * columns_))
      throw std::runtime_error{std::to_string(moved) + " codes of " + std::to_string(most * columns_) + " are off"};
    errors_[std::string{variant}] = all > 0 ? std::sqrt(lost / all) : 0;
    error_without_rotation_ = all > 0 ? std::sqrt(lost_without / all) : 0;
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    const auto error = errors_.find(variant);
    if (error == errors_.end()) return;
    metrics.report("int4_error", 100 * error->second, "%", Metrics::Better::lower);
    metrics.report("int4_error_without_rotation", 100 * error_without_rotation_, "%", Metrics::Better::lower);
  }

  void make_matrix(Launch& launch) {
    launch(hadamard_matrix_kernel, {static_cast<unsigned>(columns_), threads}, matrix_, columns_);
  }
  void hadamard_gemm(Launch& launch) {
    product_.run(launch, x_, matrix_, rotated_, norm());
    quantize_rows(launch);
  }
  void fwht_shared(Launch& launch) {
    launch(textbook_kernel, {.blocks = rows(), .threads = threads, .shared_bytes = columns_ * sizeof(float)}, packets(x_.get()),
           packets(rotated_.get()), columns_, norm());
    quantize_rows(launch);
  }
  void fwht_registers(Launch& launch) {
    rotate<shortest_log, false, false>(launch);
    quantize_rows(launch);
  }
  void fwht_fused(Launch& launch) { rotate<shortest_log, false, true>(launch); }
  void fwht_mma(Launch& launch) { rotate<shortest_log, true, true>(launch); }
  void fwht_all_mma(Launch& launch) {
    if (columns_ != ProductRow::columns) throw Unsupported{"its thirteen steps are those of rows of 8192"};
    launch(products_kernel,
           {.blocks = std::min(rows(), multiprocessors() * ProductRow::blocks_per_sm),
            .threads = threads,
            .shared_bytes = sizeof(ProductRow)},
           packets(x_.get()), reinterpret_cast<uint4*>(codes_.get()), scales_, norm(), rows());
  }
  // n = outer x inner: a product with the matrix of `inner` along neighbours, and one with that of `outer` across them. Both are
  // the upper left corner of the large one.
  void kronecker_gemm(Launch& launch) {
    const auto gemm = Cublas::function<GemmStridedBatchedEx>("cublasGemmStridedBatchedEx");
    const auto inner = static_cast<int>(std::min<std::size_t>(columns_, 128));
    const auto n = static_cast<int>(columns_), outer = n / inner, runs = static_cast<int>(rows_) * outer;
    const float of_inner = 1 / std::sqrt(static_cast<float>(inner)), of_outer = 1 / std::sqrt(static_cast<float>(outer)),
                zero = 0;
    bf16* const first = outer == 1 ? rotated_.get() : half_rotated_.get();
    cublas_->use(launch.stream);
    check(gemm(cublas_->handle(), CUBLAS_OP_N, CUBLAS_OP_N, inner, runs, inner, &of_inner, matrix_.get(), CUDA_R_16BF, n, 0,
               x_.get(), CUDA_R_16BF, inner, 0, &zero, first, CUDA_R_16BF, inner, 0, 1, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    if (outer > 1)
      check(gemm(cublas_->handle(), CUBLAS_OP_N, CUBLAS_OP_N, inner, outer, outer, &of_outer, first, CUDA_R_16BF, inner, n,
                 matrix_.get(), CUDA_R_16BF, n, 0, &zero, rotated_.get(), CUDA_R_16BF, inner, n, static_cast<int>(rows_),
                 CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    quantize_rows(launch);
  }

 private:
  // The header overloads the name.
  using GemmStridedBatchedEx = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                                              const void*, cudaDataType_t, int, long long, const void*, cudaDataType_t, int,
                                              long long, const void*, void*, cudaDataType_t, int, long long, int,
                                              cublasComputeType_t, cublasGemmAlgo_t);
  struct Reference {
    std::vector<double> rotated;
    double scale = 1;
    double code(std::size_t i) const {
      return std::min(std::nearbyint(rotated[i] / scale) + double{codes_each_side}, 2 * double{codes_each_side} - 1);
    }
  };

  // Outlier channels; a row of zeros, and one that is a column of the matrix: all of it arrives in one element.
  Pattern values() const {
    const Axis channels{1, columns_}, rows{columns_, rows_};
    const Pattern pattern = normal(0, 1).times(outlier_, drawn(channels, 8)).set(-0.0f, drawn(Axis{1, rows_ * columns_}, rows_));
    return rows_ < 8 ? pattern : pattern.set(0, at(rows, rows_ / 2)).set(1.5f, at(rows, rows_ - 1));
  }
  const Reference& of_row(std::size_t row) const {
    return reference_.of(row, [&] {
      Reference result{.rotated = std::vector<double>(columns_)};
      std::vector<double>& x = result.rotated;
      for (std::size_t i = 0; i < columns_; ++i) x[i] = x_.host(row * columns_ + i);
      for (std::size_t distance = 1; distance < columns_; distance *= 2)
        for (std::size_t i = 0; i < columns_; ++i)
          if ((i & distance) == 0) {
            const double a = x[i], b = x[i + distance];
            x[i] = a + b;
            x[i + distance] = a - b;
          }
      double maximum = double{smallest_maximum};
      for (double& value : x) {
        value /= std::sqrt(static_cast<double>(columns_));
        maximum = std::max(maximum, std::abs(value));
      }
      result.scale = maximum / double{codes_each_side};
      return result;
    });
  }
  double error_without_rotation(std::size_t row) const {
    Reference plain{.rotated = std::vector<double>(columns_)};
    double maximum = double{smallest_maximum}, lost = 0;
    for (std::size_t i = 0; i < columns_; ++i) {
      plain.rotated[i] = x_.host(row * columns_ + i);
      maximum = std::max(maximum, std::abs(plain.rotated[i]));
    }
    plain.scale = maximum / double{codes_each_side};
    for (std::size_t i = 0; i < columns_; ++i) {
      const double error = (plain.code(i) - double{codes_each_side}) * plain.scale - plain.rotated[i];
      lost += error * error;
    }
    return lost;
  }

  unsigned rows() const { return static_cast<unsigned>(rows_); }
  float norm() const { return static_cast<float>(1 / std::sqrt(static_cast<double>(columns_))); }
  static const uint4* packets(const bf16* of) { return reinterpret_cast<const uint4*>(of); }
  static uint4* packets(bf16* of) { return reinterpret_cast<uint4*>(of); }
  void quantize_rows(Launch& launch) {
    launch(quantize_rows_kernel, {rows(), threads}, packets(rotated_.get()), reinterpret_cast<unsigned*>(codes_.get()), scales_,
           columns_ / packet);
  }
  // The kernel for this length of rows.
  template <int log, bool tensor_cores, bool quantize>
  void rotate(Launch& launch) {
    if constexpr (log > longest_log) throw Unsupported{"rows are too long for the shared memory of an SM"};
    else if (columns_ != std::size_t{1} << log) rotate<log + 1, tensor_cores, quantize>(launch);
    else if constexpr (tensor_cores && Row<log>::team < device::warp_size)
      throw Unsupported{"a warp has several rows, and its tensor-core product takes one of 1024 elements or more"};
    else {
      using Of = Row<log>;
      const Grid grid{
          .blocks = static_cast<unsigned>((rows_ + Of::rows - 1) / Of::rows), .threads = Of::block, .shared_bytes = sizeof(Of)};
      const Results results{rotated_, reinterpret_cast<uint2*>(codes_.get()), scales_};
      launch(rotate_kernel<log, tensor_cores, quantize>, grid, packets(x_.get()), results, norm(), rows());
    }
  }

  std::size_t rows_, columns_;
  float outlier_;
  Input<bf16> x_;
  Output<std::uint8_t> codes_;  // two a byte, the first in the lower half
  Output<float> scales_;
  Scratch<bf16> matrix_, rotated_, half_rotated_;
  Opened<Cublas> cublas_;
  LibraryMatmul product_;
  shared::RowCache<Reference> reference_;
  std::map<std::string, double, std::less<>> errors_;  // by variant: they are validated one after the other
  double error_without_rotation_ = 0;
};

}  // namespace

extern constinit const Pair hadamard_quantize{
    .teaches = "a rotation that spreads outliers for INT4 is n log n additions in registers, and no GEMM",
    .lesson = "fwht_registers",
    .make = make<HadamardQuantize>,
    .baseline = {.name = "hadamard_gemm",
                 .run = call<&HadamardQuantize::hadamard_gemm>,
                 .prepare = call<&HadamardQuantize::make_matrix>,
                 .needs = {.libraries = {Library::cublaslt}}},
    .optimized =
        variants({{.name = "fwht_shared", .run = call<&HadamardQuantize::fwht_shared>},
                  {.name = "fwht_registers", .run = call<&HadamardQuantize::fwht_registers>, .kernels = {.local_bytes = 0}},
                  {.name = "fwht_fused", .run = call<&HadamardQuantize::fwht_fused>, .kernels = {.local_bytes = 0}},
                  {.name = "fwht_mma", .run = call<&HadamardQuantize::fwht_mma>, .kernels = {.local_bytes = 0}},
                  {.name = "fwht_all_mma",
                   .run = call<&HadamardQuantize::fwht_all_mma>,
                   .needs = {.min_sm = 90},
                   .kernels = {.local_bytes = 0}}}),
    .controls = variants({{.name = "kronecker_gemm",
                           .run = call<&HadamardQuantize::kronecker_gemm>,
                           .prepare = call<&HadamardQuantize::make_matrix>,
                           .needs = {.libraries = {Library::cublas}}}}),
    .bound = Bound::memory,
    // A rotated element that is rounded to bf16, where it is written or between two products, is off by 1.6e-3 of the elements'
    // root mean square, and a step between codes is half of that mean: 1 code in 300 changes, 1 in 200 of two roundings, by 16
    // where it is the upper half of its byte and the mean byte is 140. Scales have one such rounding, or two.
    .tolerance = per_output({within(1.5e-2, 0.15), within(4e-3, 8e-3)}),
    .sizes = sizes({{.name = "rows", .full = 16384, .most = 1u << 20},
                    {.name = "columns", .full = 8192, .multiple = 1u << shortest_log, .most = 1u << longest_log, .scales = false},
                    {.name = "outlier", .full = 100, .most = 1000, .scales = false}}),
    .sweep = cases({{"columns_128", "rows=1048576,columns=128"},
                    {"columns_1024", "rows=131072,columns=1024"},
                    {"columns_4096", "rows=32768,columns=4096"},
                    {"columns_8192", "rows=16384,columns=8192"},
                    {"columns_32768", "rows=4096,columns=32768"},
                    {"outlier_1", "outlier=1"},
                    {"outlier_10", "outlier=10"},
                    {"outlier_100", "outlier=100"}}),
    .edges = cases({{"one_row", "rows=1"},
                    {"part_of_a_block", "rows=77,columns=128"},
                    {"columns_256", "rows=33,columns=256"},
                    {"columns_512", "rows=33,columns=512"},
                    {"columns_1024", "rows=33,columns=1024"},
                    {"columns_2048", "rows=33,columns=2048"},
                    {"columns_4096", "rows=33,columns=4096"},
                    {"columns_16384", "rows=33,columns=16384"},
                    {"columns_32768", "rows=33,columns=32768"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch19
