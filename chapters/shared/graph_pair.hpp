// SPDX-License-Identifier: Apache-2.0
// A graph on each of two GPUs, captured together: a collective of one process is queued for both at once.
#pragma once
#include <aisp/graph.hpp>

#include <array>

#include "peer_gpus.hpp"

namespace aisp::shared {

class GraphPair {
 public:
  // queue(streams) runs once as it is, which loads code and connects ranks: that may not happen during a capture.
  template <class Queue>
  void capture(Streams streams, const Queue& queue) {
    queue(streams);
    graphs_[0].capture(streams[0], [&](cudaStream_t first) {
      graphs_[1].capture(streams[1], [&](cudaStream_t second) {
        const std::array both{first, second};
        queue(Streams{both});
      });
    });
  }
  void launch(Streams streams) const {
    for (std::size_t gpu = 0; gpu < graphs_.size(); ++gpu) graphs_[gpu].launch(streams[gpu]);
  }

 private:
  std::array<Graph, 2> graphs_;
};

}  // namespace aisp::shared
