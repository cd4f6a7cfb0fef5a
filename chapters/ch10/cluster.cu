// SPDX-License-Identifier: Apache-2.0
// Softmax over rows of 128256 logits (513 KB, the vocabulary of Llama 3). No SM can hold such a row, and all rows in work exceed
// L2, so one block per row reads it twice: 3.15 GB instead of 2.10. A cluster of eight blocks holds the row in the shared memory
// of eight SMs; what they tell each other is one maximum and one sum each, which travel through distributed shared memory.
#include <aisp/device/cluster.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/reduce.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

namespace aisp::ch10 {
namespace {

constexpr int columns = 128256;
constexpr int threads = 1024, warps = threads / 32;
constexpr int ranks = 8, slice = columns / ranks, slice_quads = slice / 4, slice_bytes = slice * 4;
constexpr int stages = 3;  // slices in shared memory: one in work, two on their way
constexpr int quads_per_thread = (slice_quads + threads - 1) / threads;
constexpr int shared_bytes = stages * slice_bytes;
static_assert(slice_bytes * ranks == columns * 4 && slice_bytes % 16 == 0);
static_assert(slice_quads > threads, "every thread has values, so that no maximum is -infinity");
constexpr float log2_e = 1.4426950408889634f;

// The maximum of some values (logits times log2 e), and the sum of their 2^(value - maximum).
struct Part {
  float maximum, sum;
};

__device__ Part merge(Part a, Part b) {
  const float maximum = fmaxf(a.maximum, b.maximum);
  return {maximum, a.sum * exp2f(a.maximum - maximum) + b.sum * exp2f(b.maximum - maximum)};
}

template <int width>
__device__ Part merge_lanes(Part part) {
#pragma unroll
  for (int offset = width / 2; offset > 0; offset /= 2)
    part = merge(part, {__shfl_xor_sync(~0u, part.maximum, offset), __shfl_xor_sync(~0u, part.sum, offset)});
  return part;
}

__device__ float4 exponentials(float4 logits, float maximum) {
  return make_float4(exp2f(fmaf(logits.x, log2_e, -maximum)), exp2f(fmaf(logits.y, log2_e, -maximum)),
                     exp2f(fmaf(logits.z, log2_e, -maximum)), exp2f(fmaf(logits.w, log2_e, -maximum)));
}
__device__ float largest(float4 v) { return fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)); }
__device__ float total(float4 v) { return (v.x + v.y) + (v.z + v.w); }
__device__ float4 scaled(float4 v, float factor) { return make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor); }

// Online softmax: the first pass keeps a running maximum and sum, the second reads the row again and writes.
__global__ __launch_bounds__(threads) void block_per_row_kernel(const float* logits, float* probabilities) {
  __shared__ Part of_warp[warps];
  const auto* from = reinterpret_cast<const float4*>(logits + static_cast<std::size_t>(blockIdx.x) * columns);
  auto* to = reinterpret_cast<float4*>(probabilities + static_cast<std::size_t>(blockIdx.x) * columns);
  Part part{-INFINITY, 0};
#pragma unroll 4
  for (int i = threadIdx.x; i < columns / 4; i += threads) {
    const float4 v = from[i];
    const float maximum = fmaxf(part.maximum, largest(v) * log2_e);
    part = {maximum, part.sum * exp2f(part.maximum - maximum) + total(exponentials(v, maximum))};
  }
  part = merge_lanes<32>(part);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = part;
  __syncthreads();
  part = merge_lanes<32>(of_warp[threadIdx.x % 32]);
  const float inverse = 1 / part.sum;
#pragma unroll 4
  for (int i = threadIdx.x; i < columns / 4; i += threads) to[i] = scaled(exponentials(from[i], part.maximum), inverse);
}

// Persistent: each cluster takes every gridDim.x / 8-th row, and its blocks work on their slices in step. The TMA fills a ring of
// three slices ahead of them. An element is read from shared memory once and exponentiated once, relative to its warp's maximum;
// the difference to the row's maximum, known only later, is made good in the last multiplication.
__global__ __launch_bounds__(threads, 1) void cluster_dsmem_kernel(const float* logits, float* probabilities, int rows) {
  extern __shared__ __align__(128) float4 ring[];
  __shared__ Part of_warp[2][warps], of_block[2][ranks];  // of even and odd rounds; all blocks of the cluster write of_block
  __shared__ std::uint64_t filled[stages], exchanged[2];
  const unsigned rank = device::cluster_rank();
  const int first_row = static_cast<int>(blockIdx.x) / ranks, row_step = static_cast<int>(gridDim.x) / ranks;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  const auto load = [&](int row, int stage) {
    device::barrier_arrive_expect(&filled[stage], slice_bytes);
    device::bulk_load(ring + stage * slice_quads, logits + static_cast<std::size_t>(row) * columns + rank * slice, slice_bytes,
                      &filled[stage]);
  };
  if (threadIdx.x == 0) {
    for (auto& barrier : filled) device::barrier_init(&barrier, 1);
    for (auto& barrier : exchanged) device::barrier_init(&barrier, 1);
    device::fence_barrier_init();
  }
  device::cluster_sync();  // nobody writes into a block whose barriers are not there yet
  if (threadIdx.x == 0)
    for (int slot = 0; slot < stages && first_row + slot * row_step < rows; ++slot) load(first_row + slot * row_step, slot);

  int stage = 0;
  unsigned filled_parity = 0;
  for (int row = first_row, round = 0; row < rows; row += row_step, ++round) {
    const int set = round % 2;
    device::barrier_wait(&filled[stage], filled_parity);
    float4 values[quads_per_thread];
    float maximum = -INFINITY;
#pragma unroll
    for (int k = 0; k < quads_per_thread; ++k) {
      const int quad = threadIdx.x + k * threads;
      values[k] = quad < slice_quads ? ring[stage * slice_quads + quad] : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
      maximum = fmaxf(maximum, largest(values[k]));
    }
    maximum = device::warp_max(maximum) * log2_e;
    float sum = 0;
#pragma unroll
    for (int k = 0; k < quads_per_thread; ++k) {
      values[k] = exponentials(values[k], maximum);
      sum += total(values[k]);
    }
    sum = device::warp_sum(sum);
    if (lane == 0) of_warp[set][warp] = {maximum, sum};
    __syncthreads();

    // All threads have their values in registers: the slot is free. A block never runs more than one round ahead of another,
    // because it needs that one's part; two sets of parts and barriers are therefore enough.
    if (warp == 0) {
      if (lane == 0 && row + stages * row_step < rows) load(row + stages * row_step, stage);
      if (lane == 0) device::barrier_arrive_expect(&exchanged[set], ranks * sizeof(Part));
      const Part mine = merge_lanes<32>(of_warp[set][lane]);
      if (lane < ranks) {
        const std::uint32_t barrier = device::remote_address(&exchanged[set], lane);
        device::store_async_f32(device::remote_address(&of_block[set][rank].maximum, lane), mine.maximum, barrier);
        device::store_async_f32(device::remote_address(&of_block[set][rank].sum, lane), mine.sum, barrier);
      }
    }
    device::barrier_wait_cluster(&exchanged[set], round / 2 % 2);
    const Part whole = merge_lanes<ranks>(of_block[set][lane % ranks]);
    const float factor = exp2f(maximum - whole.maximum) / whole.sum;
    auto* to = reinterpret_cast<float4*>(probabilities + static_cast<std::size_t>(row) * columns + rank * slice);
#pragma unroll
    for (int k = 0; k < quads_per_thread; ++k) {
      const int quad = threadIdx.x + k * threads;
      if (quad < slice_quads) to[quad] = scaled(values[k], factor);
    }
    if (++stage == stages) {
      stage = 0;
      filled_parity ^= 1;
    }
  }
  device::cluster_sync();  // nobody leaves while others may still write to it
}

// Sums of rows, for the check of all of them.
__global__ __launch_bounds__(threads) void row_sums_kernel(const float* probabilities, float* sums) {
  __shared__ float partial[device::largest_block_in_warps];
  float sum = 0;
  for (int i = threadIdx.x; i < columns; i += threads) sum += probabilities[static_cast<std::size_t>(blockIdx.x) * columns + i];
  sum = device::block_sum(sum, partial);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

class Cluster final : public Workload {
 public:
  explicit Cluster(Setup& setup)
      : rows_{setup.scaled(2048)},
        logits_{setup.input<float>(rows_ * columns, normal(0, 3), {.name = "logits"})},
        probabilities_{setup.output<float>(rows_ * columns, {.name = "probabilities"})},
        sums_{setup.scratch<float>(rows_)},
        team_{setup.threads(setup.cpus(), false)} {
    const int resident = resident_clusters(cluster_dsmem_kernel, {ranks, threads, shared_bytes, ranks});
    if (resident == 0) throw Unsupported("no room for a cluster of 8 blocks with 188 KiB of shared memory each");
    clusters_ = std::min(static_cast<std::size_t>(resident), rows_);
  }

  Cost cost() const override { return {.bytes = static_cast<double>(logits_.bytes() + probabilities_.bytes())}; }

  void compute_reference(Launch&) override {
    log_sums_.resize(rows_);
    team_.run([this](int worker) {
      for (auto row = static_cast<std::size_t>(worker); row < rows_; row += static_cast<std::size_t>(team_.size())) {
        double sum = 0;  // of logits far below 709, where exp overflows: no maximum need be taken off
        for (std::size_t i = 0; i < columns; ++i) sum += std::exp(logits_.host(row * columns + i));
        log_sums_[row] = std::log(sum);
      }
    });
  }
  double expected(std::size_t index) const override { return std::exp(logits_.host(index) - log_sums_[index / columns]); }

  void validate(std::string_view) override {
    row_sums_kernel<<<static_cast<unsigned>(rows_), threads>>>(probabilities_, sums_);
    check(cudaGetLastError());
    std::vector<float> sums(rows_);
    check(cudaMemcpy(sums.data(), sums_.get(), sums_.bytes(), cudaMemcpyDeviceToHost));
    for (const float sum : sums)
      if (!(std::abs(sum - 1) <= 1e-4)) throw std::runtime_error("a row sums to " + std::to_string(sum));
  }

  void block_per_row(Launch& launch) {
    launch(block_per_row_kernel, {static_cast<unsigned>(rows_), threads}, logits_, probabilities_);
  }
  void cluster_dsmem_8(Launch& launch) {
    const Grid grid{static_cast<unsigned>(clusters_) * ranks, threads, shared_bytes, ranks};
    launch(cluster_dsmem_kernel, grid, logits_, probabilities_, rows_);
  }

 private:
  std::size_t rows_;
  Input<float> logits_;
  Output<float> probabilities_;
  Scratch<float> sums_;
  ThreadTeam& team_;
  std::size_t clusters_ = 1;
  std::vector<double> log_sums_;
};

}  // namespace

extern constinit const Pair cluster{
    .teaches = "eight SMs pool their shared memory: a row too long for one is read once, and DSMEM carries the reductions",
    .lesson = "cluster_dsmem_8",
    .make = make<Cluster>,
    .baseline = {.name = "block_per_row", .run = call<&Cluster::block_per_row>},
    .optimized = variants({{.name = "cluster_dsmem_8", .run = call<&Cluster::cluster_dsmem_8>}}),
    .bound = Bound::memory,
    // Exponents of 2 reach 40 and are rounded to 24 bits: about 1e-6 for each exponential.
    .tolerance = within(1e-5),
    .needs = {.min_sm = 90, .dsmem = true},
};

}  // namespace aisp::ch10
