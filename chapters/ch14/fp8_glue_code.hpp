// SPDX-License-Identifier: Apache-2.0
// The generator of fp8_quantize_gemm: expressions before and after a product, given as text, become a kernel that quantizes rows
// and the epilogue of the GEMM engine.
#pragma once
#include <cuda_bf16.h>
#include <aisp/libraries/nvrtc.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string>

#include "gemm/shape.cuh"
#include "gemm/source.hpp"

namespace aisp::ch14 {

// The function applied to a sum, scaled, once its column's bias is added: in text, and for a reference.
struct Activation {
  const char* text;  // of x
  double (*reference)(double);
};
inline constexpr std::array<Activation, 5> activations{
    {{"Gelu::of(x)", [](double x) { return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }},
     {"fmaxf(x, 0.0f)", [](double x) { return std::max(x, 0.0); }},
     {"__fdividef(x, 1 + __expf(-x))", [](double x) { return x / (1 + std::exp(-x)); }},
     {"fmaxf(x, 0.0f) * fmaxf(x, 0.0f)", [](double x) { return x > 0 ? x * x : 0; }},
     {"x", [](double x) { return x; }}}};

// Shapes that the product is tried with: both warpgroups on one tile, whose products wait for its epilogue, or each on a tile of
// its own, one in its epilogue while the other multiplies.
inline constexpr gemm::Shape fp8_shape{.tile_m = 128, .tile_n = 192, .stages = 5, .cluster = 2};
inline constexpr std::array<gemm::Shape, 2> fp8_shapes{
    {fp8_shape, {.tile_m = 128, .tile_n = 128, .stages = 6, .pingpong = true, .cluster = 2}}};

// The generated epilogue, as the host fills it in; its operator is in the text alone.
struct Spliced {
  static constexpr int narrowing = 1;
  const float *rows = nullptr, *columns = nullptr;  // scales
  const __nv_bfloat16* bias = nullptr;
  float inverse_scale = 1;  // of the result
};

// The epilogue as a person would write it for this expression.
inline std::string spliced_code(const std::string& expression) {
  return R"(struct Spliced {
  static constexpr int narrowing = 1;
  const float *rows, *columns;
  const bf16* bias;
  float inverse_scale;

  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const Fragment& at) const {
    // What lies outside of the result takes the scales of its last row and columns, so that no load stands behind a branch.
    const int last_row = at.row_end - 1, last_pair = at.column_end - 2;
    const float upper = rows[min(at.row(0), last_row)], lower = rows[min(at.row(2), last_row)];
    float2 scales[count / 4], biases[count / 4];
#pragma unroll
    for (int i = 0; i < count / 4; ++i) {
      const int column = min(at.column(4 * i), last_pair);
      scales[i] = *reinterpret_cast<const float2*>(columns + column);
      biases[i] = load_pair(bias + column);
    }
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const float2 scale = scales[i / 4], pair = biases[i / 4];
      const float x = fmaf(sums[i] * (i % 4 < 2 ? upper : lower), i % 2 == 0 ? scale.x : scale.y,
                           i % 2 == 0 ? pair.x : pair.y);
      sums[i] = ()" +
         expression + R"() * inverse_scale;
    }
  }
};
)";
}

inline KernelSource spliced_gemm_source(const std::string& expression, const std::string& mainloop, const gemm::Shape& shape) {
  return gemm::kernel_source(
      "fp8_gemm.cu", shape,
      {.a = "Operand<e4m3>", .b = "Operand<e4m3>", .mainloop = mainloop, .epilogue = "Spliced", .store = "TmaStore<e4m3, 1>"},
      spliced_code(expression));
}

// Packets of eight columns that each thread of a prologue has, of at most 256 threads; and as few threads as then do.
inline std::size_t prologue_packets(std::size_t columns) { return (columns / 8 + 255) / 256; }
inline unsigned prologue_threads(std::size_t columns) {
  const std::size_t each = prologue_packets(columns), busy = (columns / 8 + each - 1) / each;
  return static_cast<unsigned>((busy + 31) / 32 * 32);
}

// A block has a row, and each thread its part of it in registers. `expression`: of x, its gain and the row's inverse_rms.
inline KernelSource prologue_source(std::size_t columns, const std::string& expression) {
  const std::string constants = "constexpr unsigned columns = " + std::to_string(columns) +
                                ", packets = " + std::to_string(columns / 8) +
                                ", threads = " + std::to_string(prologue_threads(columns)) +
                                ", each = " + std::to_string(prologue_packets(columns)) + ";\n";
  return {.name = "fp8_prologue.cu",
          .text = "#include \"ch14/fp8_glue.cuh\"\nusing namespace aisp::ch14;\nusing namespace aisp::shared;\n" + constants +
                  R"(
// With its 1 the compiler spills nothing for the sake of more blocks on an SM.
__global__ __launch_bounds__(threads, 1) void prologue_kernel(const uint4* __restrict__ x_in, const uint4* __restrict__ gains,
                                                              uint2* __restrict__ quantized, float* __restrict__ scales) {
  __shared__ float shared[aisp::device::largest_block_in_warps];
  const std::size_t row = std::size_t{blockIdx.x} * packets;
  float values[each][packet];
  float squares = 0;
#pragma unroll
  for (unsigned j = 0; j < each; ++j) {
    const unsigned i = threadIdx.x + j * threads;
    unpack(i < packets ? x_in[row + i] : make_uint4(0, 0, 0, 0), values[j]);
    squares += sum_of_squares(values[j]);
  }
  const float inverse_rms = aisp::ch14::inverse_rms(aisp::device::block_sum(squares, shared), columns);
  float largest = 0;
#pragma unroll
  for (unsigned j = 0; j < each; ++j) {
    const unsigned i = threadIdx.x + j * threads;
    float gain_values[packet];
    unpack(i < packets ? gains[i] : make_uint4(0, 0, 0, 0), gain_values);
#pragma unroll
    for (int k = 0; k < packet; ++k) {
      const float x = values[j][k], gain = gain_values[k];
      values[j][k] = )" +
                  expression +
                  R"(;
    }
    largest = fmaxf(largest, largest_magnitude(values[j]));
  }
  largest = aisp::device::block_max(largest, 0.0f, shared);
#pragma unroll
  for (unsigned j = 0; j < each; ++j)
    if (const unsigned i = threadIdx.x + j * threads; i < packets)
      quantized[row + i] = pack_e4m3(values[j], quantizing_factor(largest));
  if (threadIdx.x == 0) scales[blockIdx.x] = row_scale(largest);
}
)",
          .kernel = "prologue_kernel"};
}

}  // namespace aisp::ch14
