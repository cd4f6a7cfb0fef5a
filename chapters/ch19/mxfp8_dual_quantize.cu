// SPDX-License-Identifier: Apache-2.0
// A matrix in MXFP8 for the forward pass, and its transpose for the backward one. With a scale for each 32 elements of a row the
// second is no transpose of the first: its blocks lie along columns and have scales of their own. By a quantizer of rows alone
// that is a transposed bf16 copy, written and read once more. A tile in registers, 8 x 8 values a thread, knows the maxima of
// both directions after a few shuffles; only the transposed codes go through shared memory, a byte each.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "quantized_rows.cuh"
#include "transposed_codes.cuh"

namespace aisp::ch19 {
namespace {

using shared::bf16, shared::packet;
constexpr unsigned threads = 256, block = 32;  // elements that share a scale
constexpr unsigned block_lanes = block / packet;
constexpr unsigned tile = transposed_tile;
static_assert(threads == transposing_threads);
constexpr unsigned no_number = 255;  // the scale of a block with an infinity or a NaN, all of whose codes are NaN

// OCP MX 1.0: the scale is the power of two at the largest magnitude over that of e4m3, 2^8, and at least 2^-127. Exponents of
// bf16 and E8M0 have the same bias. What is beyond 448 saturates, as maxima between 1.75 and 2 times a power of two do.
__host__ __device__ constexpr unsigned scale_of(unsigned largest) {  // bits of a bf16
  const unsigned exponent = largest >> 7;
  return exponent == 255 ? no_number : exponent < 8 ? 0 : exponent - 8;
}
__device__ __forceinline__ float factor_of(unsigned scale) { return __uint_as_float((254 - scale) << 23); }  // of 2^(127 - scale)

// The larger magnitudes of two pairs.
__device__ __forceinline__ unsigned larger(unsigned a, unsigned b) { return __vmaxu2(a, b); }
__device__ __forceinline__ unsigned magnitudes(unsigned pair) { return pair & 0x7FFF7FFFu; }

__device__ __forceinline__ uint2 or_no_number(const uint2& codes, unsigned scale) {
  return scale == no_number ? make_uint2(0x7F7F7F7Fu, 0x7F7F7F7Fu) : codes;
}
__device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(unsigned pair) { return __uint_as_float(pair & 0xFFFF0000u); }

// Two packets a thread; four lanes have a block.
__global__ __launch_bounds__(threads) void rows_kernel(const uint4* __restrict__ x, uint2* __restrict__ codes,
                                                       unsigned char* __restrict__ scales, unsigned packets) {
  const unsigned first = blockIdx.x * 2 * threads + threadIdx.x;
  uint4 loaded[2] = {};
#pragma unroll
  for (unsigned p = 0; p < 2; ++p)
    if (first + p * threads < packets) loaded[p] = x[first + p * threads];
#pragma unroll
  for (unsigned p = 0; p < 2; ++p) {
    const unsigned i = first + p * threads;
    unsigned pairs = larger(larger(magnitudes(loaded[p].x), magnitudes(loaded[p].y)),
                            larger(magnitudes(loaded[p].z), magnitudes(loaded[p].w)));
    pairs = device::warp_reduce<block_lanes>(pairs, larger);
    const unsigned scale = scale_of(max(pairs & 0xFFFF, pairs >> 16));
    if (i >= packets) continue;
    float values[packet];
    shared::unpack(loaded[p], values);
    codes[i] = or_no_number(pack_e4m3(values, factor_of(scale)), scale);
    if (i % block_lanes == 0) scales[i / block_lanes] = static_cast<unsigned char>(scale);
  }
}

// 8 x 4 threads are a warp, so that both directions' blocks lie within one.
using Place = TilePlace;

// Transposed bf16 for the baseline: column c of a tile has its 16 packets in an order that depends on c / 8, so that neither the
// writes, whose lanes differ in it, nor the reads, whose lanes differ in the packet, meet in a bank.
__global__ __launch_bounds__(threads) void transpose_kernel(const uint4* __restrict__ x, uint4* __restrict__ transposed,
                                                            unsigned rows, unsigned columns) {
  __shared__ uint4 columns_of_tile[tile][tile / packet];
  const Place at;
  const unsigned top = blockIdx.y * tile, left = blockIdx.x * tile;
  const unsigned row = top + at.down * packet, column = left + at.across * packet;
  unsigned words[packet][4] = {};
#pragma unroll
  for (unsigned r = 0; r < packet; ++r)
    if (row < rows && column < columns) {
      const uint4 loaded = x[(std::size_t{row + r} * columns + column) / packet];
      words[r][0] = loaded.x, words[r][1] = loaded.y, words[r][2] = loaded.z, words[r][3] = loaded.w;
    }
#pragma unroll
  for (unsigned c = 0; c < packet; ++c) {
    const unsigned select = c % 2 == 0 ? 0x5410 : 0x7632;
    columns_of_tile[at.across * packet + c][at.down ^ at.across] =
        make_uint4(__byte_perm(words[0][c / 2], words[1][c / 2], select), __byte_perm(words[2][c / 2], words[3][c / 2], select),
                   __byte_perm(words[4][c / 2], words[5][c / 2], select), __byte_perm(words[6][c / 2], words[7][c / 2], select));
  }
  __syncthreads();
#pragma unroll
  for (unsigned k = 0; k < packet; ++k) {
    const unsigned c = k * (tile / packet) + threadIdx.x / (tile / packet), of_rows = threadIdx.x % (tile / packet);
    if (left + c < columns && top + of_rows * packet < rows)
      transposed[(std::size_t{left + c} * rows + top) / packet + of_rows] = columns_of_tile[c][of_rows ^ c / packet];
  }
}

struct Copies {
  unsigned char *codes, *scales;                        // along rows
  unsigned char *transposed_codes, *transposed_scales;  // along columns
};
struct Shape {
  unsigned rows, columns;
  __host__ __device__ unsigned across() const { return (columns + tile - 1) / tile; }
  __host__ __device__ unsigned tiles() const { return across() * ((rows + tile - 1) / tile); }
  __device__ __forceinline__ TransposedShape transposed() const { return {rows, columns, rows}; }
};

// Scales of a tile, which leave as words: bytes of their own would each cost L2 a sector.
constexpr unsigned tile_blocks = tile / block;
struct TileScales {
  alignas(4) unsigned char of_rows[tile][tile_blocks], of_columns[tile][tile_blocks];
};

// Row i of `from` to line first_line + i of `to`, which has `blocks` scales, from place `first` on. A line a thread.
__device__ __forceinline__ void store_scales(const unsigned char (&from)[tile][tile_blocks], unsigned i, unsigned first_line,
                                             unsigned lines, unsigned first, unsigned blocks, unsigned char* __restrict__ to) {
  if (first_line + i >= lines) return;
  unsigned char* const at = to + std::size_t{first_line + i} * blocks + first;
  if (blocks % tile_blocks == 0) *reinterpret_cast<unsigned*>(at) = *reinterpret_cast<const unsigned*>(from[i]);
  else
    for (unsigned k = 0; k < tile_blocks && first + k < blocks; ++k) at[k] = from[i][k];
}

// Scales of two blocks, and what their values are multiplied by, as bf16: both have the exponents of the maxima in the same bits.
__device__ __forceinline__ unsigned scales_of(unsigned maxima) {
  constexpr unsigned of_type = 0x00080008;
  return larger(maxima >> 7 & 0x00FF00FF, of_type) - of_type;  // 247 of an infinity or a NaN
}
constexpr unsigned of_no_number = 247;  // an infinity or a NaN
__device__ __forceinline__ bool some_no_number(unsigned scales) { return (scales + 0x00090009 & 0x01000100) != 0; }
__device__ __forceinline__ void mark_no_number(unsigned& scales, uint2 (&codes)[2]) {
  constexpr unsigned all_nan = 0x7F7F7F7F;
  if ((scales & 0xFFFF) == of_no_number) codes[0] = make_uint2(all_nan, all_nan), scales |= no_number;
  if (scales >> 16 == of_no_number) codes[1] = make_uint2(all_nan, all_nan), scales |= no_number << 16;
}
__device__ __forceinline__ unsigned factors_of(unsigned scales) { return 0x7F007F00 - scales * 128; }
__device__ __forceinline__ unsigned scaled(unsigned pair, unsigned factors) {
  const __nv_bfloat162 product =
      __hmul2(reinterpret_cast<const __nv_bfloat162&>(pair), reinterpret_cast<const __nv_bfloat162&>(factors));  // exact
  return reinterpret_cast<const unsigned&>(product);
}
__device__ __forceinline__ unsigned codes_of(unsigned pair) { return device::narrow_e4m3(low(pair), high(pair)); }

__device__ __forceinline__ void quantize_rows(const unsigned (&words)[packet][4], const Place& at, unsigned row, unsigned column,
                                              const Shape& shape, const Copies& to, TileScales& scales) {
  unsigned char* const first = to.codes + std::size_t{row} * shape.columns + column;
#pragma unroll
  for (unsigned r = 0; r < packet; r += 2) {
    // The maxima of two rows in a word.
    unsigned of_row[2];
#pragma unroll
    for (unsigned k = 0; k < 2; ++k) {
      const unsigned(&w)[4] = words[r + k];
      of_row[k] = larger(larger(magnitudes(w[0]), magnitudes(w[1])), larger(magnitudes(w[2]), magnitudes(w[3])));
    }
    const unsigned maxima = device::warp_reduce<block_lanes>(
        larger(__byte_perm(of_row[0], of_row[1], 0x5410), __byte_perm(of_row[0], of_row[1], 0x7632)), larger);
    if (row >= shape.rows || column >= shape.columns) continue;
    unsigned both = scales_of(maxima);
    const unsigned factors = factors_of(both);
    uint2 codes[2];
#pragma unroll
    for (unsigned k = 0; k < 2; ++k) {
      const unsigned(&w)[4] = words[r + k];
      const unsigned by = __byte_perm(factors, factors, k == 0 ? 0x1010 : 0x3232);
      codes[k] = make_uint2(codes_of(scaled(w[0], by)) | codes_of(scaled(w[1], by)) << 16,
                            codes_of(scaled(w[2], by)) | codes_of(scaled(w[3], by)) << 16);
    }
    if (some_no_number(both)) mark_no_number(both, codes);
#pragma unroll
    for (unsigned k = 0; k < 2; ++k) {
      *reinterpret_cast<uint2*>(first + (r + k) * shape.columns) = codes[k];
      if (at.across % block_lanes == 0)
        scales.of_rows[at.down * packet + r + k][at.across / block_lanes] =
            static_cast<unsigned char>(k == 0 ? both : both >> 16);
    }
  }
}

__device__ __forceinline__ void quantize_columns(const unsigned (&words)[packet][4], const Place& at, TransposedTile& transposed,
                                                 TileScales& scales) {
#pragma unroll
  for (unsigned pair = 0; pair < 4; ++pair) {
    unsigned maxima = magnitudes(words[0][pair]);
#pragma unroll
    for (unsigned r = 1; r < packet; ++r) maxima = larger(maxima, magnitudes(words[r][pair]));
    maxima = larger(maxima, __shfl_xor_sync(device::whole_warp, maxima, 8));
    maxima = larger(maxima, __shfl_xor_sync(device::whole_warp, maxima, 16));
    unsigned both = scales_of(maxima);
    const unsigned factors = factors_of(both);
    unsigned values[packet];
#pragma unroll
    for (unsigned r = 0; r < packet; ++r) values[r] = scaled(words[r][pair], factors);
    uint2 codes[2];
#pragma unroll
    for (unsigned k = 0; k < 2; ++k) {
      const auto two = [&](unsigned r) {
        return k == 0 ? device::narrow_e4m3(low(values[r]), low(values[r + 1]))
                      : device::narrow_e4m3(high(values[r]), high(values[r + 1]));
      };
      codes[k] = make_uint2(two(0) | two(2) << 16, two(4) | two(6) << 16);
    }
    if (some_no_number(both)) mark_no_number(both, codes);
#pragma unroll
    for (unsigned k = 0; k < 2; ++k) {
      const unsigned c = 2 * pair + k;
      put_column(transposed, at, c, codes[k]);
      if (at.down % block_lanes == 0)
        scales.of_columns[at.across * packet + c][at.down / block_lanes] = static_cast<unsigned char>(k == 0 ? both : both >> 16);
    }
  }
}

// Along columns alone, or along both.
template <bool with_rows>
__global__ __launch_bounds__(threads, 3) void tile_kernel(const uint4* __restrict__ x, Copies to, Shape shape) {
  __shared__ __align__(16) TransposedTile transposed;
  __shared__ TileScales scales;
  const Place at;
  const unsigned top = blockIdx.x / shape.across() * tile, left = blockIdx.x % shape.across() * tile;
  const unsigned row = top + at.down * packet, column = left + at.across * packet;
  unsigned words[packet][4] = {};
#pragma unroll
  for (unsigned r = 0; r < packet; ++r)
    if (row < shape.rows && column < shape.columns) {
      const uint4 loaded = x[(std::size_t{row + r} * shape.columns + column) / packet];
      words[r][0] = loaded.x, words[r][1] = loaded.y, words[r][2] = loaded.z, words[r][3] = loaded.w;
    }
  if constexpr (with_rows) quantize_rows(words, at, row, column, shape, to, scales);
  quantize_columns(words, at, transposed, scales);
  __syncthreads();
  if (threadIdx.x >= tile)
    store_scales(scales.of_columns, threadIdx.x - tile, left, shape.columns, top / block, shape.rows / block,
                 to.transposed_scales);
  else if (with_rows) store_scales(scales.of_rows, threadIdx.x, top, shape.rows, left / block, shape.columns / block, to.scales);
  store_transposed(transposed, top, left, shape.transposed(), to.transposed_codes);
}

class Mxfp8DualQuantize final : public Workload {
 public:
  explicit Mxfp8DualQuantize(Setup& setup)
      : rows_{setup.size("rows")},
        columns_{setup.size("columns")},
        x_{setup.input<bf16>(rows_ * columns_, values(), {.name = "x"})},
        codes_{setup.output<std::uint8_t>(rows_ * columns_, {.name = "codes along rows"})},
        scales_{setup.output<std::uint8_t>(rows_ * columns_ / block, {.name = "scales along rows", .codes = ElementType::e8m0})},
        transposed_codes_{setup.output<std::uint8_t>(rows_ * columns_, {.name = "codes along columns"})},
        transposed_scales_{
            setup.output<std::uint8_t>(rows_ * columns_ / block, {.name = "scales along columns", .codes = ElementType::e8m0})},
        transposed_{setup.scratch<bf16>(rows_ * columns_, {.name = "transposed x"})} {}

  Cost cost() const override { return {.bytes = static_cast<double>(x_.bytes() + 2 * (codes_.bytes() + scales_.bytes()))}; }
  double expected_output(int output, std::size_t i) const override {
    const bool along_columns = output >= 2, is_scale = output % 2 == 1;
    const std::size_t length = along_columns ? rows_ : columns_, element = is_scale ? i * block : i;
    const std::size_t line = element / length, place = element % length;
    const auto value = [&](std::size_t at) {
      return static_cast<float>(x_.host(along_columns ? at * columns_ + line : line * columns_ + at));
    };
    unsigned largest = 0;
    for (std::size_t k = 0; k < block; ++k) largest = std::max(largest, magnitude(value(place / block * block + k)));
    const unsigned scale = scale_of(largest);
    if (is_scale) return scale;
    if (scale == no_number) return 0x7F;
    return __nv_fp8_e4m3{std::ldexp(value(place), 127 - static_cast<int>(scale))}.__x;
  }

  void transpose_between(Launch& launch) {
    quantize_by_rows(launch, x_.get(), codes_, scales_);
    launch(transpose_kernel, {.blocks = {shape().across(), shape().tiles() / shape().across()}, .threads = threads},
           packets(x_.get()), reinterpret_cast<uint4*>(transposed_.get()), rows_, columns_);
    quantize_by_rows(launch, transposed_.get(), transposed_codes_, transposed_scales_);
  }
  void column_kernel(Launch& launch) {
    quantize_by_rows(launch, x_.get(), codes_, scales_);
    launch(tile_kernel<false>, {shape().tiles(), threads}, packets(x_.get()), copies(), shape());
  }
  void tile_dual(Launch& launch) { launch(tile_kernel<true>, {shape().tiles(), threads}, packets(x_.get()), copies(), shape()); }

 private:
  // Outlier channels, a row 2^6 times as large as the others, blocks of zeros and of bf16's subnormals, an infinity and a NaN.
  // Maxima beyond 1.75 times a power of two are among them by themselves.
  Pattern values() const {
    const Axis channels{1, columns_}, lines{columns_, rows_}, blocks{block, rows_ * columns_ / block},
        elements{1, rows_ * columns_};
    const Pattern pattern = normal(0, 1).times(20, 100, drawn(channels, 8)).times(64, drawn(lines, 1));
    if (blocks.count < 64) return pattern;
    return pattern.set(-0.0f, drawn(blocks, blocks.count / 64))
        .times(1e-39f, drawn(blocks, blocks.count / 64))
        .set(std::numeric_limits<float>::infinity(), drawn(elements, 4))
        .set(std::numeric_limits<float>::quiet_NaN(), drawn(elements, 4));
  }
  static unsigned magnitude(float x) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof bits);
    return bits >> 16 & 0x7FFF;
  }
  Shape shape() const { return {static_cast<unsigned>(rows_), static_cast<unsigned>(columns_)}; }
  Copies copies() const { return {codes_, scales_, transposed_codes_, transposed_scales_}; }
  static const uint4* packets(const bf16* of) { return reinterpret_cast<const uint4*>(of); }
  void quantize_by_rows(Launch& launch, const bf16* x, std::uint8_t* codes, std::uint8_t* scales) {
    const std::size_t count = rows_ * columns_ / packet;
    launch(rows_kernel, {static_cast<unsigned>((count + 2 * threads - 1) / (2 * threads)), threads}, packets(x),
           reinterpret_cast<uint2*>(codes), scales, count);
  }

  std::size_t rows_, columns_;
  Input<bf16> x_;
  Output<std::uint8_t> codes_, scales_;                        // [rows][columns], [rows][columns / 32]
  Output<std::uint8_t> transposed_codes_, transposed_scales_;  // [columns][rows], [columns][rows / 32]
  Scratch<bf16> transposed_;
};

}  // namespace

extern constinit const Pair mxfp8_dual_quantize{
    .teaches = "block scales along columns are no transpose of those along rows, but one tile in registers gives both",
    .lesson = "tile_dual",
    .make = make<Mxfp8DualQuantize>,
    .baseline = {.name = "transpose_between", .run = call<&Mxfp8DualQuantize::transpose_between>},
    .optimized =
        variants({{.name = "column_kernel", .run = call<&Mxfp8DualQuantize::column_kernel>, .kernels = {.local_bytes = 0}},
                  {.name = "tile_dual", .run = call<&Mxfp8DualQuantize::tile_dual>, .kernels = {.local_bytes = 0}}}),
    .bound = Bound::memory,
    .tolerance = exact,
    .needs = {.min_sm = 89},
    .sizes = sizes({{.name = "rows", .full = 16384, .multiple = block, .most = 1u << 18},
                    {.name = "columns", .full = 8192, .multiple = block, .most = 1u << 15, .scales = false}}),
    .sweep = cases({{"columns_1024", "rows=131072,columns=1024"},
                    {"columns_4096", "rows=32768,columns=4096"},
                    {"columns_8192", "rows=16384,columns=8192"},
                    {"columns_16384", "rows=8192,columns=16384"},
                    {"fits_l2", "rows=2048,columns=4096"}}),
    .edges = cases({{"one_block", "rows=32,columns=32"},
                    {"half_a_tile", "rows=64,columns=32"},
                    {"tails", "rows=1056,columns=1120"},
                    {"one_tile_row", "rows=96,columns=8192"}}),
    .reference_samples = 4096,
};

}  // namespace aisp::ch19
