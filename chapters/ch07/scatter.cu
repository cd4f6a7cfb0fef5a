// SPDX-License-Identifier: Apache-2.0
// One step of a radix partition: keys move to 256 buckets, in each bucket in the order of the input. The lanes of a warp have
// keys for 32 different places, so a store of 128 bytes touches 32 sectors and fills an eighth of each. Ordered by bucket in
// shared memory first, the keys of a tile leave in runs, and neighbours in a warp write to neighbours in memory.
#include <aisp/pair.hpp>

#include <cub/device/device_radix_sort.cuh>

#include <algorithm>
#include <vector>

#include "tile_rank.cuh"

namespace aisp::ch07 {
namespace {

template <int bits>
struct Space {
  TileRank<bits> rank;
  unsigned base[1 << bits];  // what must be added to a place in the ordered tile to make it one of the output
  unsigned ordered[tile_keys];
};

// `offsets`: where each tile's run of each bucket begins in the output. Both variants rank alike and differ in how keys leave.
template <int bits, bool tile_sorted>
__global__ __launch_bounds__(rank_threads, 2) void scatter_kernel(const unsigned* keys, const unsigned* offsets, unsigned* out) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto& space = *reinterpret_cast<Space<bits>*>(shared);
  constexpr unsigned buckets = 1u << bits;
  const unsigned* from = keys + std::size_t{blockIdx.x} * tile_keys + threadIdx.x / 32 * warp_keys + threadIdx.x % 32;
  unsigned key[lane_keys];
  Ranks rank;
#pragma unroll
  for (int k = 0; k < lane_keys; ++k) key[k] = from[k * 32];
  space.rank.rank(rank, [&](int k) { return key[k] % buckets; });
  const unsigned* of_tile = offsets + std::size_t{blockIdx.x} * buckets;
  space.rank.place([](int, unsigned) {}, [&](int bucket, unsigned start) { space.base[bucket] = of_tile[bucket] - start; });
  if constexpr (tile_sorted) {
#pragma unroll
    for (int k = 0; k < lane_keys; ++k) space.ordered[space.rank.place_of(key[k] % buckets, rank[k])] = key[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < lane_keys; ++k) {
      const unsigned place = k * rank_threads + threadIdx.x, moved = space.ordered[place];
      out[space.base[moved % buckets] + place] = moved;
    }
  } else {
#pragma unroll
    for (int k = 0; k < lane_keys; ++k) {
      const unsigned bucket = key[k] % buckets;
      out[space.base[bucket] + space.rank.place_of(bucket, rank[k])] = key[k];
    }
  }
}

// Keys, then for each tile where its run of each bucket begins. In order: the buckets of neighbours are the same or the next.
void write_keys_and_offsets(std::span<unsigned> all, std::uint64_t seed, std::size_t count, std::size_t buckets, bool in_order) {
  const std::size_t tiles = count / tile_keys;
  unsigned* offsets = all.data() + count;
  std::fill(offsets, offsets + tiles * buckets, 0u);
  for (std::size_t i = 0; i < count; ++i) {
    auto key = static_cast<unsigned>(random_bits(seed, i));
    if (in_order) key = static_cast<unsigned>(key / buckets * buckets + i * buckets / count);
    all[i] = key;
    ++offsets[i / tile_keys * buckets + key % buckets];
  }
  unsigned next = 0;
  for (std::size_t bucket = 0; bucket < buckets; ++bucket)
    for (std::size_t tile = 0; tile < tiles; ++tile) {
      const unsigned run = offsets[tile * buckets + bucket];
      offsets[tile * buckets + bucket] = next;
      next += run;
    }
}

class Scatter final : public Workload {
 public:
  explicit Scatter(Setup& setup)
      : bits_{static_cast<int>(setup.size("bits"))},
        buckets_{std::size_t{1} << bits_},
        count_{setup.scaled(std::size_t{64} << 20, tile_keys)},
        offsets_{count_ / tile_keys * buckets_},
        input_{setup.input<unsigned>(count_ + offsets_, keys(false), {.name = "keys and offsets"})},
        in_order_{setup.input<unsigned>(count_ + offsets_, keys(true), {.name = "keys in order and offsets"})},
        out_{setup.output<unsigned>(count_, {.name = "partitioned"})},
        cub_bytes_{cub_sort(nullptr, 0, nullptr)},
        cub_space_{setup.scratch<std::uint8_t>(cub_bytes_)} {}

  Cost cost() const override { return {.bytes = static_cast<double>(input_.bytes() + out_.bytes())}; }

  void compute_reference(Launch&) override {
    expected_.resize(count_);
    std::vector<unsigned> next(buckets_);
    for (std::size_t bucket = 0; bucket < buckets_; ++bucket) next[bucket] = input_.host(count_ + bucket);
    for (std::size_t i = 0; i < count_; ++i) {
      const unsigned key = input_.host(i);
      expected_[next[key % buckets_]++] = key;
    }
  }
  double expected(std::size_t i) const override { return expected_[i]; }

  void straight(Launch& launch) { scatter<false>(launch, input_); }
  void tile_sorted(Launch& launch) { scatter<true>(launch, input_); }
  void straight_in_order(Launch& launch) { scatter<false>(launch, in_order_); }
  void tile_sorted_in_order(Launch& launch) { scatter<true>(launch, in_order_); }
  void cub_radix_sort(Launch& launch) { cub_sort(cub_space_, cub_bytes_, launch.stream); }

 private:
  HostFill<unsigned> keys(bool in_order) const {
    return [count = count_, buckets = buckets_, in_order](std::span<unsigned> all, std::uint64_t seed) {
      write_keys_and_offsets(all, seed, count, buckets, in_order);
    };
  }
  template <bool tile_sorted>
  void scatter(Launch& launch, const unsigned* keys) {
    switch (bits_) {
      case 1: return scatter<tile_sorted, 1>(launch, keys);
      case 3: return scatter<tile_sorted, 3>(launch, keys);
      case 5: return scatter<tile_sorted, 5>(launch, keys);
      case 6: return scatter<tile_sorted, 6>(launch, keys);
      case 8: return scatter<tile_sorted, 8>(launch, keys);
      case 10: return scatter<tile_sorted, 10>(launch, keys);
      default: throw Unsupported{"digits of 1, 3, 5, 6, 8 and 10 bits are compiled"};
    }
  }
  template <bool tile_sorted, int bits>
  void scatter(Launch& launch, const unsigned* keys) {
    const Grid grid{static_cast<unsigned>(count_ / tile_keys), rank_threads, sizeof(Space<bits>)};
    launch(scatter_kernel<bits, tile_sorted>, grid, keys, keys + count_, out_);
  }
  // Sorts by the one digit; returns the workspace that it needs and does nothing else when there is none.
  std::size_t cub_sort(void* space, std::size_t bytes, cudaStream_t stream) {
    check(cub::DeviceRadixSort::SortKeys(space, bytes, input_.get(), out_.get(), static_cast<int>(count_), 0, bits_, stream));
    return bytes;
  }

  int bits_;
  std::size_t buckets_, count_, offsets_;
  Input<unsigned> input_, in_order_;
  Output<unsigned> out_;
  std::size_t cub_bytes_;
  Scratch<std::uint8_t> cub_space_;
  std::vector<unsigned> expected_;
};

}  // namespace

extern constinit const Pair scatter{
    .teaches = "a scatter is slow because each lane writes a sector of its own; ordered in shared memory first, lanes write runs",
    .lesson = "tile_sorted",
    .make = make<Scatter>,
    .baseline = {.name = "straight", .run = call<&Scatter::straight>},
    .optimized = variants({{.name = "tile_sorted", .run = call<&Scatter::tile_sorted>}}),
    .controls = variants({{.name = "straight_in_order", .run = call<&Scatter::straight_in_order>, .outputs = no_outputs},
                          {.name = "tile_sorted_in_order", .run = call<&Scatter::tile_sorted_in_order>, .outputs = no_outputs}}),
    // It reads the keys once more, to count them.
    .libraries = variants({{.name = "cub_radix_sort", .run = call<&Scatter::cub_radix_sort>}}),
    .bound = Bound::memory,
    .tolerance = exact,
    .sizes = sizes({{.name = "bits", .full = 8, .most = 10, .scales = false}}),
    .sweep = cases({{"buckets_2", "bits=1"},
                    {"buckets_8", "bits=3"},
                    {"buckets_32", "bits=5"},
                    {"buckets_64", "bits=6"},
                    {"buckets_256", "bits=8"},
                    {"buckets_1024", "bits=10"}}),
    .edges = cases({{"bits_1", "bits=1"}, {"bits_3", "bits=3"}}),
};

}  // namespace aisp::ch07
