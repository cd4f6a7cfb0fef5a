// SPDX-License-Identifier: Apache-2.0
// Honest pairs of the GPU whose times depend on what they find, in every process and beside every neighbour alike.
#include "chasing.cuh"

#include <cmath>

namespace aisp::ch98 {
namespace {

using namespace selftest;

class HasLittleCache final : public Chasing<2> {
 public:
  explicit HasLittleCache(Setup& setup) : Chasing{setup} { leave_little_cache(); }
};

// Up to three times as long on some inputs as on others.
__global__ void by_data_kernel(const float* in) {
  unsigned long long start = 0, now = 0;
  const unsigned long long nanoseconds = 30'000 * (1 + static_cast<unsigned long long>(3 * fabsf(in[0])));
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now - start < nanoseconds);
}

class DependsOnData final : public GpuDoubling {
 public:
  using GpuDoubling::GpuDoubling;
  void by_its_data(Launch& launch) {
    by_data_kernel<<<1, 1, 0, launch.stream>>>(in_);
    doubled(launch);
  }
};

// Its input stays in L2, and the next variant finds the stream as it was.
class KeepsInL2 final : public GpuDoubling {
 public:
  explicit KeepsInL2(Setup& setup) : GpuDoubling{setup, std::size_t{1} << 20} {
    check(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, std::size_t{8} << 20));
  }
  void and_gives_it_back(Launch& launch) {
    cudaStreamAttrValue window{};
    window.accessPolicyWindow = {.base_ptr = const_cast<float*>(static_cast<const float*>(in_)),
                                 .num_bytes = in_.bytes(),
                                 .hitRatio = 1,
                                 .hitProp = cudaAccessPropertyPersisting,
                                 .missProp = cudaAccessPropertyStreaming};
    cudaStreamAttrValue before{};
    check(cudaStreamGetAttribute(launch.stream, cudaStreamAttributeAccessPolicyWindow, &before));
    check(cudaStreamSetAttribute(launch.stream, cudaStreamAttributeAccessPolicyWindow, &window));
    for (int pass = 0; pass < 2; ++pass) doubled(launch);
    check(cudaStreamSetAttribute(launch.stream, cudaStreamAttributeAccessPolicyWindow, &before));
  }
};

}  // namespace

extern constinit const selftest::Case gpu_honest_cache = pair_of<&GpuDoubling::doubled, HasLittleCache>(
    {.does = "has a baseline with little of the L1 cache", .baseline = call<&HasLittleCache::chases>});
extern constinit const selftest::Case gpu_honest_baseline_by_data = pair_of<&GpuDoubling::doubled, DependsOnData>(
    {.does = "has a baseline that takes longer on some inputs", .baseline = call<&DependsOnData::by_its_data>});
extern constinit const selftest::Case gpu_honest_persisting =
    pair_of<&KeepsInL2::and_gives_it_back>({.does = "keeps its input in L2 during a run and puts the stream's window back"});

}  // namespace aisp::ch98
