// SPDX-License-Identifier: Apache-2.0
// A feed-forward layer's weights in INT4 with an f16 scale for every 128 along K, times 32 tokens in E4M3, which is a read of the
// weights. FP8 tensor cores multiply them without an error, because E4M3 holds every integer of four bits, but expanded before
// they are stored they are twice the bytes. Expanded in the main loop they stay four bits, if that takes no more time than the
// bytes: by table lookups in two registers, and into the registers that wgmma multiplies from.
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <functional>

#include "gemm/gemm.hpp"
#include "quantization_error.cuh"

namespace aisp::ch19 {
namespace {

using half = __half;
using gemm::bf16;
using gemm::e4m3;
constexpr unsigned group = 128;  // weights with one scale, and what a stage has along K

// Eight codes of a word, to four e4m3 in either word of the result, by arithmetic: f16 makes numbers of the bits.
struct Converted {
  static __device__ __forceinline__ unsigned two(unsigned word) {
    // 1024 + 8 + code, of the lowest four bits of either half.
    const unsigned bits = (word & 0x000F000F) ^ 0x64086408;
    const __half2 numbers = __hsub2(reinterpret_cast<const __half2&>(bits), __float2half2_rn(1032));
    return __nv_cvt_halfraw2_to_fp8x2(numbers, __NV_SATFINITE, __NV_E4M3);
  }
  static __device__ __forceinline__ uint2 expand(unsigned word) {
    // Codes i and i + 4.
    const unsigned even = __byte_perm(two(word), two(word >> 4), 0x5140),
                   odd = __byte_perm(two(word >> 8), two(word >> 12), 0x5140);
    return make_uint2(__byte_perm(even, odd, 0x5410), __byte_perm(even, odd, 0x7632));
  }
};

// By prmt, whose selectors are the codes: their lower three bits choose a byte of eight, and the fourth makes it the byte's sign
// instead, which is zero in both tables. One has the positive numbers; for the other, of the negative ones, the sign of the codes
// is turned around. There the sign is where the table must not have it, so that they are halved: e4m3 of a number of four bits is
// even.
struct LookedUp {
  // Halves of the tables; prmt takes the others as constants.
  unsigned positive = hidden(0x44403800), negative = hidden(0x65666768);

  // From the compiler, which would copy a constant to another register for each look: no lane is before itself.
  static __device__ __forceinline__ unsigned hidden(unsigned constant) {
    unsigned lanes_before;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lanes_before));
    return constant | lanes_before >> 31;
  }
  static __device__ __forceinline__ unsigned look_up(unsigned low, unsigned high, unsigned codes) {
    unsigned bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(codes));
    return bytes;
  }
  __device__ __forceinline__ unsigned four(unsigned codes, unsigned turned) const {
    return look_up(positive, 0x4E4C4A48, codes) + 2 * look_up(negative, 0x5C606264, turned);
  }
  __device__ __forceinline__ uint2 expand(unsigned word) const {
    const unsigned turned = word ^ 0x88888888;
    return make_uint2(four(word, turned), four(word >> 16, turned >> 16));
  }
};

// 64 rows by 128 along K, and their scales after them. A thread of a warpgroup has two packets of 16 bytes, 2 KB apart: for
// registers what it multiplies in four products, otherwise quarters of rows as they are.
template <class Expansion, bool in_registers_>
struct Int4 {
  using Factor = e4m3;
  static constexpr bool in_registers = in_registers_;
  static constexpr int codes_bytes = 64 * group / 2, block_bytes = codes_bytes + 64 * sizeof(half);

  struct Words {
    uint4 packets[2];
  };
  __device__ __forceinline__ Words load(const std::uint8_t* block) const { return {packet_of(block, 0), packet_of(block, 1)}; }
  __device__ __forceinline__ void expand(const Words& words, int step, unsigned (&a)[4]) const {
    const uint4 packet = words.packets[step / 2];
    const uint2 left = expansion.expand(step % 2 == 0 ? packet.x : packet.z),
                right = expansion.expand(step % 2 == 0 ? packet.y : packet.w);
    a[0] = left.x;
    a[1] = left.y;
    a[2] = right.x;
    a[3] = right.y;
  }
  __device__ __forceinline__ void expand(const std::uint8_t* block, std::uint8_t* rows) const {
#pragma unroll
    for (unsigned packet = 0; packet < 2; ++packet) {
      const uint4 words = packet_of(block, packet);
      const unsigned number = packet * 128 + threadIdx.x % 128, row = number / 4, chunk = number % 4 * 2;
      const uint2 a = expansion.expand(words.x), b = expansion.expand(words.y), c = expansion.expand(words.z),
                  d = expansion.expand(words.w);
      *reinterpret_cast<uint4*>(rows + row * 128 + (chunk ^ row % 8) * 16) = make_uint4(a.x, a.y, b.x, b.y);
      *reinterpret_cast<uint4*>(rows + row * 128 + ((chunk + 1) ^ row % 8) * 16) = make_uint4(c.x, c.y, d.x, d.y);
    }
  }
  static __device__ __forceinline__ float2 scales(const std::uint8_t* block) {
    const unsigned thread = threadIdx.x % 128;
    const half* const of_rows = reinterpret_cast<const half*>(block + codes_bytes) + thread / 32 * 16 + thread % 32 / 4;
    return make_float2(__half2float(of_rows[0]), __half2float(of_rows[8]));
  }

 private:
  Expansion expansion;

  static __device__ __forceinline__ uint4 packet_of(const std::uint8_t* block, unsigned packet) {
    return *reinterpret_cast<const uint4*>(block + packet * 2048 + threadIdx.x % 128 * 16);
  }
};
using Rows = Int4<LookedUp, false>;
using Fragments = Int4<LookedUp, true>;

// Once, when a model is loaded; rows that do not exist are zeros. Of the eight codes of a word for registers, four lie along K in
// the thread's upper row and four in its lower one.
template <class Packed>
__global__ __launch_bounds__(128) void pack_kernel(const unsigned char* codes, const half* scales, std::uint8_t* packed,
                                                   unsigned rows, unsigned k) {
  const unsigned t = threadIdx.x, lane = t % 32, first_row = blockIdx.y * 64, first = blockIdx.x * group;
  std::uint8_t* const block = packed + (std::size_t{blockIdx.y} * gridDim.x + blockIdx.x) * Packed::block_bytes;
  for (unsigned i = 0; i < 8; ++i) {
    unsigned word = 0;
    for (unsigned n = 0; n < 8; ++n) {
      unsigned row = first_row + (i / 4 * 128 + t) / 4, column = first + t % 4 * 32 + i % 4 * 8 + n;
      if constexpr (Packed::in_registers) {
        row = first_row + t / 32 * 16 + lane / 4 + n / 4 * 8;
        column = first + i * 16 + lane % 4 * 4 + n % 4;
      }
      if (row < rows) word |= (codes[(std::size_t{row} * k + column) / 2] >> column % 2 * 4 & 15u) << 4 * n;
    }
    reinterpret_cast<unsigned*>(block)[i / 4 * 512 + t * 4 + i % 4] = word;
  }
  if (t < 64)
    reinterpret_cast<half*>(block + Packed::codes_bytes)[t] =
        first_row + t < rows ? scales[(std::size_t{first_row + t} * k + first) / group] : half{0};
}

// The baseline's operands: a word of codes, and a scale, a thread.
__global__ __launch_bounds__(256) void expand_kernel(const unsigned* codes, uint2* expanded, std::size_t words) {
  const std::size_t i = std::size_t{blockIdx.x} * 256 + threadIdx.x;
  if (i < words) expanded[i] = Converted::expand(codes[i]);
}
__global__ __launch_bounds__(256) void spread_scales_kernel(const half* scales, float* by_groups, float* ones, unsigned rows,
                                                            unsigned groups, unsigned count_of_ones) {
  const std::size_t i = std::size_t{blockIdx.x} * 256 + threadIdx.x;
  if (i < std::size_t{rows} * groups) by_groups[i % groups * rows + i / groups] = __half2float(scales[i]);
  if (i < count_of_ones) ones[i] = 1;
}

// The library's sums lie as [rows][tokens].
__global__ __launch_bounds__(256) void turn_kernel(const bf16* from, bf16* to, unsigned rows, unsigned tokens) {
  __shared__ bf16 box[32][33];
  const unsigned row = blockIdx.x * 32, token = blockIdx.y * 32, x = threadIdx.x % 32;
  for (unsigned y = threadIdx.x / 32; y < 32; y += 8)
    if (row + y < rows && token + x < tokens) box[y][x] = from[std::size_t{row + y} * tokens + token + x];
  __syncthreads();
  for (unsigned y = threadIdx.x / 32; y < 32; y += 8)
    if (row + x < rows && token + y < tokens) to[std::size_t{token + y} * rows + row + x] = box[x][y];
}

// Whole tiles, each summed up from its first K to the last: sums do not depend on the tiles' shape. A thread has registers for
// four consumers where tokens are few.
template <class A, class Mainloop, int tile_m, int tile_n>
constexpr gemm::Shape shape_of() {
  constexpr int stage_bytes = A::template tile_elements<tile_m> + tile_n * 128 + (Mainloop::scaled ? (tile_m + 32) * 4 : 0);
  return {.tile_m = tile_m, .tile_n = tile_n, .stages = std::min(16, 220 * 1024 / stage_bytes), .consumers = tile_m / 64};
}
template <class A, class Mainloop, int tile_m, int tile_n>
struct Config : gemm::Config<A, gemm::Operand<e4m3>, Mainloop, shape_of<A, Mainloop, tile_m, tile_n>()> {};
template <int tile_n>
using Wide = Config<gemm::Operand<e4m3>, gemm::BlockScaled, 64, tile_n>;
template <class Codes, int tile_n>
using Narrow = Config<gemm::Packed<Codes>, gemm::ScaledExpanded, tile_n <= 32 ? 256 : 192, tile_n>;

using Run = std::function<void(cudaStream_t)>;
template <class C>
Run product(const gemm::Problem<typename C::A::Element, e4m3, bf16>& problem) {
  return [product = gemm::Gemm<C, gemm::Bands, gemm::Identity, gemm::ColumnsStore<bf16>>{problem}](cudaStream_t stream) {
    product.run(stream);
  };
}
template <class Visit>
auto with_width(std::size_t tokens, const Visit& visit) {
  if (tokens <= 16) return visit(std::integral_constant<int, 16>{});
  if (tokens <= 32) return visit(std::integral_constant<int, 32>{});
  return visit(std::integral_constant<int, 64>{});
}

class W4a8Gemm final : public Workload {
 public:
  explicit W4a8Gemm(Setup& setup)
      : rows_{setup.size("rows")},
        tokens_{setup.size("tokens")},
        k_{setup.size("k")},
        // All codes at all places. In rows of the third kind neighbouring groups cancel for the second token.
        codes_{setup.input<std::uint8_t>(rows_ * k_ / 2, integers(0, 255).set(0x77, at(Axis{k_ / 2, kinds}, 2)),
                                         {.name = "codes", .codes = ElementType::s4x2, .constant = true})},
        scales_{setup.input<half>(rows_ * k_ / group,
                                  uniform(0.5f, 2)
                                      .set(1, at(Axis{k_ / group, kinds}, 2))
                                      .times(0x1p-8f, at(Axis{k_ / group, kinds}, 5))
                                      .times(0x1p8f, at(Axis{k_ / group, kinds}, 6))
                                      .set(0, at(Axis{1, 17}, 4)),
                                  {.name = "scales", .constant = true})},
        x_{setup.input<e4m3>(tokens_ * k_,
                             normal(0, 4)
                                 .times(20, 100, drawn(Axis{1, k_}, 8))  // some saturate
                                 .times(0x1p-9f, at(Axis{16, k_ / 16}, 3))
                                 .set(1, at(Axis{k_, tokens_}, 1))
                                 .times(-1, at(Axis{group, 2}, 1), at(Axis{k_, tokens_}, 1))
                                 .set(-0.0f, at(Axis{k_, tokens_}, 2)),
                             {.name = "x"})},
        // Rows of very different scale are limited each by their own.
        y_{setup.output<bf16>(tokens_ * rows_, {.name = "y", .groups = {1, kinds}})},
        wide_{setup.scratch<e4m3>(rows_ * k_, {.name = "weights as e4m3"})},
        by_groups_{setup.scratch<float>(scales_.size(), {.name = "scales, by groups"})},
        ones_{setup.scratch<float>((tokens_ + 127) / 128 * (k_ / group), {.name = "scales of x"})},
        by_rows_{setup.scratch<std::uint8_t>(packed_bytes(), {.name = "packed weights, by rows"})},
        by_fragments_{setup.scratch<std::uint8_t>(packed_bytes(), {.name = "packed weights, by fragments"})},
        turned_{setup.scratch<bf16>(y_.size(), {.name = "the library's sums"})},
        cublaslt_{setup,
                  {.m = rows_,
                   .n = tokens_,
                   .k = k_,
                   .operands = CUDA_R_8F_E4M3,
                   .b_is_transposed = true,
                   .a_scales = by_groups_,
                   .b_scales = ones_}},
        error_{setup} {
    const gemm::Problem<e4m3, e4m3, bf16> wide{
        .a = wide_, .b = x_, .c = y_, .m = rows_, .n = tokens_, .k = k_, .a_scales = by_groups_, .b_scales = ones_};
    const gemm::Problem<std::uint8_t, e4m3, bf16> rows{.a = by_rows_, .b = x_, .c = y_, .m = rows_, .n = tokens_, .k = k_};
    auto fragments = rows;
    fragments.a = by_fragments_;
    with_width(tokens_, [&]<int n>(std::integral_constant<int, n>) {
      expanded_ = product<Wide<n>>(wide);
      by_conversion_ = product<Narrow<Int4<Converted, false>, n>>(rows);
      by_lookup_ = product<Narrow<Rows, n>>(rows);
      in_registers_ = product<Narrow<Fragments, n>>(fragments);
    });
  }

  void metrics(std::string_view variant, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(tokens_), "tokens/s");
    error_.report(variant, metrics);
  }
  Cost cost() const override { return cost_of(static_cast<double>(codes_.bytes() + scales_.bytes())); }
  Cost variant_cost(std::string_view variant) const override {
    return variant == "expanded_weights" || variant == "cublaslt"
               ? cost_of(static_cast<double>(wide_.bytes() + by_groups_.bytes()))
               : cost();
  }
  double expected(std::size_t i) const override {
    const std::size_t row = i % rows_, token = i / rows_;
    double sum = 0;
    for (std::size_t k = 0; k < k_; ++k) {
      const std::size_t at = row * k_ + k;
      const int code = codes_.host(at / 2) >> at % 2 * 4 & 15;
      sum += (code < 8 ? code : code - 16) * scales_.host(at / group) * x_.host(token * k_ + k);
    }
    return sum;
  }

  void validate(std::string_view variant) override {
    const QuantizedRows<Int4Codes, half> weights{codes_.get(), k_, scales_.get(), 1, group, k_ / group, 1};
    const QuantizedRows<E4m3, float> x{x_.get(), k_, nullptr, 1, 1, 0, 0, 1, 2};
    error_.measure(variant, weights, rows_, x, tokens_, k_, ResultAt<bf16>{y_.get(), 1, rows_}, kinds);
  }

  void expand(Launch& launch) {
    launch(expand_kernel, {blocks_of(codes_.size() / 4, 256), 256}, reinterpret_cast<const unsigned*>(codes_.get()),
           reinterpret_cast<uint2*>(wide_.get()), codes_.size() / 4);
    launch(spread_scales_kernel, {blocks_of(std::max(scales_.size(), ones_.size()), 256), 256}, scales_, by_groups_, ones_, rows_,
           k_ / group, ones_.size());
  }
  void pack_rows(Launch& launch) { pack<Rows>(launch, by_rows_); }
  void pack_fragments(Launch& launch) { pack<Fragments>(launch, by_fragments_); }
  void tune(Launch& launch) {
    expand(launch);
    cublaslt_.tune(launch, wide_, x_, turned_);
  }
  void cublaslt(Launch& launch) {
    cublaslt_.run_tuned(launch, wide_, x_, turned_);
    launch(turn_kernel, {dim3{blocks_of(rows_, 32), blocks_of(tokens_, 32)}, 256}, turned_, y_, rows_, tokens_);
  }
  void expanded_weights(Launch& launch) { expanded_(launch.stream); }
  void expand_shared(Launch& launch) { by_conversion_(launch.stream); }
  void expand_lut(Launch& launch) { by_lookup_(launch.stream); }
  void expand_registers(Launch& launch) { in_registers_(launch.stream); }

 private:
  static constexpr std::size_t kinds = 8;  // of rows

  static unsigned blocks_of(std::size_t items, std::size_t of_block) {
    return static_cast<unsigned>((items + of_block - 1) / of_block);
  }
  Cost cost_of(double weights) const {
    return {.flops = 2.0 * static_cast<double>(rows_) * static_cast<double>(tokens_) * static_cast<double>(k_),
            .math = Math::fp8,
            .bytes = weights + static_cast<double>(x_.bytes() + y_.bytes())};
  }
  std::size_t packed_bytes() const { return blocks_of(rows_, 64) * (k_ / group) * Rows::block_bytes; }
  template <class Codes>
  void pack(Launch& launch, std::uint8_t* packed) {
    launch(pack_kernel<Codes>, {dim3{static_cast<unsigned>(k_ / group), blocks_of(rows_, 64)}, 128}, codes_, scales_, packed,
           rows_, k_);
  }

  std::size_t rows_, tokens_, k_;
  Input<std::uint8_t> codes_;
  Input<half> scales_;
  Input<e4m3> x_;
  Output<bf16> y_;
  Scratch<e4m3> wide_;
  Scratch<float> by_groups_, ones_;
  Scratch<std::uint8_t> by_rows_, by_fragments_;
  Scratch<bf16> turned_;
  LibraryMatmul cublaslt_;
  Run expanded_, by_conversion_, by_lookup_, in_registers_;
  QuantizationError error_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair w4a8_gemm{
    .teaches =
        "every integer of four bits is exact in e4m3: weights stay four bits in memory and become FP8 operands in the "
        "registers that wgmma multiplies from, for half of the bytes and the same sums",
    .lesson = "expand_registers",
    .make = make<W4a8Gemm>,
    .baseline = {.name = "expanded_weights", .run = call<&W4a8Gemm::expanded_weights>, .prepare = call<&W4a8Gemm::expand>},
    .optimized = variants({{.name = "expand_shared",
                            .run = call<&W4a8Gemm::expand_shared>,
                            .prepare = call<&W4a8Gemm::pack_rows>,
                            .same_bits_as = "expanded_weights",
                            .kernels = nothing_spilled},
                           {.name = "expand_lut",
                            .run = call<&W4a8Gemm::expand_lut>,
                            .prepare = call<&W4a8Gemm::pack_rows>,
                            .same_bits_as = "expanded_weights",
                            .kernels = nothing_spilled},
                           {.name = "expand_registers",
                            .run = call<&W4a8Gemm::expand_registers>,
                            .prepare = call<&W4a8Gemm::pack_fragments>,
                            .same_bits_as = "expanded_weights",
                            .kernels = nothing_spilled}}),
    // On the expanded weights, for which it has scales of this kind.
    .libraries = variants({{.name = "cublaslt",
                            .run = call<&W4a8Gemm::cublaslt>,
                            .prepare = call<&W4a8Gemm::tune>,
                            .needs = {.libraries = {Library::cublaslt}}}}),
    .bound = Bound::memory,
    // One rounding of y, 2^-8 at most, which is not its mean, 1.6e-3, in a group of few sums; and FP8 sums of 128 products in 14
    // bits.
    .tolerance = within(4e-3, 0.013),
    .needs = {.min_sm = 90, .max_sm = 90},
    .sizes = sizes({{.name = "rows", .full = 57344, .multiple = 8, .most = 1u << 18},
                    {.name = "tokens", .full = 32, .most = 4096, .scales = false},
                    {.name = "k", .full = 8192, .multiple = group, .most = 1u << 15, .scales = false}}),
    .sweep = cases({{"tokens_1", "tokens=1"},
                    {"tokens_16", "tokens=16"},
                    {"tokens_32", "tokens=32"},
                    {"tokens_64", "tokens=64"},
                    {"tokens_128", "tokens=128"},
                    {"tokens_256", "tokens=256"}}),
    .edges = cases({{"smallest", "rows=64,tokens=1,k=128"},
                    {"tails", "rows=1000,tokens=13,k=896"},
                    {"two_tiles_of_tokens", "rows=520,tokens=100,k=2176"},
                    {"many_rows", "rows=40008,tokens=33,k=640"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch19
