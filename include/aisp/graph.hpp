// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/check.hpp>

#include <utility>

namespace aisp {

// A captured and instantiated CUDA graph.
class Graph {
 public:
  Graph() = default;
  ~Graph() { clear(); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Captures the work that `work(stream)` queues; nothing runs. Replaces an earlier capture.
  template <class Work>
  void capture(cudaStream_t stream, Work&& work) {
    clear();
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    try {
      std::forward<Work>(work)(stream);
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph));
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    check(status);
  }
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(executable_, stream)); }

 private:
  void clear() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    executable_ = nullptr;
  }
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace aisp
