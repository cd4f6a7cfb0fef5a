// SPDX-License-Identifier: Apache-2.0
// Two GPUs driven by one process, each of which may address the other's memory.
#pragma once
#include <aisp/launch.hpp>
#include <aisp/peer.hpp>
#include <aisp/setup.hpp>

#include <array>
#include <span>
#include <utility>

namespace aisp::shared {

using Streams = std::span<const cudaStream_t>;  // one for each GPU

// Returns what `make` makes for GPU 0 and for GPU 1, in this order.
template <class Make>
auto on_both(Make make) {
  return std::array{make(0), make(1)};
}

class TwoGpus {
 public:
  explicit TwoGpus(Setup& setup)
      : ordinals_{setup.device_ordinal(0), setup.device_ordinal(1)},
        done_{setup.event(0), setup.event(1)},
        first_{ordinals_[0], ordinals_[1]},
        second_{ordinals_[1], ordinals_[0]} {}

  int ordinal(int gpu) const { return ordinals_[static_cast<std::size_t>(gpu)]; }
  const int* ordinals() const { return ordinals_.data(); }

  // kernel<<<grid>>>(arguments...) on `stream`, which is one of the GPU's.
  template <class... Parameters, class... Arguments>
  void launch(int gpu, cudaStream_t stream, void (*kernel)(Parameters...), const Grid& grid, Arguments&&... arguments) const {
    const SelectedGpu selected{ordinal(gpu)};
    launch_kernel(stream, kernel, grid, std::forward<Arguments>(arguments)...);
  }
  // Makes work that comes after on `later`, a stream of any GPU, wait for what `earlier`, a stream of `gpu`, holds now.
  void order(int gpu, cudaStream_t earlier, cudaStream_t later) const {
    const cudaEvent_t done = done_[static_cast<std::size_t>(gpu)];
    check(cudaEventRecord(done, earlier));
    check(cudaStreamWaitEvent(later, done));
  }
  // Makes the stream of each GPU wait for the other's, so that what that one wrote into its memory is complete.
  void meet(Streams streams) const {
    for (const std::size_t gpu : {0, 1}) check(cudaEventRecord(done_[gpu], streams[gpu]));
    for (const std::size_t gpu : {0, 1}) check(cudaStreamWaitEvent(streams[gpu], done_[1 - gpu]));
  }
  // Copies `bytes` over the link on a stream of `from`, whose copy engine writes into the other GPU's memory.
  void copy(int from, void* to, const void* data, std::size_t bytes, cudaStream_t stream) const {
    check(cudaMemcpyPeerAsync(to, ordinal(1 - from), data, ordinal(from), bytes, stream));
  }

 private:
  std::array<int, 2> ordinals_;
  std::array<cudaEvent_t, 2> done_;
  PeerAccess first_, second_;
};

}  // namespace aisp::shared
