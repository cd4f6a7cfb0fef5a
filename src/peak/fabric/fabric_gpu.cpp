// SPDX-License-Identifier: Apache-2.0
// From each GPU to each: copies one way and both ways, and the latency of a load.
#include <aisp/peer.hpp>

#include <memory>

#include "base/device_memory.hpp"
#include "measure/statistics/statistics.hpp"
#include "peak/kernels.hpp"
#include "peak/levels/staircase.hpp"
#include "peak/parts.hpp"

namespace aisp::peak {
namespace {

constexpr std::size_t pair_copy_bytes = 256 * mib;
constexpr int copies_a_sample = 4, pair_samples = 3;
constexpr double slow_copy_s = 4e-3;  // one copy that takes longer is a sample: the events' own time is nothing against it
constexpr std::size_t peer_line_bytes = 128, peer_lines = 2048;
constexpr std::size_t peer_load_warm_up = 512;

// Memory, stream and events of the selected GPU.
struct Node {
  explicit Node(int ordinal) : gpu{ordinal} {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    check(cudaEventCreate(&start));
    check(cudaEventCreate(&stop));
    const std::vector<std::uint64_t> places = chase_of_lines(peer_lines * peer_line_bytes, peer_line_bytes, 2 * mib, 1);
    const base::DeviceMemory order{places.size() * sizeof places[0]};
    check(cudaMemcpy(order.data(), places.data(), places.size() * sizeof places[0], cudaMemcpyHostToDevice));
    launch_link(chain.data(), order.as<std::uint64_t>(), places.size(), Links::cycle, stream);
    check(cudaStreamSynchronize(stream));
    first = chain.as<char>() + places.front();
  }
  ~Node() {
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    cudaStreamDestroy(stream);
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  int gpu;
  base::DeviceMemory sent{pair_copy_bytes}, received{pair_copy_bytes};
  base::DeviceMemory chain{peer_lines * peer_line_bytes}, time{sizeof(ChaseTime)};
  cudaStream_t stream = nullptr;
  cudaEvent_t start = nullptr, stop = nullptr;
  const char* first = nullptr;
};

void copy(const Node& from, const Node& to) {
  check(cudaMemcpyPeerAsync(to.received.data(), to.gpu, from.sent.data(), from.gpu, pair_copy_bytes, from.stream));
}

// Returns the seconds of so many copies, with as many in the other direction at the same time where `both`.
double copy_seconds(const Node& from, const Node& to, bool both, int copies) {
  const SelectedGpu selected{from.gpu};
  check(cudaEventRecord(from.start, from.stream));
  if (both) check(cudaStreamWaitEvent(to.stream, from.start));
  for (int i = 0; i < copies; ++i) {
    copy(from, to);
    if (both) copy(to, from);
  }
  if (both) {
    const SelectedGpu other{to.gpu};
    check(cudaEventRecord(to.stop, to.stream));
    check(cudaStreamWaitEvent(from.stream, to.stop));
  }
  check(cudaEventRecord(from.stop, from.stream));
  check(cudaStreamSynchronize(from.stream));
  float ms = 0;
  check(cudaEventElapsedTime(&ms, from.start, from.stop));
  return ms * 1e-3;
}

double copy_bytes_s(const Node& from, const Node& to, bool both) {
  const int copies = copy_seconds(from, to, both, 1) > slow_copy_s ? 1 : copies_a_sample;
  std::vector<double> samples_s;
  for (int i = 0; i < pair_samples; ++i) samples_s.push_back(copy_seconds(from, to, both, copies));
  return static_cast<double>(pair_copy_bytes) * copies * (both ? 2 : 1) / measure::median(samples_s);
}

// Returns the latency of a load: one thread of `reader` follows a chain through `owner`'s memory, past L1.
double load_seconds(const Node& reader, const Node& owner) {
  const SelectedGpu selected{reader.gpu};
  std::vector<double> samples_s;
  for (int i = 0; i < pair_samples; ++i) {
    launch_chase(owner.first, peer_load_warm_up, peer_lines, false, reader.time.as<ChaseTime>(), reader.stream);
    ChaseTime time;
    check(cudaMemcpyAsync(&time, reader.time.data(), sizeof time, cudaMemcpyDeviceToHost, reader.stream));
    check(cudaStreamSynchronize(reader.stream));
    samples_s.push_back(static_cast<double>(time.ns) * 1e-9 / peer_lines);
  }
  return measure::median(samples_s);
}

bool reaches(int from, int to) {
  int possible = 0;
  return cudaDeviceCanAccessPeer(&possible, from, to) == cudaSuccess && possible != 0;
}

void measure_pairs(int gpus, Fabric& fabric) {
  std::vector<std::unique_ptr<Node>> nodes;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    const SelectedGpu selected{gpu};
    nodes.push_back(std::make_unique<Node>(gpu));
  }
  for (const auto& from : nodes)
    for (const auto& to : nodes) {
      if (from == to) continue;
      FabricPair pair{.from = from->gpu, .to = to->gpu, .direct = reaches(from->gpu, to->gpu)};
      std::unique_ptr<PeerAccess> there, back;
      if (pair.direct) there = std::make_unique<PeerAccess>(pair.from, pair.to);
      if (pair.direct && reaches(pair.to, pair.from)) back = std::make_unique<PeerAccess>(pair.to, pair.from);
      pair.bytes_s = copy_bytes_s(*from, *to, false);
      const FabricPair* const known = fabric.find(pair.to, pair.from);
      pair.both_bytes_s = known != nullptr ? known->both_bytes_s : copy_bytes_s(*from, *to, true);
      if (pair.direct) pair.latency_s = load_seconds(*from, *to);
      fabric.pairs.push_back(pair);
    }
}

}  // namespace

Fabric measure_fabric(const FabricTeller& tell) {
  int gpus = 0;
  check(cudaGetDeviceCount(&gpus));
  Fabric fabric;
  for (int gpu = 0; gpu < gpus; ++gpu) fabric.gpus.push_back({.ordinal = gpu});
  tell(fabric, "copying between GPUs");
  measure_pairs(gpus, fabric);
  measure_curves(gpus, fabric, tell);
  return fabric;
}

}  // namespace aisp::peak
