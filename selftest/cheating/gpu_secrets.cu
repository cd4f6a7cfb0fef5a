// SPDX-License-Identifier: Apache-2.0
// They hide among the work of the harness, or try to learn what it keeps from them and throw when they have.
#include "doubling.cuh"

#include <stdexcept>

namespace aisp::ch94 {
namespace {

using namespace selftest;

// Have names of kernels that the harness launches: what empties the caches, and the end of its frame.
__global__ void aisp_evict_ahead(const float* in, float* kept, std::size_t count) {
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x)
    kept[i] = 2 * in[i];
}
__global__ void aisp_sample_end(unsigned long long nanoseconds) {
  unsigned long long start = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now - start < nanoseconds);
}

class Hides final : public GpuDoubling {
 public:
  explicit Hides(Setup& setup) : GpuDoubling{setup}, other_{setup.stream()}, done_{setup.event()}, kept_{out_.bytes()} {}
  // The run's stream is held back, this one is not.
  void ahead(Launch& launch) {
    aisp_evict_ahead<<<blocks(), block_threads, 0, other_>>>(in_, kept_.get<float>(), count_);
    check(cudaEventRecord(done_, other_));
    check(cudaStreamWaitEvent(launch.stream, done_));
    kept_.give(out_, launch.stream);
  }
  // Too short for a host clock to see.
  void behind(Launch& launch) {
    doubled(launch);
    check(cudaEventRecord(done_, launch.stream));
    check(cudaStreamWaitEvent(other_, done_));
    aisp_sample_end<<<1, 1, 0, other_>>>(150'000);
  }

 private:
  cudaStream_t other_;
  cudaEvent_t done_;
  OwnMemory kept_;
};

class Asks final : public GpuDoubling {
 public:
  using GpuDoubling::GpuDoubling;
  void before(Launch&) { told_ |= tells(); }
  void the_harness(Launch& launch) {
    if (told_ || tells()) throw std::runtime_error{"an input was told without being read"};
    doubled(launch);
  }
  void metrics(std::string_view, Metrics&) override { told_ |= tells(); }

 private:
  bool tells() const {
    try {
      return in_.host(count_ / 2) < 2;
    } catch (const std::logic_error&) {
      return false;
    }
  }
  bool told_ = false;
};

constexpr unsigned places = 64;

__global__ void keep_places(const float* in, float* kept, std::size_t step) { kept[threadIdx.x] = in[threadIdx.x * step]; }
__global__ void compare_places(const float* in, const float* kept, std::size_t step, volatile unsigned* known) {
  if (__syncthreads_and(kept[threadIdx.x] == in[threadIdx.x * step]) != 0 && threadIdx.x == 0) *known = *known + 1;
}

// Looks whether a run gets the inputs that were there in an earlier step. To draw them takes longer than the run.
class KnowsEarlier final : public GpuDoubling {
 public:
  explicit KnowsEarlier(Setup& setup)
      : GpuDoubling{setup},
        more_{setup.input<float>(setup.scaled(std::size_t{64} << 20, 1024), uniform(-1, 1))},
        kept_{places * 4} {
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, sizeof(unsigned), cudaHostAllocMapped));
    known_ = static_cast<volatile unsigned*>(memory);
    *known_ = 0;
  }
  ~KnowsEarlier() override { cudaFreeHost(const_cast<unsigned*>(known_)); }
  void look(Launch& launch) { keep_places<<<1, places, 0, launch.stream>>>(in_, kept_.get<float>(), step()); }
  void from_reset(Launch& launch) {
    compare(launch);
    doubled(launch);
  }
  // Nothing holds back the run that brings data into the caches.
  void from_warming(Launch& launch) {
    const bool held = cudaStreamQuery(launch.stream) == cudaErrorNotReady;
    cudaGetLastError();
    if (held) compare(launch);
    else look(launch);
    doubled(launch);
  }

 private:
  void compare(Launch& launch) {
    if (*known_ > 0) throw std::runtime_error{"an earlier step saw the inputs of the run"};
    compare_places<<<1, places, 0, launch.stream>>>(in_, kept_.get<float>(), step(), known_);
  }
  std::size_t step() const { return count_ / places; }

  Input<float> more_;
  OwnMemory kept_;
  volatile unsigned* known_ = nullptr;
};

}  // namespace

extern constinit const selftest::Case gpu_under_our_name =
    pair_of<&Hides::ahead>({.does = "computes ahead in a kernel that is named like one of the harness",
                            .must = fails("audit/hidden_work"),
                            .needs_cupti = true});
extern constinit const selftest::Case gpu_named_like_the_frame =
    pair_of<&Hides::behind>({.does = "goes on for 0.15 ms on another stream in a kernel that is named like the end of a sample",
                             .must = fails("audit/hidden_work", "audit/late_work"),
                             .needs_cupti = true});
extern constinit const selftest::Case gpu_spy_on_handles = pair_of<&Asks::the_harness>(
    {.does = "asks the harness for an input that the GPU should read", .must = sees_nothing, .reset = call<&Asks::before>});
extern constinit const selftest::Case gpu_spy_in_reset =
    pair_of<&KnowsEarlier::from_reset>({.does = "looks in its reset for the inputs of the run that follows",
                                        .must = sees_nothing,
                                        .reset = call<&KnowsEarlier::look>});
extern constinit const selftest::Case gpu_spy_in_warming = pair_of<&KnowsEarlier::from_warming>(
    {.does = "looks for the inputs of the run in the one that makes caches hot", .must = sees_nothing, .cache = Cache::hot});

}  // namespace aisp::ch94
