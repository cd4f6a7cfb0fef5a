// SPDX-License-Identifier: Apache-2.0
// Counting how often each of 64 Mi ids occurs: the ids come in order, the counters that they name do not. An addition to a
// counter that is not in L2 moves a whole sector in and out of memory for its four bytes. Taken a range at a time, so that the
// range's counters stay in L2 until all ids have been seen, each counter moves once. The ids are then read once per range, which
// at least streams, and should leave L2 first; or they are brought into the order of the ranges, tile by tile, and read twice.
#include <aisp/device_attribute.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <atomic>
#include <vector>

namespace aisp::ch02 {
namespace {

constexpr int threads = 512, loads_per_thread = 4, vector = 4;
constexpr unsigned tile = threads * loads_per_thread * vector;  // ids of a block
constexpr unsigned ranges = 11;  // of 24 MiB of counters: 32 MiB no longer stayed in an H200's L2 of 60 MB

__device__ void count(std::uint32_t* counters, std::uint32_t id) { atomicAdd(counters + id, 1); }

// Counts the ids from `first` on, `size` of them.
template <bool leave_first>
__global__ __launch_bounds__(threads) void count_range_kernel(const std::uint32_t* ids, std::uint32_t* counters,
                                                              std::uint32_t first, std::uint32_t size) {
  const auto* from = reinterpret_cast<const uint4*>(ids + blockIdx.x * std::size_t{tile});
  uint4 values[loads_per_thread];
#pragma unroll
  for (int k = 0; k < loads_per_thread; ++k) {
    if constexpr (leave_first) values[k] = __ldcs(from + k * threads + threadIdx.x);
    else values[k] = from[k * threads + threadIdx.x];
  }
#pragma unroll
  for (const uint4& v : values)
    for (const std::uint32_t id : {v.x, v.y, v.z, v.w})
      if (id - first < size) count(counters, id);
}

// Brings the ids of a tile into the order of their ranges and writes down where each range starts: [tile][ranges + 1].
__global__ __launch_bounds__(threads) void group_kernel(const std::uint32_t* ids, std::uint32_t* grouped, std::uint16_t* starts,
                                                        std::uint32_t range_size) {
  __shared__ std::uint32_t sorted[tile];
  __shared__ unsigned counts[ranges], begins[ranges];
  if (threadIdx.x < ranges) counts[threadIdx.x] = 0;
  __syncthreads();
  const auto* from = reinterpret_cast<const uint4*>(ids + blockIdx.x * std::size_t{tile});
  std::uint32_t mine[loads_per_thread][vector];
  ushort2 place[loads_per_thread][vector];  // range, and place within it
#pragma unroll
  for (int k = 0; k < loads_per_thread; ++k) reinterpret_cast<uint4&>(mine[k]) = __ldcs(from + k * threads + threadIdx.x);
#pragma unroll
  for (int k = 0; k < loads_per_thread; ++k)
#pragma unroll
    for (int v = 0; v < vector; ++v) {
      const unsigned range = mine[k][v] / range_size;
      place[k][v] = make_ushort2(static_cast<std::uint16_t>(range), static_cast<std::uint16_t>(atomicAdd(&counts[range], 1)));
    }
  __syncthreads();
  if (threadIdx.x <= ranges) {
    unsigned begin = 0;
    for (unsigned r = 0; r < threadIdx.x; ++r) begin += counts[r];
    if (threadIdx.x < ranges) begins[threadIdx.x] = begin;
    starts[blockIdx.x * (ranges + 1) + threadIdx.x] = static_cast<std::uint16_t>(begin);
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < loads_per_thread; ++k)
#pragma unroll
    for (int v = 0; v < vector; ++v) sorted[begins[place[k][v].x] + place[k][v].y] = mine[k][v];
  __syncthreads();
  auto* to = reinterpret_cast<uint4*>(grouped + blockIdx.x * std::size_t{tile});
#pragma unroll
  for (int k = 0; k < loads_per_thread; ++k)
    to[k * threads + threadIdx.x] = reinterpret_cast<const uint4*>(sorted)[k * threads + threadIdx.x];
}

// Counts one range of all tiles, a warp per tile.
__global__ __launch_bounds__(threads) void count_group_kernel(const std::uint32_t* grouped, const std::uint16_t* starts,
                                                              std::uint32_t* counters, unsigned range, unsigned tiles) {
  constexpr unsigned warp_size = 32;
  const unsigned t = (blockIdx.x * threads + threadIdx.x) / warp_size;
  if (t >= tiles) return;
  const std::uint16_t* const start = starts + t * (ranges + 1) + range;
  for (unsigned i = start[0] + threadIdx.x % warp_size; i < start[1]; i += warp_size)
    count(counters, __ldcs(grouped + std::size_t{t} * tile + i));
}

class L2Residency final : public Workload {
 public:
  explicit L2Residency(Setup& setup)
      : count_{setup.scaled(std::size_t{64} << 20, tile)},
        ids_{setup.input<std::uint32_t>(count_, integers(0, static_cast<std::uint32_t>(count_ - 1)), {.name = "ids"})},
        counters_{setup.output<std::uint32_t>(count_, {.name = "counters"})},
        grouped_{setup.scratch<std::uint32_t>(count_, {.name = "ids by range"})},
        starts_{setup.scratch<std::uint16_t>(tiles() * (ranges + 1), {.name = "starts of ranges"})},
        team_{setup.threads(std::min(setup.cpus(), 16), false)},
        expected_(count_) {}

  // Of any known way, not of the workload: more counters than L2 holds cannot be counted in one reading of the ids without moving
  // a sector for each, so the ids are read, written in the order of their ranges, and read again.
  Cost cost() const override {
    const std::size_t passes = counters_.bytes() > l2_bytes_ ? 3 : 1;
    return {.bytes = static_cast<double>(passes * ids_.bytes() + counters_.bytes())};
  }

  void compute_reference(Launch&) override {
    std::fill(expected_.begin(), expected_.end(), 0);
    team_.run([this](int worker) {
      const auto part = [this](int w) { return count_ * static_cast<std::size_t>(w) / static_cast<std::size_t>(team_.size()); };
      for (std::size_t i = part(worker); i < part(worker + 1); ++i)
        std::atomic_ref{expected_[ids_.host(i)]}.fetch_add(1, std::memory_order_relaxed);
    });
  }
  double expected(std::size_t index) const override { return expected_[index]; }

  void one_sweep(Launch& launch) {
    clear(launch, 0, count_);
    count_range_kernel<false><<<tiles(), threads, 0, launch.stream>>>(ids_, counters_, 0, static_cast<std::uint32_t>(count_));
    check(cudaGetLastError());
  }
  void range_by_range(Launch& launch) { sweep_per_range<false>(launch); }
  void ids_leave_first(Launch& launch) { sweep_per_range<true>(launch); }

  void grouped_ids(Launch& launch) {
    group_kernel<<<tiles(), threads, 0, launch.stream>>>(ids_, grouped_, starts_, range_size());
    check(cudaGetLastError());
    constexpr unsigned tiles_per_block = threads / 32;
    for (unsigned range = 0; range < ranges; ++range) {
      const std::size_t first = std::size_t{range} * range_size();
      if (first >= count_) break;
      clear(launch, first, std::min<std::size_t>(range_size(), count_ - first));
      count_group_kernel<<<(tiles() + tiles_per_block - 1) / tiles_per_block, threads, 0, launch.stream>>>(
          grouped_, starts_, counters_, range, tiles());
      check(cudaGetLastError());
    }
  }

 private:
  unsigned tiles() const { return static_cast<unsigned>(count_ / tile); }
  std::uint32_t range_size() const { return static_cast<std::uint32_t>((count_ + ranges - 1) / ranges); }
  // Right before they are counted: the zeros then are in L2, too.
  void clear(Launch& launch, std::size_t first, std::size_t size) {
    check(cudaMemsetAsync(counters_ + first, 0, size * sizeof(std::uint32_t), launch.stream));
  }

  template <bool leave_first>
  void sweep_per_range(Launch& launch) {
    for (std::size_t first = 0; first < count_; first += range_size()) {
      const std::size_t size = std::min<std::size_t>(range_size(), count_ - first);
      clear(launch, first, size);
      count_range_kernel<leave_first><<<tiles(), threads, 0, launch.stream>>>(ids_, counters_, static_cast<std::uint32_t>(first),
                                                                              static_cast<std::uint32_t>(size));
      check(cudaGetLastError());
    }
  }

  std::size_t count_;
  Input<std::uint32_t> ids_;
  Output<std::uint32_t> counters_;
  Scratch<std::uint32_t> grouped_;
  Scratch<std::uint16_t> starts_;
  ThreadTeam& team_;
  std::size_t l2_bytes_ = static_cast<std::size_t>(device_attribute(cudaDevAttrL2CacheSize));
  std::vector<std::uint32_t> expected_;
};

}  // namespace

extern constinit const Pair l2_residency{
    .teaches = "random accesses are cheap where they meet L2: read what is in order more often, and work range by range",
    .lesson = "range_by_range",
    .make = make<L2Residency>,
    .baseline = {.name = "one_sweep", .run = call<&L2Residency::one_sweep>},
    .optimized = variants({{.name = "range_by_range", .run = call<&L2Residency::range_by_range>},
                           {.name = "ids_leave_first", .run = call<&L2Residency::ids_leave_first>},
                           {.name = "grouped_ids", .run = call<&L2Residency::grouped_ids>}}),
    .bound = Bound::memory,
    .tolerance = exact,
};

}  // namespace aisp::ch02
