// SPDX-License-Identifier: Apache-2.0
// The indices of all values above a threshold, about half of them. Every result needs a slot of its own. One shared counter hands
// out slots one request after another, and the requests queue up at a single address; a block that ranks its own results first
// asks once for a range. Where the order of the input must stay, each block instead adds up what the blocks before it have found
// (decoupled look-back: see look_back.cuh).
#include <aisp/device/reduce.cuh>
#include <aisp/pair.hpp>

#include <cub/device/device_select.cuh>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "generated.cuh"
#include "look_back.cuh"

namespace aisp::ch06 {
namespace {

constexpr int range_warps = 8, ordered_warps = 4;   // of a block; each has consecutive values
constexpr int range_quads = 4, ordered_quads = 16;  // 16-byte loads that a lane has in flight
constexpr int range_tile = range_warps * range_quads * 128, ordered_tile = ordered_warps * ordered_quads * 128;

__global__ void shared_counter_kernel(const float* values, float threshold, unsigned* indices, unsigned* count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (values[i] > threshold) indices[atomicAdd(count, 1u)] = i;
}

template <int quads>
__device__ void load_values(const float* values, unsigned first, float4 (&loaded)[quads]) {
#pragma unroll
  for (int q = 0; q < quads; ++q) loaded[q] = reinterpret_cast<const float4*>(values + first)[q * 32 + threadIdx.x % 32];
}

// Puts the indices of a warp's selected values, in order, at the front of `selected` and returns their number. A lane has four
// neighbours at a time; how many of the others' come before its own follows from four ballots without any exchange of values.
template <int quads>
__device__ int select_in_warp(const float4 (&loaded)[quads], float threshold, unsigned first, unsigned* selected) {
  const unsigned lane = threadIdx.x % 32, lanes_before = (1u << lane) - 1;
  int found = 0;
#pragma unroll
  for (int q = 0; q < quads; ++q) {
    const bool chosen[4] = {loaded[q].x > threshold, loaded[q].y > threshold, loaded[q].z > threshold, loaded[q].w > threshold};
    int slot = found;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned votes = __ballot_sync(device::whole_warp, chosen[i]);
      slot += __popc(votes & lanes_before);
      found += __popc(votes);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (chosen[i]) selected[slot++] = first + q * 128 + lane * 4 + i;
  }
  __syncwarp();
  return found;
}

// Lines of 128 bytes are written whole, but for the first and the last.
__device__ void copy_out(const unsigned* selected, int count, unsigned* to) {
  const int misalignment = static_cast<int>(reinterpret_cast<std::uintptr_t>(to) / sizeof(unsigned) % 32);
  for (int i = static_cast<int>(threadIdx.x % 32) - misalignment; i < count; i += 32)
    if (i >= 0) to[i] = selected[i];
}

// Results before those of the calling lane's warp, from the counts of all warps (one a lane); `total` is that of the block.
__device__ unsigned count_before(unsigned count, unsigned& total) {
  unsigned through = count;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const unsigned below = __shfl_up_sync(device::whole_warp, through, offset);
    if (threadIdx.x % 32 >= offset) through += below;
  }
  total = __shfl_sync(device::whole_warp, through, 31);
  return through - count;
}

__global__ __launch_bounds__(range_warps * 32) void block_range_kernel(const float* values, float threshold, unsigned* indices,
                                                                       unsigned* count) {
  constexpr int warp_values = range_quads * 128;
  __shared__ unsigned selected[range_warps][warp_values], found_by[range_warps], place_of[range_warps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned first = blockIdx.x * range_tile + warp * warp_values;
  float4 loaded[range_quads];
  load_values(values, first, loaded);
  const int found = select_in_warp(loaded, threshold, first, selected[warp]);
  if (lane == 0) found_by[warp] = found;
  __syncthreads();
  if (warp == 0) {
    unsigned total, range = 0;
    const unsigned before = count_before(lane < range_warps ? found_by[lane] : 0, total);
    if (lane == 0) range = atomicAdd(count, total);
    range = __shfl_sync(device::whole_warp, range, 0);
    if (lane < range_warps) place_of[lane] = range + before;
  }
  __syncthreads();
  copy_out(selected[warp], found, indices + place_of[warp]);
}

// The block's sum is told before its results are ranked: that work hides part of the wait for the sums of the blocks before.
// Tiles are handed out in the order in which blocks start, so that those a block waits for are finished or in work.
__global__ __launch_bounds__(ordered_warps * 32) void ordered_kernel(const float* values, float threshold, unsigned* indices,
                                                                     unsigned* count, unsigned* ticket, unsigned* states) {
  constexpr int warp_values = ordered_quads * 128;
  __shared__ unsigned selected[ordered_warps][warp_values], found_by[ordered_warps], place_of[ordered_warps];
  __shared__ int taken;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) taken = static_cast<int>(atomicAdd(ticket, 1u));
  __syncthreads();
  const int tile = taken;
  const unsigned first = tile * ordered_tile + warp * warp_values;
  float4 loaded[ordered_quads];
  load_values(values, first, loaded);
  int chosen = 0;
#pragma unroll
  for (const float4& v : loaded) chosen += (v.x > threshold) + (v.y > threshold) + (v.z > threshold) + (v.w > threshold);
  const int found = __reduce_add_sync(device::whole_warp, chosen);
  if (lane == 0) found_by[warp] = found;
  __syncthreads();
  unsigned before = 0, total = 0;
  if (warp == 0) {
    before = count_before(lane < ordered_warps ? found_by[lane] : 0, total);
    if (lane == 0) look_back::tell(states, tile, total);
  }
  select_in_warp(loaded, threshold, first, selected[warp]);
  if (warp == 0) {
    const unsigned earlier = look_back::sum_before(states, tile, total);
    if (lane < ordered_warps) place_of[lane] = earlier + before;
    if (lane == 0 && tile == static_cast<int>(gridDim.x) - 1) *count = earlier + total;
  }
  __syncthreads();
  copy_out(selected[warp], found, indices + place_of[warp]);
}

struct Above {
  float threshold;
  __host__ __device__ bool operator()(float value) const { return value > threshold; }
};
// The sequence that CUB selects from: 0, 1, 2 ...
struct Number {
  __host__ __device__ unsigned operator()(std::ptrdiff_t i) const { return static_cast<unsigned>(i); }
};

class StreamCompaction final : public Workload {
 public:
  explicit StreamCompaction(Setup& setup)
      : share_{static_cast<double>(setup.size("percent")) / 100},
        threshold_{static_cast<float>(1 - share_)},
        size_{setup.scaled(64 << 20, ordered_tile)},
        values_{setup.input<float>(size_, uniform(0, 1), {.name = "values"})},
        indices_{setup.output<unsigned>(size_, {.name = "indices", .unordered = true})},
        count_{setup.output<unsigned>(1, {.name = "count"})},
        states_{setup.scratch<unsigned>(1 + size_ / ordered_tile)},
        cub_bytes_{cub_select(nullptr, 0, nullptr)},
        cub_space_{setup.scratch<std::uint8_t>(cub_bytes_)},
        team_{setup.threads(setup.cpus(), false)},
        found_(static_cast<std::size_t>(setup.cpus())) {}

  Cost cost() const override { return {.bytes = (1 + share_) * static_cast<double>(values_.bytes())}; }
  void compute_reference(Launch&) override {
    team_.run([this](int worker) {
      const auto w = static_cast<std::size_t>(worker);
      found_[w].clear();
      for (std::size_t i = size_ * w / found_.size(); i < size_ * (w + 1) / found_.size(); ++i)
        if (values_.host(i) > static_cast<double>(threshold_)) found_[w].push_back(static_cast<unsigned>(i));
    });
  }
  double expected_output(int output, std::size_t index) const override {
    std::size_t before = 0;
    for (const std::vector<unsigned>& part : found_) {
      if (output == 0 && index < before + part.size()) return part[index - before];
      before += part.size();
    }
    return output == 0 ? -1 : static_cast<double>(before);
  }
  std::size_t output_length(int output) const override { return output == 0 ? counted() : 1; }
  void validate(std::string_view variant) override {
    if (variant != "ordered") return;
    std::vector<unsigned> indices(std::min<std::size_t>(counted(), size_));
    check(cudaMemcpy(indices.data(), indices_.get(), indices.size() * sizeof(unsigned), cudaMemcpyDeviceToHost));
    if (!std::is_sorted(indices.begin(), indices.end()))
      throw std::runtime_error("the indices are not in the order of the input");
  }

  void shared_counter(Launch& launch) {
    check(cudaMemsetAsync(count_, 0, count_.bytes(), launch.stream));
    launch(shared_counter_kernel, {.blocks = blocks(256), .threads = 256}, values_, threshold_, indices_, count_);
  }
  void block_range(Launch& launch) {
    check(cudaMemsetAsync(count_, 0, count_.bytes(), launch.stream));
    launch(block_range_kernel, {.blocks = blocks(range_tile), .threads = range_warps * 32}, values_, threshold_, indices_,
           count_);
  }
  void ordered(Launch& launch) {
    check(cudaMemsetAsync(states_, 0, states_.bytes(), launch.stream));
    launch(ordered_kernel, {.blocks = blocks(ordered_tile), .threads = ordered_warps * 32}, values_, threshold_, indices_, count_,
           states_, states_.get() + 1);
  }
  void cub_device_select(Launch& launch) { cub_select(cub_space_, cub_bytes_, launch.stream); }

 private:
  unsigned blocks(std::size_t values) const { return static_cast<unsigned>(size_ / values); }
  std::size_t counted() const {
    unsigned count = 0;
    check(cudaMemcpy(&count, count_.get(), sizeof count, cudaMemcpyDeviceToHost));
    return count;
  }
  // Returns the workspace that it needs; does nothing else when there is none.
  std::size_t cub_select(void* space, std::size_t bytes, cudaStream_t stream) {
    check(cub::DeviceSelect::FlaggedIf(space, bytes, Generated{Number{}}, values_.get(), indices_.get(), count_.get(),
                                       static_cast<int>(size_), Above{threshold_}, stream));
    return bytes;
  }

  double share_;  // of the values above the threshold
  float threshold_;
  std::size_t size_;
  Input<float> values_;
  Output<unsigned> indices_, count_;
  Scratch<unsigned> states_;
  std::size_t cub_bytes_;
  Scratch<std::uint8_t> cub_space_;
  ThreadTeam& team_;
  std::vector<std::vector<unsigned>> found_;  // the reference, in one part for each CPU
};
}  // namespace

extern constinit const Pair stream_compaction{
    .teaches = "a counter that hands out slots is a queue for the whole grid; one range per block makes it short",
    .lesson = "block_range",
    .make = make<StreamCompaction>,
    .baseline = {.name = "shared_counter", .run = call<&StreamCompaction::shared_counter>, .deterministic = false},
    .optimized = variants({{.name = "block_range", .run = call<&StreamCompaction::block_range>, .deterministic = false},
                           {.name = "ordered", .run = call<&StreamCompaction::ordered>, .gains_over = "shared_counter"}}),
    .libraries = variants({{.name = "cub_device_select", .run = call<&StreamCompaction::cub_device_select>}}),
    .bound = Bound::memory,
    .tolerance = exact,
    .sizes = sizes({{.name = "percent", .full = 50, .most = 99, .scales = false}}),
    .sweep = cases({{"percent_1", "percent=1"},
                    {"percent_5", "percent=5"},
                    {"percent_10", "percent=10"},
                    {"percent_25", "percent=25"},
                    {"percent_50", "percent=50"},
                    {"percent_75", "percent=75"},
                    {"percent_95", "percent=95"}}),
    .edges = cases({{"percent_1", "percent=1"}, {"percent_99", "percent=99"}}),
};

}  // namespace aisp::ch06
