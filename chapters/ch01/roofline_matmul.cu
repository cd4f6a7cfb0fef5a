// SPDX-License-Identifier: Apache-2.0
// A product of two 6144 x 6144 matrices does 1024 FLOP for each byte of fp32 that it must move, far over the ridge: the unit that
// multiplies sets the time. The same library call gains as the math goes from CUDA cores to tensor cores in TF32, then in bf16.
// To tell the unit from the bytes, the controls are one kernel on CUDA cores (fma_gemm.cuh), on operands stored as fp32 and on
// half the bytes, the same operands stored as bf16.
#include <cuda_bf16.h>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include "fma_gemm.cuh"

namespace aisp::ch01 {
namespace {

using bf16 = __nv_bfloat16;
constexpr int threads = 256, values = 4;  // of a thread of the conversion
constexpr std::size_t multiple = 256;     // n * n is then a whole number of blocks
constexpr std::string_view bf16_variant = "bf16", half_the_bytes = "fma_bf16_storage";

__global__ __launch_bounds__(threads) void narrow_kernel(const float4* in, uint2* out) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  const float4 x = in[i];
  const __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y), high = __floats2bfloat162_rn(x.z, x.w);
  out[i] = make_uint2(reinterpret_cast<const unsigned&>(low), reinterpret_cast<const unsigned&>(high));
}

class RooflineMatmul final : public Workload {
 public:
  explicit RooflineMatmul(Setup& setup)
      : n_{setup.scaled(6144, multiple)},
        a_{setup.input<float>(n_ * n_, uniform(-1, 1), {.name = "a", .constant = true})},
        b_{setup.input<float>(n_ * n_, uniform(-1, 1), {.name = "b", .constant = true})},
        c_{setup.output<float>(n_ * n_, {.name = "c"})},
        c_stored_{setup.output<bf16>(n_ * n_, {.name = "c as bf16"})},
        a_stored_{setup.scratch<bf16>(n_ * n_, {.name = "a as bf16"})},
        b_stored_{setup.scratch<bf16>(n_ * n_, {.name = "b as bf16"})},
        cublas_{setup} {}

  Cost cost() const override { return cost_of(Math::fp32, 3 * sizeof(float)); }
  Cost variant_cost(std::string_view variant) const override {
    if (variant == "tf32") return cost_of(Math::tf32, 3 * sizeof(float));
    if (variant == bf16_variant) return cost_of(Math::bf16, 3 * sizeof(bf16));
    if (variant == half_the_bytes) return cost_of(Math::fp32, 2 * sizeof(bf16) + sizeof(float));
    return cost();
  }
  double expected_output(int, std::size_t index) const override {
    return dot(index, [](double value) { return value; });
  }
  // The library may round or cut operands to TF32, so tf32 is compared with the exact ones.
  double expected_quantized(std::string_view variant, int output, std::size_t index) const override {
    if (variant == "tf32") return expected_output(output, index);
    return dot(index, [](double value) { return double{__bfloat162float(__float2bfloat16_rn(static_cast<float>(value)))}; });
  }

  // A program that stores bf16 has its operands in that form already: making them is set-up.
  void narrow_operands(Launch& launch) {
    narrow(launch, a_, a_stored_);
    narrow(launch, b_, b_stored_);
  }

  void fp32(Launch& launch) { multiply(launch, a_, b_, c_, CUDA_R_32F, CUBLAS_COMPUTE_32F); }
  void tf32(Launch& launch) { multiply(launch, a_, b_, c_, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32); }
  void bf16_math(Launch& launch) { multiply(launch, a_stored_, b_stored_, c_stored_, CUDA_R_16BF, CUBLAS_COMPUTE_32F); }
  // Given bf16, cuBLAS would use tensor cores.
  void fma_fp32_storage(Launch& launch) { multiply_on_cuda_cores(launch, a_.get(), b_.get()); }
  void fma_bf16_storage(Launch& launch) { multiply_on_cuda_cores<bf16>(launch, a_stored_.get(), b_stored_.get()); }

 private:
  Cost cost_of(Math math, std::size_t bytes_per_element) const {
    const auto n = static_cast<double>(n_);
    return {.flops = 2 * n * n * n, .math = math, .bytes = n * n * static_cast<double>(bytes_per_element)};
  }
  template <class Stored>
  double dot(std::size_t index, Stored stored) const {
    const std::size_t row = index / n_, column = index % n_;
    double sum = 0;
    for (std::size_t k = 0; k < n_; ++k) sum += stored(a_.host(row * n_ + k)) * stored(b_.host(k * n_ + column));
    return sum;
  }

  void multiply(Launch& launch, const void* a, const void* b, void* c, cudaDataType_t type, cublasComputeType_t compute) {
    const int n = static_cast<int>(n_);
    cublas_->gemm(launch.stream, n, n, n, a, b, c, type, compute);
  }
  unsigned blocks() const { return static_cast<unsigned>(n_ * n_ / (threads * values)); }
  void narrow(Launch& launch, const float* in, bf16* out) const {
    narrow_kernel<<<blocks(), threads, 0, launch.stream>>>(reinterpret_cast<const float4*>(in), reinterpret_cast<uint2*>(out));
    check(cudaGetLastError());
  }
  template <class Stored>
  void multiply_on_cuda_cores(Launch& launch, const Stored* a, const Stored* b) {
    fma_gemm::multiply(launch.stream, a, b, c_.get(), n_);
    check(cudaGetLastError());
  }

  std::size_t n_;
  Input<float> a_, b_;
  Output<float> c_;
  Output<bf16> c_stored_;
  Scratch<bf16> a_stored_, b_stored_;
  Opened<Cublas> cublas_;
};

constexpr std::uint32_t fp32_output = 1, bf16_output = 2;
constexpr Tolerance of_fp32_sums = within(1e-5);  // 6144 roundings that grow as the square root, with a margin of five

}  // namespace

extern constinit const Pair roofline_matmul{
    .teaches = "far over the ridge bytes no longer matter: only the unit that does the math decides how fast a product is",
    .lesson = "tf32",
    .make = make<RooflineMatmul>,
    .baseline = {.name = "fp32", .run = call<&RooflineMatmul::fp32>, .outputs = fp32_output},
    .optimized = variants({{.name = "tf32",
                            .run = call<&RooflineMatmul::tf32>,
                            .changes_precision = true,
                            // Rounding both operands makes 3e-4; cutting their bits off instead about twice that.
                            .tolerance = within(1e-3),
                            .outputs = fp32_output},
                           {.name = bf16_variant,
                            .run = call<&RooflineMatmul::bf16_math>,
                            .prepare = call<&RooflineMatmul::narrow_operands>,
                            .changes_precision = true,
                            .tolerance = automatic,
                            .outputs = bf16_output}}),
    .controls = variants({{.name = "fma_fp32_storage", .run = call<&RooflineMatmul::fma_fp32_storage>, .outputs = fp32_output},
                          {.name = half_the_bytes,
                           .run = call<&RooflineMatmul::fma_bf16_storage>,
                           .prepare = call<&RooflineMatmul::narrow_operands>,
                           .changes_precision = true,
                           .outputs = fp32_output}}),
    .bound = Bound::compute,
    .tolerance = of_fp32_sums,
    .needs = {.libraries = {Library::cublas}},
};

}  // namespace aisp::ch01
