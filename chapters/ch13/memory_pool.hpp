// SPDX-License-Identifier: Apache-2.0
// A pool of stream-ordered allocations.
#pragma once
#include <aisp/check.hpp>

#include <cstddef>
#include <cstdint>

namespace aisp::ch13 {

class MemoryPool {
 public:
  static constexpr std::uint64_t keep_all = ~std::uint64_t{0};

  // Above `kept_bytes`, free memory goes back to the driver at each synchronization; 0 is CUDA's default.
  explicit MemoryPool(int gpu, std::uint64_t kept_bytes = 0) {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = gpu;
    check(cudaMemPoolCreate(&pool_, &properties));
    if (kept_bytes > 0) check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &kept_bytes));
  }
  ~MemoryPool() { cudaMemPoolDestroy(pool_); }
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  void* allocate(std::size_t bytes, cudaStream_t stream) const {
    void* memory = nullptr;
    check(cudaMallocFromPoolAsync(&memory, bytes, pool_, stream));
    return memory;
  }
  void empty() const { check(cudaMemPoolTrimTo(pool_, 0)); }
  std::uint64_t reserved_bytes() const {
    std::uint64_t bytes = 0;
    check(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &bytes));
    return bytes;
  }

 private:
  cudaMemPool_t pool_ = nullptr;
};

}  // namespace aisp::ch13
