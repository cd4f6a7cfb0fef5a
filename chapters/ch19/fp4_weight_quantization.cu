// SPDX-License-Identifier: Apache-2.0
// A feed-forward layer's weights in NVFP4, four bits each and an E4M3 scale for every 16, times 64 tokens in bf16. Widened to
// bf16 in memory first, weights are written and read again, at nine times the bytes. Widened where they are multiplied, they are
// read once, and tensor cores and issue slots are the limit. The bits of E2M1 are those of a bf16 subnormal, so that a shift, a
// mask and the product with the scale make two weights, and wgmma takes them from the registers where they come out: weights as
// its A, tokens as its N.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <aisp/device/async_copy.cuh>
#include <aisp/device/matrix.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <functional>

#include "gemm/gemm.hpp"
#include "nvfp4.cuh"
#include "quantization_error.cuh"

namespace aisp::ch19 {
namespace {

using namespace nvfp4;
using bf16 = __nv_bfloat16;
using e4m3 = __nv_fp8_e4m3;
constexpr float tensor_scale = 0x1.a6p-8f;  // one for all weights, as a checkpoint has it

__device__ __forceinline__ __nv_bfloat162 widened(unsigned e4m3_bits, float times) {
  const __half_raw half = __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(e4m3_bits), __NV_E4M3);
  return __float2bfloat162_rn(__half2float(half) * times);
}
// Two codes, neighbours in a byte, as bf16.
__device__ __forceinline__ unsigned placed(unsigned byte) {
  return (byte << 6 & 0x1C0) | (byte << 12 & 0x8000) | (byte << 18 & 0x1C00000) | (byte << 24 & 0x80000000);
}

constexpr unsigned threads = 256;
constexpr unsigned blocks_of(std::size_t items, std::size_t of_block = threads) {
  return static_cast<unsigned>((items + of_block - 1) / of_block);
}

// Eight weights a thread.
__global__ __launch_bounds__(threads) void dequantize_kernel(const unsigned* __restrict__ codes,
                                                             const unsigned char* __restrict__ scales, uint4* __restrict__ wide,
                                                             std::size_t words) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= words) return;
  const unsigned word = codes[i];
  const __nv_bfloat162 scale = widened(scales[i / 2], 1), normal = __float2bfloat162_rn(too_small);
  unsigned pairs[4];
#pragma unroll
  for (unsigned j = 0; j < 4; ++j) pairs[j] = scaled(scaled(placed(word >> 8 * j & 0xFF), normal), scale);
  wide[i] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

// By mma.sync: a warp has 16 rows of weights and 64 tokens, a block eight warps.
constexpr unsigned tile_rows = 128, tile_tokens = 64, tile_k = 64, mma_stages = 4;
struct Stage {
  uint4 x[tile_tokens * tile_k / 8];   // the 16-byte chunk c of a token lies at c ^ token % 8
  unsigned char codes[tile_rows][48];  // 32 of each row, so far apart that eight rows lie in different banks
  unsigned char scales[tile_rows][tile_k / group];
};
struct MmaShared {
  Stage stages[mma_stages];
  unsigned table[256];
};

// Both weights of a byte from a table in shared memory.
struct Table {
  static constexpr float times = 1, left = 1;
  static __device__ __forceinline__ void fill(unsigned* table) {
    table[threadIdx.x] = scaled(placed(threadIdx.x), __float2bfloat162_rn(too_small));
  }
  static __device__ __forceinline__ unsigned pair(const unsigned* table, unsigned byte) { return table[byte]; }
};
struct Shifts {
  static constexpr float times = room, left = too_small / room;
  static __device__ __forceinline__ void fill(unsigned*) {}
  static __device__ __forceinline__ unsigned pair(const unsigned*, unsigned byte) { return placed(byte); }
};

template <class Expansion>
__global__ __launch_bounds__(threads, 2) void mma_kernel(const unsigned char* __restrict__ codes,
                                                         const unsigned char* __restrict__ scales, const bf16* __restrict__ x,
                                                         bf16* __restrict__ y, unsigned rows, unsigned tokens, unsigned k) {
  extern __shared__ __align__(128) unsigned char memory[];
  MmaShared& shared = *reinterpret_cast<MmaShared*>(memory);
  const unsigned t = threadIdx.x, lane = t % 32, warp_row = t / 32 * 16, first_row = blockIdx.x * tile_rows,
                 first_token = blockIdx.y * tile_tokens, steps = k / tile_k;
  Expansion::fill(shared.table);

  const auto fetch = [&](unsigned step) {
    Stage& stage = shared.stages[step % mma_stages];
    if (step < steps) {
      const std::size_t row = min(first_row + t / 2, rows - 1), scale_row = min(first_row + t % tile_rows, rows - 1);
      device::copy_async_16(&stage.codes[t / 2][t % 2 * 16], codes + (row * k + step * tile_k) / 2 + t % 2 * 16);
      if (t < tile_rows) device::copy_async<4>(stage.scales[t], scales + (scale_row * k + step * tile_k) / group);
#pragma unroll
      for (unsigned i = t; i < tile_tokens * 8; i += threads) {
        const unsigned token = first_token + i / 8;
        const bool exists = token < tokens;
        device::copy_async_16_or_zero(&stage.x[i / 8 * 8 + (i % 8 ^ i / 8 % 8)],
                                      x + std::size_t{exists ? token : 0} * k + step * tile_k + i % 8 * 8, exists);
      }
    }
    device::commit_copies();
  };

  float sums[tile_tokens / 8][4] = {};
  for (unsigned step = 0; step + 1 < mma_stages; ++step) fetch(step);
  for (unsigned step = 0; step < steps; ++step) {
    device::wait_copies<mma_stages - 2>();
    __syncthreads();
    fetch(step + mma_stages - 1);
    const Stage& stage = shared.stages[step % mma_stages];
    const unsigned char* const upper = stage.codes[warp_row + lane / 4] + lane % 4;
    const unsigned char* const lower = upper + 8 * sizeof stage.codes[0];
#pragma unroll
    for (unsigned i = 0; i < tile_k / 16; ++i) {
      const __nv_bfloat162 upper_scale = widened(stage.scales[warp_row + lane / 4][i], Expansion::times),
                           lower_scale = widened(stage.scales[warp_row + lane / 4 + 8][i], Expansion::times);
      const unsigned a[4] = {scaled(Expansion::pair(shared.table, upper[i * 8]), upper_scale),
                             scaled(Expansion::pair(shared.table, lower[i * 8]), lower_scale),
                             scaled(Expansion::pair(shared.table, upper[i * 8 + 4]), upper_scale),
                             scaled(Expansion::pair(shared.table, lower[i * 8 + 4]), lower_scale)};
#pragma unroll
      for (unsigned j = 0; j < tile_tokens / 16; ++j) {
        const unsigned token = j * 16 + lane / 16 * 8 + lane % 8, chunk = i * 2 + lane / 8 % 2;
        unsigned b[4];
        device::load_matrices(b, device::shared_address(&stage.x[token * 8 + (chunk ^ token % 8)]));
        device::mma_bf16(sums[2 * j], a, b[0], b[1]);
        device::mma_bf16(sums[2 * j + 1], a, b[2], b[3]);
      }
    }
  }
#pragma unroll
  for (unsigned j = 0; j < tile_tokens / 8; ++j) {
#pragma unroll
    for (unsigned i = 0; i < 4; i += 2) {
      // Turned around, a lane has two neighbouring rows of one token.
      constexpr float scale = tensor_scale * Expansion::left;
      const unsigned pair = device::transpose_matrix(device::narrow_bf16(sums[j][i] * scale, sums[j][i + 1] * scale));
      const unsigned token = first_token + j * 8 + lane / 4, row = first_row + warp_row + i * 4 + lane % 4 * 2;
      if (token < tokens && row < rows) *reinterpret_cast<unsigned*>(y + std::size_t{token} * rows + row) = pair;
    }
  }
}

// The same products of codes but for a bit or two, which mean nothing: what is left is what expanding costs. Mere copies of the
// codes would share registers with them (gemm/packed.cuh).
struct Unexpanded : Codes {
  __device__ __forceinline__ void expand(const Words& words, int step, unsigned (&a)[4]) const {
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) a[j] = words.codes[step] ^ (j + 1);
  }
};
// Returns a shape with as many stages as fit: one-byte weights of a tile take little of a stage, but its tokens may not.
template <int tile_m, int tile_n>
constexpr gemm::Shape shape_of() {
  constexpr int stage_bytes = tile_m / 64 * Codes::block_bytes + tile_n * 128;
  return {.tile_m = tile_m, .tile_n = tile_n, .stages = std::min(16, 220 * 1024 / stage_bytes), .consumers = tile_m / 64};
}
template <int tile_m, int tile_n, class Codes = nvfp4::Codes>
struct Config : gemm::Config<gemm::Packed<Codes>, gemm::Operand<bf16>, gemm::ExpandedInTensorCores, shape_of<tile_m, tile_n>()> {
};

using Run = std::function<void(cudaStream_t)>;
template <class C>
Run product(const gemm::Problem<std::uint8_t, bf16, bf16>& problem) {
  return [gemm = gemm::Gemm<C, gemm::Bands, gemm::Scaled, gemm::ColumnsStore<bf16>>{problem}](cudaStream_t stream) {
    gemm.run(stream, gemm::Scaled{tensor_scale * (too_small / room)});
  };
}
// As wide as the tokens are many, up to 128.
template <class Visit>
auto with_width(std::size_t tokens, const Visit& visit) {
  if (tokens <= 8) return visit(Config<256, 8>{});
  if (tokens <= 16) return visit(Config<256, 16>{});
  if (tokens <= 32) return visit(Config<256, 32>{});
  if (tokens <= 64) return visit(Config<256, 64>{});
  return visit(Config<128, 128>{});
}

class Fp4WeightQuantization final : public Workload {
 public:
  explicit Fp4WeightQuantization(Setup& setup)
      : rows_{setup.size("rows")},
        tokens_{setup.size("tokens")},
        k_{setup.size("k")},
        reproducible_{setup.reproducible()},
        // All codes at all places. In rows of the third kind neighbouring groups cancel for the second token.
        codes_{setup.input<std::uint8_t>(rows_ * k_ / 2, integers(0, 255).set(0x77, at(Axis{k_ / 2, kinds}, 2)),
                                         {.name = "codes", .codes = ElementType::e2m1x2, .constant = true})},
        scales_{setup.input<e4m3>(rows_ * k_ / group,
                                  uniform(0.5f, 2)
                                      .set(1, at(Axis{k_ / group, kinds}, 2))
                                      .times(0x1p-8f, at(Axis{k_ / group, kinds}, 5))
                                      .set(448, at(Axis{k_ / group, kinds}, 6), at(Axis{1, 61}, 5))
                                      .set(0x1p-9f, at(Axis{1, 13}, 2))
                                      .set(0, at(Axis{1, 17}, 4)),
                                  {.name = "scales", .constant = true})},
        x_{setup.input<bf16>(tokens_ * k_,
                             normal(0, 1)
                                 .times(20, 100, drawn(Axis{1, k_}, 8))
                                 .set(-0.0f, drawn(Axis{1, k_}, 8))
                                 .set(1, at(Axis{k_, tokens_}, 1))
                                 .times(-1, at(Axis{group, 2}, 1), at(Axis{k_, tokens_}, 1))
                                 .set(0, at(Axis{k_, tokens_}, 2)),
                             {.name = "x"})},
        // Rows of very different scale are limited each by their own.
        y_{setup.output<bf16>(tokens_ * rows_, {.name = "y", .groups = {1, kinds}})},
        wide_{setup.scratch<bf16>(rows_ * k_, {.name = "weights as bf16"})},
        packed_{setup.scratch<std::uint8_t>(blocks_of(rows_, 64) * (k_ / 64) * Codes::block_bytes, {.name = "packed weights"})},
        cublaslt_{setup, {.m = tokens_, .n = rows_, .k = k_, .b_is_transposed = true}},
        error_{setup} {
    const gemm::Problem<std::uint8_t, bf16, bf16> problem{.a = packed_, .b = x_, .c = y_, .m = rows_, .n = tokens_, .k = k_};
    product_ = with_width(tokens_, [&]<class C>(C) { return product<C>(problem); });
    without_expansion_ = product<Config<256, 64, Unexpanded>>(problem);
  }

  void metrics(std::string_view variant, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(tokens_), "tokens/s");
    error_.report(variant, metrics);
  }
  Cost cost() const override { return {.flops = flops(), .math = Math::bf16, .bytes = narrow_bytes() + io_bytes()}; }
  Cost variant_cost(std::string_view variant) const override {
    const auto wide_bytes = static_cast<double>(wide_.bytes());
    const Cost multiply{.flops = flops(), .math = Math::bf16, .bytes = wide_bytes + io_bytes()};
    if (variant == "bf16_weights") return multiply;
    return variant == "dequantize_first" ? in_turn({{.bytes = narrow_bytes() + wide_bytes}, multiply}) : cost();
  }
  double expected(std::size_t i) const override {
    const std::size_t row = i % rows_, token = i / rows_;
    double sum = 0;
    for (std::size_t k = 0; k < k_; ++k) {
      const std::size_t at = row * k_ + k;
      sum += value_of(codes_.host(at / 2) >> at % 2 * 4) * scales_.host(at / group) * x_.host(token * k_ + k);
    }
    return sum * double{tensor_scale};
  }

  void validate(std::string_view variant) override {
    const QuantizedRows<E2m1, e4m3> weights{codes_.get(), k_, scales_.get(), 1, group, k_ / group, 1, double{tensor_scale}};
    error_.measure(variant, weights, rows_, PlainRows<bf16>{x_.get(), k_}, tokens_, k_, ResultAt<bf16>{y_.get(), 1, rows_},
                   kinds);
  }

  void tune(Launch& launch) {
    dequantize(launch);
    if (!reproducible_) cublaslt_.tune(launch, x_, wide_, y_);
  }
  void dequantize_first(Launch& launch) {
    dequantize(launch);
    bf16_weights(launch);
  }
  void bf16_weights(Launch& launch) {
    if (reproducible_) cublaslt_.run(launch, x_, wide_, y_, tensor_scale);
    else cublaslt_.run_tuned(launch, x_, wide_, y_, tensor_scale);
  }
  template <class Expansion>
  void by_mma(Launch& launch) {
    launch(mma_kernel<Expansion>,
           {.blocks = dim3{blocks_of(rows_, tile_rows), blocks_of(tokens_, tile_tokens)},
            .threads = threads,
            .shared_bytes = sizeof(MmaShared)},
           codes_, scale_bits(), x_, y_, rows_, tokens_, k_);
  }
  void pack(Launch& launch) {
    launch(pack_kernel, {dim3{static_cast<unsigned>(k_ / 64), blocks_of(rows_, 64)}, 128}, codes_, scale_bits(), packed_, rows_,
           k_);
  }
  void fused_wgmma(Launch& launch) { product_(launch.stream); }
  void products_alone(Launch& launch) { without_expansion_(launch.stream); }

 private:
  static constexpr std::size_t kinds = 8;  // of rows

  static double value_of(unsigned code) {
    const unsigned exponent = code >> 1 & 3, mantissa = code & 1;
    const double magnitude = exponent == 0 ? mantissa * 0.5 : std::ldexp(1 + mantissa * 0.5, static_cast<int>(exponent) - 1);
    return (code & 8) != 0 ? -magnitude : magnitude;
  }
  double flops() const { return 2.0 * static_cast<double>(rows_) * static_cast<double>(tokens_) * static_cast<double>(k_); }
  double narrow_bytes() const { return static_cast<double>(codes_.bytes() + scales_.bytes()); }
  double io_bytes() const { return static_cast<double>(x_.bytes() + y_.bytes()); }
  const unsigned char* scale_bits() const { return reinterpret_cast<const unsigned char*>(scales_.get()); }
  void dequantize(Launch& launch) {
    const std::size_t words = codes_.size() / 4;
    launch(dequantize_kernel, {blocks_of(words), threads}, reinterpret_cast<const unsigned*>(codes_.get()), scale_bits(),
           reinterpret_cast<uint4*>(wide_.get()), words);
  }

  std::size_t rows_, tokens_, k_;
  bool reproducible_;
  Input<std::uint8_t> codes_;
  Input<e4m3> scales_;
  Input<bf16> x_;
  Output<bf16> y_;
  Scratch<bf16> wide_;
  Scratch<std::uint8_t> packed_;
  LibraryMatmul cublaslt_;
  Run product_, without_expansion_;
  QuantizationError error_;
};

constexpr Needs hopper{.min_sm = 90, .max_sm = 90};
constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair fp4_weight_quantization{
    .teaches =
        "weights of four bits that are widened in memory are slower than bf16; widened in the registers that wgmma "
        "multiplies from they are read once, and nothing else is written",
    .lesson = "fused_wgmma",
    .make = make<Fp4WeightQuantization>,
    .baseline = {.name = "dequantize_first",
                 .run = call<&Fp4WeightQuantization::dequantize_first>,
                 .prepare = call<&Fp4WeightQuantization::tune>},
    .optimized =
        variants({{.name = "fused_mma", .run = call<&Fp4WeightQuantization::by_mma<Table>>, .kernels = nothing_spilled},
                  {.name = "bit_expansion", .run = call<&Fp4WeightQuantization::by_mma<Shifts>>, .kernels = nothing_spilled},
                  {.name = "fused_wgmma",
                   .run = call<&Fp4WeightQuantization::fused_wgmma>,
                   .prepare = call<&Fp4WeightQuantization::pack>,
                   .needs = hopper,
                   .kernels = nothing_spilled}}),
    // The product on weights that stay bf16, as to beat the baseline is not enough; and that of codes which nobody expands.
    .controls = variants({{.name = "bf16_weights",
                           .run = call<&Fp4WeightQuantization::bf16_weights>,
                           .prepare = call<&Fp4WeightQuantization::tune>},
                          {.name = "products_alone",
                           .run = call<&Fp4WeightQuantization::products_alone>,
                           .prepare = call<&Fp4WeightQuantization::pack>,
                           .needs = hopper,
                           .outputs = no_outputs,
                           .kernels = nothing_spilled}}),
    .bound = Bound::memory,
    // A code times its scale has six bits, which bf16 holds; one rounding of y is left, 2^-8 at most. It is not its mean, 1.6e-3,
    // where few sums of a group outweigh the others, as those with a scale of 448.
    .tolerance = within(4e-3, 0.013),
    .needs = {.libraries = {Library::cublaslt}},
    .sizes = sizes({{.name = "rows", .full = 28672, .multiple = 8, .most = 1u << 18},
                    {.name = "tokens", .full = 64, .most = 4096, .scales = false},
                    {.name = "k", .full = 8192, .multiple = 64, .most = 1u << 15, .scales = false}}),
    .sweep = cases({{"tokens_1", "tokens=1"},
                    {"tokens_8", "tokens=8"},
                    {"tokens_16", "tokens=16"},
                    {"tokens_32", "tokens=32"},
                    {"tokens_64", "tokens=64"},
                    {"tokens_128", "tokens=128"},
                    {"tokens_256", "tokens=256"}}),
    .edges = cases({{"smallest", "rows=8,tokens=1,k=64"},
                    {"tails", "rows=1000,tokens=13,k=448"},
                    {"two_tiles_of_tokens", "rows=520,tokens=300,k=1088"},
                    {"many_rows", "rows=40008,tokens=33,k=320"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch19
