// SPDX-License-Identifier: Apache-2.0
#include "measure/execution/settings.hpp"

#include <sys/resource.h>
#include <aisp/check.hpp>

#include <cfenv>
#include <cstring>

namespace aisp::measure {
namespace {

struct Limit {
  cudaLimit which;
  const char* name;
};

// The stack limit is not included: the driver itself raises it for kernels that need more.
constexpr std::array<Limit, 4> watched{{{cudaLimitPersistingL2CacheSize, "cudaLimitPersistingL2CacheSize"},
                                        {cudaLimitMaxL2FetchGranularity, "cudaLimitMaxL2FetchGranularity"},
                                        {cudaLimitMallocHeapSize, "cudaLimitMallocHeapSize"},
                                        {cudaLimitPrintfFifoSize, "cudaLimitPrintfFifoSize"}}};

// Returns the limit; 0 if this GPU has none of this kind.
std::size_t read(cudaLimit which) {
  std::size_t value = 0;
  if (cudaDeviceGetLimit(&value, which) != cudaSuccess) cudaGetLastError();
  return value;
}

cudaStreamAttrValue window_of(cudaStream_t stream) {
  cudaStreamAttrValue value{};
  if (cudaStreamGetAttribute(stream, cudaStreamAttributeAccessPolicyWindow, &value) != cudaSuccess) cudaGetLastError();
  return value;
}

bool same(const cudaAccessPolicyWindow& a, const cudaAccessPolicyWindow& b) {
  return a.base_ptr == b.base_ptr && a.num_bytes == b.num_bytes && a.hitRatio == b.hitRatio && a.hitProp == b.hitProp &&
         a.missProp == b.missProp;
}

}  // namespace

DeviceLimits::DeviceLimits(pair::Session& session) {
  for (std::size_t i = 0; i < session.gpu_ordinals().size(); ++i) {
    OfGpu& gpu = gpus_.emplace_back();
    gpu.ordinal = session.gpu_ordinals()[i];
    gpu.stream = session.launch().streams[i];
    check(cudaSetDevice(gpu.ordinal));
    for (std::size_t k = 0; k < watched.size(); ++k) gpu.limits[k] = read(watched[k].which);
    gpu.window = window_of(gpu.stream);
    check(cudaDeviceGetCacheConfig(&gpu.cache_preference));
  }
  if (!gpus_.empty()) check(cudaSetDevice(gpus_.front().ordinal));
}

std::vector<std::string> DeviceLimits::restore() {
  std::vector<std::string> changed;
  for (const OfGpu& gpu : gpus_) {
    if (gpus_.size() > 1) check(cudaSetDevice(gpu.ordinal));
    for (std::size_t k = 0; k < watched.size(); ++k) {
      if (read(watched[k].which) == gpu.limits[k]) continue;
      check(cudaDeviceSetLimit(watched[k].which, gpu.limits[k]));
      changed.emplace_back(watched[k].name);
    }
    cudaFuncCache preference{};
    check(cudaDeviceGetCacheConfig(&preference));
    if (preference != gpu.cache_preference) {
      check(cudaDeviceSetCacheConfig(gpu.cache_preference));
      changed.emplace_back("the device's cache preference");
    }
    if (same(window_of(gpu.stream).accessPolicyWindow, gpu.window.accessPolicyWindow)) continue;
    check(cudaStreamSetAttribute(gpu.stream, cudaStreamAttributeAccessPolicyWindow, &gpu.window));
    changed.emplace_back("the access-policy window of launch.stream");
  }
  if (gpus_.size() > 1) check(cudaSetDevice(gpus_.front().ordinal));
  return changed;
}

HostSettings::HostSettings() : priority_{getpriority(PRIO_PROCESS, 0)}, rounding_{std::fegetround()} {
  if (sched_getaffinity(0, sizeof cpus_, &cpus_) != 0) CPU_ZERO(&cpus_);
}

std::vector<std::string> HostSettings::restore() const {
  std::vector<std::string> changed;
  cpu_set_t now{};
  if (sched_getaffinity(0, sizeof now, &now) == 0 && CPU_COUNT(&cpus_) > 0 && CPU_EQUAL(&now, &cpus_) == 0) {
    sched_setaffinity(0, sizeof cpus_, &cpus_);
    changed.emplace_back("the CPUs that the thread may use");
  }
  if (getpriority(PRIO_PROCESS, 0) != priority_) {
    setpriority(PRIO_PROCESS, 0, priority_);
    changed.emplace_back("the thread's priority");
  }
  if (std::fegetround() != rounding_) {
    std::fesetround(rounding_);
    changed.emplace_back("the processor's rounding");
  }
  return changed;
}

}  // namespace aisp::measure
