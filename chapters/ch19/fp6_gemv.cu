// SPDX-License-Identifier: Apache-2.0
// A feed-forward network's weights in E3M2, six bits each, times one token: a read of 0.53 GB. Six bits do not divide a word. In
// the dense packing, 16 weights in three words, every weight is cut out by shifts of its own and converted, and instructions take
// longer than bytes. But the bits of E3M2 are bits of f16, whose subnormals are E3M2's as well; only the bias differs, which a
// row's scale takes up. Packed as a plane of four bits and one of two, two weights arrive where f16 wants them by two shifts and
// two masks.
#include <cuda_fp16.h>
#include <aisp/device/reduce.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>

#include "quantization_error.cuh"

namespace aisp::ch19 {
namespace {

using half = __half;
constexpr unsigned threads = 256, warps = threads / 32, blocks_per_sm = 4;
constexpr unsigned dense_step = 32 * 16, plane_step = 32 * 32;  // columns of a row that a warp reads at once
constexpr unsigned in_flight = 4;
constexpr float bias = 0x1p12f;  // E3M2 read as f16 is so much too small

__device__ __forceinline__ float2 to_floats(unsigned pair) { return __half22float2(reinterpret_cast<const __half2&>(pair)); }
__device__ __forceinline__ __half2 as_half2(unsigned pair) { return reinterpret_cast<const __half2&>(pair); }

// Adds up the products of four pairs in f16, whose 11 bits suffice for so few, and the rest in fp32.
__device__ __forceinline__ float multiply_add(const unsigned (&weights)[4], const uint4& x, float sum) {
  __half2 products = __hmul2(as_half2(weights[0]), as_half2(x.x));
  products = __hfma2(as_half2(weights[1]), as_half2(x.y), products);
  products = __hfma2(as_half2(weights[2]), as_half2(x.z), products);
  products = __hfma2(as_half2(weights[3]), as_half2(x.w), products);
  const float2 both = __half22float2(products);
  return sum + both.x + both.y;
}

// Six bits from bit 6 k on of three words.
template <unsigned k>
__device__ __forceinline__ unsigned bits_at(const uint3& words) {
  constexpr unsigned first = 6 * k, word = first / 32, shift = first % 32;
  const unsigned low = word == 0 ? words.x : word == 1 ? words.y : words.z;
  if constexpr (shift + 12 <= 32) return low >> shift;
  else return __funnelshift_r(low, word == 0 ? words.y : words.z, shift);
}

// 16 weights of the dense packing, each by arithmetic: a significand of three bits, shifted by the exponent.
struct Arithmetic {
  static constexpr float scale = 0x1p-4f;  // of the whole numbers that come out
  template <unsigned k>
  static __device__ __forceinline__ float weight(const uint3& words) {
    const unsigned code = bits_at<k>(words), exponent = code >> 2 & 7, mantissa = code & 3;
    const unsigned magnitude = exponent == 0 ? mantissa : (4 + mantissa) << (exponent - 1);
    const auto value = static_cast<float>(magnitude);
    return (code & 32) != 0 ? -value : value;
  }
  template <unsigned k>
  static __device__ __forceinline__ float four_pairs(const uint3& words, const uint4& x, float sum) {
    const float2 a = to_floats(x.x), b = to_floats(x.y), c = to_floats(x.z), d = to_floats(x.w);
    sum = fmaf(weight<k + 1>(words), a.y, fmaf(weight<k>(words), a.x, sum));
    sum = fmaf(weight<k + 3>(words), b.y, fmaf(weight<k + 2>(words), b.x, sum));
    sum = fmaf(weight<k + 5>(words), c.y, fmaf(weight<k + 4>(words), c.x, sum));
    return fmaf(weight<k + 7>(words), d.y, fmaf(weight<k + 6>(words), d.x, sum));
  }
};
// The same 16 weights, two at a time, moved to where f16 has sign, exponent and mantissa.
struct Placed {
  static constexpr float scale = bias;
  template <unsigned k>
  static __device__ __forceinline__ unsigned pair(const uint3& words) {
    const unsigned bits = bits_at<k>(words), apart = (bits & 0x3F) | (bits & 0xFC0) << 10;
    return (apart & 0x001F001F) << 8 | (apart & 0x00200020) << 10;
  }
  template <unsigned k>
  static __device__ __forceinline__ float four_pairs(const uint3& words, const uint4& x, float sum) {
    const unsigned pairs[4] = {pair<k>(words), pair<k + 2>(words), pair<k + 4>(words), pair<k + 6>(words)};
    return multiply_add(pairs, x, sum);
  }
};

// x stays in shared memory, and blocks stay until all rows are done. In `parts`: packets 0, 2, 4, ... and then the odd ones, for
// lanes that read every second.
__device__ __forceinline__ void fetch(uint4* to, const uint4* x, unsigned columns, unsigned parts) {
  for (unsigned i = threadIdx.x; i < columns / 8; i += threads) to[i % parts * (columns / 8 / parts) + i / parts] = x[i];
  __syncthreads();
}
__device__ __forceinline__ void store_sum(float* y, const float* scales, unsigned row, float sum, float scale) {
  const float total = device::warp_sum(sum);
  if (threadIdx.x % 32 == 0) y[row] = total * (scales[row] * scale);
}

// A lane has 16 neighbours: two packets of x.
template <class Conversion>
__global__ __launch_bounds__(threads, blocks_per_sm) void dense_kernel(const unsigned* __restrict__ weights,
                                                                       const uint4* __restrict__ x,
                                                                       const float* __restrict__ scales, float* __restrict__ y,
                                                                       unsigned rows, unsigned columns) {
  extern __shared__ uint4 x_space[];
  fetch(x_space, x, columns, 2);
  const unsigned lane = threadIdx.x % 32;
  for (unsigned row = blockIdx.x * warps + threadIdx.x / 32; row < rows; row += gridDim.x * warps) {
    const unsigned* const of_row = weights + std::size_t{row} * (columns / 16 * 3);
    float sum = 0;
    for (unsigned first = 0; first < columns; first += in_flight * dense_step) {
      uint3 words[in_flight];
#pragma unroll
      for (unsigned s = 0; s < in_flight; ++s) {
        const unsigned* const from = of_row + (first / 16 + s * 32 + lane) * 3;
        words[s] = make_uint3(from[0], from[1], from[2]);
      }
#pragma unroll
      for (unsigned s = 0; s < in_flight; ++s) {
        const uint4* const times = x_space + first / 16 + s * 32 + lane;
        sum = Conversion::template four_pairs<0>(words[s], times[0], sum);
        sum = Conversion::template four_pairs<8>(words[s], times[columns / 16], sum);
      }
    }
    store_sum(y, scales, row, sum, Conversion::scale);
  }
}

// The first plane has a word for eight neighbours: exponent and upper mantissa bit, of pair j four bits of either half from bit 4
// j on. The second has one for 16: sign and lower mantissa bit, of pair j where rotating by 2 j takes them to their places.
__host__ __device__ constexpr unsigned first_plane(unsigned code, unsigned place) {
  return (code >> 1 & 15) << (place / 2 * 4 + place % 2 * 16);
}
__host__ __device__ constexpr unsigned second_plane(unsigned code, unsigned place) {
  const unsigned sign = (15 + place % 2 * 16 + 32 - place / 2 * 2) % 32,
                 mantissa = (8 + place % 2 * 16 + 32 - place / 2 * 2) % 32;
  return (code >> 5 & 1) << sign | (code & 1) << mantissa;
}

template <unsigned j>
__device__ __forceinline__ unsigned first_part(unsigned word) {  // to bits 9 to 12 of either half
  return (j == 3 ? word >> 3 : word << (9 - 4 * j)) & 0x1E001E00u;
}
template <unsigned j>
__device__ __forceinline__ unsigned second_part(unsigned word) {  // to bits 15 and 8
  return __funnelshift_l(word, word, 2 * j) & 0x81008100u;
}
template <unsigned first_pair>
__device__ __forceinline__ float eight_of_planes(unsigned four_bits, unsigned two_bits, const uint4& x, float sum) {
  const unsigned pairs[4] = {first_part<0>(four_bits) | second_part<first_pair>(two_bits),
                             first_part<1>(four_bits) | second_part<first_pair + 1>(two_bits),
                             first_part<2>(four_bits) | second_part<first_pair + 2>(two_bits),
                             first_part<3>(four_bits) | second_part<first_pair + 3>(two_bits)};
  return multiply_add(pairs, x, sum);
}

// A lane has four words of the first plane and two of the second: packets lane, lane + 32, + 64 and + 96 of the 1024 columns, so
// that lanes read x without gaps.
__global__ __launch_bounds__(threads, blocks_per_sm) void planes_kernel(const uint4* __restrict__ four_bits,
                                                                        const uint2* __restrict__ two_bits,
                                                                        const uint4* __restrict__ x,
                                                                        const float* __restrict__ scales, float* __restrict__ y,
                                                                        unsigned rows, unsigned columns) {
  extern __shared__ uint4 x_space[];
  fetch(x_space, x, columns, 1);
  const unsigned lane = threadIdx.x % 32, lanes_of_row = columns / 32;
  for (unsigned row = blockIdx.x * warps + threadIdx.x / 32; row < rows; row += gridDim.x * warps) {
    const std::size_t begin = std::size_t{row} * lanes_of_row + lane;
    float sum = 0;
    for (unsigned first = 0; first < lanes_of_row; first += in_flight * 32) {
      uint4 fours[in_flight];
      uint2 twos[in_flight];
#pragma unroll
      for (unsigned s = 0; s < in_flight; ++s) fours[s] = four_bits[begin + first + s * 32];
#pragma unroll
      for (unsigned s = 0; s < in_flight; ++s) twos[s] = two_bits[begin + first + s * 32];
#pragma unroll
      for (unsigned s = 0; s < in_flight; ++s) {
        const uint4* const times = x_space + (first + s * 32) * 4 + lane;
        sum = eight_of_planes<0>(fours[s].x, twos[s].x, times[0], sum);
        sum = eight_of_planes<4>(fours[s].y, twos[s].x, times[32], sum);
        sum = eight_of_planes<0>(fours[s].z, twos[s].y, times[64], sum);
        sum = eight_of_planes<4>(fours[s].w, twos[s].y, times[96], sum);
      }
    }
    store_sum(y, scales, row, sum, bias);
  }
}

// Once, when a model is loaded. A thread packs 16 neighbours into three words.
__global__ __launch_bounds__(threads) void pack_dense_kernel(const unsigned char* codes, unsigned* dense, std::size_t groups) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= groups) return;
  unsigned words[3] = {};
  for (unsigned k = 0; k < 16; ++k) {
    const unsigned code = codes[i * 16 + k], first = 6 * k;
    words[first / 32] |= code << first % 32;
    if (first % 32 > 26) words[first / 32 + 1] |= code >> (32 - first % 32);
  }
  for (unsigned w = 0; w < 3; ++w) dense[i * 3 + w] = words[w];
}
// A thread packs what a lane reads at once: 32 weights of 1024 columns, which are whole parts of a row.
__global__ __launch_bounds__(threads) void pack_planes_kernel(const unsigned char* codes, uint4* four_bits, uint2* two_bits,
                                                              std::size_t lanes) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= lanes) return;
  unsigned fours[4] = {}, twos[2] = {};
  for (unsigned w = 0; w < 4; ++w)
    for (unsigned k = 0; k < 8; ++k) {
      const unsigned code = codes[i / 32 * plane_step + w * 256 + i % 32 * 8 + k];
      fours[w] |= first_plane(code, k);
      twos[w / 2] |= second_plane(code, w % 2 * 8 + k);
    }
  four_bits[i] = make_uint4(fours[0], fours[1], fours[2], fours[3]);
  two_bits[i] = make_uint2(twos[0], twos[1]);
}
__global__ __launch_bounds__(threads) void expand_kernel(const unsigned char* codes, unsigned short* wide, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i < count) wide[i] = static_cast<unsigned short>((codes[i] & 0x1F) << 8 | (codes[i] & 0x20) << 10);
}
__global__ __launch_bounds__(threads) void scale_rows_kernel(float* y, const float* scales, unsigned rows) {
  const unsigned row = blockIdx.x * threads + threadIdx.x;
  if (row < rows) y[row] *= scales[row] * bias;
}

class Fp6Gemv final : public Workload {
 public:
  explicit Fp6Gemv(Setup& setup)
      : rows_{setup.size("rows")},
        columns_{setup.size("columns")},
        // All codes at all places.
        codes_{setup.input<std::uint8_t>(rows_ * columns_, integers(0, 63), {.name = "codes", .constant = true})},
        scales_{setup.input<float>(
            rows_, uniform(0.5f, 1.5f).times(0x1p-20f, at(Axis{1, kinds}, 3)).times(0x1p10f, at(Axis{1, kinds}, 5)),
            {.name = "scales"})},
        x_{setup.input<half>(columns_,
                             normal(0, 1).times(20, 100, drawn(Axis{1, columns_}, 8)).set(-0.0f, drawn(Axis{1, columns_}, 8)),
                             {.name = "x"})},
        // Rows of very different scale are limited each by their own.
        y_{setup.output<float>(rows_, {.name = "y", .groups = {1, std::min<std::size_t>(rows_, kinds)}})},
        dense_{setup.scratch<unsigned>(rows_ * columns_ / 16 * 3, {.name = "dense packing"})},
        four_bits_{setup.scratch<std::uint8_t>(rows_ * columns_ / 2, {.name = "plane of four bits"})},
        two_bits_{setup.scratch<std::uint8_t>(rows_ * columns_ / 4, {.name = "plane of two bits"})},
        wide_{setup.scratch<half>(rows_ * columns_, {.name = "weights as f16"})},
        cublas_{setup},
        error_{setup} {}

  Cost cost() const override { return cost_of(0.75); }
  Cost variant_cost(std::string_view variant) const override {
    Cost cost = cost_of(variant == "cublas_f16" ? 2 : 0.75);
    if (variant == "bits_to_f16" || variant == "planes_4_2") cost.math = Math::fp16;  // their products are formed in pairs
    return cost;
  }
  double expected(std::size_t row) const override {
    double sum = 0;
    for (std::size_t k = 0; k < columns_; ++k) sum += value_of(codes_.host(row * columns_ + k)) * x_.host(k);
    return sum * scales_.host(row);
  }

  void validate(std::string_view variant) override {
    const QuantizedRows<E3m2, float> weights{codes_.get(), columns_, scales_.get(), 1, columns_, 1, 0};
    error_.measure(variant, weights, rows_, PlainRows<half>{x_.get(), columns_}, 1, columns_, ResultAt<float>{y_.get(), 1, 0},
                   kinds);
  }
  void metrics(std::string_view variant, Metrics& metrics) override { error_.report(variant, metrics); }

  void pack_dense(Launch& launch) { launch(pack_dense_kernel, of(dense_.size() / 3), codes_, dense_, dense_.size() / 3); }
  void pack_planes(Launch& launch) {
    launch(pack_planes_kernel, of(codes_.size() / 32), codes_, reinterpret_cast<uint4*>(four_bits_.get()),
           reinterpret_cast<uint2*>(two_bits_.get()), codes_.size() / 32);
  }
  void expand(Launch& launch) {
    launch(expand_kernel, of(codes_.size()), codes_, reinterpret_cast<unsigned short*>(wide_.get()), codes_.size());
  }
  template <class Conversion>
  void dense(Launch& launch) {
    launch(dense_kernel<Conversion>, grid(), dense_, packets_of_x(), scales_, y_, rows_, columns_);
  }
  void planes_4_2(Launch& launch) {
    launch(planes_kernel, grid(), reinterpret_cast<const uint4*>(four_bits_.get()),
           reinterpret_cast<const uint2*>(two_bits_.get()), packets_of_x(), scales_, y_, rows_, columns_);
  }
  // cuBLAS's matrices are column-major: it sees the weights transposed.
  void cublas_f16(Launch& launch) {
    const auto gemm = Cublas::function<Cublas::GemmEx>("cublasGemmEx");
    const float one = 1, zero = 0;
    const auto rows = static_cast<int>(rows_), columns = static_cast<int>(columns_);
    cublas_->use(launch.stream);
    check(gemm(cublas_->handle(), CUBLAS_OP_T, CUBLAS_OP_N, rows, 1, columns, &one, wide_, CUDA_R_16F, columns, x_, CUDA_R_16F,
               columns, &zero, y_, CUDA_R_32F, rows, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    launch(scale_rows_kernel, of(rows_), y_, scales_, rows_);
  }

 private:
  static constexpr std::size_t kinds = 8;  // of rows: one in eight has a tiny scale, and one a huge one

  static double value_of(unsigned code) {
    const int exponent = static_cast<int>(code >> 2 & 7);
    const double mantissa = (code & 3) / 4.0,
                 magnitude = exponent == 0 ? std::ldexp(mantissa, -2) : std::ldexp(1 + mantissa, exponent - 3);
    return (code & 32) != 0 ? -magnitude : magnitude;
  }
  Cost cost_of(double bytes_of_weight) const {
    return {.flops = 2.0 * static_cast<double>(codes_.size()),
            .bytes = bytes_of_weight * static_cast<double>(codes_.size()) +
                     static_cast<double>(scales_.bytes() + x_.bytes() + y_.bytes())};
  }
  const uint4* packets_of_x() const { return reinterpret_cast<const uint4*>(x_.get()); }
  Grid grid() const {
    const auto blocks = static_cast<unsigned>((rows_ + warps - 1) / warps);
    return {.blocks = std::min(multiprocessors() * blocks_per_sm, blocks),
            .threads = threads,
            .shared_bytes = columns_ * sizeof(half)};
  }
  static Grid of(std::size_t items) { return {static_cast<unsigned>((items + threads - 1) / threads), threads}; }

  std::size_t rows_, columns_;
  Input<std::uint8_t> codes_;
  Input<float> scales_;
  Input<half> x_;
  Output<float> y_;
  Scratch<unsigned> dense_;
  Scratch<std::uint8_t> four_bits_, two_bits_;
  Scratch<half> wide_;
  Opened<Cublas> cublas_;
  QuantizationError error_;
};

}  // namespace

extern constinit const Pair fp6_gemv{
    .teaches = "six bits do not align: planes of four and of two bits load as whole words and become f16 by two masks",
    .lesson = "planes_4_2",
    .make = make<Fp6Gemv>,
    .baseline = {.name = "dense_packing", .run = call<&Fp6Gemv::dense<Arithmetic>>, .prepare = call<&Fp6Gemv::pack_dense>},
    .optimized = variants({{.name = "bits_to_f16",
                            .run = call<&Fp6Gemv::dense<Placed>>,
                            .prepare = call<&Fp6Gemv::pack_dense>,
                            .kernels = {.local_bytes = 0}},
                           {.name = "planes_4_2",
                            .run = call<&Fp6Gemv::planes_4_2>,
                            .prepare = call<&Fp6Gemv::pack_planes>,
                            .kernels = {.local_bytes = 0}}}),
    .libraries = variants({{.name = "cublas_f16",
                            .run = call<&Fp6Gemv::cublas_f16>,
                            .prepare = call<&Fp6Gemv::expand>,
                            .needs = {.libraries = {Library::cublas}}}}),
    .bound = Bound::memory,
    // Sums of four products in f16 are rounded to 11 bits up to four times, 2e-4 of each; errors of different sums are
    // independent.
    .tolerance = within(1e-3),
    // Errors are those of a typical y, and y is near zero in some rows, so that a norm must be one of many. The limit is three
    // times the error of sums in f16, which groups of n rows exceed about as often as an F distribution of n and n exceeds ten:
    // one row in 0.16 of the draws, eight in 2e-3, 32 in less than 1e-6. There are eight groups.
    .sizes = sizes({{.name = "rows", .full = 3 * 28672, .least = 32 * 8, .most = 1u << 20},
                    {.name = "columns", .full = 8192, .multiple = in_flight * plane_step, .most = 1u << 14, .scales = false}}),
    .sweep = cases(
        {{"rows_1024", "rows=1024"}, {"rows_8192", "rows=8192"}, {"rows_28672", "rows=28672"}, {"rows_86016", "rows=86016"}}),
    .edges = cases({{"fewest_rows", "rows=256,columns=4096"},
                    {"few_blocks", "rows=269,columns=4096"},
                    {"part_of_a_block", "rows=4133,columns=8192"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch19
