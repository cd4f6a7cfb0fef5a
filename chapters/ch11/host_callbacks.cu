// SPDX-License-Identifier: Apache-2.0
// An object detector: the GPU scores a million boxes of a chunk and proposes the best of each cell, the CPU suppresses proposals
// that overlap a better one. It stands for any work of the CPU that cannot move to the GPU (this one could). A host that waits,
// works and then launches the next chunk leaves the GPU idle while it works. Launched one chunk ahead, both work at once; with a
// callback or a worker thread the calling thread is free as well. The floor is that of the scores: 2048 dp4a a box.
#include <cuda.h>
#include <aisp/device/reduce.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/driver_function.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

namespace aisp::ch11 {
namespace {

constexpr unsigned boxes = 1u << 20;  // of a chunk
constexpr unsigned templates = 512, threads = 256;
constexpr std::size_t buffers = 2;

// Corners; 16 bits each.
struct Box {
  std::int16_t left, top, right, bottom;
};
struct Proposal {
  std::uint64_t rank;  // score in the high half, the smaller index first among equals
  std::uint32_t index;
  std::uint32_t unused;
  Box box;
};
using Proposals = std::vector<Proposal>;

// The best match of 16 features with any of the templates: a network in one line.
__device__ int score(uint4 features, const uint4* weights) {
  int best = INT_MIN;
#pragma unroll 4
  for (unsigned t = 0; t < templates; ++t) {
    const uint4 w = weights[t];
    const auto product = [](unsigned a, unsigned b, int sum) { return __dp4a(static_cast<int>(a), static_cast<int>(b), sum); };
    best = max(best, product(features.w, w.w, product(features.z, w.z, product(features.y, w.y, product(features.x, w.x, 0)))));
  }
  return best;
}
__host__ __device__ constexpr std::uint64_t rank_of(int score, std::uint32_t index) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(score) ^ 0x80000000u) << 32 | (0xFFFFFFFFu - index);
}

// A block proposes the best box of its cell.
__global__ __launch_bounds__(threads) void propose_kernel(const uint4* features, const Box* corners, const uint4* weights,
                                                          Proposal* proposals, unsigned cell) {
  __shared__ uint4 shared[templates];
  __shared__ std::uint64_t of_warps[device::largest_block_in_warps];
  for (unsigned t = threadIdx.x; t < templates; t += threads) shared[t] = weights[t];
  __syncthreads();
  std::uint64_t best = 0;
  for (unsigned i = threadIdx.x; i < cell; i += threads) {
    const std::uint32_t index = blockIdx.x * cell + i;
    best = max(best, rank_of(score(features[index], shared), index));
  }
  best = device::block_reduce(best, std::uint64_t{0}, device::Max{}, of_warps);
  if (threadIdx.x != 0) return;
  const std::uint32_t index = 0xFFFFFFFFu - static_cast<std::uint32_t>(best);
  proposals[blockIdx.x] = {best, index, 0, corners[index]};
}

__global__ void scores_kernel(const uint4* features, const uint4* weights, int* scores) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  scores[i] = score(features[i], weights);
}

// Whether they share more than half of what they cover together.
bool overlap(const Box& a, const Box& b) {
  const int width = std::min(a.right, b.right) - std::max(a.left, b.left);
  const int height = std::min(a.bottom, b.bottom) - std::max(a.top, b.top);
  if (width <= 0 || height <= 0) return false;
  const auto area = [](const Box& box) { return (box.right - box.left) * (box.bottom - box.top); };
  const int both = width * height;
  return 2 * both > area(a) + area(b) - both;
}

// Keeps the best proposal, drops what overlaps it, and so on; writes the kept indices, then -1.
void suppress(const Proposal* first, std::size_t count, std::int32_t* kept) {
  Proposals sorted(first, first + count);
  std::sort(sorted.begin(), sorted.end(), [](const Proposal& a, const Proposal& b) { return a.rank > b.rank; });
  std::vector<Box> winners;
  std::fill_n(kept, count, -1);
  for (const Proposal& proposal : sorted) {
    const auto covers = [&](const Box& winner) { return overlap(winner, proposal.box); };
    if (std::any_of(winners.begin(), winners.end(), covers)) continue;
    kept[winners.size()] = static_cast<std::int32_t>(proposal.index);
    winners.push_back(proposal.box);
  }
}

class HostCallbacks final : public Workload {
 public:
  explicit HostCallbacks(Setup& setup)
      : chunks_{setup.scaled(32)},
        proposals_{setup.size("proposals")},
        gpu_{setup.device_ordinal(0)},
        features_{setup.input<std::uint32_t>(chunks_ * boxes * 4, integers(0, 0xFFFFFFFF), {.name = "features"})},
        corners_{setup.input<Box>(chunks_ * boxes, HostFill<Box>{draw_corners}, {.name = "boxes", .constant = true})},
        weights_{setup.input<std::uint32_t>(templates * 4, integers(0, 0xFFFFFFFF), {.name = "templates"})},
        kept_{setup.output<std::int32_t>(chunks_ * proposals_, {.name = "kept", .memory = Memory::pinned})},
        best_{setup.scratch<Proposal>(chunks_ * proposals_, {.name = "proposals"})},
        arrived_{setup.scratch<Proposal>(chunks_ * proposals_, {.name = "proposals on the host", .memory = Memory::pinned})},
        finished_{setup.scratch<std::uint32_t>(1, {.name = "chunks done", .memory = Memory::pinned})},
        scores_{setup.scratch<std::int32_t>(boxes)},
        side_{setup.stream()},
        joined_{setup.event()} {
    for (std::size_t chunk = 0; chunk < chunks_; ++chunk) {
      copied_.push_back(setup.event());
      calls_.push_back({this, chunk});
    }
  }
  ~HostCallbacks() override {
    if (!worker_.joinable()) return;
    stopping_ = true;
    hand_over();
    worker_.join();
  }

  // An SM takes 64 dp4a a cycle.
  Cost cost() const override {
    const double products = 4.0 * templates * boxes * static_cast<double>(chunks_);
    const double a_second = 64.0 * multiprocessors() * 1e3 * device_attribute(cudaDevAttrClockRate);
    return {.device_to_host = static_cast<double>(arrived_.bytes()), .seconds = products / a_second};
  }

  // Scores by a plain kernel, some of them again on the CPU; cells and suppression by another algorithm than the variants'.
  void compute_reference(Launch& launch) override {
    expected_.assign(chunks_ * proposals_, -1);
    std::vector<int> scores(boxes);
    for (std::size_t chunk = 0; chunk < chunks_; ++chunk) {
      launch(scores_kernel, {boxes / threads, threads}, features(chunk), weights(), scores_);
      check(cudaMemcpyAsync(scores.data(), scores_, scores_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
      check(cudaStreamSynchronize(launch.stream));
      for (std::size_t i = 0; i < boxes; i += boxes / 16)
        if (scores[i] != plain_score(chunk * boxes + i)) throw std::logic_error{"the reference's scores are wrong"};
      keep_best(chunk, scores);
    }
  }
  double expected(std::size_t index) const override { return expected_[index]; }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report("submit_time", submit_ms_, "ms", Metrics::Better::lower);
    metrics.report_rate("chunks", static_cast<double>(chunks_), "chunks/s");
  }

  void wait_for_each(Launch& launch) {
    const Submission time{*this};
    for (std::size_t chunk = 0; chunk < chunks_; ++chunk) {
      propose(chunk, 0, launch.stream);
      check(cudaStreamSynchronize(launch.stream));
      finish(chunk, 0);
    }
  }
  void double_buffered(Launch& launch) {
    const Submission time{*this};
    propose(0, 0, launch.stream);
    for (std::size_t chunk = 0; chunk < chunks_; ++chunk) {
      if (chunk + 1 < chunks_) propose(chunk + 1, (chunk + 1) % buffers, launch.stream);
      check(cudaEventSynchronize(copied_[chunk]));
      finish(chunk, chunk % buffers);
    }
  }
  // Proposals have a buffer for each chunk from here on: nothing makes the GPU wait for the CPU.
  void launch_host_func(Launch& launch) {
    const Submission time{*this};
    for (std::size_t chunk = 0; chunk < chunks_; ++chunk) {
      propose(chunk, chunk, launch.stream);
      check(cudaStreamWaitEvent(side_, copied_[chunk]));
      check(cudaLaunchHostFunc(side_, finish_call, &calls_[chunk]));
    }
    check(cudaEventRecord(joined_, side_));
    check(cudaStreamWaitEvent(launch.stream, joined_));
  }
  void callback_same_stream(Launch& launch) {
    const Submission time{*this};
    for (std::size_t chunk = 0; chunk < chunks_; ++chunk) {
      propose(chunk, chunk, launch.stream);
      check(cudaLaunchHostFunc(launch.stream, finish_call, &calls_[chunk]));
    }
  }
  void start_worker(Launch&) {
    wait_value_ = &required_driver_function<decltype(cuStreamWaitValue32)>("cuStreamWaitValue32", 12000);
    if (!worker_.joinable()) worker_ = std::thread{[this] { serve(); }};
  }
  void worker_thread(Launch& launch) {
    const Submission time{*this};
    finished().store(0);
    for (std::size_t chunk = 0; chunk < chunks_; ++chunk) {
      propose(chunk, chunk, launch.stream);
      hand_over();
    }
    // The stream, not the calling thread, waits until the worker is done with the last chunk.
    if (wait_value_(launch.stream, reinterpret_cast<CUdeviceptr>(finished_.get()), static_cast<unsigned>(chunks_),
                    CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS)
      throw Unsupported{"the driver's streams cannot wait for a value in memory"};
  }

 private:
  struct Call {
    HostCallbacks* workload;
    std::size_t chunk;
  };
  // How long the calling thread was held.
  class Submission {
   public:
    explicit Submission(HostCallbacks& workload) : workload_{workload} {}
    ~Submission() {
      workload_.submit_ms_ = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_).count();
    }
    Submission(const Submission&) = delete;
    Submission& operator=(const Submission&) = delete;

   private:
    HostCallbacks& workload_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  };

  // Around some objects: most proposals overlap a better one.
  static void draw_corners(std::span<Box> all, std::uint64_t seed) {
    constexpr int objects = 48, places = 900, size = 60, spread = 16;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::uint64_t bits = random_bits(seed, i), object = random_bits(seed + 1, bits % objects);
      const auto near = [bits](std::uint64_t from, int shift) {
        return static_cast<std::int16_t>(from + (bits >> shift & 0xFFF) % spread);
      };
      const std::int16_t left = near((object & 0xFFFF) % places, 8), top = near((object >> 16 & 0xFFFF) % places, 20);
      all[i] = {left, top, near(static_cast<std::uint64_t>(left + size), 32), near(static_cast<std::uint64_t>(top + size), 44)};
    }
  }

  const uint4* features(std::size_t chunk) const { return reinterpret_cast<const uint4*>(features_.get()) + chunk * boxes; }
  const uint4* weights() const { return reinterpret_cast<const uint4*>(weights_.get()); }
  std::atomic_ref<std::uint32_t> finished() const { return std::atomic_ref{*finished_.get()}; }
  unsigned cell() const { return boxes / static_cast<unsigned>(proposals_); }

  void propose(std::size_t chunk, std::size_t buffer, cudaStream_t stream) {
    launch_kernel(stream, propose_kernel, {static_cast<unsigned>(proposals_), threads}, features(chunk), corners_ + chunk * boxes,
                  weights(), best_ + buffer * proposals_, cell());
    check(cudaMemcpyAsync(arrived_ + buffer * proposals_, best_ + buffer * proposals_, proposals_ * sizeof(Proposal),
                          cudaMemcpyDeviceToHost, stream));
    check(cudaEventRecord(copied_[chunk], stream));
  }
  void finish(std::size_t chunk, std::size_t buffer) const {
    suppress(arrived_ + buffer * proposals_, proposals_, kept_ + chunk * proposals_);
  }
  static void finish_call(void* call) {
    const auto& [workload, chunk] = *static_cast<Call*>(call);
    workload->finish(chunk, chunk);
  }
  void hand_over() {
    ++submitted_;
    submitted_.notify_one();
  }
  void serve() {
    cudaSetDevice(gpu_);
    for (std::uint32_t served = 0;; ++served) {
      submitted_.wait(served);
      if (stopping_) return;
      const std::size_t chunk = served % chunks_;
      cudaEventSynchronize(copied_[chunk]);
      finish(chunk, chunk);
      finished().store(static_cast<std::uint32_t>(chunk + 1));
    }
  }

  int plain_score(std::size_t box) const {
    int best = INT32_MIN;
    for (std::size_t t = 0; t < templates; ++t) {
      int sum = 0;
      for (std::size_t byte = 0; byte < 16; ++byte) {
        const auto value = [&](std::uint32_t word) { return static_cast<int>(static_cast<std::int8_t>(word >> byte % 4 * 8)); };
        sum += value(features_.host(box * 4 + byte / 4)) * value(weights_.host(t * 4 + byte / 4));
      }
      best = std::max(best, sum);
    }
    return best;
  }
  // Takes the best of what is left and drops all that overlaps it.
  void keep_best(std::size_t chunk, const std::vector<int>& scores) {
    Proposals left;
    for (std::size_t c = 0; c < proposals_; ++c) {
      Proposal best{};
      for (unsigned i = 0; i < cell(); ++i) {
        const auto index = static_cast<std::uint32_t>(c * cell() + i);
        if (const std::uint64_t rank = rank_of(scores[index], index); rank > best.rank)
          best = {rank, index, 0, corners_.host(chunk * boxes + index)};
      }
      left.push_back(best);
    }
    for (std::size_t kept = 0; !left.empty(); ++kept) {
      const Proposal best =
          *std::max_element(left.begin(), left.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
      expected_[chunk * proposals_ + kept] = static_cast<std::int32_t>(best.index);
      std::erase_if(left, [&](const Proposal& other) { return other.rank == best.rank || overlap(best.box, other.box); });
    }
  }

  std::size_t chunks_, proposals_;
  int gpu_;
  Input<std::uint32_t> features_;
  Input<Box> corners_;
  Input<std::uint32_t> weights_;
  Output<std::int32_t> kept_;
  Scratch<Proposal> best_, arrived_;
  Scratch<std::uint32_t> finished_;
  Scratch<std::int32_t> scores_;
  cudaStream_t side_;
  cudaEvent_t joined_;
  std::vector<cudaEvent_t> copied_;
  std::vector<Call> calls_;
  double submit_ms_ = 0;
  std::vector<std::int32_t> expected_;
  decltype(cuStreamWaitValue32)* wait_value_ = nullptr;
  std::atomic<std::uint32_t> submitted_{0};  // chunks, in all runs
  std::atomic<bool> stopping_{false};
  std::thread worker_;
};

}  // namespace

extern constinit const Pair host_callbacks{
    .teaches =
        "work of the CPU belongs beside the stream, not between its kernels: launch the next chunk before working on this one",
    .lesson = "double_buffered",
    .make = make<HostCallbacks>,
    .baseline = {.name = "wait_for_each", .run = call<&HostCallbacks::wait_for_each>},
    .optimized = variants(
        {{.name = "double_buffered", .run = call<&HostCallbacks::double_buffered>},
         {.name = "launch_host_func", .run = call<&HostCallbacks::launch_host_func>, .host_callbacks = true},
         {.name = "worker_thread", .run = call<&HostCallbacks::worker_thread>, .prepare = call<&HostCallbacks::start_worker>}}),
    .controls =
        variants({{.name = "callback_same_stream", .run = call<&HostCallbacks::callback_same_stream>, .host_callbacks = true}}),
    .bound = Bound::host,
    .tolerance = exact,
    .needs = {.cpus = 2},
    .start = Start::immediate,  // the host's work is part of it
    .timeline = true,
    .sizes = sizes({{.name = "proposals", .full = 1024, .multiple = 64, .most = 4096, .scales = false}}),
    .sweep = cases({{"proposals_256", "proposals=256"},
                    {"proposals_512", "proposals=512"},
                    {"proposals_1024", "proposals=1024"},
                    {"proposals_2048", "proposals=2048"},
                    {"proposals_4096", "proposals=4096"}}),
    .edges = cases({{"few_proposals", "proposals=64"}}),
};

}  // namespace aisp::ch11
