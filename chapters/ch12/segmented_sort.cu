// SPDX-License-Identifier: Apache-2.0
// Key-value pairs sorted within each of many segments, whose lengths go from 8 to 65,536. One way to sort for all of them suits
// few. Binned by length on the device, short segments go to a few lanes each, middle ones to a block that sorts in shared memory,
// and the long ones are cut into tiles, which the whole grid sorts and merges. No length goes to the host: grids read counts.
#include <aisp/device_attribute.hpp>
#include <aisp/graph.hpp>
#include <aisp/pair.hpp>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_segmented_sort.cuh>

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <vector>

#include "segment_data.hpp"
#include "segment_sorters.cuh"

namespace aisp::ch12 {
namespace {

using namespace segments;

constexpr int tile = 8192;  // of pairs: the longest segment, or part of one, that a block sorts at once

// Classes by the longest segment: of lanes, of blocks, and the long ones as a list of tiles and as one of segments.
enum Class {
  lanes_16,
  lanes_64,
  lanes_128,
  lanes_256,
  lanes_512,
  block_1024,
  block_2048,
  block_4096,
  block_8192,
  tiles,
  longs,
  classes
};
__device__ Class class_of(int length) {
  if (length > tile) return tiles;
  if (length > 2048) return length > 4096 ? block_8192 : block_4096;
  if (length > 512) return length > 1024 ? block_2048 : block_1024;
  if (length > 128) return length > 256 ? lanes_512 : lanes_256;
  return length > 64 ? lanes_128 : length > 16 ? lanes_64 : lanes_16;
}
constexpr int bin_threads = 256, lane_threads = 256;

struct Tile {
  int segment, number;
};
struct Work {
  const int* offsets;
  int segments;
  Pairs in, out, other;  // `other`: where the merges that do not end in `out` leave their results
  int* lists;            // of segments, for each class of up to a tile
  std::size_t list_size;
  Tile* tiles;
  int* longs;
  int* counts;  // by class

  __device__ int* list(Class cls) const { return lists + cls * list_size; }
};

__device__ int tiles_of(int length) { return (length + tile - 1) / tile; }
// Merging halves the number of runs, which are a tile long at first.
__device__ int merges_of(int length) { return 32 - __clz(tiles_of(length) - 1); }
// The place of a long segment's runs before its n-th merge; after the last one, in `out`.
__device__ Pairs runs_before(const Work& work, int length, int merge) {
  return (merges_of(length) - merge) % 2 == 0 ? work.out : work.other;
}

__global__ __launch_bounds__(bin_threads) void bin_kernel(Work work) {
  __shared__ int counts[classes], first[classes];
  if (threadIdx.x < classes) counts[threadIdx.x] = 0;
  __syncthreads();
  const int segment = static_cast<int>(blockIdx.x * bin_threads + threadIdx.x);
  const int length = segment < work.segments ? work.offsets[segment + 1] - work.offsets[segment] : 0;
  const Class cls = class_of(length);
  const int needed = length == 0 ? 0 : cls == tiles ? tiles_of(length) : 1;
  const int place = needed > 0 ? atomicAdd(&counts[cls], needed) : 0;
  const int among_longs = needed > 0 && cls == tiles ? atomicAdd(&counts[longs], 1) : 0;
  __syncthreads();
  if (threadIdx.x < classes && counts[threadIdx.x] > 0)
    first[threadIdx.x] = atomicAdd(&work.counts[threadIdx.x], counts[threadIdx.x]);
  __syncthreads();
  if (needed == 0) return;
  if (cls < tiles) {
    work.list(cls)[first[cls] + place] = segment;
    return;
  }
  work.longs[first[longs] + among_longs] = segment;
  for (int number = 0; number < needed; ++number) work.tiles[first[tiles] + place + number] = {segment, number};
}

template <int width, int items>
__global__ __launch_bounds__(lane_threads) void lanes_kernel(Work work, Class cls) {
  __shared__ std::uint64_t memory[lane_threads / width][width * (items + 1)];
  const int count = work.counts[cls], groups = static_cast<int>(gridDim.x) * lane_threads / width;
  const int group = static_cast<int>(threadIdx.x) / width, first = static_cast<int>(blockIdx.x) * (lane_threads / width) + group;
  for (int base = 0; base < count; base += groups) {  // all lanes of a warp take part in its shuffles
    const int i = base + first;
    const int segment = i < count ? work.list(cls)[i] : 0;
    const int begin = work.offsets[segment];
    sort_by_lanes<width, items>(memory[group], work.in, work.out, begin, i < count ? work.offsets[segment + 1] - begin : 0);
  }
}

template <int threads, int items>
__global__ __launch_bounds__(threads) void block_kernel(Work work, Class cls) {
  __shared__ typename BlockSort<threads, items>::Memory memory;
  for (int i = static_cast<int>(blockIdx.x), count = work.counts[cls]; i < count; i += static_cast<int>(gridDim.x)) {
    const int segment = work.list(cls)[i], begin = work.offsets[segment];
    BlockSort<threads, items>::run(memory, work.in, work.out, begin, work.offsets[segment + 1] - begin);
  }
}

constexpr int tile_threads = 512;
using TileSort = BlockSort<tile_threads, tile / tile_threads>;

__device__ void sort_tile(TileSort::Memory& memory, const Work& work, int begin, int length, int number) {
  TileSort::run(memory, work.in, runs_before(work, length, 0), begin + number * tile, min(tile, length - number * tile));
}

__device__ void merge_part(MergeMemory& memory, const Work& work, int begin, int length, int merge, int place) {
  merge_part(memory, runs_before(work, length, merge), runs_before(work, length, merge + 1), begin, length, tile << merge, place);
}

// The long ones by the whole grid.
__global__ __launch_bounds__(tile_threads) void tiles_kernel(Work work) {
  __shared__ TileSort::Memory memory;
  for (int i = static_cast<int>(blockIdx.x), count = work.counts[tiles]; i < count; i += static_cast<int>(gridDim.x)) {
    const Tile t = work.tiles[i];
    const int begin = work.offsets[t.segment];
    sort_tile(memory, work, begin, work.offsets[t.segment + 1] - begin, t.number);
  }
}
__global__ __launch_bounds__(merge_threads) void merge_kernel(Work work, int merge) {
  __shared__ MergeMemory memory;
  constexpr int parts = tile / merge_tile;
  for (int i = static_cast<int>(blockIdx.x), count = work.counts[tiles] * parts; i < count; i += static_cast<int>(gridDim.x)) {
    const Tile t = work.tiles[i / parts];
    const int begin = work.offsets[t.segment], length = work.offsets[t.segment + 1] - begin;
    const int place = t.number * tile + i % parts * merge_tile;
    if (merge < merges_of(length) && place < length) merge_part(memory, work, begin, length, merge, place);
  }
}
// A block for each of them, which does the same work alone.
__global__ __launch_bounds__(tile_threads) void longs_kernel(Work work) {
  __shared__ union {
    TileSort::Memory sort;
    MergeMemory merge;
  } memory;
  for (int i = static_cast<int>(blockIdx.x), count = work.counts[longs]; i < count; i += static_cast<int>(gridDim.x)) {
    const int segment = work.longs[i], begin = work.offsets[segment], length = work.offsets[segment + 1] - begin;
    for (int number = 0; number < tiles_of(length); ++number) sort_tile(memory.sort, work, begin, length, number);
    for (int merge = 0; merge < merges_of(length); ++merge)
      for (int place = 0; place < length; place += merge_tile) merge_part(memory.merge, work, begin, length, merge, place);
  }
}

class SegmentedSort final : public Workload {
 public:
  explicit SegmentedSort(Setup& setup)
      : ends_{draw_offsets(setup.size("pairs"), setup.size("mean"), static_cast<double>(setup.size("spread_tenths")) / 10)},
        pairs_{static_cast<std::size_t>(ends_.back())},
        merges_{static_cast<int>(std::bit_width((static_cast<unsigned>(longest()) + tile - 1) / tile - 1))},
        offsets_{setup.input<int>(
            ends_.size(), HostFill<int>{[this](std::span<int> to, std::uint64_t) { std::ranges::copy(ends_, to.begin()); }},
            {.name = "offsets"})},
        keys_{setup.input<Word>(pairs_, HostFill<Word>{draw_keys}, {.name = "keys"})},
        values_{setup.input<Word>(pairs_, integers(0, 0xFFFFFFFF), {.name = "values"})},
        equal_offsets_{setup.input<int>(pairs_ / equal_length + 1, sequence(0, equal_length), {.name = "equal offsets"})},
        sorted_keys_{setup.output<Word>(pairs_, {.name = "sorted keys"})},
        sorted_values_{setup.output<Word>(pairs_, {.name = "sorted values"})},
        other_keys_{setup.scratch<Word>(pairs_)},
        other_values_{setup.scratch<Word>(pairs_)},
        joined_{setup.scratch<std::uint64_t>(2 * pairs_)},
        lists_{setup.scratch<int>((tiles + 1) * list_size())},
        tiles_{setup.scratch<Tile>(list_size())},
        counts_{setup.scratch<int>(classes)},
        library_bytes_{library_bytes()},
        library_space_{setup.scratch<std::byte>(library_bytes_)},
        side_{} {
    for (Side& side : side_) side = {setup.stream(), setup.event()};
    forked_ = setup.event();
  }

  Cost cost() const override { return {.bytes = static_cast<double>(offsets_.bytes() + 2 * (keys_.bytes() + values_.bytes()))}; }
  double expected_output(int output, std::size_t i) const override {
    const auto end = std::ranges::upper_bound(ends_, static_cast<int>(i));
    const auto begin = static_cast<std::size_t>(*(end - 1));
    std::vector<std::uint64_t> keys(static_cast<std::size_t>(*end) - begin);
    for (std::size_t k = 0; k < keys.size(); ++k) keys[k] = std::uint64_t{keys_.host(begin + k)} << 32 | k;
    const auto at = keys.begin() + static_cast<std::ptrdiff_t>(i - begin);
    std::ranges::nth_element(keys, at);
    return output == 0 ? static_cast<double>(*at >> 32) : static_cast<double>(values_.host(begin + (*at & 0xFFFFFFFF)));
  }

  void segmented_sort(Launch& launch) { check(call_segmented_sort(library_space_, library_bytes_, launch.stream)); }
  void composite_key(Launch& launch) {
    launch(join_kernel, {wide(), 256}, offsets_, segments(), keys_, joined_);
    check(call_joined_sort(library_space_, library_bytes_, launch.stream));
    launch(split_kernel, {wide(), 256}, joined_ + pairs_, sorted_keys_, pairs_);
  }

  void warp_and_block(Launch& launch) {
    bin(launch.stream, work());
    lanes(launch.stream, work());
    blocks(launch.stream, work());
    launch(longs_kernel, {2 * multiprocessors(), tile_threads}, work());
  }
  void size_classes(Launch& launch) { in_turn(launch.stream, work()); }
  void equal_segments(Launch& launch) {
    Work equal = work();
    equal.offsets = equal_offsets_, equal.segments = static_cast<int>(equal_offsets_.size()) - 1;
    in_turn(launch.stream, equal);
  }

  void capture(Launch& launch) {
    in_turn(launch.stream, work());  // kernels are loaded at their first launch
    graph_.capture(launch.stream, [this](cudaStream_t stream) {
      bin(stream, work());
      check(cudaEventRecord(forked_, stream));
      for (Side& side : side_) check(cudaStreamWaitEvent(side.stream, forked_));
      grid(stream, work());
      lanes(side_[0].stream, work());
      block<128, 8>(side_[1].stream, work(), block_1024);
      block<256, 8>(side_[2].stream, work(), block_2048);
      block<512, 8>(side_[3].stream, work(), block_4096);
      block<512, 16>(side_[4].stream, work(), block_8192);
      for (Side& side : side_) {
        check(cudaEventRecord(side.done, side.stream));
        check(cudaStreamWaitEvent(stream, side.done));
      }
    });
  }
  void size_classes_graph(Launch& launch) { graph_.launch(launch.stream); }

  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant != "equal_segments") metrics.report_rate("rate", 1e-9 * static_cast<double>(pairs_), "billion pairs/s");
  }

 private:
  struct Side {
    cudaStream_t stream;
    cudaEvent_t done;
  };
  static constexpr int equal_length = 128;

  int segments() const { return static_cast<int>(ends_.size()) - 1; }
  int longest() const {
    int length = 1;
    for (std::size_t i = 1; i < ends_.size(); ++i) length = std::max(length, ends_[i] - ends_[i - 1]);
    return length;
  }
  // Long enough for all segments, the equal ones and all tiles of the long ones, none of which is less than half full but one.
  std::size_t list_size() const { return ends_.size() + pairs_ / equal_length + 2 * pairs_ / tile; }
  Work work() const {
    return {offsets_,
            segments(),
            {const_cast<Word*>(keys_.get()), const_cast<Word*>(values_.get())},
            {sorted_keys_, sorted_values_},
            {other_keys_, other_values_},
            lists_,
            list_size(),
            tiles_,
            lists_ + tiles * list_size(),
            counts_};
  }

  static unsigned wide() { return 8 * multiprocessors(); }
  void bin(cudaStream_t stream, const Work& work) const {
    check(cudaMemsetAsync(counts_, 0, counts_.bytes(), stream));
    launch_kernel(stream, bin_kernel,
                  {static_cast<unsigned>(std::max((work.segments + bin_threads - 1) / bin_threads, 1)), bin_threads}, work);
  }
  template <int width, int items>
  static void by_lanes(cudaStream_t stream, const Work& work, Class cls) {
    launch_kernel(stream, lanes_kernel<width, items>, {wide(), lane_threads}, work, cls);
  }
  static void lanes(cudaStream_t stream, const Work& work) {
    by_lanes<8, 2>(stream, work, lanes_16);
    by_lanes<32, 2>(stream, work, lanes_64);
    by_lanes<32, 4>(stream, work, lanes_128);
    by_lanes<32, 8>(stream, work, lanes_256);
    by_lanes<32, 16>(stream, work, lanes_512);
  }
  template <int threads, int items>
  static void block(cudaStream_t stream, const Work& work, Class cls) {
    launch_kernel(stream, block_kernel<threads, items>, {multiprocessors() * (2048 / threads), threads}, work, cls);
  }
  static void blocks(cudaStream_t stream, const Work& work) {
    block<128, 8>(stream, work, block_1024);
    block<256, 8>(stream, work, block_2048);
    block<512, 8>(stream, work, block_4096);
    block<512, 16>(stream, work, block_8192);
  }
  void grid(cudaStream_t stream, const Work& work) const {
    launch_kernel(stream, tiles_kernel, {4 * multiprocessors(), tile_threads}, work);
    for (int merge = 0; merge < merges_; ++merge)
      launch_kernel(stream, merge_kernel, {4 * multiprocessors(), merge_threads}, work, merge);
  }
  void in_turn(cudaStream_t stream, const Work& work) const {
    bin(stream, work);
    lanes(stream, work);
    blocks(stream, work);
    grid(stream, work);
  }

  cudaError_t call_segmented_sort(void* space, std::size_t& bytes, cudaStream_t stream) const {
    return cub::DeviceSegmentedSort::StableSortPairs(space, bytes, keys_.get(), sorted_keys_.get(), values_.get(),
                                                     sorted_values_.get(), static_cast<std::int64_t>(pairs_), segments(),
                                                     offsets_.get(), offsets_.get() + 1, stream);
  }
  cudaError_t call_joined_sort(void* space, std::size_t& bytes, cudaStream_t stream) const {
    return cub::DeviceRadixSort::SortPairs(space, bytes, joined_.get(), joined_.get() + pairs_, values_.get(),
                                           sorted_values_.get(), static_cast<std::int64_t>(pairs_), 0,
                                           32 + static_cast<int>(std::bit_width(static_cast<unsigned>(segments() - 1))), stream);
  }
  std::size_t library_bytes() const {
    std::size_t of_segments = 0, of_joined = 0;
    check(call_segmented_sort(nullptr, of_segments, nullptr));
    check(call_joined_sort(nullptr, of_joined, nullptr));
    return std::max({of_segments, of_joined, std::size_t{1}});
  }

  std::vector<int> ends_;
  std::size_t pairs_;
  int merges_;
  Input<int> offsets_;
  Input<Word> keys_, values_;
  Input<int> equal_offsets_;
  Output<Word> sorted_keys_, sorted_values_;
  Scratch<Word> other_keys_, other_values_;
  Scratch<std::uint64_t> joined_;
  Scratch<int> lists_;
  Scratch<Tile> tiles_;
  Scratch<int> counts_;
  std::size_t library_bytes_;
  Scratch<std::byte> library_space_;
  std::array<Side, 5> side_;
  cudaEvent_t forked_ = nullptr;
  Graph graph_;
};

constexpr KernelLimits no_spills{.local_bytes = 0};

}  // namespace

extern constinit const Pair segmented_sort{
    .teaches = "segments of very different lengths want different sorters, chosen on the device by length",
    .lesson = "size_classes",
    .make = make<SegmentedSort>,
    .baseline = {.name = "composite_key", .run = call<&SegmentedSort::composite_key>},
    .optimized = variants({{.name = "warp_and_block",
                            .run = call<&SegmentedSort::warp_and_block>,
                            .same_bits_as = "composite_key",
                            .kernels = no_spills},
                           {.name = "size_classes",
                            .run = call<&SegmentedSort::size_classes>,
                            .same_bits_as = "composite_key",
                            .kernels = no_spills},
                           {.name = "size_classes_graph",
                            .run = call<&SegmentedSort::size_classes_graph>,
                            .prepare = call<&SegmentedSort::capture>,
                            .same_bits_as = "composite_key",
                            .kernels = no_spills}}),
    // The same classes on segments of 128 pairs each: binning has nothing to choose.
    .controls = variants({{.name = "equal_segments", .run = call<&SegmentedSort::equal_segments>, .outputs = no_outputs}}),
    .libraries =
        variants({{.name = "cub_segmented_sort", .run = call<&SegmentedSort::segmented_sort>, .same_bits_as = "composite_key"}}),
    .bound = Bound::memory,
    .tolerance = exact,
    .sizes = sizes({{.name = "pairs", .full = 32 << 20, .most = 64 << 20},
                    {.name = "mean", .full = 128, .most = 1 << 20, .scales = false},
                    {.name = "spread_tenths", .full = 20, .least = 0, .most = 20, .scales = false}}),
    .sweep = cases({{"spread_0", "spread_tenths=0"},
                    {"spread_5", "spread_tenths=5"},
                    {"spread_10", "spread_tenths=10"},
                    {"spread_20", "spread_tenths=20"},
                    {"mean_16", "mean=16"},
                    {"mean_128", "mean=128"},
                    {"mean_1024", "mean=1024"},
                    {"mean_16384", "mean=16384"}}),
    .edges = cases(
        {{"one_pair", "pairs=1,mean=1"}, {"one_long", "pairs=99999,mean=99999,spread_tenths=0"}, {"few", "pairs=2000,mean=90"}}),
};

}  // namespace aisp::ch12
