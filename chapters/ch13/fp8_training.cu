// SPDX-License-Identifier: Apache-2.0
// Forward and both gradients of a linear layer in FP8, at up to twice the rate of bf16. The tensor cores take FP8 along the
// summed dimension alone, and each tensor is summed over along its rows in one product and along its columns in another, so that
// its codes are needed both ways. A pass for the largest magnitude, which gives the scale, and one that reads bf16 and writes
// codes and transposed codes take back a part of the gain.
#include <cuda_fp8.h>
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "training/linear.hpp"
#include "training/linear_reference.hpp"
#include "transposed_tile.cuh"

namespace aisp::ch13 {
namespace {

using shared::bf16, shared::packet;
using e4m3 = __nv_fp8_e4m3;
using e5m2 = __nv_fp8_e5m2;
constexpr unsigned threads = transposing_threads;
template <class Code>
constexpr float largest_of = std::is_same_v<Code, e4m3> ? 448.0f : 57344.0f;

// The largest power of two with which no magnitude up to `amax` saturates: scaling itself rounds nothing. 1 for a tensor of
// zeros.
template <class Code>
__host__ __device__ float scale_of(float amax) {
  const float ratio = amax > 0 ? largest_of<Code> / amax : 1;
  return std::bit_cast<float>(std::bit_cast<unsigned>(fminf(ratio, 0x1p100f)) & 0x7F800000u);
}

// Finds the largest magnitude, whose bits are ordered as magnitudes are.
__global__ __launch_bounds__(threads) void amax_kernel(const uint4* __restrict__ x, std::size_t packets, unsigned* amax) {
  __shared__ unsigned of_warps[device::largest_block_in_warps];
  unsigned largest[2] = {};  // of the elements at even and at odd places
#pragma unroll 4
  for (std::size_t i = blockIdx.x * std::size_t{threads} + threadIdx.x; i < packets; i += std::size_t{gridDim.x} * threads) {
    const uint4 loaded = x[i];
    for (const unsigned pair : {loaded.x, loaded.y, loaded.z, loaded.w}) {
      largest[0] = max(largest[0], pair << 16 & 0x7FFF0000u);
      largest[1] = max(largest[1], pair & 0x7FFF0000u);
    }
  }
  const unsigned of_block = device::block_max(max(largest[0], largest[1]), 0u, of_warps);
  if (threadIdx.x == 0) atomicMax(amax, of_block);
}

template <class Code>
__device__ __forceinline__ uint2 codes_of(const uint4& loaded, float scale) {
  constexpr auto type = std::is_same_v<Code, e4m3> ? __NV_E4M3 : __NV_E5M2;
  float x[packet];
  shared::unpack(loaded, x);
  const auto pair = [&](int k) {
    return unsigned{__nv_cvt_float2_to_fp8x2(make_float2(x[k] * scale, x[k + 1] * scale), __NV_SATFINITE, type)};
  };
  return make_uint2(pair(0) | pair(2) << 16, pair(4) | pair(6) << 16);
}

// The scale of a tensor's codes; one thread leaves its inverse to the products.
template <class Code>
__device__ __forceinline__ float scale_for(const float* amax, float* inverse) {
  const float scale = scale_of<Code>(*amax);
  if (blockIdx.x == 0 && threadIdx.x == 0) *inverse = 1 / scale;
  return scale;
}

// Codes along rows, and along columns.
template <class Code>
__global__ __launch_bounds__(threads) void cast_transpose_kernel(const uint4* __restrict__ x, TransposedShape shape,
                                                                 uint2* __restrict__ codes,
                                                                 unsigned char* __restrict__ transposed, const float* amax,
                                                                 float* inverse) {
  __shared__ __align__(16) TransposedTile tile;
  const TileOfBlock of{shape};
  const float scale = scale_for<Code>(amax, inverse);
  uint2 rows[packet] = {};
  if (of.exists(shape)) {
    uint4 loaded[packet];
    const std::size_t first = (std::size_t{of.row} * shape.columns + of.column) / packet;
#pragma unroll
    for (unsigned r = 0; r < packet; ++r) loaded[r] = x[first + std::size_t{r} * (shape.columns / packet)];
#pragma unroll
    for (unsigned r = 0; r < packet; ++r) {
      rows[r] = codes_of<Code>(loaded[r], scale);
      codes[first + std::size_t{r} * (shape.columns / packet)] = rows[r];
    }
  }
  store_columns(tile, of, rows, shape, transposed);
}

template <class Code>
__global__ __launch_bounds__(threads) void cast_kernel(const uint4* __restrict__ x, unsigned packets, uint2* __restrict__ codes,
                                                       const float* amax, float* inverse) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  const float scale = scale_for<Code>(amax, inverse);
  if (i < packets) codes[i] = codes_of<Code>(x[i], scale);
}
__global__ __launch_bounds__(threads) void transpose_kernel(const uint2* __restrict__ codes, TransposedShape shape,
                                                            unsigned char* __restrict__ transposed) {
  __shared__ __align__(16) TransposedTile tile;
  const TileOfBlock of{shape};
  uint2 rows[packet] = {};
  if (of.exists(shape)) {
    const std::size_t first = (std::size_t{of.row} * shape.columns + of.column) / packet;
#pragma unroll
    for (unsigned r = 0; r < packet; ++r) rows[r] = codes[first + std::size_t{r} * (shape.columns / packet)];
  }
  store_columns(tile, of, rows, shape, transposed);
}

enum TensorOf : std::uint8_t { of_x, of_w, of_dy, tensors };
constexpr std::size_t scale_stride = 4;  // the library wants scales aligned to 16 bytes
// The largest magnitudes of x, w and dy, planted once in each: the largest code of their types exactly.
constexpr float planted[tensors] = {448, 0x1p-12f * 448, 0x1p-33f * 57344};

class Fp8Training final : public Workload {
 public:
  explicit Fp8Training(Setup& setup)
      : shape_{setup.size("tokens"), setup.size("in"), setup.size("out")},
        zero_gradients_{setup.size("zero_gradients") == 1},
        reproducible_{setup.reproducible()},
        // Channels that are up to 80 times larger, and a row of zeros.
        x_{setup.input<bf16>(shape_.rows * shape_.in,
                             with_largest(normal(0, 1)
                                              .times(20, 80, drawn(Axis{1, shape_.in}, 8))
                                              .set(0, at(Axis{shape_.in, shape_.rows}, shape_.rows / 2)),
                                          of_x, shape_.rows * shape_.in),
                             {.name = "x"})},
        w_{setup.input<bf16>(shape_.out * shape_.in,
                             with_largest(normal(0, 1 / std::sqrt(static_cast<float>(std::max<std::size_t>(shape_.in, 4096)))),
                                          of_w, shape_.out * shape_.in),
                             {.name = "weights"})},
        dy_{setup.input<bf16>(shape_.rows * shape_.out,
                              zero_gradients_ ? constant(0) : with_largest(normal(0, 1e-6f), of_dy, shape_.rows * shape_.out),
                              {.name = "dy"})},
        y_{setup.output<bf16>(dy_.size(), {.name = "y"})},
        dx_{setup.output<bf16>(x_.size(), {.name = "dx"})},
        dw_{setup.output<float>(w_.size(), {.name = "gradient of the weights"})},
        codes_{{setup, x_.size()}, {setup, w_.size()}, {setup, dy_.size()}},
        amaxes_{setup.scratch<float>(tensors)},
        inverses_{setup.scratch<float>(tensors * scale_stride)},
        lt_{setup},
        bf16_{setup, lt_, shape_},
        products_{{setup, lt_, shape_, inverses_, false}, {setup, lt_, shape_, inverses_, true}} {}

  Cost cost() const override { return cost_of(Math::bf16); }
  Cost variant_cost(std::string_view variant) const override { return cost_of(variant == "bf16" ? Math::bf16 : Math::fp8); }
  double expected_output(int output, std::size_t i) const override {
    return reference(output, i, [](TensorOf, double value) { return value; });
  }
  double expected_quantized(std::string_view, int output, std::size_t i) const override {
    return reference(output, i, [&](TensorOf tensor, double value) {
      const auto as = [&]<class Code>(Code) {
        const float scale = scale_of<Code>(tensor == of_dy && zero_gradients_ ? 0 : planted[tensor]);
        return static_cast<double>(static_cast<float>(Code{static_cast<float>(value) * scale})) / static_cast<double>(scale);
      };
      return tensor == of_dy ? as(e5m2{}) : as(e4m3{});
    });
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(shape_.rows), "tokens/s");
  }

  void in_bf16(Launch& launch) {
    bf16_.forward(launch.stream, x_, w_, y_);
    bf16_.input_gradient(launch.stream, dy_, w_, dx_);
    bf16_.weight_gradient(launch.stream, dy_, x_, dw_);
  }
  void prepare_bf16(Launch& launch) {
    if (!reproducible_) bf16_.tune(launch.stream, x_, w_, dy_, y_, dx_, dw_);
  }
  void fp8_cast_transpose(Launch& launch) {
    in_fp8(launch, products_[0], [&]<class Code>(TensorOf tensor, Code code) { cast_both_ways(launch, tensor, code); });
  }
  void fast_forward(Launch& launch) {
    in_fp8(launch, products_[1], [&]<class Code>(TensorOf tensor, Code code) { cast_both_ways(launch, tensor, code); });
  }
  void fp8_unfused(Launch& launch) {
    in_fp8(launch, products_[0], [&]<class Code>(TensorOf tensor, Code code) { cast_then_transpose(launch, tensor, code); });
  }
  void products_alone(Launch& launch) {
    in_fp8(launch, products_[0], []<class Code>(TensorOf, Code) {});
  }
  template <bool fast>
  void prepare_fp8(Launch& launch) {
    fp8_cast_transpose(launch);
    if (!reproducible_) products_[fast].tune(launch.stream, codes_, y_, dx_, dw_);
  }

 private:
  struct Codes {
    Codes(Setup& setup, std::size_t count)
        : along_rows{setup.scratch<std::uint8_t>(count)}, along_columns{setup.scratch<std::uint8_t>(count)} {}
    Scratch<std::uint8_t> along_rows, along_columns;
  };
  // Y = X W^T, dX = dY W and dW = dY^T X. The library stores B as [n][k]: all operands lie along the dimension that is summed.
  class Products {
   public:
    Products(Setup& setup, const Opened<CublasLt>& lt, const training::LinearShape& s, const float* inverses, bool fast_forward)
        : y_{setup, lt, problem(s.rows, s.out, s.in, inverses, of_x, of_w, fast_forward)},
          dx_{setup, lt, problem(s.rows, s.in, s.out, inverses, of_dy, of_w, false)},
          dw_{setup, lt, problem(s.out, s.in, s.rows, inverses, of_dy, of_x, false)} {}

    void forward(cudaStream_t stream, const Codes (&of)[tensors], bf16* y) const {
      y_->run(stream, of[of_x].along_rows, of[of_w].along_rows, y);
    }
    void backward(cudaStream_t stream, const Codes (&of)[tensors], bf16* dx, float* dw) const {
      dx_->run(stream, of[of_dy].along_rows, of[of_w].along_columns, dx);
      dw_->run(stream, of[of_dy].along_columns, of[of_x].along_columns, dw);
    }
    void tune(cudaStream_t stream, const Codes (&of)[tensors], bf16* y, bf16* dx, float* dw) const {
      y_->tune(stream, of[of_x].along_rows, of[of_w].along_rows, y);
      dx_->tune(stream, of[of_dy].along_rows, of[of_w].along_columns, dx);
      dw_->tune(stream, of[of_dy].along_columns, of[of_x].along_columns, dw);
    }

   private:
    static MatmulProblem problem(std::size_t m, std::size_t n, std::size_t k, const float* inverses, TensorOf a, TensorOf b,
                                 bool fast) {
      return {.m = m,
              .n = n,
              .k = k,
              .operands = a == of_dy ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3,
              .result = b == of_x ? CUDA_R_32F : CUDA_R_16BF,
              .b_is_transposed = true,
              .fast_accumulation = fast,
              .b_operands = CUDA_R_8F_E4M3,
              .a_scale = inverses + scale_stride * a,
              .b_scale = inverses + scale_stride * b};
    }
    Opened<MatmulPlan> y_, dx_, dw_;
  };

  static Pattern with_largest(const Pattern& pattern, TensorOf tensor, std::size_t count) {
    return pattern.set(planted[tensor], drawn(Axis{1, count}, 1));
  }
  Cost cost_of(Math math) const {
    return {.flops = 6 * static_cast<double>(shape_.rows) * static_cast<double>(w_.size()),
            .math = math,
            .bytes = static_cast<double>(x_.bytes() + w_.bytes() + dy_.bytes() + y_.bytes() + dx_.bytes() + dw_.bytes())};
  }
  // quantized(tensor, value)
  template <class Quantized>
  double reference(int output, std::size_t i, const Quantized& quantized) const {
    const auto x = [&](std::size_t row, std::size_t in) { return quantized(of_x, x_.host(row * shape_.in + in)); };
    const auto w = [&](std::size_t out, std::size_t in) { return quantized(of_w, w_.host(out * shape_.in + in)); };
    const auto dy = [&](std::size_t row, std::size_t out) { return quantized(of_dy, dy_.host(row * shape_.out + out)); };
    if (output == 0) return training::expected_y(shape_, i, x, w);
    return output == 1 ? training::expected_dx(shape_, i, dy, w) : training::expected_dw(shape_, i, dy, x);
  }

  // cast(tensor, type of its codes)
  template <class Cast>
  void in_fp8(Launch& launch, const Products& products, const Cast& cast) {
    check(cudaMemsetAsync(amaxes_, 0, amaxes_.bytes(), launch.stream));
    cast(of_x, e4m3{});
    cast(of_w, e4m3{});
    products.forward(launch.stream, codes_, y_);
    cast(of_dy, e5m2{});
    products.backward(launch.stream, codes_, dx_, dw_);
  }
  struct Source {
    const uint4* packets;
    std::size_t count;  // of packets
    TransposedShape shape;
    float *amax, *inverse;
    uint2* codes;
    unsigned char* transposed;
  };
  Source source(TensorOf tensor) const {
    const Input<bf16>* const all[] = {&x_, &w_, &dy_};
    const std::size_t rows = tensor == of_w ? shape_.out : shape_.rows;
    const auto lines = static_cast<unsigned>(rows), columns = static_cast<unsigned>(all[tensor]->size() / rows);
    return {reinterpret_cast<const uint4*>(all[tensor]->get()),
            all[tensor]->size() / packet,
            {lines, columns, lines},
            amaxes_ + tensor,
            inverses_ + scale_stride * tensor,
            reinterpret_cast<uint2*>(codes_[tensor].along_rows.get()),
            codes_[tensor].along_columns};
  }
  static unsigned blocks(std::size_t count, unsigned of) { return static_cast<unsigned>((count + of - 1) / of); }
  static Grid tiles(const Source& of) {
    return {blocks(of.shape.rows, transposed_tile) * blocks(of.shape.columns, transposed_tile), threads};
  }
  static void find_amax(Launch& launch, const Source& of) {
    launch(amax_kernel, {std::min(blocks(of.count, threads), multiprocessors() * 8), threads}, of.packets, of.count,
           reinterpret_cast<unsigned*>(of.amax));
  }
  template <class Code>
  void cast_both_ways(Launch& launch, TensorOf tensor, Code) const {
    const Source of = source(tensor);
    find_amax(launch, of);
    launch(cast_transpose_kernel<Code>, tiles(of), of.packets, of.shape, of.codes, of.transposed, of.amax, of.inverse);
  }
  template <class Code>
  void cast_then_transpose(Launch& launch, TensorOf tensor, Code) const {
    const Source of = source(tensor);
    find_amax(launch, of);
    launch(cast_kernel<Code>, {blocks(of.count, threads), threads}, of.packets, of.count, of.codes, of.amax, of.inverse);
    launch(transpose_kernel, tiles(of), of.codes, of.shape, of.transposed);
  }

  training::LinearShape shape_;
  bool zero_gradients_, reproducible_;
  Input<bf16> x_, w_, dy_;
  Output<bf16> y_, dx_;
  Output<float> dw_;
  Codes codes_[tensors];
  Scratch<float> amaxes_, inverses_;
  Opened<CublasLt> lt_;
  training::Linear bf16_;
  Products products_[2];  // sums of the forward product are promoted to fp32 registers, or never leave the tensor cores
};

}  // namespace

extern constinit const Pair fp8_training{
    .teaches =
        "FP8 products are much shorter than bf16's, and finding scales and writing codes both ways takes a part of it back",
    .lesson = "fp8_cast_transpose",
    .make = make<Fp8Training>,
    .baseline = {.name = "bf16", .run = call<&Fp8Training::in_bf16>, .prepare = call<&Fp8Training::prepare_bf16>},
    .optimized = variants({{.name = "fp8_cast_transpose",
                            .run = call<&Fp8Training::fp8_cast_transpose>,
                            .prepare = call<&Fp8Training::prepare_fp8<false>>,
                            .changes_precision = true},
                           // As Transformer Engine has it.
                           {.name = "fast_forward",
                            .run = call<&Fp8Training::fast_forward>,
                            .prepare = call<&Fp8Training::prepare_fp8<true>>,
                            .changes_precision = true,
                            .tolerance = fast_accumulation}}),
    // A pass for each of amax, codes and transposed codes; and the products of codes that are there.
    .controls = variants({{.name = "fp8_unfused",
                           .run = call<&Fp8Training::fp8_unfused>,
                           .prepare = call<&Fp8Training::prepare_fp8<false>>,
                           .changes_precision = true,
                           .same_bits_as = "fp8_cast_transpose"},
                          {.name = "products_alone",
                           .run = call<&Fp8Training::products_alone>,
                           .prepare = call<&Fp8Training::prepare_fp8<false>>,
                           .outputs = no_outputs}}),
    .bound = Bound::compute,
    // One rounding to bf16; sums that are promoted lose 2e-4.
    .tolerance = rounded_to_bf16,
    .needs = {.min_sm = 90, .libraries = {Library::cublaslt}},
    .sizes = sizes({{.name = "tokens", .full = 8192, .multiple = 16},
                    {.name = "in", .full = 4096, .multiple = 16, .most = 16384, .scales = false},
                    {.name = "out", .full = 14336, .multiple = 16, .most = 32768, .scales = false},
                    option("zero_gradients")}),
    .sweep = cases({{"tokens_256", "tokens=256"},
                    {"tokens_1024", "tokens=1024"},
                    {"tokens_2048", "tokens=2048"},
                    {"tokens_4096", "tokens=4096"},
                    {"tokens_8192", "tokens=8192"},
                    {"tokens_16384", "tokens=16384"}}),
    .edges = cases({{"tails", "tokens=1040,in=528,out=272"},
                    {"smallest", "tokens=16,in=16,out=16"},
                    {"zero_gradients", "tokens=272,in=144,out=400,zero_gradients=1"}}),
    .reference_samples = 512,
};

}  // namespace aisp::ch13
