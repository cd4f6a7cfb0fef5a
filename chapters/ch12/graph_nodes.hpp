// SPDX-License-Identifier: Apache-2.0
// Graphs that are built node by node: kernel nodes, conditional nodes, and bodies that are captured.
#pragma once
#include <aisp/check.hpp>
#include <aisp/launch.hpp>

#include <span>
#include <tuple>
#include <utility>

namespace aisp::ch12 {

using Node = cudaGraphNode_t;
using Nodes = std::span<const Node>;

// A graph and its executable form. Both live together, because an update names the nodes of the graph.
class NodeGraph {
 public:
  NodeGraph() = default;
  ~NodeGraph() { clear(); }
  NodeGraph(const NodeGraph&) = delete;
  NodeGraph& operator=(const NodeGraph&) = delete;

  // Instantiates what `add_nodes(graph)` builds; replaces an earlier graph.
  template <class AddNodes>
  void build(AddNodes&& add_nodes) {
    clear();
    check(cudaGraphCreate(&graph_, 0));
    std::forward<AddNodes>(add_nodes)(graph_);
    check(cudaGraphInstantiate(&executable_, graph_, 0));
  }
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(executable_, stream)); }
  cudaGraphExec_t executable() const { return executable_; }

 private:
  void clear() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    executable_ = nullptr;
    graph_ = nullptr;
  }
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

// Calls use(parameters) with those of a kernel node, which point to the arguments.
template <class Use, class... Parameters, class... Arguments>
void with_kernel_node(const Use& use, void (*kernel)(Parameters...), const Grid& grid, Arguments... arguments) {
  std::tuple<Parameters...> values{arguments...};
  std::apply(
      [&](auto&... value) {
        void* pointers[sizeof...(Parameters) + 1] = {static_cast<void*>(&value)...};
        cudaKernelNodeParams node{};
        node.func = reinterpret_cast<void*>(kernel);
        node.gridDim = grid.blocks;
        node.blockDim = grid.threads;
        node.sharedMemBytes = static_cast<unsigned>(grid.shared_bytes);
        node.kernelParams = pointers;
        use(node);
      },
      values);
}

// A kernel that runs after all nodes of `after`.
template <class... Parameters, class... Arguments>
Node add_kernel(cudaGraph_t graph, Nodes after, void (*kernel)(Parameters...), const Grid& grid, Arguments... arguments) {
  Node added = nullptr;
  with_kernel_node([&](const auto& node) { check(cudaGraphAddKernelNode(&added, graph, after.data(), after.size(), &node)); },
                   kernel, grid, arguments...);
  return added;
}

inline cudaGraphConditionalHandle conditional_handle(cudaGraph_t graph) {
  cudaGraphConditionalHandle handle{};
  check(cudaGraphConditionalHandleCreate(&handle, graph, 0, 0));
  return handle;
}
// The same, for a handle that has this value at the start of each launch.
inline cudaGraphConditionalHandle conditional_handle(cudaGraph_t graph, unsigned value) {
  cudaGraphConditionalHandle handle{};
  check(cudaGraphConditionalHandleCreate(&handle, graph, value, cudaGraphCondAssignDefault));
  return handle;
}

struct Conditional {
  Node node;
  std::span<const cudaGraph_t> bodies;  // to be filled
};
inline Conditional add_conditional(cudaGraph_t graph, Nodes after, cudaGraphConditionalHandle handle,
                                   cudaGraphConditionalNodeType type, unsigned bodies) {
  cudaGraphNodeParams parameters{};
  parameters.type = cudaGraphNodeTypeConditional;
  parameters.conditional.handle = handle;
  parameters.conditional.type = type;
  parameters.conditional.size = bodies;
  Node added = nullptr;
  check(cudaGraphAddNode(&added, graph, after.data(), nullptr, after.size(), &parameters));
  return {added, {parameters.conditional.phGraph_out, bodies}};
}

// Adds what `work(stream)` queues to a graph that has no nodes yet, such as a body.
template <class Work>
void capture_into(cudaGraph_t graph, cudaStream_t stream, const Work& work) {
  check(cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, cudaStreamCaptureModeThreadLocal));
  try {
    work(stream);
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph));
}

}  // namespace aisp::ch12
