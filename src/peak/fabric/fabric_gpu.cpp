// SPDX-License-Identifier: Apache-2.0
// From each GPU to each: copies one way and both ways, and the latency of a load. And NCCL's collectives by size, as nccl-tests
// measure them from one process: out of place, in fp32, on the host's clock over executions in a row; every size is executed once
// more to check all that each rank received.
#include <fmt/format.h>
#include <aisp/libraries/nccl.hpp>
#include <aisp/peer.hpp>

#include <algorithm>
#include <bit>
#include <memory>
#include <numeric>

#include "base/device_memory.hpp"
#include "base/system/clock.hpp"
#include "measure/statistics/statistics.hpp"
#include "peak/kernels.hpp"
#include "peak/levels/levels.hpp"
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

constexpr std::size_t least_curve_bytes = kib, most_curve_bytes = gib, curve_step = 4;
constexpr int warm_ups = 5, most_executions = 20, curve_batches = 5;
constexpr double curve_batch_s = 0.02, curve_point_s = 0.2;  // of slow links, fewer executions are enough

// Memory and stream of the selected GPU.
struct Rank {
  Rank(int gpu, std::size_t bytes) : sent{bytes}, received{bytes} {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    launch_pattern(sent.as<float>(), bytes / sizeof(float), gpu, stream);
  }
  ~Rank() { cudaStreamDestroy(stream); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  base::DeviceMemory sent, received, wrong{sizeof(unsigned long long)};
  cudaStream_t stream = nullptr;
};

std::vector<int> first_ordinals(int gpus) {
  std::vector<int> ordinals(static_cast<std::size_t>(gpus));
  std::iota(ordinals.begin(), ordinals.end(), 0);
  return ordinals;
}

// The largest buffer of the curves: an eighth of what is free on the fullest GPU, at most.
std::size_t curve_bytes(int gpus) {
  std::size_t least = 8 * most_curve_bytes;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    const SelectedGpu selected{gpu};
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total));
    least = std::min(least, free);
  }
  return std::bit_floor(least / 8);
}

class Curves {
 public:
  explicit Curves(int gpus) : nccl_{first_ordinals(gpus).data(), gpus}, most_bytes_{curve_bytes(gpus)} {
    for (int gpu = 0; gpu < gpus; ++gpu) {
      const SelectedGpu selected{gpu};
      ranks_.push_back(std::make_unique<Rank>(gpu, most_bytes_));
    }
    synchronize();
  }

  std::vector<CollectiveTime> curve(Collective operation) const {
    std::vector<CollectiveTime> points;
    for (std::size_t bytes = least_curve_bytes; bytes <= most_bytes_; bytes *= curve_step)
      points.push_back(point(operation, bytes));
    return points;
  }

  CollectiveTime largest(Collective operation) const { return point(operation, most_bytes_); }

 private:
  void synchronize() const {
    for (const auto& rank : ranks_) check(cudaStreamSynchronize(rank->stream));
  }

  // `chunk`: elements between two ranks.
  void execute(Collective operation, std::size_t chunk) const {
    constexpr nccl::Type type = nccl::Type::fp32;
    nccl_.together([&] {
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        const int rank = static_cast<int>(i);
        const float* const sent = ranks_[i]->sent.as<float>();
        float* const received = ranks_[i]->received.as<float>();
        const cudaStream_t stream = ranks_[i]->stream;
        switch (operation) {
          case Collective::all_reduce: nccl_.all_reduce(rank, sent, received, chunk * ranks_.size(), type, stream); break;
          case Collective::all_gather: nccl_.all_gather(rank, sent, received, chunk, type, stream); break;
          case Collective::reduce_scatter: nccl_.reduce_scatter(rank, sent, received, chunk, type, stream); break;
          case Collective::all_to_all:
            for (std::size_t peer = 0; peer < ranks_.size(); ++peer) {
              nccl_.send(rank, sent + peer * chunk, chunk, type, static_cast<int>(peer), stream);
              nccl_.receive(rank, received + peer * chunk, chunk, type, static_cast<int>(peer), stream);
            }
            break;
        }
      }
    });
  }

  double seconds(Collective operation, std::size_t chunk, int executions) const {
    const double start_s = base::monotonic_s();
    for (int i = 0; i < executions; ++i) execute(operation, chunk);
    synchronize();
    return (base::monotonic_s() - start_s) / executions;
  }

  CollectiveTime point(Collective operation, std::size_t bytes) const {
    // Chunks of whole 16 bytes, as nccl-tests cut them: three ranks share a little less than `bytes`.
    const std::size_t chunk = bytes / sizeof(float) / ranks_.size() / 4 * 4;
    const double start_s = base::monotonic_s();
    for (int i = 0; i < warm_ups && base::monotonic_s() - start_s < curve_batch_s; ++i) seconds(operation, chunk, 1);
    const double warm_s = seconds(operation, chunk, 1);
    const int executions = std::clamp(static_cast<int>(curve_batch_s / warm_s), 2, most_executions);
    std::vector<double> times_s;
    for (int i = 0; i < curve_batches && (i == 0 || base::monotonic_s() - start_s < curve_point_s); ++i)
      times_s.push_back(seconds(operation, chunk, executions));
    return {.operation = operation,
            .bytes = static_cast<double>(chunk * ranks_.size() * sizeof(float)),
            .seconds = measure::median(times_s),
            .wrong = wrong_elements(operation, chunk)};
  }

  std::uint64_t wrong_elements(Collective operation, std::size_t chunk) const {
    const std::size_t count = operation == Collective::reduce_scatter ? chunk : chunk * ranks_.size();
    constexpr int poison = 0xff;  // all bits set are a NaN
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const SelectedGpu selected{static_cast<int>(i)};
      check(cudaMemsetAsync(ranks_[i]->received.data(), poison, count * sizeof(float), ranks_[i]->stream));
    }
    execute(operation, chunk);
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const int gpu = static_cast<int>(i);
      const SelectedGpu selected{gpu};
      const Rank& rank = *ranks_[i];
      check(cudaMemsetAsync(rank.wrong.data(), 0, sizeof(unsigned long long), rank.stream));
      launch_count_wrong(rank.received.as<float>(), count, expected_of(operation, chunk, gpu, static_cast<int>(ranks_.size())),
                         rank.wrong.as<unsigned long long>(), rank.stream);
      unsigned long long found = 0;
      check(cudaMemcpyAsync(&found, rank.wrong.data(), sizeof found, cudaMemcpyDeviceToHost, rank.stream));
      check(cudaStreamSynchronize(rank.stream));
      wrong += found;
    }
    return wrong;
  }

  Nccl nccl_;
  std::size_t most_bytes_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

// 22803: "2.28.3"
std::string nccl_version() {
  int number = 0;
  check(nccl::function<nccl::Status(int*)>("ncclGetVersion")(&number));
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
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

CollectiveTime measure_collective(int gpus, Collective operation) {
  const CollectiveTime time = Curves{gpus}.largest(operation);
  if (time.wrong > 0) throw std::runtime_error{fmt::format("{} elements of {} were wrong", time.wrong, name_of(operation))};
  return time;
}

Expected expected_of(Collective operation, std::size_t chunk, int rank, int ranks) {
  const auto own = static_cast<std::size_t>(rank) * chunk;
  // Sum of scale x hash + rank over all ranks.
  const auto scale = static_cast<float>(ranks), offset = scale * (scale - 1) / 2;
  switch (operation) {
    case Collective::all_reduce: return {chunk * static_cast<std::size_t>(ranks), 0, scale, offset};
    case Collective::reduce_scatter: return {chunk, own, scale, offset};
    case Collective::all_gather: return {chunk, 0};
    case Collective::all_to_all: return {chunk, own};
  }
  return {};
}

void measure_curves(int gpus, Fabric& fabric, const FabricTeller& tell) try {
  fabric.nccl = nccl_version();
  tell(fabric, fmt::format("NCCL {} was making communicators for {} GPUs", fabric.nccl, gpus));
  const Curves curves{gpus};
  for (std::size_t i = 0; i < collectives; ++i) {
    const auto operation = static_cast<Collective>(i);
    tell(fabric, fmt::format("NCCL {} was executing {}", fabric.nccl, name_of(operation)));
    const std::vector<CollectiveTime> curve = curves.curve(operation);
    fabric.times.insert(fabric.times.end(), curve.begin(), curve.end());
  }
} catch (const std::exception& error) {
  fabric.missing.push_back(fmt::format("collectives: {}{}", error.what(), fabric.nccl.empty() ? "" : nccl_advice));
}

}  // namespace aisp::peak
