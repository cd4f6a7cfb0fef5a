// SPDX-License-Identifier: Apache-2.0
// Sixteen bf16 products, each done by a helper that looks after itself: it creates a cuBLAS handle, multiplies, destroys it. The
// handle costs allocations, and destroying it waits for the GPU, so the host's set-up dwarfs products of some 25 us. A handle
// that is kept takes that out of the loop; a plan that is kept also takes out the choice of the algorithm.
#include <cuda_bf16.h>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <memory>

namespace aisp::ch01 {
namespace {

using bf16 = __nv_bfloat16;
constexpr int n = 2048;
constexpr std::size_t matrix = std::size_t{n} * n;

class HandleReuse final : public Workload {
 public:
  explicit HandleReuse(Setup& setup)
      : count_{setup.scaled(16)},
        a_{setup.input<bf16>(count_ * matrix, uniform(-1, 1), {.name = "a"})},
        b_{setup.input<bf16>(count_ * matrix, uniform(-1, 1), {.name = "b"})},
        c_{setup.output<bf16>(count_ * matrix, {.name = "c"})},
        cublas_{setup},
        cublaslt_{setup},
        plan_{setup, cublaslt_, MatmulProblem{.m = n, .n = n, .k = n}} {}

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(count_ * matrix) * n,
            .math = Math::bf16,
            .bytes = static_cast<double>(a_.bytes() + b_.bytes() + c_.bytes())};
  }
  double expected(std::size_t index) const override {
    const std::size_t product = index / matrix, row = index / n, column = index % n;  // rows of all A follow one another
    double sum = 0;
    for (std::size_t k = 0; k < n; ++k) sum += a_.host(row * n + k) * b_.host(product * matrix + k * n + column);
    return sum;
  }

  // Opening the library itself is nobody's subject here.
  void find_calls(Launch&) {
    create_ = Cublas::function<decltype(cublasCreate_v2)>("cublasCreate_v2");
    destroy_ = Cublas::function<decltype(cublasDestroy_v2)>("cublasDestroy_v2");
    set_stream_ = Cublas::function<decltype(cublasSetStream_v2)>("cublasSetStream_v2");
    gemm_ex_ = Cublas::function<Cublas::GemmEx>("cublasGemmEx");
  }

  void handle_per_call(Launch& launch) {
    for (std::size_t i = 0; i < count_; ++i) self_contained_gemm(launch.stream, i * matrix);
  }
  void shared_handle(Launch& launch) {
    for (std::size_t i = 0; i < count_ * matrix; i += matrix)
      cublas_->gemm(launch.stream, n, n, n, a_ + i, b_ + i, c_ + i, CUDA_R_16BF);
  }
  void cached_plan(Launch& launch) {
    for (std::size_t i = 0; i < count_ * matrix; i += matrix) plan_->run(launch.stream, a_ + i, b_ + i, c_ + i);
  }

 private:
  // cuBLAS is column-major: it computes C^T = B^T A^T.
  void self_contained_gemm(cudaStream_t stream, std::size_t first) {
    const float one = 1, zero = 0;
    cublasHandle_t handle = nullptr;
    check(create_(&handle));
    const std::unique_ptr<cublasContext, decltype(destroy_)> owner{handle, destroy_};
    check(set_stream_(handle, stream));
    check(gemm_ex_(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, b_ + first, CUDA_R_16BF, n, a_ + first, CUDA_R_16BF, n, &zero,
                   c_ + first, CUDA_R_16BF, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }

  std::size_t count_;
  Input<bf16> a_, b_;
  Output<bf16> c_;
  Opened<Cublas> cublas_;
  Opened<CublasLt> cublaslt_;
  Opened<MatmulPlan> plan_;
  decltype(&cublasCreate_v2) create_ = nullptr;
  decltype(&cublasDestroy_v2) destroy_ = nullptr;
  decltype(&cublasSetStream_v2) set_stream_ = nullptr;
  Cublas::GemmEx* gemm_ex_ = nullptr;
};

}  // namespace

extern constinit const Pair handle_reuse{
    .teaches = "creating a library handle allocates and synchronizes: do it once, outside of the loop",
    .lesson = "shared_handle",
    .make = make<HandleReuse>,
    .baseline = {.name = "handle_per_call",
                 .run = call<&HandleReuse::handle_per_call>,
                 .prepare = call<&HandleReuse::find_calls>,
                 .needs = {.libraries = {Library::cublas}}},
    .optimized =
        variants({{.name = "shared_handle", .run = call<&HandleReuse::shared_handle>, .needs = {.libraries = {Library::cublas}}},
                  {.name = "cached_plan", .run = call<&HandleReuse::cached_plan>, .needs = {.libraries = {Library::cublaslt}}}}),
    .bound = Bound::latency,
    .start = Start::immediate,   // the host's work is the subject, and the baseline waits for the GPU
    .reference_samples = 32768,  // 2048 of each product
};

}  // namespace aisp::ch01
