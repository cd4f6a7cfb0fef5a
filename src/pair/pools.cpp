// SPDX-License-Identifier: Apache-2.0
#include "pair/pools.hpp"

#include <cuda_runtime_api.h>
#include <aisp/check.hpp>

namespace aisp::pair {
namespace {

// Null where the GPU has no pools.
cudaMemPool_t pool_of(int gpu) {
  int supported = 0;
  check(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, gpu));
  cudaMemPool_t pool = nullptr;
  if (supported != 0) check(cudaDeviceGetMemPool(&pool, gpu));
  return pool;
}

std::uint64_t read(cudaMemPool_t pool, cudaMemPoolAttr attribute) {
  std::uint64_t bytes = 0;
  check(cudaMemPoolGetAttribute(pool, attribute, &bytes));
  return bytes;
}

}  // namespace

PoolUse pool_use(const std::vector<int>& gpus) {
  PoolUse use;
  for (const int gpu : gpus) {
    const cudaMemPool_t pool = pool_of(gpu);
    if (pool == nullptr) continue;
    use.used_bytes += read(pool, cudaMemPoolAttrUsedMemCurrent);
    use.reserved_bytes += read(pool, cudaMemPoolAttrReservedMemCurrent);
    use.most_used_bytes += read(pool, cudaMemPoolAttrUsedMemHigh);
    use.most_reserved_bytes += read(pool, cudaMemPoolAttrReservedMemHigh);
  }
  return use;
}

void reset_pool_marks(const std::vector<int>& gpus) {
  for (const int gpu : gpus) {
    const cudaMemPool_t pool = pool_of(gpu);
    if (pool == nullptr) continue;
    for (const cudaMemPoolAttr mark : {cudaMemPoolAttrUsedMemHigh, cudaMemPoolAttrReservedMemHigh}) {
      std::uint64_t zero = 0;
      check(cudaMemPoolSetAttribute(pool, mark, &zero));
    }
  }
}

}  // namespace aisp::pair
