// SPDX-License-Identifier: Apache-2.0
// Pages of the cache that a GPU fetches from another one's memory.
#pragma once
#include "serving_gpu.hpp"

namespace aisp::decoder {

// Pages of another GPU to own ones, in all layers. blockIdx: the page, the layer twice and 1 for values.
struct Pulled {
  const uint4 *from_k, *from_v;
  uint4 *k, *v;
  const int* pages;  // from and to, in pairs
  std::size_t layer_packets;
  unsigned page_packets;
};
constexpr unsigned pull_threads = 512;
static __global__ __launch_bounds__(pull_threads) void pull_kernel(Pulled work) {
  const std::size_t layer = blockIdx.y / 2 * work.layer_packets;
  const uint4* const from = (blockIdx.y % 2 == 0 ? work.from_k : work.from_v) + layer +
                            static_cast<std::size_t>(work.pages[2 * blockIdx.x]) * work.page_packets;
  uint4* const to = (blockIdx.y % 2 == 0 ? work.k : work.v) + layer +
                    static_cast<std::size_t>(work.pages[2 * blockIdx.x + 1]) * work.page_packets;
  for (unsigned first = threadIdx.x; first < work.page_packets; first += 4 * pull_threads) {
    uint4 kept[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
      if (first + i * pull_threads < work.page_packets) kept[i] = from[first + i * pull_threads];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
      if (first + i * pull_threads < work.page_packets) to[first + i * pull_threads] = kept[i];
  }
}
// `pairs`: of pages there and here, in memory of the GPU that pulls, which is selected.
inline void pull_pages(cudaStream_t stream, const ServingGpu& from, const ServingGpu& to, const int* pairs, int count) {
  const auto packets = [](bf16* elements) { return reinterpret_cast<uint4*>(elements); };
  launch_kernel(stream, pull_kernel, {dim3{static_cast<unsigned>(count), static_cast<unsigned>(2 * to.layers())}, pull_threads},
                Pulled{packets(from.keys(0, 0)), packets(from.values(0, 0)), packets(to.keys(0, 0)), packets(to.values(0, 0)),
                       pairs, to.layer_elements() / 8, static_cast<unsigned>(to.page_elements() / 8)});
}

}  // namespace aisp::decoder
