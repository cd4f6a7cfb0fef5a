// SPDX-License-Identifier: Apache-2.0
// Whether all GPUs hold the same bits: what data-parallel training needs of a reduction, lest the replicas drift apart.
#pragma once
#include <aisp/check.hpp>

#include <cstddef>
#include <stdexcept>
#include <string>

#include "peer_gpus.hpp"

namespace aisp::shared {

static __global__ void count_differences_kernel(const unsigned* mine, const unsigned* others, std::size_t words,
                                                unsigned long long* differences) {
  unsigned long long found = 0;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < words; i += std::size_t{gridDim.x} * blockDim.x)
    found += mine[i] != others[i];
  if (found > 0) atomicAdd(differences, found);
}

// Throws std::runtime_error where the buffer of a GPU differs from the first one's. Nothing may be under way.
template <class T>
void demand_equal_copies(const Gpus& gpus, const OnGpus<T>& copies, std::size_t bytes) {
  const SelectedGpu selected{gpus.ordinal(0)};
  unsigned long long* differences = nullptr;
  check(cudaMalloc(&differences, sizeof *differences));
  unsigned long long found = 0;
  int differs = 0;
  for (int gpu = 1; gpu < gpus.count() && found == 0; ++gpu) {
    check(cudaMemset(differences, 0, sizeof *differences));
    count_differences_kernel<<<1024, 256>>>(reinterpret_cast<const unsigned*>(copies.at[0]),
                                            reinterpret_cast<const unsigned*>(copies.at[gpu]), bytes / sizeof(unsigned),
                                            differences);
    check(cudaGetLastError());
    check(cudaMemcpy(&found, differences, sizeof found, cudaMemcpyDeviceToHost));
    differs = gpu;
  }
  check(cudaFree(differences));
  if (found > 0)
    throw std::runtime_error{"the results of GPU 0 and GPU " + std::to_string(differs) + " differ in " + std::to_string(found) +
                             " words"};
}

}  // namespace aisp::shared
