// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace aisp::measure {

// Empties the L2 of GPUs: persisting lines are reset, and twice the L2 is written and read again. Its buffers
// are allocated once, and its streams are its own: no setting of the pair's streams reaches them.
class ColdCache {
 public:
  explicit ColdCache(const std::vector<int>& gpu_ordinals);  // leaves the first as the present one
  ~ColdCache();
  ColdCache(const ColdCache&) = delete;
  ColdCache& operator=(const ColdCache&) = delete;

  void evict();  // queues the eviction
  void wait();   // waits for queued work
  // Queues reads that evict all lines written since evict().
  void drain();

 private:
  struct Flush {
    int gpu;
    void* data;
    std::size_t bytes;
    cudaStream_t stream;
  };
  std::vector<Flush> flushes_;
  std::uint32_t value_ = 1;
};

}  // namespace aisp::measure
