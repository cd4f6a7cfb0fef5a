// SPDX-License-Identifier: Apache-2.0
// The end of a SwiGLU layer in FP8: silu(gate) * up, of which each 128 elements of a token become e4m3 with a scale of their own.
// As separate kernels the product goes through memory as bf16 and comes back, and the scales, which the next GEMM loads by
// columns, are transposed by a third one. A group fits into the registers of half a warp: its maximum takes four shuffles, and
// neither the product nor a row-major scale need exist.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>

#include "quantized_rows.cuh"
#include "row_cache.hpp"

namespace aisp::ch19 {
namespace {

using shared::bf16, shared::packet;
using e4m3 = __nv_fp8_e4m3;
constexpr unsigned threads = 256;
constexpr unsigned group = 128, group_lanes = group / packet;  // a half-warp has a group, 16 bytes a lane
constexpr float smallest_maximum = 1e-10f;                     // of a group, so that a group of zeros has a scale
constexpr unsigned tile_rows = threads / 32, parts = 2;        // a warp has a row of a tile, and each lane two packets of it
constexpr unsigned tile_groups = parts * 32 / group_lanes, tile_packets = tile_groups * group_lanes;
constexpr unsigned transposed_tile = 32;

struct Silu {
  // If exp overflows the quotient is 0, which the product with a gate that far below zero is, too.
  static __device__ __forceinline__ float of(float x) { return __fdividef(x, 1 + __expf(-x)); }
};
struct Identity {
  static __device__ __forceinline__ float of(float x) { return x; }
};

template <class Activation>
__device__ __forceinline__ void gated(const uint4& gate, const uint4& up, float (&product)[packet]) {
  float of_gate[packet];
  shared::unpack(gate, of_gate);
  shared::unpack(up, product);
#pragma unroll
  for (int k = 0; k < packet; ++k) product[k] *= Activation::of(of_gate[k]);
}

__device__ __forceinline__ float group_maximum(const float (&x)[packet]) {
  return fmaxf(device::warp_max<group_lanes>(largest_magnitude(x)), smallest_maximum);
}

__global__ __launch_bounds__(threads) void swiglu_kernel(const uint4* __restrict__ gate_up, uint4* __restrict__ product,
                                                         unsigned row_packets, unsigned packets) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= packets) return;
  const std::size_t at =
      i + std::size_t{i / row_packets} * row_packets;  // a row has gates first and then as many values to be gated
  float x[packet];
  gated<Silu>(gate_up[at], gate_up[at + row_packets], x);
  product[i] = shared::pack(x);
}

// Packets are a multiple of a group's, so that a group's lanes come and go together; but shuffles want all of a warp.
__global__ __launch_bounds__(threads) void quantize_groups_kernel(const uint4* __restrict__ product, uint2* __restrict__ codes,
                                                                  float* __restrict__ scales, unsigned packets) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  float x[packet] = {};
  if (i < packets) shared::unpack(product[i], x);
  const float maximum = group_maximum(x);
  if (i >= packets) return;
  codes[i] = pack_e4m3(x, largest_e4m3 / maximum);
  if (threadIdx.x % group_lanes == 0) scales[i / group_lanes] = maximum / largest_e4m3;
}

__global__ __launch_bounds__(threads) void transpose_scales_kernel(const float* __restrict__ scales,
                                                                   float* __restrict__ transposed, unsigned rows,
                                                                   unsigned columns) {
  __shared__ float tile[transposed_tile][transposed_tile + 1];
  const unsigned left = blockIdx.y * transposed_tile, top = blockIdx.x * transposed_tile;
  const unsigned x = threadIdx.x % transposed_tile, y = threadIdx.x / transposed_tile;
  for (unsigned k = y; k < transposed_tile; k += threads / transposed_tile)
    if (top + k < rows && left + x < columns) tile[k][x] = scales[std::size_t{top + k} * columns + left + x];
  __syncthreads();
  for (unsigned k = y; k < transposed_tile; k += threads / transposed_tile)
    if (left + k < columns && top + x < rows) transposed[std::size_t{left + k} * rows + top + x] = tile[x][k];
}

struct Shape {
  unsigned rows, row_packets;

  __host__ __device__ unsigned groups() const { return row_packets / group_lanes; }
  __host__ __device__ unsigned across() const { return (row_packets + tile_packets - 1) / tile_packets; }  // tiles
  __host__ __device__ unsigned down() const { return (rows + tile_rows - 1) / tile_rows; }
};

// A lane's part of a tile: a row of it, and a packet of each of its parts.
struct Place {
  unsigned row, column;  // in packets, of the first part

  __device__ __forceinline__ Place(unsigned tile, const Shape& shape)
      : row{tile / shape.across() * tile_rows + threadIdx.x / 32},
        column{tile % shape.across() * tile_packets + threadIdx.x % 32} {}
  __device__ __forceinline__ bool inside(unsigned part, const Shape& shape) const {
    return row < shape.rows && column + part * 32 < shape.row_packets;
  }
};

// Scales of a tile, in the order of columns: eight rows of a group are a sector of 32 bytes.
using TileScales = float[tile_groups][tile_rows];

__device__ __forceinline__ void store_codes(const float (&x)[packet], unsigned part, const Place& at, const Shape& shape,
                                            uint2* __restrict__ codes, TileScales& tile_scales) {
  const float maximum = group_maximum(x);
  if (at.inside(part, shape))
    codes[std::size_t{at.row} * shape.row_packets + at.column + part * 32] = pack_e4m3(x, largest_e4m3 / maximum);
  const unsigned lane = threadIdx.x % 32;
  if (lane % group_lanes == 0) tile_scales[(part * 32 + lane) / group_lanes][threadIdx.x / 32] = maximum / largest_e4m3;
}

// By one warp, one scale a lane.
template <bool by_columns>
__device__ __forceinline__ void store_scales(const TileScales& tile_scales, unsigned tile, const Shape& shape,
                                             float* __restrict__ scales) {
  const unsigned in_group = by_columns ? threadIdx.x / tile_rows : threadIdx.x % tile_groups;
  const unsigned in_row = by_columns ? threadIdx.x % tile_rows : threadIdx.x / tile_groups;
  const unsigned row = tile / shape.across() * tile_rows + in_row, of = tile % shape.across() * tile_groups + in_group;
  if (row >= shape.rows || of >= shape.groups()) return;
  scales[by_columns ? std::size_t{of} * shape.rows + row : std::size_t{row} * shape.groups() + of] =
      tile_scales[in_group][in_row];
}
static_assert(tile_groups * tile_rows == 32);

template <class Activation, bool by_columns>
__global__ __launch_bounds__(threads) void fused_kernel(const uint4* __restrict__ gate_up, uint2* __restrict__ codes,
                                                        float* __restrict__ scales, Shape shape) {
  __shared__ TileScales tile_scales;
  const Place at{blockIdx.x, shape};
  const uint4* const gates = gate_up + std::size_t{at.row} * 2 * shape.row_packets + at.column;
  uint4 gate[parts] = {}, up[parts] = {};
#pragma unroll
  for (unsigned p = 0; p < parts; ++p)
    if (at.inside(p, shape)) gate[p] = gates[p * 32], up[p] = gates[shape.row_packets + p * 32];
#pragma unroll
  for (unsigned p = 0; p < parts; ++p) {
    float x[packet];
    gated<Activation>(gate[p], up[p], x);
    store_codes(x, p, at, shape, codes, tile_scales);
  }
  __syncthreads();
  if (threadIdx.x < 32) store_scales<by_columns>(tile_scales, blockIdx.x, shape, scales);
}

class FusedQuantize final : public Workload {
 public:
  explicit FusedQuantize(Setup& setup)
      : tokens_{setup.size("tokens")},
        columns_{setup.size("columns")},
        gate_up_{setup.input<bf16>(tokens_ * 2 * columns_, values(), {.name = "gate and up"})},
        codes_{setup.output<e4m3>(tokens_ * columns_, {.name = "codes"})},
        scales_{setup.output<float>(columns_ / group * tokens_, {.name = "scales by columns"})},
        product_{setup.scratch<bf16>(tokens_ * columns_, {.name = "product"})},
        row_scales_{setup.scratch<float>(columns_ / group * tokens_, {.name = "scales by rows"})} {}

  Cost cost() const override { return {.bytes = static_cast<double>(gate_up_.bytes() + codes_.bytes() + scales_.bytes())}; }
  // The baseline's rounding: products become bf16 on their way. Code references are not rounded to e4m3: the limits count steps
  // from the nearest code, and the error that is reported is that of the type.
  double expected_output(int output, std::size_t i) const override {
    return reference(output, i, [](double x) { return static_cast<double>(__bfloat162float(__double2bfloat16(x))); });
  }
  double expected_quantized(std::string_view, int output, std::size_t i) const override {
    return reference(output, i, [](double x) { return x; });
  }

  void separate_kernels(Launch& launch) {
    const std::size_t packets = tokens_ * shape().row_packets;
    const Grid grid{static_cast<unsigned>((packets + threads - 1) / threads), threads};
    auto* const product = reinterpret_cast<uint4*>(product_.get());
    launch(swiglu_kernel, grid, gate_up(), product, shape().row_packets, packets);
    launch(quantize_groups_kernel, grid, product, codes(), row_scales_, packets);
    transpose_scales(launch);
  }
  void fused(Launch& launch) {
    launch(fused_kernel<Silu, false>, tiles(), gate_up(), codes(), row_scales_, shape());
    transpose_scales(launch);
  }
  template <class Activation>
  void column_scales(Launch& launch) {
    launch(fused_kernel<Activation, true>, tiles(), gate_up(), codes(), scales_, shape());
  }

 private:
  Shape shape() const { return {static_cast<unsigned>(tokens_), static_cast<unsigned>(columns_ / packet)}; }
  Grid tiles() const { return {shape().across() * shape().down(), threads}; }
  const uint4* gate_up() const { return reinterpret_cast<const uint4*>(gate_up_.get()); }
  uint2* codes() const { return reinterpret_cast<uint2*>(codes_.get()); }
  void transpose_scales(Launch& launch) {
    const auto in_tiles = [](std::size_t n) { return static_cast<unsigned>((n + transposed_tile - 1) / transposed_tile); };
    launch(transpose_scales_kernel, {.blocks = {in_tiles(tokens_), in_tiles(shape().groups())}, .threads = threads}, row_scales_,
           scales_, tokens_, shape().groups());
  }

  // Outlier channels; groups of zeros, of values so small that under the smallest maximum they are subnormals of e4m3, and with
  // one huge value, which leaves the others subnormal; gates whose activation vanishes; and zeros of both signs.
  Pattern values() const {
    const std::size_t count = tokens_ * 2 * columns_;
    const Axis channels{1, 2 * columns_}, groups{group, count / group}, elements{1, count};
    Pattern pattern = normal(0, 1).times(20, 100, drawn(channels, 8));
    if (groups.count < 64) return pattern;
    return pattern.set(-25, drawn(elements, groups.count))
        .set(-0.0f, drawn(elements, groups.count))
        .set(1e4f, drawn(elements, groups.count / 64))
        .times(1e-14f, drawn(groups, groups.count / 32))
        .set(0, drawn(groups, groups.count / 64));
  }
  template <class Round>
  double product(std::size_t token, std::size_t column, Round round) const {
    const double gate = gate_up_.host(token * 2 * columns_ + column), up = gate_up_.host((token * 2 + 1) * columns_ + column);
    return round(gate / (1 + std::exp(-gate)) * up);
  }
  template <class Round>
  double reference(int output, std::size_t i, Round round) const {
    const std::size_t token = output == 0 ? i / columns_ : i % tokens_;
    const std::size_t first = (output == 0 ? i % columns_ / group : i / tokens_) * group;
    double maximum = double{smallest_maximum};
    for (std::size_t k = 0; k < group; ++k) maximum = std::max(maximum, std::abs(product(token, first + k, round)));
    const double scale = maximum / double{largest_e4m3};
    return output == 0 ? product(token, i % columns_, round) / scale : scale;
  }

  std::size_t tokens_, columns_;
  Input<bf16> gate_up_;  // [tokens][gates, then values to be gated]
  Output<e4m3> codes_;
  Output<float> scales_;  // [groups][tokens]
  Scratch<bf16> product_;
  Scratch<float> row_scales_;
};

// The approximate exponential and quotient are off by some 1e-7 of a value, 1e-5 where the exponent is large. Two of the numbers
// between which a code changes lie 6 % of a value apart or more, so that less than 1 in 1000 codes is beyond one of them. In the
// baseline one product in 200 lies as near to the middle of two bf16 values; where it is the maximum, the scale moves by up to
// 2^-7.
constexpr Tolerance same_codes = within_steps(1, 1e-3), same_scales = within(2e-6, 2e-5);

}  // namespace

extern constinit const Pair fused_quantize{
    .teaches = "a quantizer is one more reader of what an activation writes: in registers both are one pass, scales and all",
    .lesson = "fused",
    .make = make<FusedQuantize>,
    .baseline = {.name = "separate_kernels",
                 .run = call<&FusedQuantize::separate_kernels>,
                 .tolerance = per_output({same_codes, within(1e-3, 8e-3)})},
    .optimized = variants({{.name = "fused", .run = call<&FusedQuantize::fused>, .changes_precision = true},
                           {.name = "column_scales",
                            .run = call<&FusedQuantize::column_scales<Silu>>,
                            .changes_precision = true,
                            .same_bits_as = "fused",
                            .kernels = {.local_bytes = 0}}}),
    // The same bytes, groups and conversions without the exponentials: whether arithmetic shows at all.
    .controls =
        variants({{.name = "no_activation", .run = call<&FusedQuantize::column_scales<Identity>>, .outputs = no_outputs}}),
    .bound = Bound::memory,
    .tolerance = per_output({same_codes, same_scales}),
    .needs = {.min_sm = 89},
    .sizes = sizes({{.name = "tokens", .full = 16384, .most = 1u << 18},
                    {.name = "columns", .full = 8192, .multiple = group, .most = 1u << 15, .scales = false}}),
    .sweep = cases({{"tokens_64", "tokens=64"},
                    {"tokens_256", "tokens=256"},
                    {"tokens_1024", "tokens=1024"},
                    {"tokens_4096", "tokens=4096"},
                    {"tokens_16384", "tokens=16384"}}),
    .edges = cases({{"one_group", "tokens=1,columns=128"},
                    {"one_row", "tokens=1"},
                    {"tails", "tokens=1013,columns=1664"},
                    {"half_a_tile", "tokens=9,columns=384"}}),
    .reference_samples = 4096,
};

}  // namespace aisp::ch19
