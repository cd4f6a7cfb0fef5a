// SPDX-License-Identifier: Apache-2.0
// 64 Mi pairs sorted by an fp32 key, the largest first. A sort is passes over memory: merging needs one for each doubling of the
// sorted runs, about fourteen of them; a radix sort one for each digit of 8 bits, four in all. Looking back at the tiles before
// (look_back.cuh) saves each of these the reading that counts its digits.
#include <aisp/device_attribute.hpp>
#include <aisp/pair.hpp>

#include <cub/device/device_merge_sort.cuh>
#include <cub/device/device_radix_sort.cuh>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>
#include <vector>

#include "digit_counts.cuh"
#include "look_back.cuh"
#include "tile_rank.cuh"

namespace aisp::ch07 {
namespace {

constexpr int count_blocks = 4;  // of an SM, in the kernel that counts all digits

struct Pairs {
  unsigned *keys, *values;
};
struct ConstPairs {
  const unsigned *keys, *values;
};

// The keys of a digit in the tiles before `tile`, and in all tiles of smaller digits: what earlier tiles tell of this digit.
__device__ unsigned keys_before(const unsigned* states, int tile) {
  constexpr int looks = 4;  // at once
  unsigned sum = 0;
  for (int nearest = tile - 1;; nearest -= looks) {
    unsigned told[looks];
#pragma unroll
    for (int i = 0; i < looks; ++i)
      told[i] = nearest >= i ? look_back::load(states + static_cast<std::size_t>(nearest - i) * digits) : look_back::up_to_tile;
#pragma unroll
    for (int i = 0; i < looks; ++i) {
      while (told[i] == 0) told[i] = look_back::load(states + static_cast<std::size_t>(nearest - i) * digits);
      sum += told[i] & look_back::sum_bits;
      if (told[i] >= look_back::up_to_tile) return sum;
    }
  }
}

struct Space {
  TileRank<bits> rank;
  unsigned base[digits];  // what must be added to a place in the ordered tile to make it one of the output
  unsigned totals[digits];
  unsigned keys[tile_keys], values[tile_keys];
  int tile;
};

// Orders pairs by one digit. Where the runs of a tile go is in `begins` ([tile][digit]), or follows from the totals of all digits
// and from what earlier tiles tell; then tiles are handed out by a ticket, in the order in which blocks start.
template <bool looks_back>
__global__ __launch_bounds__(rank_threads, 2) void order_kernel(ConstPairs from, Pairs to, int shift, const unsigned* begins,
                                                                unsigned* ticket, unsigned* states) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto& space = *reinterpret_cast<Space*>(shared);
  if (looks_back && threadIdx.x == 0) space.tile = static_cast<int>(atomicAdd(ticket, 1u));
  if (looks_back) __syncthreads();
  const int tile = looks_back ? space.tile : static_cast<int>(blockIdx.x), own = threadIdx.x;
  const std::size_t first = static_cast<std::size_t>(tile) * tile_keys + threadIdx.x / 32 * warp_keys + threadIdx.x % 32;
  unsigned key[lane_keys], value[lane_keys];
  Ranks rank, place;
#pragma unroll
  for (int k = 0; k < lane_keys; ++k) key[k] = from.keys[first + k * 32];
  space.rank.rank(rank, [&](int k) { return digit_of(key[k], shift); });
  unsigned* mine = states + static_cast<std::size_t>(tile) * digits;
  const auto counted = [&](int digit, unsigned count) {
    space.totals[digit] = count;
    if (looks_back && tile > 0) look_back::store(mine + digit, look_back::of_tile | count);
  };
  space.rank.place(counted, [&](int digit, unsigned start) { space.base[digit] = 0 - start; });
  // On their way while the block looks back.
#pragma unroll
  for (int k = 0; k < lane_keys; ++k) value[k] = from.values[first + k * 32];
#pragma unroll
  for (int k = 0; k < lane_keys; ++k) {
    place.set(k, space.rank.place_of(digit_of(key[k], shift), rank[k]));
    space.keys[place[k]] = key[k];
  }
  unsigned before = 0, all;
  if (looks_back && tile == 0) before = sum_before(own < digits ? begins[own] : 0, space.rank.sums, all);
  if (own < digits) {
    if (!looks_back) before = begins[static_cast<std::size_t>(tile) * digits + own];
    else if (tile > 0) before = keys_before(states + own, tile);
    if (looks_back) look_back::store(mine + own, look_back::up_to_tile | (before + space.totals[own]));
    space.base[own] += before;
  }
#pragma unroll
  for (int k = 0; k < lane_keys; ++k) space.values[place[k]] = value[k];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < lane_keys; ++k) {
    const unsigned i = k * rank_threads + threadIdx.x, moved = space.keys[i];
    const unsigned at = space.base[digit_of(moved, shift)] + i;
    to.keys[at] = moved;
    to.values[at] = space.values[i];
  }
}

struct Descending {
  __host__ __device__ bool operator()(float a, float b) const { return a > b; }
};

class RadixSort final : public Workload {
 public:
  explicit RadixSort(Setup& setup)
      : count_{setup.size("keys")},
        tiles_{count_ / tile_keys},
        keys_{setup.input<float>(count_, uniform(-1, 1), {.name = "keys"})},
        values_{setup.input<unsigned>(count_, sequence(), {.name = "values"})},
        sorted_keys_{setup.output<float>(count_, {.name = "sorted keys"})},
        sorted_values_{setup.output<unsigned>(count_, {.name = "sorted values"})},
        between_keys_{setup.scratch<unsigned>(count_, {.name = "keys between passes"})},
        between_values_{setup.scratch<unsigned>(count_, {.name = "values between passes"})},
        totals_{setup.scratch<unsigned>(passes * digits + passes, {.name = "counts of digits, tickets"})},
        states_{setup.scratch<unsigned>(passes * tiles_ * digits, {.name = "states of tiles"})},
        cub_bytes_{std::max(merge_sort(nullptr, 0, nullptr), radix_sort(nullptr, 0, nullptr))},
        cub_space_{setup.scratch<std::uint8_t>(cub_bytes_)} {}

  // Returns the cost of a radix sort that counts all digits in one reading of the keys; each pass then reads and writes the pairs
  // once.
  Cost cost() const override {
    const auto key_bytes = static_cast<double>(keys_.bytes()), value_bytes = static_cast<double>(values_.bytes());
    return {.bytes = key_bytes + passes * 2 * (key_bytes + value_bytes)};
  }

  // A radix sort as well, by 11 bits at a time: key in the upper half, value in the lower.
  void compute_reference(Launch&) override {
    constexpr int step = 11;
    std::vector<std::uint64_t> from(count_), to(count_);
    for (std::size_t i = 0; i < count_; ++i)
      from[i] = std::uint64_t{in_order(std::bit_cast<unsigned>(static_cast<float>(keys_.host(i))))} << 32 | values_.host(i);
    for (int shift = 32; shift < 64; shift += step) {
      std::array<std::size_t, 1 << step> next{};
      const auto digit = [&](std::uint64_t pair) { return pair >> shift & ((1 << step) - 1); };
      for (const std::uint64_t pair : from) ++next[digit(pair)];
      std::exclusive_scan(next.begin(), next.end(), next.begin(), std::size_t{0});
      for (const std::uint64_t pair : from) to[next[digit(pair)]++] = pair;
      std::swap(from, to);
    }
    expected_ = std::move(from);
  }
  double expected_output(int output, std::size_t i) const override {
    if (output == 1) return static_cast<double>(expected_[i] & 0xFFFFFFFF);
    return std::bit_cast<float>(in_order(static_cast<unsigned>(expected_[i] >> 32)));
  }

  void cub_merge_sort(Launch& launch) { merge_sort(cub_space_, cub_bytes_, launch.stream); }
  void three_kernel_radix(Launch& launch) {
    check(cudaMemsetAsync(totals_, 0, totals_.bytes(), launch.stream));
    for (int pass = 0; pass < passes; ++pass) {
      const int shift = pass * bits;
      launch(count_tiles_kernel, {blocks(), rank_threads}, source(pass).keys, states_, totals_ + pass * digits, shift);
      launch(scan_counts_kernel, {digits, rank_threads}, states_, totals_ + pass * digits, tiles_);
      launch(order_kernel<false>, order_grid(), source(pass), target(pass), shift, states_, nullptr, states_);
    }
  }
  void onesweep(Launch& launch) {
    check(cudaMemsetAsync(totals_, 0, totals_.bytes(), launch.stream));
    check(cudaMemsetAsync(states_, 0, states_.bytes(), launch.stream));
    const unsigned* keys = source(0).keys;
    launch(count_all_kernel, {multiprocessors() * count_blocks, rank_threads}, reinterpret_cast<const uint4*>(keys), totals_,
           count_ / 4);
    for (int pass = 0; pass < passes; ++pass)
      launch(order_kernel<true>, order_grid(), source(pass), target(pass), pass * bits, totals_ + pass * digits,
             totals_ + passes * digits + pass, states_ + static_cast<std::size_t>(pass) * tiles_ * digits);
  }
  void cub_radix_sort(Launch& launch) { radix_sort(cub_space_, cub_bytes_, launch.stream); }

 private:
  unsigned blocks() const { return static_cast<unsigned>(tiles_); }
  Grid order_grid() const { return {blocks(), rank_threads, sizeof(Space)}; }
  // Odd passes write the result, the others what lies between.
  Pairs target(int pass) const {
    if (pass % 2 == 0) return {between_keys_, between_values_};
    return {reinterpret_cast<unsigned*>(sorted_keys_.get()), sorted_values_};
  }
  ConstPairs source(int pass) const {
    if (pass == 0) return {reinterpret_cast<const unsigned*>(keys_.get()), values_};
    const Pairs before = target(pass - 1);
    return {before.keys, before.values};
  }
  // Both return the workspace that they need and do nothing else when there is none.
  std::size_t merge_sort(void* space, std::size_t bytes, cudaStream_t stream) {
    check(cub::DeviceMergeSort::SortPairsCopy(space, bytes, keys_.get(), values_.get(), sorted_keys_.get(), sorted_values_.get(),
                                              static_cast<int>(count_), Descending{}, stream));
    return bytes;
  }
  std::size_t radix_sort(void* space, std::size_t bytes, cudaStream_t stream) {
    check(cub::DeviceRadixSort::SortPairsDescending(space, bytes, keys_.get(), sorted_keys_.get(), values_.get(),
                                                    sorted_values_.get(), static_cast<int>(count_), 0, 32, stream));
    return bytes;
  }

  std::size_t count_, tiles_;
  Input<float> keys_;
  Input<unsigned> values_;
  Output<float> sorted_keys_;
  Output<unsigned> sorted_values_;
  Scratch<unsigned> between_keys_, between_values_, totals_, states_;
  std::size_t cub_bytes_;
  Scratch<std::uint8_t> cub_space_;
  std::vector<std::uint64_t> expected_;
};

}  // namespace

extern constinit const Pair radix_sort{
    .teaches = "a sort is passes over memory: merging needs one per doubling, radix digits four in all",
    .lesson = "three_kernel_radix",
    .make = make<RadixSort>,
    .baseline = {.name = "cub_merge_sort", .run = call<&RadixSort::cub_merge_sort>},
    .optimized = variants({{.name = "three_kernel_radix", .run = call<&RadixSort::three_kernel_radix>},
                           {.name = "onesweep", .run = call<&RadixSort::onesweep>}}),
    .libraries = variants({{.name = "cub_radix_sort", .run = call<&RadixSort::cub_radix_sort>}}),
    .bound = Bound::memory,
    .tolerance = exact,
    .sizes = sizes({{.name = "keys", .full = 64 << 20, .multiple = tile_keys, .most = 128 << 20}}),
    .sweep = cases({{"ki_64", "keys=65536"},
                    {"mi_1", "keys=1048576"},
                    {"mi_4", "keys=4194304"},
                    {"mi_16", "keys=16777216"},
                    {"mi_64", "keys=67108864"},
                    {"mi_128", "keys=134217728"}}),
    .edges = cases({{"one_tile", "keys=8192"}, {"three_tiles", "keys=24576"}}),
};

}  // namespace aisp::ch07
