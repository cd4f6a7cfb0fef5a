// SPDX-License-Identifier: Apache-2.0
// Honest pairs that have the GPU work in unusual ways.
#include "doubling.cuh"

#include <aisp/graph.hpp>
#include <aisp/libraries/cublas.hpp>

namespace aisp::ch98 {
namespace {

using namespace selftest;

// As many blocks as there are multiprocessors, each of which takes one piece after the other until all are done.
__global__ void persistent_kernel(const float* in, float* out, unsigned* next, std::size_t count) {
  __shared__ unsigned piece;
  for (;;) {
    if (threadIdx.x == 0) piece = atomicAdd(next, 1);
    __syncthreads();
    const std::size_t i = std::size_t{piece} * blockDim.x + threadIdx.x;
    if (std::size_t{piece} * blockDim.x >= count) return;
    if (i < count) out[i] = 2 * in[i];
    __syncthreads();
  }
}

// Has the name of what empties the caches.
__global__ void aisp_evict_and_double(const float* in, float* out, float factor, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i] = factor * in[i];
}

class Works final : public GpuDoubling {
 public:
  explicit Works(Setup& setup)
      : GpuDoubling{setup},
        other_{setup.stream()},
        forked_{setup.event()},
        joined_{setup.event()},
        next_{sizeof(unsigned)},
        factor_{setup.input<float>(1, aisp::constant(2), {.name = "factor", .constant = true})},
        team_{setup.threads(2)} {}

  void on_a_stream_of_its_own(Launch& launch) {
    fork(launch);
    double_on(other_, count_);
    join(launch);
  }
  void and_calls_back(Launch& launch) {
    doubled(launch);
    check(cudaLaunchHostFunc(
        launch.stream, [](void*) {}, nullptr));
  }
  // Two threads queue a half each, on two streams.
  void by_threads(Launch& launch) {
    fork(launch);
    team_.run([&](int worker) { half(worker, worker == 0 ? launch.stream : other_); });
    join(launch);
  }
  void capture(Launch& launch) {
    graph_.capture(launch.stream, [&](cudaStream_t stream) { double_on(stream, count_); });
  }
  void by_a_graph(Launch& launch) { graph_.launch(launch.stream); }
  void through_a_pool(Launch& launch) {
    float* own = nullptr;
    check(cudaMallocAsync(&own, out_.bytes(), launch.stream));
    double_kernel<1><<<blocks(), block_threads, 0, launch.stream>>>(in_, own, count_);
    check(cudaMemcpyAsync(out_, own, out_.bytes(), cudaMemcpyDeviceToDevice, launch.stream));
    check(cudaFreeAsync(own, launch.stream));
  }
  void by_a_persistent_kernel(Launch& launch) {
    check(cudaMemsetAsync(next_.get<unsigned>(), 0, sizeof(unsigned), launch.stream));
    persistent_kernel<<<132, block_threads, 0, launch.stream>>>(in_, out_, next_.get<unsigned>(), count_);
  }
  // A constant input may be asked for at any time.
  void by_a_factor_that_it_knows(Launch& launch) {
    aisp_evict_and_double<<<blocks(), block_threads, 0, launch.stream>>>(in_, out_, static_cast<float>(factor_.host(0)), count_);
  }
  void and_waits(Launch& launch) {
    doubled(launch);
    check(cudaStreamSynchronize(launch.stream));
  }

 private:
  void fork(Launch& launch) {
    check(cudaEventRecord(forked_, launch.stream));
    check(cudaStreamWaitEvent(other_, forked_));
  }
  void join(Launch& launch) {
    check(cudaEventRecord(joined_, other_));
    check(cudaStreamWaitEvent(launch.stream, joined_));
  }
  void half(int which, cudaStream_t stream) {
    const std::size_t first = which == 0 ? 0 : count_ / 2, part = which == 0 ? count_ / 2 : count_ - count_ / 2;
    double_kernel<1><<<blocks(), block_threads, 0, stream>>>(in_ + first, out_ + first, part);
    check(cudaGetLastError());
  }

  cudaStream_t other_;
  cudaEvent_t forked_, joined_;
  OwnMemory next_;
  Input<float> factor_;
  Graph graph_;
  ThreadTeam& team_;
};

class Tiny final : public GpuDoubling {
 public:
  explicit Tiny(Setup& setup) : GpuDoubling{setup, 4096} {}
};

class Shaped final : public GpuDoubling {
 public:
  explicit Shaped(Setup& setup) : GpuDoubling{setup, setup.shape(std::size_t{4} << 20, 65536)} {}
};

// C = A B by a library with a workspace of its own.
__global__ void multiply_kernel(const float* a, const float* b, float* c, int n) {
  const int row = static_cast<int>(blockIdx.y), column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + column];
  c[row * n + column] = sum;
}

class Multiplies final : public Workload {
 public:
  static constexpr Device device = Device::gpu;
  static constexpr int n = 512;
  explicit Multiplies(Setup& setup)
      : a_{setup.input<float>(n * n, uniform(-1, 1))},
        b_{setup.input<float>(n * n, uniform(-1, 1))},
        c_{setup.output<float>(n * n)} {}
  Cost cost() const override { return {.flops = 2.0 * n * n * n, .bytes = 3.0 * static_cast<double>(c_.bytes())}; }
  double expected(std::size_t i) const override {
    double sum = 0;
    for (std::size_t k = 0; k < n; ++k) sum += a_.host(i / n * n + k) * b_.host(k * n + i % n);
    return sum;
  }
  void slow(Launch& launch) { multiply_kernel<<<dim3{n / 256, n}, 256, 0, launch.stream>>>(a_, b_, c_, n); }
  void by_cublas(Launch& launch) { cublas_.gemm(launch.stream, n, n, n, a_, b_, c_, CUDA_R_32F); }

 private:
  Input<float> a_, b_;
  Output<float> c_;
  Cublas cublas_;
};

}  // namespace

extern constinit const selftest::Case gpu_honest = pair_of<&GpuDoubling::doubled>({.does = "does what it says"});
extern constinit const selftest::Case gpu_honest_stream =
    pair_of<&Works::on_a_stream_of_its_own>({.does = "works on a stream of its own, forked and joined"});
extern constinit const selftest::Case gpu_honest_callback =
    pair_of<&Works::and_calls_back>({.does = "declares its host callback", .host_callbacks = true});
extern constinit const selftest::Case gpu_honest_threads =
    pair_of<&Works::by_threads>({.does = "has two threads queue its work on two streams"});
extern constinit const selftest::Case gpu_honest_graph =
    pair_of<&Works::by_a_graph>({.does = "launches a graph that it captured in prepare", .prepare = call<&Works::capture>});
extern constinit const selftest::Case gpu_honest_pool =
    pair_of<&Works::through_a_pool>({.does = "allocates from a memory pool in each run and gives all of it back"});
extern constinit const selftest::Case gpu_honest_persistent =
    pair_of<&Works::by_a_persistent_kernel>({.does = "has a persistent kernel that ends when all pieces are done"});
extern constinit const selftest::Case gpu_honest_name = pair_of<&Works::by_a_factor_that_it_knows>(
    {.does = "has a kernel that is named like one of the harness, and asks for a constant"});
extern constinit const selftest::Case gpu_honest_wait =
    pair_of<&Works::and_waits>({.does = "waits for the GPU itself, and starts at once", .start = Start::immediate});
extern constinit const selftest::Case gpu_honest_tiny = pair_of<&GpuDoubling::doubled, Tiny>({.does = "takes two microseconds"});
extern constinit const selftest::Case gpu_honest_hot =
    pair_of<&GpuDoubling::doubled>({.does = "finds its data in L2 and says so", .cache = Cache::hot});
extern constinit const selftest::Case gpu_honest_small_shape = pair_of<&GpuDoubling::doubled, Shaped>(
    {.does = "is compared with its reference at a smaller size", .verification = Verification::small_shape});
extern constinit const selftest::Case gpu_honest_library =
    pair_of<&Multiplies::by_cublas>({.does = "calls cuBLAS, with a workspace",
                                     .tolerance = reduction_of(Multiplies::n),
                                     .needs = {.libraries = {Library::cublas}}});

}  // namespace aisp::ch98
