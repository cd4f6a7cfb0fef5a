// SPDX-License-Identifier: Apache-2.0
// Weights of which two in every four are zero (2:4), times activations. Stored dense they are multiplied as if nobody knew. As
// the other two, with two bits each for where they were, they are about half the bytes, and sparse wgmma takes 32 of K in the
// time of 16. What feeds it has half the time then: activations pass from L2 to shared memory and from there to the tensor cores
// at twice the rate, so that tiles must be large.
#include <cuda_bf16.h>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/libraries/cusparselt.hpp>
#include <aisp/libraries/cutlass_sparse.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>

#include "gemm/gemm.hpp"
#include "gemm/sparse.cuh"
#include "quantization_error.cuh"

namespace aisp::ch19 {
namespace {

using gemm::bf16;
using gemm::Sparse24;
constexpr unsigned block = 64;    // rows, and elements along K, that are compressed together
constexpr unsigned quarter = 16;  // of a block's K: eight values, and a half-word of metadata

// The two of four neighbours that are kept: all that are not zero, -0 among them, and otherwise any.
struct Kept {
  unsigned first, second;
};
__device__ Kept kept_of(const unsigned short (&four)[4]) {
  unsigned first = 2, second = 0;
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    if (four[i] == 0) continue;
    first = min(first, i);
    second = i;
  }
  if (second == 0 && four[0] == 0) first = 0;
  return {first, max(second, first + 1)};
}

// Once, when a model is loaded: a thread for 16 of K in a row. Rows that do not exist are zeros.
__global__ __launch_bounds__(256) void compress_kernel(const unsigned short* w, std::uint8_t* blocks, unsigned rows, unsigned k) {
  const unsigned row = threadIdx.x / 4, part = threadIdx.x % 4;
  std::uint8_t* const to = blocks + (std::size_t{blockIdx.y} * gridDim.x + blockIdx.x) * Sparse24::block_bytes;
  unsigned short values[quarter / 2] = {};
  unsigned metadata = 0;
#pragma unroll
  for (unsigned group = 0; group < quarter / 4; ++group) {
    unsigned short four[4] = {};
    if (blockIdx.y * block + row < rows) {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i)
        four[i] = w[std::size_t{blockIdx.y * block + row} * k + blockIdx.x * block + part * quarter + group * 4 + i];
    }
    const Kept kept = kept_of(four);
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      if (i == kept.first) values[group * 2] = four[i];
      if (i == kept.second) values[group * 2 + 1] = four[i];
    }
    metadata |= (kept.first | kept.second << 2) << group * 4;
  }
#pragma unroll
  for (unsigned i = 0; i < quarter / 2; ++i)
    reinterpret_cast<unsigned short*>(to + Sparse24::values_at(row, part))[i] = values[i];
  *reinterpret_cast<unsigned short*>(to + Sparse24::metadata_at(row, part)) = static_cast<unsigned short>(metadata);
}

// How many weights are not what their block makes of them.
__global__ __launch_bounds__(256) void compare_kernel(const unsigned short* w, const std::uint8_t* blocks, unsigned rows,
                                                      unsigned k, unsigned* different) {
  const unsigned row = blockIdx.y * block + threadIdx.x / 4, part = threadIdx.x % 4;
  if (row >= rows) return;
  const std::uint8_t* const from = blocks + (std::size_t{blockIdx.y} * gridDim.x + blockIdx.x) * Sparse24::block_bytes;
  const unsigned metadata = *reinterpret_cast<const unsigned short*>(from + Sparse24::metadata_at(row % block, part));
  unsigned wrong = 0;
  for (unsigned i = 0; i < quarter; ++i) {
    unsigned value = 0;
    for (unsigned j = 0; j < 2; ++j)
      if ((metadata >> (i / 4 * 4 + j * 2) & 3) == i % 4)
        value = reinterpret_cast<const unsigned short*>(from + Sparse24::values_at(row % block, part))[i / 4 * 2 + j];
    wrong += value != w[std::size_t{row} * k + blockIdx.x * block + part * quarter + i];
  }
  if (wrong > 0) atomicAdd(different, wrong);
}

// Structs, though aliases do with CUDA 13.0 (gemm/README.md).
template <int tile_n, int stages, int cluster = 1>
struct Sparse : gemm::Config<Sparse24, gemm::Operand<bf16>, gemm::SparseInTensorCores,
                             gemm::Shape{.tile_n = tile_n, .stages = stages, .cluster = cluster}> {};
template <int tile_n, int stages>
struct Dense : gemm::Config<gemm::Operand<bf16>, gemm::Operand<bf16>, gemm::InTensorCores,
                            gemm::Shape{.tile_n = tile_n, .stages = stages}> {};

class Sparse2to4Gemm final : public Workload {
 public:
  explicit Sparse2to4Gemm(Setup& setup)
      : rows_{setup.size("rows")},
        tokens_{setup.size("tokens")},
        k_{setup.size("k")},
        w_{setup.input<bf16>(rows_ * k_, prune, {.name = "w", .constant = true})},
        x_{setup.input<bf16>(tokens_ * k_,
                             normal(0, 1)
                                 .times(20, 100, drawn(Axis{1, k_}, 8))
                                 .set(-0.0f, at(Axis{1, k_}, 5), drawn(Axis{k_, tokens_}, 1))
                                 .set(0, at(Axis{k_, tokens_}, 3)),
                             {.name = "x"})},
        y_{setup.output<bf16>(rows_ * tokens_, {.name = "y"})},
        blocks_{setup.scratch<std::uint8_t>(row_blocks() * (k_ / block) * Sparse24::block_bytes, {.name = "compressed w"})},
        different_{setup.scratch<unsigned>(1, {.name = "weights that changed"})},
        wgmma_sp_{of_blocks(), bands},
        sp_wide_{of_blocks(), bands},
        sp_multicast_{of_blocks(), {.band = bands.band / 2}},
        wgmma_dense_{of_weights(), bands},
        wide_dense_{of_weights(), bands},
        cublaslt_{setup, {.m = rows_, .n = tokens_, .k = k_, .b_is_transposed = true}},
        cusparselt_{setup},
        plan_{setup, cusparselt_, SparseMatmulProblem{rows_, tokens_, k_}},
        reproducible_{setup.reproducible()},
        error_{setup} {}

  // The definition needs no products with zeros.
  Cost cost() const override { return cost_of(0.5, static_cast<double>(blocks_.bytes())); }
  Cost variant_cost(std::string_view variant) const override {
    return variant.ends_with("dense") ? cost_of(1, static_cast<double>(w_.bytes())) : cost();
  }
  double expected(std::size_t i) const override {
    const std::size_t row = i / tokens_, token = i % tokens_;
    double sum = 0;
    for (std::size_t k = 0; k < k_; ++k) sum += w_.host(row * k_ + k) * x_.host(token * k_ + k);
    return sum;
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(tokens_), "tokens/s");
    error_.report(variant, metrics);
  }

  void validate(std::string_view variant) override {
    error_.measure(variant, PrunedRows<bf16>{w_.get(), k_}, rows_, PlainRows<bf16>{x_.get(), k_}, tokens_, k_,
                   ResultAt<bf16>{y_.get(), tokens_, 1});
  }

  void compress(Launch& launch) {
    const dim3 grid(static_cast<unsigned>(k_ / block), static_cast<unsigned>(row_blocks()));
    const auto* const w = reinterpret_cast<const unsigned short*>(w_.get());
    launch(compress_kernel, {grid, 256}, w, blocks_, rows_, k_);
    check(cudaMemsetAsync(different_, 0, sizeof(unsigned), launch.stream));
    launch(compare_kernel, {grid, 256}, w, blocks_, rows_, k_, different_);
    unsigned different = 0;
    check(cudaMemcpyAsync(&different, different_, sizeof different, cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
    if (different > 0) throw std::runtime_error{std::to_string(different) + " weights are not what they were, decompressed"};
  }
  void tune(Launch& launch) {
    if (!reproducible_) cublaslt_.tune(launch, w_, x_, y_);
  }
  void cublaslt_dense(Launch& launch) { cublaslt_.run_tuned(launch, w_, x_, y_); }
  void wgmma_sp(Launch& launch) { wgmma_sp_.run(launch.stream); }
  void sp_wide(Launch& launch) { sp_wide_.run(launch.stream); }
  void sp_multicast(Launch& launch) { sp_multicast_.run(launch.stream); }
  void wgmma_dense(Launch& launch) { wgmma_dense_.run(launch.stream); }
  void wide_dense(Launch& launch) { wide_dense_.run(launch.stream); }

  void choose(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    plan_->choose(launch.stream, w_, x_, y_);
  }
  void plan_cutlass(Launch& launch) {
    const auto number = [](std::size_t size) { return static_cast<int>(size); };
    cutlass_ = plan_cutlass_sparse({number(rows_), number(tokens_), number(k_), w_.get(), x_.get(), y_.get()}, launch.stream);
  }
  void cutlass(Launch& launch) { cutlass_->run(launch.stream); }
  void cusparselt(Launch& launch) { plan_->run(launch.stream, x_, y_); }

 private:
  std::size_t row_blocks() const { return (rows_ + block - 1) / block; }
  // Tiles that are under way together cover about as many rows as tokens.
  static constexpr gemm::Bands bands{.band = 16};
  gemm::Problem<std::uint8_t, bf16, bf16> of_blocks() const {
    return {.a = blocks_, .b = x_, .c = y_, .m = rows_, .n = tokens_, .k = k_};
  }
  gemm::Problem<bf16, bf16, bf16> of_weights() const { return {.a = w_, .b = x_, .c = y_, .m = rows_, .n = tokens_, .k = k_}; }
  Cost cost_of(double share, double weights) const {
    return {.flops = share * 2 * static_cast<double>(rows_) * static_cast<double>(tokens_) * static_cast<double>(k_),
            .math = Math::bf16,
            .bytes = weights + static_cast<double>(x_.bytes() + y_.bytes())};
  }

  // Keeps the two of four neighbours of larger magnitude; in one group of 64 none, in three one. Some that are kept are -0.
  static void prune(std::span<bf16> w, std::uint64_t seed) {
    const Pattern values = normal(0, 1);
    for (std::size_t group = 0; group < w.size() / 4; ++group) {
      std::array<float, 4> four{};
      for (std::size_t i = 0; i < 4; ++i) four[i] = __bfloat162float(pattern_value<bf16>(values, seed, group * 4 + i));
      const std::uint64_t chance = random_bits(seed ^ 0x5DEECE66Dull, group) % 64;
      const int keep = chance == 0 ? 0 : chance < 4 ? 1 : 2;
      for (std::size_t i = 0; i < 4; ++i) {
        int larger = 0;
        for (std::size_t j = 0; j < 4; ++j)
          larger += std::abs(four[j]) > std::abs(four[i]) || (std::abs(four[j]) == std::abs(four[i]) && j < i);
        w[group * 4 + i] = __float2bfloat16_rn(larger >= keep ? 0.0f : chance == 7 ? -0.0f : four[i]);
      }
    }
  }

  std::size_t rows_, tokens_, k_;
  Input<bf16> w_, x_;  // w[rows][k], x[tokens][k]
  Output<bf16> y_;     // [rows][tokens]
  Scratch<std::uint8_t> blocks_;
  Scratch<unsigned> different_;
  gemm::Gemm<Sparse<128, 6>> wgmma_sp_;
  gemm::Gemm<Sparse<256, 4>> sp_wide_;
  gemm::Gemm<Sparse<256, 4, 2>> sp_multicast_;
  gemm::Gemm<Dense<128, 6>> wgmma_dense_;
  gemm::Gemm<Dense<256, 4>> wide_dense_;
  LibraryMatmul cublaslt_;
  Opened<CusparseLt> cusparselt_;
  Opened<SparseMatmulPlan> plan_;
  bool reproducible_;
  std::unique_ptr<CutlassPlan> cutlass_;
  QuantizationError error_;
};

constexpr KernelLimits no_spills{.local_bytes = 0};
template <Method run>
constexpr Variant sparse(std::string_view name, std::string_view same_bits_as = {}, const Needs& needs = {}) {
  return {.name = name,
          .run = run,
          .prepare = call<&Sparse2to4Gemm::compress>,
          .needs = needs,
          .same_bits_as = same_bits_as,
          .kernels = no_spills};
}

}  // namespace

extern constinit const Pair sparse_2to4_gemm{
    .teaches = "with two of four weights zero the tensor cores skip half of the products",
    .lesson = "wgmma_sp",
    .make = make<Sparse2to4Gemm>,
    .baseline = {.name = "cublaslt_dense",
                 .run = call<&Sparse2to4Gemm::cublaslt_dense>,
                 .prepare = call<&Sparse2to4Gemm::tune>,
                 .needs = {.libraries = {Library::cublaslt}}},
    .optimized = variants(
        {sparse<call<&Sparse2to4Gemm::wgmma_sp>>("wgmma_sp"), sparse<call<&Sparse2to4Gemm::sp_wide>>("sp_wide", "wgmma_sp")}),
    // The same kernels and tiles without .sp: what is ours, and what is sparsity. And sp_wide with x loaded once for two blocks.
    .controls = variants(
        {{.name = "wgmma_dense", .run = call<&Sparse2to4Gemm::wgmma_dense>, .kernels = no_spills},
         {.name = "wide_dense", .run = call<&Sparse2to4Gemm::wide_dense>, .same_bits_as = "wgmma_dense", .kernels = no_spills},
         sparse<call<&Sparse2to4Gemm::sp_multicast>>("sp_multicast", "wgmma_sp", {.dsmem = true})}),
    .libraries = variants({{.name = "cusparselt",
                            .run = call<&Sparse2to4Gemm::cusparselt>,
                            .prepare = call<&Sparse2to4Gemm::choose>,
                            .needs = {.libraries = {Library::cusparselt}}},
                           {.name = "cutlass",
                            .run = call<&Sparse2to4Gemm::cutlass>,
                            .prepare = call<&Sparse2to4Gemm::plan_cutlass>,
                            .needs = {.libraries = {Library::cutlass}}}}),
    .bound = Bound::compute,
    .tolerance = rounded_to_bf16,
    .needs = {.min_sm = 90, .max_sm = 90},
    .sizes = sizes({{.name = "rows", .full = 14336, .multiple = 16},
                    {.name = "tokens", .full = 8192, .multiple = 16},
                    {.name = "k", .full = 4096, .multiple = block, .most = 1u << 15, .scales = false}}),
    .sweep = cases({{"tokens_128", "tokens=128"},
                    {"tokens_256", "tokens=256"},
                    {"tokens_512", "tokens=512"},
                    {"tokens_1024", "tokens=1024"},
                    {"tokens_2048", "tokens=2048"},
                    {"tokens_4096", "tokens=4096"},
                    {"tokens_8192", "tokens=8192"},
                    {"tokens_16384", "tokens=16384"}}),
    .edges = cases({{"least", "rows=16,tokens=16,k=64"},
                    {"tails", "rows=272,tokens=336,k=192"},
                    {"odd_tiles", "rows=1296,tokens=2112,k=1088"}}),
};

}  // namespace aisp::ch19
