// SPDX-License-Identifier: Apache-2.0
// NCCL's collectives by size, as nccl-tests measure them from one process: out of place, in fp32, on the host's clock over
// executions in a row. Every size is executed once more to check all that each rank received.
#include <aisp/libraries/nccl.hpp>
#include <aisp/peer.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <numeric>

#include "base/device_memory.hpp"
#include "base/system/clock.hpp"
#include "measure/statistics/statistics.hpp"
#include "peak/kernels.hpp"
#include "peak/parts.hpp"

namespace aisp::peak {
namespace {

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
