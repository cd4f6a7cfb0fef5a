// SPDX-License-Identifier: Apache-2.0
// A graph on each of two GPUs, captured together: a collective of one process is queued for both at once.
#pragma once
#include <array>

#include "peer_gpus.hpp"

namespace aisp::shared {

class GraphPair {
 public:
  GraphPair() = default;
  ~GraphPair() { clear(); }
  GraphPair(const GraphPair&) = delete;
  GraphPair& operator=(const GraphPair&) = delete;

  // queue(streams) runs once as it is, which loads code and connects ranks: that may not happen during a capture.
  template <class Queue>
  void capture(Streams streams, const Queue& queue) {
    clear();
    queue(streams);
    for (std::size_t gpu = 0; gpu < executables_.size(); ++gpu)
      check(cudaStreamBeginCapture(streams[gpu], cudaStreamCaptureModeThreadLocal));
    std::array<cudaGraph_t, 2> graphs{};
    const auto end = [&] {
      cudaError_t status = cudaSuccess;
      for (std::size_t gpu = 0; gpu < graphs.size(); ++gpu)
        if (const cudaError_t ended = cudaStreamEndCapture(streams[gpu], &graphs[gpu]); ended != cudaSuccess) status = ended;
      return status;
    };
    try {
      queue(streams);
    } catch (...) {
      end();
      destroy(graphs);
      throw;
    }
    cudaError_t status = end();  // of both before either becomes executable: no stream of the thread may be in capture then
    for (std::size_t gpu = 0; gpu < graphs.size() && status == cudaSuccess; ++gpu)
      status = cudaGraphInstantiate(&executables_[gpu], graphs[gpu], 0);
    destroy(graphs);
    check(status);
    // Not by the first launch, when the other GPU's graph may already wait for this one.
    for (std::size_t gpu = 0; gpu < executables_.size(); ++gpu) check(cudaGraphUpload(executables_[gpu], streams[gpu]));
  }
  void launch(Streams streams) const {
    for (std::size_t gpu = 0; gpu < executables_.size(); ++gpu) check(cudaGraphLaunch(executables_[gpu], streams[gpu]));
  }

 private:
  static void destroy(const std::array<cudaGraph_t, 2>& graphs) {
    for (cudaGraph_t graph : graphs)
      if (graph != nullptr) cudaGraphDestroy(graph);
  }
  void clear() {
    for (cudaGraphExec_t& executable : executables_) {
      if (executable != nullptr) cudaGraphExecDestroy(executable);
      executable = nullptr;
    }
  }
  std::array<cudaGraphExec_t, 2> executables_{};
};

}  // namespace aisp::shared
