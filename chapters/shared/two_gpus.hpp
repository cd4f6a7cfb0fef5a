// SPDX-License-Identifier: Apache-2.0
// Helpers of pairs that are written for exactly two GPUs.
#pragma once
#include <array>

#include "peer_gpus.hpp"

namespace aisp::shared {

// Returns what `make` makes for GPU 0 and for GPU 1, in this order.
template <class Make>
auto on_both(Make make) {
  return std::array{make(0), make(1)};
}

// Copies over the link on a stream of `from`, whose copy engine writes into the other GPU's memory.
inline void copy_to_other(const Gpus& gpus, int from, void* to, const void* data, std::size_t bytes, cudaStream_t stream) {
  check(cudaMemcpyPeerAsync(to, gpus.ordinal(1 - from), data, gpus.ordinal(from), bytes, stream));
}

}  // namespace aisp::shared
