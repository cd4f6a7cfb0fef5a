// SPDX-License-Identifier: Apache-2.0
// Sums of eight million segments of 8 to 24 values each. One warp a segment, as for rows of any length, leaves half of its lanes
// without work and adds up in five steps. Cooperative groups cut the warp into tiles of eight lanes, which suit the segments:
// four of them at a time. A tile that takes eight segments waits once for their offsets and once for their values. So short a
// segment is no hardship for a single thread either, as long as it requests all of its values before it adds.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <aisp/device/reduce.cuh>
#include <aisp/pair.hpp>

#include <cub/device/device_segmented_reduce.cuh>

#include <span>

namespace aisp::ch06 {
namespace {

namespace cg = cooperative_groups;

constexpr int threads = 256, tile_lanes = 8;
constexpr std::size_t group = 1024;  // segments whose lengths add up to the same in every group
constexpr int segments_per_warp = 32, tiles_per_warp = 32 / tile_lanes, segments_per_tile = segments_per_warp / tiles_per_warp;
constexpr int loads = 3;  // values of a segment that a lane requests ahead: 24 a tile

template <int lanes>
__global__ __launch_bounds__(threads) void tile_per_segment_kernel(const float* values, const unsigned* offsets, float* sums) {
  const auto tile = cg::tiled_partition<lanes>(cg::this_thread_block());
  const std::size_t segment = (std::size_t{blockIdx.x} * threads + threadIdx.x) / lanes;
  const unsigned end = offsets[segment + 1];
  float sum = 0;
  for (unsigned i = offsets[segment] + tile.thread_rank(); i < end; i += lanes) sum += values[i];
  sum = cg::reduce(tile, sum, cg::plus<float>{});
  if (tile.thread_rank() == 0) sums[segment] = sum;
}

// Tile t of a warp takes segments t, t + 4, t + 8 ... of the warp's 32, so that the tiles read side by side. Lane r of a tile
// keeps the sum of its r-th segment, and the warp stores 32 neighbours.
__global__ __launch_bounds__(threads) void batched_offsets_kernel(const float* values, const unsigned* offsets, float* sums) {
  const unsigned lane = threadIdx.x % 32, tile = lane / tile_lanes, rank = lane % tile_lanes;
  const std::size_t first = (std::size_t{blockIdx.x} * threads + threadIdx.x) / 32 * segments_per_warp;
  const unsigned begin = offsets[first + lane];
  unsigned end = __shfl_down_sync(device::whole_warp, begin, 1);
  if (lane == 31) end = offsets[first + segments_per_warp];
  float requested[segments_per_tile][loads];
#pragma unroll
  for (int s = 0; s < segments_per_tile; ++s) {
    const unsigned from = __shfl_sync(device::whole_warp, begin, s * tiles_per_warp + tile) + rank;
    const unsigned to = __shfl_sync(device::whole_warp, end, s * tiles_per_warp + tile);
#pragma unroll
    for (int k = 0; k < loads; ++k) requested[s][k] = from + k * tile_lanes < to ? values[from + k * tile_lanes] : 0;
  }
  float mine = 0;
#pragma unroll
  for (int s = 0; s < segments_per_tile; ++s) {
    const unsigned from = __shfl_sync(device::whole_warp, begin, s * tiles_per_warp + tile) + rank;
    const unsigned to = __shfl_sync(device::whole_warp, end, s * tiles_per_warp + tile);
    float sum = 0;
#pragma unroll
    for (const float value : requested[s]) sum += value;
    for (unsigned i = from + loads * tile_lanes; i < to; i += tile_lanes) sum += values[i];
    sum = device::warp_sum<tile_lanes>(sum);
    if (rank == s) mine = sum;
  }
  sums[first + rank * tiles_per_warp + tile] = mine;
}

// Lengths from half to one and a half times the mean. In each group the later half makes good, in another order, what the earlier
// half has more or less than the mean, so that the number of values does not depend on the seed.
void fill_offsets(std::span<unsigned> offsets, std::uint64_t seed, unsigned mean) {
  constexpr std::size_t half = group / 2;
  unsigned next = 0;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    offsets[i] = next;
    const std::size_t in_group = i % group;
    const std::size_t drawn = in_group < half ? in_group : (in_group - half) * 77 % half;
    const auto length = static_cast<unsigned>(mean / 2 + (random_bits(seed, i / group * half + drawn) >> 32) % (mean + 1));
    next += in_group < half ? length : 2 * mean - length;
  }
}

class TiledPartition final : public Workload {
 public:
  explicit TiledPartition(Setup& setup)
      : lanes_{setup.size("lanes")},
        mean_{setup.size("mean")},
        segments_{setup.scaled((std::size_t{128} << 20) / mean_, group)},
        values_{setup.input<float>(segments_ * mean_, uniform(0, 1), {.name = "values"})},
        offsets_{setup.input<unsigned>(segments_ + 1,
                                       [this](std::span<unsigned> offsets, std::uint64_t seed) {
                                         fill_offsets(offsets, seed, static_cast<unsigned>(mean_));
                                       },
                                       {.name = "offsets"})},
        even_offsets_{
            setup.input<unsigned>(segments_ + 1, sequence(0, static_cast<std::int64_t>(mean_)), {.name = "even offsets"})},
        sums_{setup.output<float>(segments_, {.name = "sums"})},
        even_sums_{setup.scratch<float>(segments_, {.name = "sums of even segments"})},
        cub_bytes_{cub_sum(nullptr, 0, nullptr)},
        cub_space_{setup.scratch<std::uint8_t>(cub_bytes_ + 1)} {}

  Cost cost() const override {
    return {.flops = static_cast<double>(values_.size()),
            .bytes = static_cast<double>(values_.bytes() + offsets_.bytes() + sums_.bytes())};
  }
  double expected(std::size_t segment) const override {
    double sum = 0;
    for (std::size_t i = offsets_.host(segment); i < offsets_.host(segment + 1); ++i) sum += values_.host(i);
    return sum;
  }

  void warp_per_segment(Launch& launch) { each<32>(launch, offsets_, sums_); }
  void tile_per_segment(Launch& launch) {
    switch (lanes_) {
      case 1: return each<1>(launch, offsets_, sums_);
      case 2: return each<2>(launch, offsets_, sums_);
      case 4: return each<4>(launch, offsets_, sums_);
      case 8: return each<8>(launch, offsets_, sums_);
      case 16: return each<16>(launch, offsets_, sums_);
      case 32: return each<32>(launch, offsets_, sums_);
      default: throw Unsupported("lanes must be 1, 2, 4, 8, 16 or 32");
    }
  }
  void thread_per_segment(Launch& launch) { each<1>(launch, offsets_, sums_); }
  void batched_offsets(Launch& launch) {
    launch(batched_offsets_kernel, {.blocks = blocks(1), .threads = threads}, values_, offsets_, sums_);
  }
  void even_thread(Launch& launch) { each<1>(launch, even_offsets_, even_sums_); }
  void even_warp(Launch& launch) { each<32>(launch, even_offsets_, even_sums_); }
  void even_tile_of_eight(Launch& launch) { each<tile_lanes>(launch, even_offsets_, even_sums_); }
  void cub_segmented(Launch& launch) { cub_sum(cub_space_, cub_bytes_, launch.stream); }

 private:
  unsigned blocks(std::size_t lanes) const { return static_cast<unsigned>(segments_ * lanes / threads); }
  template <int lanes>
  void each(Launch& launch, const unsigned* offsets, float* sums) {
    launch(tile_per_segment_kernel<lanes>, {.blocks = blocks(lanes), .threads = threads}, values_, offsets, sums);
  }
  // Returns the workspace that it needs; does nothing else when there is none.
  std::size_t cub_sum(void* space, std::size_t bytes, cudaStream_t stream) {
    check(cub::DeviceSegmentedReduce::Sum(space, bytes, values_.get(), sums_.get(), static_cast<std::int64_t>(segments_),
                                          offsets_.get(), offsets_.get() + 1, stream));
    return bytes;
  }

  std::size_t lanes_, mean_, segments_;
  Input<float> values_;
  Input<unsigned> offsets_, even_offsets_;
  Output<float> sums_;
  Scratch<float> even_sums_;
  std::size_t cub_bytes_;
  Scratch<std::uint8_t> cub_space_;
};

}  // namespace

extern constinit const Pair tiled_partition{
    .teaches =
        "a warp is too wide for a segment of 16 values: a team of eight lanes serves four at a time, and a single thread is "
        "faster still",
    .lesson = "tile_of_eight",
    .make = make<TiledPartition>,
    .baseline = {.name = "warp_per_segment", .run = call<&TiledPartition::warp_per_segment>},
    .optimized = variants(
        {{.name = "tile_of_eight", .run = call<&TiledPartition::tile_per_segment>},
         {.name = "batched_offsets", .run = call<&TiledPartition::batched_offsets>},
         {.name = "thread_per_segment", .run = call<&TiledPartition::thread_per_segment>, .gains_over = "tile_of_eight"}}),
    .controls =
        variants({{.name = "even_thread", .run = call<&TiledPartition::even_thread>, .outputs = no_outputs},
                  {.name = "even_warp", .run = call<&TiledPartition::even_warp>, .outputs = no_outputs},
                  {.name = "even_tile_of_eight", .run = call<&TiledPartition::even_tile_of_eight>, .outputs = no_outputs}}),
    .libraries = variants({{.name = "cub_segmented_reduce", .run = call<&TiledPartition::cub_segmented>}}),
    .bound = Bound::memory,
    // Sums of at most 96 values that are not negative: no digits cancel.
    .tolerance = within(1e-6),
    // Lanes of the tile, whose name says how many unless they are set; values of a segment on average.
    .sizes = sizes({{.name = "lanes", .full = tile_lanes, .most = 32, .scales = false},
                    {.name = "mean", .full = 16, .multiple = 16, .most = 64, .scales = false}}),
    .sweep = cases({{"lanes_1", "lanes=1"},
                    {"lanes_2", "lanes=2"},
                    {"lanes_4", "lanes=4"},
                    {"lanes_8", "lanes=8"},
                    {"lanes_16", "lanes=16"},
                    {"lanes_32", "lanes=32"},
                    {"long_lanes_1", "lanes=1,mean=64"},
                    {"long_lanes_2", "lanes=2,mean=64"},
                    {"long_lanes_4", "lanes=4,mean=64"},
                    {"long_lanes_8", "lanes=8,mean=64"},
                    {"long_lanes_16", "lanes=16,mean=64"},
                    {"long_lanes_32", "lanes=32,mean=64"}}),
    .edges = cases({{"lanes_1", "lanes=1"}, {"lanes_3", "lanes=3"}}),
    .reference_samples = 1 << 20,
};

}  // namespace aisp::ch06
