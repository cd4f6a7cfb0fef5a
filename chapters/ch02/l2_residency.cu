// SPDX-License-Identifier: Apache-2.0
// Counting how often each of 64 Mi ids occurs: the ids come in order, the counters they name do not. An addition to a counter
// that is not in L2 moves a whole sector in and out of memory for its four bytes. Taken range by range, so that a range's
// counters stay in L2 until all ids have been seen, the ids are read several times, which streams, and each counter moves only
// once.
#include <aisp/pair.hpp>

#include <algorithm>
#include <atomic>
#include <vector>

namespace aisp::ch02 {
namespace {

constexpr int threads = 512, loads_per_thread = 4, vector = 4;
constexpr std::size_t ids_per_block = std::size_t{threads} * loads_per_thread * vector;

template <bool evict_first>
__device__ uint4 load_ids(const uint4* from) {
  if constexpr (evict_first) return __ldcs(from);
  else return *from;
}

// Counts the ids from `first` on, `range` of them.
template <bool evict_first>
__global__ __launch_bounds__(threads) void count_kernel(const std::uint32_t* ids, std::uint32_t* counters, std::uint32_t first,
                                                        std::uint32_t range) {
  const auto* from = reinterpret_cast<const uint4*>(ids + blockIdx.x * ids_per_block);
  uint4 values[loads_per_thread];
#pragma unroll
  for (int k = 0; k < loads_per_thread; ++k) values[k] = load_ids<evict_first>(from + k * threads + threadIdx.x);
#pragma unroll
  for (const uint4& v : values)
    for (const std::uint32_t id : {v.x, v.y, v.z, v.w})
      if (id - first < range) atomicAdd(counters + id, 1);
}

class L2Residency final : public Workload {
 public:
  explicit L2Residency(Setup& setup)
      : count_{setup.scaled(std::size_t{64} << 20, ids_per_block)},
        ids_{setup.input<std::uint32_t>(count_, integers(0, static_cast<std::uint32_t>(count_ - 1)), {.name = "ids"})},
        counters_{setup.output<std::uint32_t>(count_, {.name = "counters"})},
        team_{setup.threads(std::min(setup.cpus(), 16), false)},
        expected_(count_) {}

  Cost cost() const override { return {.bytes = static_cast<double>(ids_.bytes() + counters_.bytes())}; }

  void compute_reference(Launch&) override {
    std::fill(expected_.begin(), expected_.end(), 0);
    team_.run([this](int worker) {
      const auto of = [this](int part) {
        return count_ * static_cast<std::size_t>(part) / static_cast<std::size_t>(team_.size());
      };
      for (std::size_t i = of(worker); i < of(worker + 1); ++i)
        std::atomic_ref{expected_[ids_.host(i)]}.fetch_add(1, std::memory_order_relaxed);
    });
  }
  double expected(std::size_t index) const override { return expected_[index]; }

  void one_sweep(Launch& launch) { by_ranges<false>(launch, 1); }
  void range_by_range2(Launch& launch) { by_ranges<false>(launch, 4); }
  void range_by_range(Launch& launch) { by_ranges<false>(launch, 6); }
  void range_by_range3(Launch& launch) { by_ranges<false>(launch, 8); }
  void range_by_range4(Launch& launch) { by_ranges<false>(launch, 11); }
  void ids_evicted_first2(Launch& launch) { by_ranges<true>(launch, 6); }
  void ids_evicted_first(Launch& launch) { by_ranges<true>(launch, 8); }

 private:
  template <bool evict_first>
  void by_ranges(Launch& launch, std::size_t ranges) {
    const std::size_t range = (count_ + ranges - 1) / ranges;
    for (std::size_t first = 0; first < count_; first += range) {
      const std::size_t size = std::min(range, count_ - first);
      check(cudaMemsetAsync(counters_ + first, 0, size * sizeof(std::uint32_t), launch.stream));
      count_kernel<evict_first><<<static_cast<unsigned>(count_ / ids_per_block), threads, 0, launch.stream>>>(
          ids_, counters_, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(size));
      check(cudaGetLastError());
    }
  }

  std::size_t count_;
  Input<std::uint32_t> ids_;
  Output<std::uint32_t> counters_;
  ThreadTeam& team_;
  std::vector<std::uint32_t> expected_;
};

}  // namespace

extern constinit const Pair l2_residency{
    .teaches =
        "random accesses are cheap where they meet L2: sweep the ordered data several times, the counters a range at a time",
    .make = make<L2Residency>,
    .baseline = {.name = "one_sweep", .run = call<&L2Residency::one_sweep>},
    .optimized = variants({{.name = "r6", .run = call<&L2Residency::range_by_range>},
                           {.name = "r4", .run = call<&L2Residency::range_by_range2>},
                           {.name = "r8", .run = call<&L2Residency::range_by_range3>},
                           {.name = "r11", .run = call<&L2Residency::range_by_range4>},
                           {.name = "e6", .run = call<&L2Residency::ids_evicted_first2>},
                           {.name = "e8", .run = call<&L2Residency::ids_evicted_first>}}),
    .bound = Bound::memory,
    .tolerance = exact,
};

}  // namespace aisp::ch02
