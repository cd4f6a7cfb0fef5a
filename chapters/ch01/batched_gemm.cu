// SPDX-License-Identifier: Apache-2.0
// 320 independent products of 32 x 256 by 256 x 256. As a loop of library calls each one pays for a launch and then leaves most
// SMs idle, one matrix after the other. A graph of the same calls takes the launches away, one of 16 branches also the waiting in
// line. A batched call makes them one kernel, and the limit moves to memory: the 256 x 256 operands are read once and never
// again. The kernel of our own keeps all matrices in flight at the same time, one to a block.
#include <aisp/graph.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <array>

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

constexpr std::size_t branches = 16, branch_space = std::size_t{4} << 20;  // bytes of workspace, each branch has its own

class BatchedGemm final : public Workload {
 public:
  explicit BatchedGemm(Setup& setup)
      : count_{setup.scaled(320)},
        a_{setup.input<float>(count_ * a_size, uniform(-1, 1), {.name = "a"})},
        b_{setup.input<float>(count_ * b_size, uniform(-1, 1), {.name = "b"})},
        c_{setup.output<float>(count_ * c_size, {.name = "c"})},
        as_{setup.scratch<const float*>(count_, {.name = "pointers to a"})},
        bs_{setup.scratch<const float*>(count_, {.name = "pointers to b"})},
        cs_{setup.scratch<float*>(count_, {.name = "pointers to c"})},
        spaces_{setup.scratch<std::byte>(branches * branch_space, {.name = "workspaces of the branches"})},
        forked_{setup.event()},
        cublas_{setup, CUBLAS_TF32_TENSOR_OP_MATH} {
    for (std::size_t b = 0; b < branches; ++b) streams_[b] = setup.stream(), joined_[b] = setup.event();
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

  void point(Launch& launch) {
    const int count = static_cast<int>(count_);
    point_kernel<<<(count + threads - 1) / threads, threads, 0, launch.stream>>>(a_, b_, c_, as_, bs_, cs_, count);
    check(cudaGetLastError());
  }

  void loop(Launch& launch) { queue_loop(launch.stream); }
  void streams_16(Launch& launch) { queue_branches(launch.stream); }
  // Code is loaded at its first launch, not while a capture is under way: hence one run before each.
  void capture_loop(Launch& launch) {
    queue_loop(launch.stream);
    line_.capture(launch.stream, [this](cudaStream_t stream) { queue_loop(stream); });
  }
  void capture_branches(Launch& launch) {
    queue_branches(launch.stream);
    branched_.capture(launch.stream, [this](cudaStream_t stream) { queue_branches(stream); });
  }
  void captured_graph(Launch& launch) { line_.launch(launch.stream); }
  void branched_graph(Launch& launch) { branched_.launch(launch.stream); }
  void batched(Launch& launch) {
    const auto batched = Cublas::function<decltype(cublasSgemmBatched)>("cublasSgemmBatched");
    cublas_->use(launch.stream);
    check(batched(cublas_->handle(), CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, bs_, n, as_, k, &zero, cs_, n,
                  static_cast<int>(count_)));
  }
  void strided(Launch& launch) {
    const auto strided = Cublas::function<decltype(cublasSgemmStridedBatched)>("cublasSgemmStridedBatched");
    cublas_->use(launch.stream);
    check(strided(cublas_->handle(), CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, b_, n, b_size, a_, k, a_size, &zero, c_, n, c_size,
                  static_cast<int>(count_)));
  }
  void fused_tiles(Launch& launch) {
    fused_tiles_kernel<<<static_cast<unsigned>(count_), threads, shared_bytes, launch.stream>>>(a_, b_, c_);
    check(cudaGetLastError());
  }

 private:
  static constexpr float one = 1, zero = 0;

  // cuBLAS is column-major: it computes C^T = B^T A^T.
  void multiply(std::size_t begin, std::size_t end) const {
    const auto gemm = Cublas::function<decltype(cublasSgemm_v2)>("cublasSgemm_v2");
    for (std::size_t i = begin; i < end; ++i)
      check(gemm(cublas_->handle(), CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, b_ + i * b_size, n, a_ + i * a_size, k, &zero,
                 c_ + i * c_size, n));
  }
  void queue_loop(cudaStream_t stream) const {
    cublas_->use(stream);
    multiply(0, count_);
  }
  // Products of different branches know nothing of one another and may run at the same time.
  void queue_branches(cudaStream_t stream) const {
    check(cudaEventRecord(forked_, stream));
    for (std::size_t b = 0; b < branches; ++b) {
      check(cudaStreamWaitEvent(streams_[b], forked_));
      cublas_->use(streams_[b], {spaces_ + b * branch_space, branch_space});
      multiply(count_ * b / branches, count_ * (b + 1) / branches);
      check(cudaEventRecord(joined_[b], streams_[b]));
      check(cudaStreamWaitEvent(stream, joined_[b]));
    }
  }

  std::size_t count_;
  Input<float> a_, b_;
  Output<float> c_;
  Scratch<const float*> as_, bs_;
  Scratch<float*> cs_;
  Scratch<std::byte> spaces_;
  cudaEvent_t forked_;
  std::array<cudaStream_t, branches> streams_{};
  std::array<cudaEvent_t, branches> joined_{};
  Opened<Cublas> cublas_;
  Graph line_, branched_;
};

constexpr Needs library{.libraries = {Library::cublas}};

}  // namespace

extern constinit const Pair batched_gemm{
    .teaches =
        "a loop of small GEMMs pays a launch each and leaves the GPU nearly empty; one batched call is one kernel that fills it",
    .lesson = "batched",
    .make = make<BatchedGemm>,
    .baseline = {.name = "gemm_loop", .run = call<&BatchedGemm::loop>, .needs = library},
    .optimized =
        variants({{.name = "captured_graph",
                   .run = call<&BatchedGemm::captured_graph>,
                   .prepare = call<&BatchedGemm::capture_loop>,
                   .needs = library},
                  {.name = "branched_graph",
                   .run = call<&BatchedGemm::branched_graph>,
                   .prepare = call<&BatchedGemm::capture_branches>,
                   .needs = library},
                  {.name = "batched", .run = call<&BatchedGemm::batched>, .prepare = call<&BatchedGemm::point>, .needs = library},
                  {.name = "strided", .run = call<&BatchedGemm::strided>, .needs = library},
                  {.name = "fused_tiles", .run = call<&BatchedGemm::fused_tiles>}}),
    // The branches without a graph: while the host launches them one by one, there is never a second one to run beside the first.
    .controls = variants({{.name = "streams_16", .run = call<&BatchedGemm::streams_16>, .needs = library}}),
    .bound = Bound::latency,
    // Rounding both operands to TF32 makes 3e-4; a library that cuts the bits off instead comes to about twice that.
    .tolerance = within(1e-3),
    .start = Start::immediate,  // the launches are the subject
};

}  // namespace aisp::ch01
