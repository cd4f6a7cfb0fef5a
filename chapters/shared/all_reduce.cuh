// SPDX-License-Identifier: Apache-2.0
// The all-reduce of two GPUs in one shot: each reads the other's partial sums where they lie, adds its own, and may go on with
// the row while it is in registers. Sums are rounded to bf16 before anything else is added, as those of a library's all-reduce
// are.
//
// A kernel begins by telling the other GPU's that its partial sums are complete. That is also news of the round before, in which
// the other GPU has read to the end: partial sums may be overwritten after the round that follows theirs, so two buffers in turn
// need no second barrier.
#pragma once
#include <aisp/device/fence.cuh>
#include <aisp/device/reduce.cuh>

#include <algorithm>

#include "peer_gpus.hpp"
#include "rows.cuh"

namespace aisp::shared {

constexpr int exchange_threads = 512, packets_per_thread = 2;  // rows of up to 8192 elements
constexpr int most_exchange_blocks =
    264;  // twice the SMs of an H100: all of them run at once, so that none waits for a later one

// One GPU's side of an exchange.
struct Exchange {
  const bf16 *own, *other;             // partial sums, [row][width]
  unsigned *arrived, *others_arrived;  // [block]: the last round that the other GPU, or this one, has begun
  unsigned* rounds;                    // [block]: so many has this GPU begun

  // Until the block of this number on the other GPU has begun the round. That one may have begun the next as well.
  __device__ __forceinline__ void meet() const {
    if (threadIdx.x == 0) {
      const unsigned round = ++rounds[blockIdx.x];
      device::store_release_system(others_arrived + blockIdx.x, round);
      while (static_cast<int>(device::load_acquire_system(arrived + blockIdx.x) - round) < 0) {
      }
    }
    __syncthreads();
  }
};

// x = before + what is added; normed = x / rms(x) * weight.
struct AddNorm {
  const bf16* before;  // may be x
  bf16 *x, *normed;
  const bf16* weight;
  int packets;  // of a row
};

__device__ __forceinline__ uint4 rounded_sum(const uint4& a, const uint4& b) {
  float x[packet], y[packet];
  unpack(a, x), unpack(b, y);
#pragma unroll
  for (int i = 0; i < packet; ++i) x[i] += y[i];
  return pack(x);
}

// A packet of the row for each thread and k.
template <class Use>
__device__ __forceinline__ void for_packets(const AddNorm& work, const Use& use) {
#pragma unroll
  for (int k = 0; k < packets_per_thread; ++k)
    if (const int at = static_cast<int>(threadIdx.x) + k * exchange_threads; at < work.packets) use(k, at);
}
__device__ __forceinline__ const uint4* row_of(const bf16* rows, const AddNorm& work, int row) {
  return reinterpret_cast<const uint4*>(rows) + static_cast<std::size_t>(row) * work.packets;
}

// `added` becomes x.
__device__ __forceinline__ void add_and_norm(const AddNorm& work, int row, const uint4 (&before)[packets_per_thread],
                                             uint4 (&added)[packets_per_thread], float* sums) {
  float squares = 0;
  for_packets(work, [&](int k, int at) {
    added[k] = rounded_sum(before[k], added[k]);
    const_cast<uint4*>(row_of(work.x, work, row))[at] = added[k];
    float x[packet];
    unpack(added[k], x);
    squares += sum_of_squares(x);
  });
  const float scale = rsqrtf(device::block_sum(squares, sums) / static_cast<float>(work.packets * packet) + 1e-5f);
  for_packets(work, [&](int k, int at) {
    float x[packet], weight[packet];
    unpack(added[k], x), unpack(reinterpret_cast<const uint4*>(work.weight)[at], weight);
#pragma unroll
    for (int i = 0; i < packet; ++i) x[i] *= scale * weight[i];
    const_cast<uint4*>(row_of(work.normed, work, row))[at] = pack(x);
  });
}

// A block has a row of `added`.
static __global__ __launch_bounds__(exchange_threads) void add_norm_kernel(AddNorm work, const bf16* added) {
  __shared__ float sums[device::largest_block_in_warps];
  const int row = static_cast<int>(blockIdx.x);
  uint4 before[packets_per_thread], sum[packets_per_thread];
  for_packets(work, [&](int k, int at) {
    before[k] = row_of(work.before, work, row)[at];
    sum[k] = row_of(added, work, row)[at];
  });
  add_and_norm(work, row, before, sum, sums);
}

// sum = own + other.
static __global__ __launch_bounds__(exchange_threads) void one_shot_kernel(Exchange exchange, bf16* sum, std::size_t packets) {
  constexpr int together = 4;
  device::let_dependents_start();
  device::wait_for_previous_kernel();
  exchange.meet();
  const std::size_t stride = std::size_t{gridDim.x} * exchange_threads;
  for (std::size_t first = std::size_t{blockIdx.x} * exchange_threads + threadIdx.x; first < packets;
       first += together * stride) {
    uint4 own[together], other[together];
#pragma unroll
    for (int k = 0; k < together; ++k)
      if (const std::size_t at = first + static_cast<unsigned>(k) * stride; at < packets) {
        other[k] = reinterpret_cast<const uint4*>(exchange.other)[at];
        own[k] = reinterpret_cast<const uint4*>(exchange.own)[at];
      }
#pragma unroll
    for (int k = 0; k < together; ++k)
      if (const std::size_t at = first + static_cast<unsigned>(k) * stride; at < packets)
        reinterpret_cast<uint4*>(sum)[at] = rounded_sum(own[k], other[k]);
  }
}

// The sum, the residual and the norm of each row. Blocks take rows in turn; what is this GPU's own is asked for before they meet.
static __global__ __launch_bounds__(exchange_threads) void one_shot_norm_kernel(Exchange exchange, AddNorm work, int rows) {
  __shared__ float sums[device::largest_block_in_warps];
  device::let_dependents_start();
  device::wait_for_previous_kernel();
  for (int row = static_cast<int>(blockIdx.x); row < rows; row += static_cast<int>(gridDim.x)) {
    uint4 before[packets_per_thread], sum[packets_per_thread], other[packets_per_thread];
    for_packets(work, [&](int k, int at) {
      before[k] = row_of(work.before, work, row)[at];
      sum[k] = row_of(exchange.own, work, row)[at];
    });
    if (row == static_cast<int>(blockIdx.x)) exchange.meet();
    for_packets(work, [&](int k, int at) { other[k] = row_of(exchange.other, work, row)[at]; });
    for_packets(work, [&](int k, int) { sum[k] = rounded_sum(sum[k], other[k]); });
    add_and_norm(work, row, before, sum, sums);
  }
}

inline unsigned exchange_blocks(std::size_t most) {
  return static_cast<unsigned>(std::min<std::size_t>(most, most_exchange_blocks));
}

// The flags at which two GPUs meet.
class MeetingPlace {
 public:
  explicit MeetingPlace(Setup& setup) {
    for (int gpu = 0; gpu < 2; ++gpu)
      flags_.add(setup.scratch<unsigned>(2 * most_exchange_blocks, {.name = "rounds", .device = gpu}));
  }
  // In the prepare of each variant that exchanges: scratch has been poisoned. Loading a kernel's code may wait for what runs on
  // its GPU, and that may wait for the other one; so all are loaded before any of them runs.
  void prepare(const Gpus& gpus, Streams streams) const {
    for (int gpu = 0; gpu < 2; ++gpu) {
      const SelectedGpu selected{gpus.ordinal(gpu)};
      check(cudaMemsetAsync(flags_[gpu], 0, flags_[gpu].bytes(), streams[gpu]));
      cudaFuncAttributes ignored{};
      check(cudaFuncGetAttributes(&ignored, reinterpret_cast<const void*>(one_shot_kernel)));
      check(cudaFuncGetAttributes(&ignored, reinterpret_cast<const void*>(one_shot_norm_kernel)));
      check(cudaFuncGetAttributes(&ignored, reinterpret_cast<const void*>(add_norm_kernel)));
    }
  }
  Exchange exchange(int gpu, const bf16* own, const bf16* other) const {
    return {own, other, flags_[gpu], flags_[1 - gpu], flags_[gpu].get() + most_exchange_blocks};
  }

 private:
  Each<Scratch<unsigned>> flags_;
};

}  // namespace aisp::shared
