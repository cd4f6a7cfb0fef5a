// SPDX-License-Identifier: Apache-2.0
#include "measure/execution/cold_cache.hpp"

#include <aisp/check.hpp>

#include <algorithm>

#include "measure/gpu_kernels.hpp"

namespace aisp::measure {

ColdCache::ColdCache(const std::vector<int>& gpu_ordinals) {
  for (const int gpu : gpu_ordinals) {
    check(cudaSetDevice(gpu));
    int l2_bytes = 0;
    check(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, gpu));
    Flush flush{gpu, nullptr, std::max<std::size_t>(2 * static_cast<std::size_t>(l2_bytes), std::size_t{32} << 20), nullptr};
    check(cudaMalloc(&flush.data, flush.bytes));
    check(cudaStreamCreateWithFlags(&flush.stream, cudaStreamNonBlocking));
    flushes_.push_back(flush);
  }
  check(cudaSetDevice(gpu_ordinals.at(0)));
}

ColdCache::~ColdCache() {
  for (const Flush& flush : flushes_) {
    cudaFree(flush.data);
    cudaStreamDestroy(flush.stream);
  }
}

void ColdCache::evict() {
  ++value_;
  for (std::size_t i = 0; i < flushes_.size(); ++i) {
    if (flushes_.size() > 1) check(cudaSetDevice(flushes_[i].gpu));
    check(cudaCtxResetPersistingL2Cache());
    launch_evict_l2(flushes_[i].data, flushes_[i].bytes, value_, flushes_[i].stream);
  }
  if (flushes_.size() > 1) check(cudaSetDevice(flushes_[0].gpu));
}

void ColdCache::wait() {
  for (const Flush& flush : flushes_) check(cudaStreamSynchronize(flush.stream));
}

void ColdCache::drain() {
  for (std::size_t i = 0; i < flushes_.size(); ++i) {
    if (flushes_.size() > 1) check(cudaSetDevice(flushes_[i].gpu));
    check(cudaCtxResetPersistingL2Cache());
    launch_read(flushes_[i].data, flushes_[i].bytes, value_, flushes_[i].stream);
  }
  if (flushes_.size() > 1) check(cudaSetDevice(flushes_[0].gpu));
}

}  // namespace aisp::measure
