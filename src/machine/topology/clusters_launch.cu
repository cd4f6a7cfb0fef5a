// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "machine/topology/clusters_launch.hpp"

namespace {

constexpr long long shortest_stay_clocks = 5'000, more_clocks = 30'000;  // microseconds: longer than starting a block takes

// Blocks stay a while, so that those that start later find these SMs taken, and each for another while, so that SMs come free in
// another order than they were taken in.
__global__ void note_sm_kernel(unsigned* sm_of_block, unsigned seed) {
  const long long start = clock64();
  const unsigned scrambled = (blockIdx.x + seed * 0x9E3779B9u) * 0x85EBCA6Bu;
  const long long stay_clocks = shortest_stay_clocks + (scrambled >> 16) % more_clocks;
  unsigned sm = 0;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  sm_of_block[blockIdx.x] = sm;
  while (clock64() - start < stay_clocks) {
  }
}

struct FreeDevice {
  void operator()(unsigned* pointer) const { cudaFree(pointer); }
};

struct Launch {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute cluster{};

  Launch(int blocks, int cluster_size, int shared_bytes) {
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(cluster_size);
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(1);
    config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
    config.attrs = &cluster;
    config.numAttrs = 1;
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
};

cudaError_t allow_large_clusters() {
  return cudaFuncSetAttribute(note_sm_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}

// All the shared memory a block can have leaves no room for a second block on the SM.
cudaError_t fill_sm(int* shared_bytes) {
  int device = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (status == cudaSuccess)
    status = cudaFuncSetAttribute(note_sm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, *shared_bytes);
  return status;
}

}  // namespace

namespace aisp::machine {

cudaError_t largest_cluster(int* size) {
  const cudaError_t status = allow_large_clusters();
  if (status != cudaSuccess) return status;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(1);
  return cudaOccupancyMaxPotentialClusterSize(size, note_sm_kernel, &config);
}

cudaError_t run_clusters(int clusters, int cluster_size, unsigned seed, std::vector<unsigned>& sm_of_block) {
  const int blocks = clusters * cluster_size;
  int shared_bytes = 0;
  cudaError_t status = allow_large_clusters();
  if (status == cudaSuccess) status = fill_sm(&shared_bytes);
  unsigned* raw = nullptr;
  if (status == cudaSuccess) status = cudaMalloc(&raw, static_cast<std::size_t>(blocks) * sizeof(unsigned));
  if (status != cudaSuccess) return status;
  const std::unique_ptr<unsigned, FreeDevice> memory{raw};
  const Launch launch{blocks, cluster_size, shared_bytes};
  status = cudaLaunchKernelEx(&launch.config, note_sm_kernel, raw, seed);
  sm_of_block.resize(static_cast<std::size_t>(blocks));
  if (status == cudaSuccess)
    status = cudaMemcpy(sm_of_block.data(), raw, sm_of_block.size() * sizeof(unsigned), cudaMemcpyDeviceToHost);
  return status;
}

}  // namespace aisp::machine
