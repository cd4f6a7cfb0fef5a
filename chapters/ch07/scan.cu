// SPDX-License-Identifier: Apache-2.0
// The running sum of 256 Mi values. Where a tile begins depends on all tiles before it, so the sums of tiles are scanned between
// two passes over the values, which then move twice. A block that tells the sum of its tile, and looks back at what the tiles
// before it have told, learns where it begins while it holds its values: they move once.
#include <aisp/device/reduce.cuh>
#include <aisp/pair.hpp>

#include <cub/device/device_scan.cuh>

#include <vector>

#include "look_back.cuh"

namespace aisp::ch07 {
namespace {

using look_back::Reals;
constexpr int warps = 8, threads = warps * 32;
constexpr int quads = 8;                                              // 16-byte loads that a lane has in flight
constexpr int warp_values = quads * 128, tile = warps * warp_values;  // a warp has consecutive values
constexpr int sums_threads = 1024, sums_each = 8;                     // of the kernel that scans the sums of tiles
constexpr std::size_t reference_step = 4096;

__device__ float sum_through(float value) {  // of the lanes up to the calling one
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float below = __shfl_up_sync(device::whole_warp, value, offset);
    if (threadIdx.x % 32 >= offset) value += below;
  }
  return value;
}

// Returns the sum of the warps before the calling one, from each warp's sum; `total` is that of the block. `sums` may be used
// again after the next barrier.
template <int warps>
__device__ float sum_of_warps_before(float of_warp, float* sums, float& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) sums[warp] = of_warp;
  __syncthreads();
  const float through = sum_through(lane < warps ? sums[lane] : 0);
  total = __shfl_sync(device::whole_warp, through, warps - 1);
  const float before = __shfl_sync(device::whole_warp, through, warp == 0 ? 0 : warp - 1);
  return warp == 0 ? 0 : before;
}

__device__ float4 plus(const float4& v, float added) { return make_float4(v.x + added, v.y + added, v.z + added, v.w + added); }

// A warp's part of a tile: lane k has the k-th four of every 128 values.
struct Slice {
  float4 values[quads];
  __device__ static std::size_t first(std::size_t tile_index) {
    return (tile_index * tile + threadIdx.x / 32 * warp_values) / 4 + threadIdx.x % 32;
  }
  __device__ void load(const float4* in, std::size_t tile_index) {
#pragma unroll
    for (int q = 0; q < quads; ++q) values[q] = in[first(tile_index) + q * 32];
  }
  __device__ float sum() const {  // of the warp
    float sum = 0;
#pragma unroll
    for (const float4& v : values) sum += (v.x + v.y) + (v.z + v.w);
    return device::warp_sum(sum);
  }
  __device__ void scan() {
    float carry = 0;
#pragma unroll
    for (float4& v : values) {
      v.y += v.x;
      v.z += v.y;
      v.w += v.z;
      const float through = sum_through(v.w), below = __shfl_up_sync(device::whole_warp, through, 1);
      const float before = carry + (threadIdx.x % 32 == 0 ? 0 : below);
      v = plus(v, before);
      carry += __shfl_sync(device::whole_warp, through, 31);
    }
  }
  __device__ void store(float4* out, std::size_t tile_index, float before) const {
#pragma unroll
    for (int q = 0; q < quads; ++q) out[first(tile_index) + q * 32] = plus(values[q], before);
  }
};

// Scans each tile for itself and writes its sum, or begins with what `sums` has for it.
template <bool begins_known>
__global__ __launch_bounds__(threads) void scan_tiles_kernel(const float4* in, float4* out, float* sums) {
  __shared__ float of_warps[warps];
  const float begin = begins_known ? sums[blockIdx.x] : 0;
  Slice slice;
  slice.load(in, blockIdx.x);
  float total;
  const float before = sum_of_warps_before<warps>(slice.sum(), of_warps, total);
  if (!begins_known && threadIdx.x == 0) sums[blockIdx.x] = total;
  slice.scan();
  slice.store(out, blockIdx.x, begin + before);
}

__global__ __launch_bounds__(threads) void sum_tiles_kernel(const float4* in, float* sums) {
  __shared__ float of_warps[warps];
  Slice slice;
  slice.load(in, blockIdx.x);
  float total;
  sum_of_warps_before<warps>(slice.sum(), of_warps, total);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

// sums[k] becomes the sum of those before it: where tile k begins. One block.
__global__ __launch_bounds__(sums_threads) void scan_sums_kernel(float* sums, int tiles) {
  __shared__ float of_warps[sums_threads / 32];
  float carry = 0;
  for (int first = 0; first < tiles; first += sums_threads * sums_each) {
    const int mine = first + static_cast<int>(threadIdx.x) * sums_each;
    float values[sums_each], sum = 0, total;
#pragma unroll
    for (int i = 0; i < sums_each; ++i) sum += values[i] = mine + i < tiles ? sums[mine + i] : 0;
    const float through = sum_through(sum);
    const float of_warp = __shfl_sync(device::whole_warp, through, 31), below = __shfl_up_sync(device::whole_warp, through, 1);
    float before = carry + sum_of_warps_before<sums_threads / 32>(of_warp, of_warps, total);
    if (threadIdx.x % 32 > 0) before += below;
#pragma unroll
    for (int i = 0; i < sums_each; ++i) {
      if (mine + i < tiles) sums[mine + i] = before;
      before += values[i];
    }
    carry += total;
    __syncthreads();
  }
}

__global__ __launch_bounds__(threads) void add_begins_kernel(float4* out, const float* begins) {
  const float begin = begins[blockIdx.x];
  Slice slice;
  slice.load(out, blockIdx.x);
  slice.store(out, blockIdx.x, begin);
}

// The tile's sum is told before its values are scanned, and asked for is what comes before it when they are: the scan hides part
// of the wait. Tiles are handed out in the order in which blocks start.
__global__ __launch_bounds__(threads) void decoupled_lookback_kernel(const float4* in, float4* out, unsigned* ticket,
                                                                     Reals::Word* states) {
  __shared__ float of_warps[warps], begin;
  __shared__ int taken;
  if (threadIdx.x == 0) taken = static_cast<int>(atomicAdd(ticket, 1u));
  __syncthreads();
  const int mine = taken;
  Slice slice;
  slice.load(in, mine);
  float total;
  const float before = sum_of_warps_before<warps>(slice.sum(), of_warps, total);
  if (threadIdx.x == 0) look_back::tell<Reals>(states, mine, total);
  slice.scan();
  const float earlier = threadIdx.x < 32 ? look_back::sum_before<Reals>(states, mine, total) : 0;
  if (threadIdx.x == 0) begin = earlier;
  __syncthreads();
  slice.store(out, mine, begin + before);
}

class Scan final : public Workload {
 public:
  explicit Scan(Setup& setup)
      : count_{setup.size("elements")},
        tiles_{count_ / tile},
        in_{setup.input<float>(count_, uniform(-1, 1), {.name = "values"})},
        out_{setup.output<float>(count_, {.name = "running sums"})},
        sums_{setup.scratch<float>(tiles_, {.name = "sums of tiles"})},
        states_{setup.scratch<Reals::Word>(1 + tiles_, {.name = "ticket, states of tiles"})},
        cub_bytes_{cub_scan(nullptr, 0, nullptr)},
        cub_space_{setup.scratch<std::uint8_t>(cub_bytes_)},
        team_{setup.threads(setup.cpus(), false)} {}

  Cost cost() const override { return {.bytes = static_cast<double>(in_.bytes() + out_.bytes())}; }

  void compute_reference(Launch&) override {
    const std::size_t steps = count_ / reference_step;
    begins_.assign(steps + 1, 0);
    team_.run([&](int worker) {
      for (auto step = static_cast<std::size_t>(worker); step < steps; step += static_cast<std::size_t>(team_.size()))
        begins_[step + 1] = sum(step * reference_step, (step + 1) * reference_step);
    });
    for (std::size_t step = 0; step < steps; ++step) begins_[step + 1] += begins_[step];
  }
  double expected(std::size_t i) const override {
    const std::size_t step = i / reference_step;
    return begins_[step] + sum(step * reference_step, i + 1);
  }

  void scan_then_add(Launch& launch) {
    launch(scan_tiles_kernel<false>, {blocks(), threads}, in(), out(), sums_);
    launch(scan_sums_kernel, {1, sums_threads}, sums_, tiles_);
    launch(add_begins_kernel, {blocks(), threads}, out(), sums_);
  }
  void reduce_then_scan(Launch& launch) {
    launch(sum_tiles_kernel, {blocks(), threads}, in(), sums_);
    launch(scan_sums_kernel, {1, sums_threads}, sums_, tiles_);
    launch(scan_tiles_kernel<true>, {blocks(), threads}, in(), out(), sums_);
  }
  void decoupled_lookback(Launch& launch) {
    check(cudaMemsetAsync(states_, 0, states_.bytes(), launch.stream));
    launch(decoupled_lookback_kernel, {blocks(), threads}, in(), out(), reinterpret_cast<unsigned*>(states_.get()), states_ + 1);
  }
  void cub_inclusive_sum(Launch& launch) { cub_scan(cub_space_, cub_bytes_, launch.stream); }

 private:
  unsigned blocks() const { return static_cast<unsigned>(tiles_); }
  const float4* in() const { return reinterpret_cast<const float4*>(in_.get()); }
  float4* out() const { return reinterpret_cast<float4*>(out_.get()); }
  double sum(std::size_t first, std::size_t last) const {
    double sum = 0;
    for (std::size_t i = first; i < last; ++i) sum += in_.host(i);
    return sum;
  }
  // Returns the workspace that it needs; does nothing else when there is none.
  std::size_t cub_scan(void* space, std::size_t bytes, cudaStream_t stream) {
    check(cub::DeviceScan::InclusiveSum(space, bytes, in_.get(), out_.get(), static_cast<int>(count_), stream));
    return bytes;
  }

  std::size_t count_, tiles_;
  Input<float> in_;
  Output<float> out_;
  Scratch<float> sums_;
  Scratch<Reals::Word> states_;
  std::size_t cub_bytes_;
  Scratch<std::uint8_t> cub_space_;
  ThreadTeam& team_;
  std::vector<double> begins_;  // the reference at every 4096th element
};

}  // namespace

extern constinit const Pair scan{
    .teaches = "a scan in three kernels moves its values twice; a block that looks back at the sums before it moves them once",
    .lesson = "decoupled_lookback",
    .make = make<Scan>,
    .baseline = {.name = "scan_then_add", .run = call<&Scan::scan_then_add>},
    .optimized = variants({{.name = "reduce_then_scan", .run = call<&Scan::reduce_then_scan>},
                           {.name = "decoupled_lookback", .run = call<&Scan::decoupled_lookback>, .deterministic = false}}),
    .libraries = variants({{.name = "cub_inclusive_sum", .run = call<&Scan::cub_inclusive_sum>, .deterministic = false}}),
    .bound = Bound::memory,
    // Looking back one tile at a time adds up to 32768 roundings of 1.7e-8 (relative, root mean square): 3e-6 in all.
    .tolerance = within(1e-5),
    .sizes = sizes({{.name = "elements", .full = 256 << 20, .multiple = tile, .most = 512 << 20}}),
    .sweep = cases({{"mi_1", "elements=1048576"},
                    {"mi_4", "elements=4194304"},
                    {"mi_16", "elements=16777216"},
                    {"mi_64", "elements=67108864"},
                    {"mi_256", "elements=268435456"},
                    {"mi_512", "elements=536870912"}}),
    .edges = cases({{"one_tile", "elements=8192"}, {"three_tiles", "elements=24576"}}),
};

}  // namespace aisp::ch07
