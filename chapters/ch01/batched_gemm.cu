// SPDX-License-Identifier: Apache-2.0
// 320 independent products of 32 x 256 by 256 x 256. As a loop of library calls each one pays for a launch and then leaves most
// SMs idle, one matrix after the other. A batched call makes them one kernel, and the limit moves to memory: the 256 x 256
// operands are read once and never again. The kernel of our own keeps all matrices in flight at the same time, one to a block.
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <memory>

#include "small_gemm.cuh"

namespace aisp::ch01 {
namespace {

using namespace small_gemm;

// The pointer arrays that cublasSgemmBatched wants in device memory.
__global__ void point_kernel(const float* a, const float* b, float* c, const float** as, const float** bs, float** cs,
                             int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  as[i] = a + static_cast<std::size_t>(i) * a_size;
  bs[i] = b + static_cast<std::size_t>(i) * b_size;
  cs[i] = c + static_cast<std::size_t>(i) * c_size;
}

class BatchedGemm final : public Workload {
 public:
  explicit BatchedGemm(Setup& setup)
      : count_{setup.scaled(320)},
        a_{setup.input<float>(count_ * a_size, uniform(-1, 1), {.name = "a"})},
        b_{setup.input<float>(count_ * b_size, uniform(-1, 1), {.name = "b"})},
        c_{setup.output<float>(count_ * c_size, {.name = "c"})},
        as_{setup.scratch<const float*>(count_, {.name = "pointers to a"})},
        bs_{setup.scratch<const float*>(count_, {.name = "pointers to b"})},
        cs_{setup.scratch<float*>(count_, {.name = "pointers to c"})} {
    allow_shared_memory(fused_tiles_kernel, shared_bytes);
    check(
        cudaFuncSetAttribute(fused_tiles_kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  }

  Cost cost() const override {
    return {.flops = 2.0 * m * n * k * static_cast<double>(count_),
            .math = Math::tf32,
            .bytes = static_cast<double>(a_.bytes() + b_.bytes() + c_.bytes())};
  }
  double expected(std::size_t index) const override {
    const std::size_t matrix = index / c_size, row = index / n, column = index % n;  // rows of all A follow one another
    double sum = 0;
    for (std::size_t i = 0; i < k; ++i) sum += a_.host(row * k + i) * b_.host(matrix * b_size + i * n + column);
    return sum;
  }

  void open_cublas(Launch&) {
    if (cublas_) return;
    cublas_ = std::make_unique<Cublas>();
    cublas_->math_mode(CUBLAS_TF32_TENSOR_OP_MATH);
    gemm_ = Cublas::function<decltype(cublasSgemm_v2)>("cublasSgemm_v2");
    batched_ = Cublas::function<decltype(cublasSgemmBatched)>("cublasSgemmBatched");
    strided_ = Cublas::function<decltype(cublasSgemmStridedBatched)>("cublasSgemmStridedBatched");
  }
  void open_cublas_and_point(Launch& launch) {
    open_cublas(launch);
    const int count = static_cast<int>(count_);
    point_kernel<<<(count + threads - 1) / threads, threads, 0, launch.stream>>>(a_, b_, c_, as_, bs_, cs_, count);
    check(cudaGetLastError());
  }

  // cuBLAS is column-major: it computes C^T = B^T A^T.
  void loop(Launch& launch) {
    cublas_->use(launch.stream);
    for (std::size_t i = 0; i < count_; ++i)
      check(gemm_(cublas_->handle(), CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, b_ + i * b_size, n, a_ + i * a_size, k, &zero,
                  c_ + i * c_size, n));
  }
  void batched(Launch& launch) {
    cublas_->use(launch.stream);
    check(batched_(cublas_->handle(), CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, bs_, n, as_, k, &zero, cs_, n,
                   static_cast<int>(count_)));
  }
  void strided(Launch& launch) {
    cublas_->use(launch.stream);
    check(strided_(cublas_->handle(), CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, b_, n, b_size, a_, k, a_size, &zero, c_, n, c_size,
                   static_cast<int>(count_)));
  }
  void fused_tiles(Launch& launch) {
    fused_tiles_kernel<<<static_cast<unsigned>(count_), threads, shared_bytes, launch.stream>>>(a_, b_, c_);
    check(cudaGetLastError());
  }

 private:
  static constexpr float one = 1, zero = 0;

  std::size_t count_;
  Input<float> a_, b_;
  Output<float> c_;
  Scratch<const float*> as_, bs_;
  Scratch<float*> cs_;
  std::unique_ptr<Cublas> cublas_;
  decltype(&cublasSgemm_v2) gemm_ = nullptr;
  decltype(&cublasSgemmBatched) batched_ = nullptr;
  decltype(&cublasSgemmStridedBatched) strided_ = nullptr;
};

constexpr Needs library{.libraries = {Library::cublas}};
constexpr Method open = call<&BatchedGemm::open_cublas>;

}  // namespace

extern constinit const Pair batched_gemm{
    .teaches =
        "a loop of small GEMMs pays a launch each and leaves the GPU nearly empty; one batched call is one kernel that fills it",
    .lesson = "batched",
    .make = make<BatchedGemm>,
    .baseline = {.name = "gemm_loop", .run = call<&BatchedGemm::loop>, .prepare = open, .needs = library},
    .optimized = variants({{.name = "batched",
                            .run = call<&BatchedGemm::batched>,
                            .prepare = call<&BatchedGemm::open_cublas_and_point>,
                            .needs = library},
                           {.name = "strided", .run = call<&BatchedGemm::strided>, .prepare = open, .needs = library},
                           {.name = "fused_tiles", .run = call<&BatchedGemm::fused_tiles>}}),
    .bound = Bound::latency,
    // Rounding both operands to TF32 makes 3e-4; a library that cuts the bits off instead comes to about twice that.
    .tolerance = within(1e-3),
    .start = Start::immediate,  // the launches are the subject
};

}  // namespace aisp::ch01
