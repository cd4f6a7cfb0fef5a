// SPDX-License-Identifier: Apache-2.0
// A product of FP64 matrices. Ordinary code compiles to fused multiply-adds on the FP64 units; the FP64 tensor cores, twice as
// fast, take an instruction that compilers never choose: cuBLAS has it, or mma.sync by hand. The controls are what the same
// product costs in the other compute types of cuBLAS, each checked on the operands as it rounds them.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <type_traits>

#include "mma_f64_gemm.cuh"
#include "typed_gemm.cuh"

namespace aisp::ch02 {
namespace {

constexpr int threads = 256, tile = 128;  // 128 x 128 outputs a block, 8 x 8 a thread
// 24-bit values times a 24-bit deviation: sums of such products do round in FP64. None is beyond 127, so that all types hold
// them.
constexpr Pattern full_mantissas = normal(0, 20.3f);

// The usual kernel: 8 x 8 sums a thread, operands through shared memory, and the next slab in registers while this one is used.
__global__ __launch_bounds__(threads) void fma_kernel(const double* a, const double* b, double* c, int n) {
  constexpr int depth = 8;
  __shared__ __align__(16) double slab_a[depth][tile + 2];  // transposed; padded, so that the stores of a warp do not collide
  __shared__ __align__(16) double slab_b[depth][tile];
  const int t = threadIdx.x, x = t % 16 * 2, y = t / 16 * 2;
  const std::size_t top = blockIdx.y * tile, left = blockIdx.x * tile;
  const double* from_a = a + (top + t / 2) * n + t % 2 * 4;
  const double* from_b = b + static_cast<std::size_t>(t / 32) * n + left + t % 32 * 2;
  double2 next_a[2], next_b[2];
  const auto load = [&] {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      next_a[i] = *reinterpret_cast<const double2*>(from_a + i * 2);
      next_b[i] = *reinterpret_cast<const double2*>(from_b + i * 64);
    }
    from_a += depth;
    from_b += static_cast<std::size_t>(depth) * n;
  };
  load();
  double sums[8][8] = {};
  for (int k = 0; k < n; k += depth) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      slab_a[t % 2 * 4 + i * 2][t / 2] = next_a[i].x;
      slab_a[t % 2 * 4 + i * 2 + 1][t / 2] = next_a[i].y;
      *reinterpret_cast<double2*>(&slab_b[t / 32][t % 32 * 2 + i * 64]) = next_b[i];
    }
    __syncthreads();
    if (k + depth < n) load();
#pragma unroll
    for (int d = 0; d < depth; ++d) {
      double2 rows[4], columns[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        rows[i] = *reinterpret_cast<const double2*>(&slab_a[d][y + i * 32]);
        columns[i] = *reinterpret_cast<const double2*>(&slab_b[d][x + i * 32]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j)
          sums[i][j] = fma(i % 2 ? rows[i / 2].y : rows[i / 2].x, j % 2 ? columns[j / 2].y : columns[j / 2].x, sums[i][j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      *reinterpret_cast<double2*>(c + (top + y + i / 2 * 32 + i % 2) * n + left + x + j * 32) =
          make_double2(sums[i][j * 2], sums[i][j * 2 + 1]);
}

class CublasTypes final : public Workload {
 public:
  explicit CublasTypes(Setup& setup)
      : n_{static_cast<int>(setup.scaled(4096, tile))},
        a_{setup.input<double>(size(), full_mantissas, {.name = "a", .constant = true})},
        b_{setup.input<double>(size(), full_mantissas, {.name = "b", .constant = true})},
        c_{setup.output<double>(size(), {.name = "c"})},
        c_f32_{setup.output<float>(size(), {.name = "c in fp32"})},
        c_i32_{setup.output<std::int32_t>(size(), {.name = "c in int32"})},
        fp32_{setup, n_, {CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F}},
        tf32_{setup, n_, {CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32}},
        bf16_{setup, n_, {CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F}},
        fp8_{setup, n_, {CUDA_R_8F_E4M3, CUDA_R_32F, CUBLAS_COMPUTE_32F}},
        int8_{setup, n_, {CUDA_R_8I, CUDA_R_32I, CUBLAS_COMPUTE_32I}},
        cublas_{setup},
        cublaslt_{setup, fp64_problem()} {}

  Cost cost() const override { return cost_of(Math::fp64_tensor, static_cast<double>(3 * c_.bytes())); }
  Cost variant_cost(std::string_view variant) const override {
    if (variant == "register_tiled_fma") return cost_of(Math::fp64, cost().bytes);
    if (variant == "fp32") return cost_of(Math::fp32, fp32_.bytes());
    if (variant == "tf32") return cost_of(Math::tf32, tf32_.bytes());
    if (variant == "bf16") return cost_of(Math::bf16, bf16_.bytes());
    if (variant == "fp8") return cost_of(Math::fp8, fp8_.bytes());
    return variant == "int8" ? cost_of(Math::int8, int8_.bytes()) : cost();
  }

  double expected_output(int, std::size_t index) const override {
    return static_cast<double>(dot<long double>(index, [](double value) { return value; }));
  }
  double expected_quantized(std::string_view variant, int, std::size_t index) const override {
    const auto on = [&]<class T>(T) {
      return dot<double>(index, [](double value) {
        if constexpr (std::is_integral_v<T>) return static_cast<double>(rounded<T>(value));
        else return static_cast<double>(static_cast<float>(rounded<T>(value)));
      });
    };
    if (variant == "bf16") return on(__nv_bfloat16{});
    if (variant == "fp8") return on(__nv_fp8_e4m3{});
    return variant == "int8" ? on(std::int8_t{}) : on(float{});
  }

  void register_tiled_fma(Launch& launch) { launch(fma_kernel, {grid(), threads}, a_, b_, c_, n_); }
  void cublas_dgemm(Launch& launch) {  // column-major: it computes C^T = B^T A^T
    const double one = 1, zero = 0;
    static const auto dgemm = Cublas::function<decltype(cublasDgemm_v2)>("cublasDgemm_v2");
    cublas_->use(launch.stream);
    check(dgemm(cublas_->handle(), CUBLAS_OP_N, CUBLAS_OP_N, n_, n_, n_, &one, b_, n_, a_, n_, &zero, c_, n_));
  }
  void mma_f64_ring(Launch& launch) {
    const dim3 blocks{static_cast<unsigned>(n_ / mma_f64::columns), static_cast<unsigned>(n_ / mma_f64::rows)};
    launch(mma_f64::ring_kernel, {blocks, mma_f64::threads, mma_f64::shared_bytes}, a_, b_, c_, n_);
  }
  void tune_dgemm(Launch& launch) { cublaslt_.tune(launch, a_, b_, c_); }
  void cublaslt_tuned(Launch& launch) { cublaslt_.run_tuned(launch, a_, b_, c_); }

  void round_fp32(Launch& launch) { fp32_.prepare(launch, a_, b_); }
  void round_tf32(Launch& launch) { tf32_.prepare(launch, a_, b_); }
  void round_bf16(Launch& launch) { bf16_.prepare(launch, a_, b_); }
  void round_fp8(Launch& launch) { fp8_.prepare(launch, a_, b_); }
  void round_int8(Launch& launch) { int8_.prepare(launch, a_, b_); }
  void fp32(Launch& launch) { fp32_.run(launch, c_f32_); }
  void tf32(Launch& launch) { tf32_.run(launch, c_f32_); }
  void bf16(Launch& launch) { bf16_.run(launch, c_f32_); }
  void fp8(Launch& launch) { fp8_.run(launch, c_f32_); }
  void int8(Launch& launch) { int8_.run(launch, c_i32_); }

 private:
  std::size_t size() const { return static_cast<std::size_t>(n_) * n_; }
  MatmulProblem fp64_problem() const {
    const auto n = static_cast<std::size_t>(n_);
    return {.m = n, .n = n, .k = n, .operands = CUDA_R_64F, .result = CUDA_R_64F, .compute = CUBLAS_COMPUTE_64F};
  }
  dim3 grid() const { return {static_cast<unsigned>(n_ / tile), static_cast<unsigned>(n_ / tile)}; }
  Cost cost_of(Math math, double bytes) const { return {.flops = 2.0 * n_ * n_ * n_, .math = math, .bytes = bytes}; }

  template <class Sum, class Round>
  Sum dot(std::size_t index, Round round) const {
    const auto n = static_cast<std::size_t>(n_);
    Sum sum = 0;
    for (std::size_t k = 0; k < n; ++k)
      sum += static_cast<Sum>(round(a_.host(index / n * n + k))) * static_cast<Sum>(round(b_.host(k * n + index % n)));
    return sum;
  }

  int n_;
  Input<double> a_, b_;
  Output<double> c_;
  Output<float> c_f32_;
  Output<std::int32_t> c_i32_;
  TypedProduct<float> fp32_, tf32_;
  TypedProduct<__nv_bfloat16> bf16_;
  TypedProduct<__nv_fp8_e4m3> fp8_;
  TypedProduct<std::int8_t> int8_;
  Opened<Cublas> cublas_;
  LibraryMatmul cublaslt_;
};

constexpr std::uint32_t c_f64 = 1, c_f32 = 2, c_i32 = 4;  // outputs
constexpr Tolerance fp32_sums = within(1e-4);             // the tensor cores cut fp32 sums off rather than round them
constexpr Tolerance fp8_sums = within(4e-3);              // kept with fewer bits between one addition to an fp32 sum and the next
constexpr Tolerance exact_integers = within(1e-12);       // no sum reaches 2^26, so a wrong one is off by more

// One compute type, in the output that has the type of its sums. Tolerances leave out the operands' rounding, which the
// reference shares.
template <Method run, Method prepare>
constexpr Variant of_type(std::string_view name, const Tolerance& tolerance, std::uint32_t output, int min_sm = 80) {
  return {.name = name,
          .run = run,
          .prepare = prepare,
          .needs = {.min_sm = min_sm, .libraries = {Library::cublaslt}},
          .changes_precision = true,
          .tolerance = tolerance,
          .outputs = output};
}

}  // namespace

extern constinit const Pair cublas{
    .teaches = "the compute type decides the unit: FP64 has tensor cores, which compiled C++ never reaches",
    .lesson = "cublas_dgemm",
    .make = make<CublasTypes>,
    .baseline = {.name = "register_tiled_fma", .run = call<&CublasTypes::register_tiled_fma>, .outputs = c_f64},
    .optimized = variants({{.name = "cublas_dgemm",
                            .run = call<&CublasTypes::cublas_dgemm>,
                            .needs = {.libraries = {Library::cublas}},
                            .outputs = c_f64},
                           {.name = "mma_f64",
                            .run = call<&CublasTypes::mma_f64_ring>,
                            .needs = {.min_sm = 90},
                            .outputs = c_f64,
                            .gains_over = "register_tiled_fma"}}),
    .controls = variants({of_type<call<&CublasTypes::fp32>, call<&CublasTypes::round_fp32>>("fp32", fp32_sums, c_f32),
                          of_type<call<&CublasTypes::tf32>, call<&CublasTypes::round_tf32>>("tf32", tf32_operands, c_f32),
                          of_type<call<&CublasTypes::bf16>, call<&CublasTypes::round_bf16>>("bf16", fp32_sums, c_f32),
                          of_type<call<&CublasTypes::fp8>, call<&CublasTypes::round_fp8>>("fp8", fp8_sums, c_f32, 89),
                          of_type<call<&CublasTypes::int8>, call<&CublasTypes::round_int8>>("int8", exact_integers, c_i32)}),
    .libraries = variants({{.name = "cublaslt_tuned",
                            .run = call<&CublasTypes::cublaslt_tuned>,
                            .prepare = call<&CublasTypes::tune_dgemm>,
                            .needs = {.libraries = {Library::cublaslt}},
                            .outputs = c_f64}}),
    .bound = Bound::compute,
    .tolerance = within(1e-14),  // a sum of 4096 products, each addition rounded once, comes to about 2e-15
};

}  // namespace aisp::ch02
