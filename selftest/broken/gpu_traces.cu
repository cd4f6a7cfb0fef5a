// SPDX-License-Identifier: Apache-2.0
// They leave device memory, settings or kernels behind.
#include "calls.hpp"
#include "doubling.cuh"

#include <atomic>

namespace aisp::ch97 {
namespace {

using namespace selftest;

// Serves requests until nobody wants it any more, which nobody ever says.
__global__ void serve_kernel(const float* in, float* out, const volatile int* request, volatile int* served, std::size_t count) {
  for (int seen = 0;;) {
    const int wanted = *request;
    if (wanted == seen) continue;
    seen = wanted;
    for (std::size_t i = threadIdx.x; i < count; i += blockDim.x) out[i] = 2 * in[i];
    __syncthreads();
    __threadfence_system();
    if (threadIdx.x == 0) *served = seen;
  }
}

class Leaves final : public GpuDoubling {
 public:
  explicit Leaves(Setup& setup) : GpuDoubling{setup}, other_{setup.stream()} {}
  void memory(Launch& launch) {
    void* lost = nullptr;
    check(cudaMalloc(&lost, std::size_t{8} << 20));
    doubled(launch);
  }
  // Too little for the driver's account to show it.
  void pool(Launch& launch) {
    void* lost = nullptr;
    check(cudaMallocAsync(&lost, std::size_t{4} << 10, launch.stream));
    doubled(launch);
  }
  void pool_when_timed(Launch& launch) {
    if (calls_.timed()) pool(launch);
    else doubled(launch);
  }
  void a_kernel(Launch& launch) {
    if (flags_ == nullptr) {
      check(cudaHostAlloc(reinterpret_cast<void**>(&flags_), 2 * sizeof(int), cudaHostAllocMapped));
      flags_[0] = flags_[1] = 0;
      serve_kernel<<<1, 256, 0, other_>>>(in_, out_, flags_, flags_ + 1, count_);
    }
    const int request = std::atomic_ref<int>{flags_[0]}.fetch_add(1) + 1;
    while (std::atomic_ref<int>{flags_[1]}.load() != request) {
    }
    doubled(launch);
  }
  void a_printf_limit(Launch& launch) {
    check(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, std::size_t{4} << 20));
    doubled(launch);
  }
  void a_cache_preference(Launch& launch) {
    check(cudaDeviceSetCacheConfig(cudaFuncCachePreferShared));
    doubled(launch);
  }
  void a_set_aside(Launch& launch) {
    int most = 0;
    check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxPersistingL2CacheSize, 0));
    check(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, static_cast<std::size_t>(most)));
    doubled(launch);
  }
  // The timed stream keeps the input in L2 from then on.
  void a_window(Launch& launch) {
    cudaStreamAttrValue value{};
    value.accessPolicyWindow.base_ptr = const_cast<float*>(in_.get());
    value.accessPolicyWindow.num_bytes = in_.bytes();
    value.accessPolicyWindow.hitRatio = 1;
    value.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
    value.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
    check(cudaStreamSetAttribute(launch.stream, cudaStreamAttributeAccessPolicyWindow, &value));
    doubled(launch);
  }

 private:
  cudaStream_t other_;
  Calls calls_;
  int* flags_ = nullptr;
};

constexpr Expected told = fails("verify/limits", "measurement/limits");

}  // namespace

extern constinit const selftest::Case gpu_leak_memory =
    pair_of<&Leaves::memory>({.does = "forgets 8 MiB of device memory at every execution", .must = fails("verify/memory")});
extern constinit const selftest::Case gpu_leak_pool =
    pair_of<&Leaves::pool>({.does = "forgets 4 KiB of a memory pool at every execution", .must = fails("verify/memory")});
extern constinit const selftest::Case gpu_leak_when_timed =
    pair_of<&Leaves::pool_when_timed>({.does = "forgets 4 KiB of a memory pool at each execution that is timed",
                                       .must = fails("measurement/memory", "reverify/memory")});
extern constinit const selftest::Case gpu_persistent_kernel = pair_of<&Leaves::a_kernel>(
    {.does = "has a kernel serve its requests that never ends", .must = hangs("verify/stage_limit", 3)});
extern constinit const selftest::Case gpu_limit_left =
    pair_of<&Leaves::a_printf_limit>({.does = "leaves the device with a larger buffer for printf", .must = told});
extern constinit const selftest::Case gpu_cache_preference_left = pair_of<&Leaves::a_cache_preference>(
    {.does = "leaves the device with less L1 for kernels that do not say what they prefer", .must = told});
extern constinit const selftest::Case gpu_set_aside_left =
    pair_of<&Leaves::a_set_aside>({.does = "leaves as much of L2 set aside as there may be", .must = told});
extern constinit const selftest::Case gpu_window_left =
    pair_of<&Leaves::a_window>({.does = "leaves the timed stream with a window that keeps its input in L2", .must = told});

}  // namespace aisp::ch97
