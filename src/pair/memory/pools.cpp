// SPDX-License-Identifier: Apache-2.0
#include "pair/memory/pools.hpp"

#include <cuda_runtime_api.h>
#include <aisp/check.hpp>

#include <algorithm>

namespace aisp::pair {
namespace {

// Returns the GPU's pool; null if it has none.
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

void scrub_pools(const std::vector<int>& gpus) {
  constexpr int scrub_value = 0xDB;
  for (const int gpu : gpus) {
    check(cudaSetDevice(gpu));
    const cudaMemPool_t pool = pool_of(gpu);
    if (pool == nullptr) continue;
    // Free memory may lie in pieces: takes the largest first, as far as the pool gives them without growing.
    const std::uint64_t reserved = read(pool, cudaMemPoolAttrReservedMemCurrent);
    std::vector<void*> pieces;
    for (std::uint64_t bytes = reserved - read(pool, cudaMemPoolAttrUsedMemCurrent); bytes >= 512;) {
      void* piece = nullptr;
      if (cudaMallocFromPoolAsync(&piece, bytes, pool, nullptr) != cudaSuccess) cudaGetLastError();
      if (piece != nullptr && read(pool, cudaMemPoolAttrReservedMemCurrent) > reserved) {
        check(cudaFreeAsync(piece, nullptr));
        check(cudaStreamSynchronize(nullptr));
        check(cudaMemPoolTrimTo(pool, reserved));
        piece = nullptr;
      }
      if (piece == nullptr) {
        bytes /= 2;
        continue;
      }
      check(cudaMemsetAsync(piece, scrub_value, bytes, nullptr));
      pieces.push_back(piece);
      bytes = std::min(bytes, reserved - std::min(reserved, read(pool, cudaMemPoolAttrUsedMemCurrent)));
    }
    for (void* piece : pieces) check(cudaFreeAsync(piece, nullptr));
    check(cudaStreamSynchronize(nullptr));
  }
  if (!gpus.empty()) check(cudaSetDevice(gpus.front()));
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
