// SPDX-License-Identifier: Apache-2.0
// The loss of a language model over rows of logits, and the gradient of the mean loss in their place. Rows may begin anywhere:
// where they are not aligned to 16 bytes, their ends go one by one.
#pragma once
#include <aisp/launch.hpp>

#include <cstdint>

#include "rows.cuh"

namespace aisp::ch13 {

inline constexpr int ignored = -100;  // the label of a row that counts nothing
inline constexpr unsigned loss_threads = 1024;

struct LossRows {
  shared::bf16* logits;  // become gradients
  const int* labels;
  const unsigned* rows_of;  // where row i of the logits belongs among labels and losses; none: at i
  const unsigned* counted;  // how many rows have a label, of the mean
  float* losses;
  unsigned rows, columns;
  std::size_t pitch;  // elements from one row to the next; those beyond `padded` are left alone
  unsigned padded;    // columns with those of padding, whose gradient is 0
};

// Calls use(column, values, count) for the thread's share of a row, in packets of eight or, at the ends, one by one.
template <class Use>
__device__ __forceinline__ void for_columns(shared::bf16* row, unsigned columns, Use use) {
  constexpr unsigned in_flight = 4, packet = shared::packet;
  const unsigned past = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(row) / sizeof(shared::bf16) % packet);
  const unsigned head = min((packet - past) % packet, columns), packets = (columns - head) / packet;
  const unsigned tail = head + packets * packet;
  const auto one = [&](unsigned column) {
    float x[packet] = {__bfloat162float(row[column])};
    use(column, x, 1u);
  };
  if (threadIdx.x < head) one(threadIdx.x);
  if (tail + threadIdx.x < columns) one(tail + threadIdx.x);
  const auto* const body = reinterpret_cast<const uint4*>(row + head);
  for (unsigned first = threadIdx.x; first < packets; first += in_flight * loss_threads) {
    uint4 loaded[in_flight];
#pragma unroll
    for (unsigned k = 0; k < in_flight; ++k)
      if (first + k * loss_threads < packets) loaded[k] = body[first + k * loss_threads];
#pragma unroll
    for (unsigned k = 0; k < in_flight; ++k)
      if (const unsigned i = first + k * loss_threads; i < packets) {
        float x[packet];
        shared::unpack(loaded[k], x);
        use(head + i * packet, x, packet);
      }
  }
}

__device__ __forceinline__ void clear_columns(shared::bf16* row, unsigned columns) {
  const auto aligned = reinterpret_cast<std::uintptr_t>(row) % sizeof(uint4) == 0;
  const unsigned packets = aligned ? columns / shared::packet : 0;
  for (unsigned i = threadIdx.x; i < packets; i += loss_threads) reinterpret_cast<uint4*>(row)[i] = uint4{};
  for (unsigned column = packets * shared::packet + threadIdx.x; column < columns; column += loss_threads)
    row[column] = __float2bfloat16_rn(0);
}

static __global__ __launch_bounds__(loss_threads) void loss_kernel(LossRows work) {
  using shared::bf16, shared::packet;
  __shared__ shared::MaxSum parts[device::largest_block_in_warps];
  const unsigned index = work.rows_of != nullptr ? work.rows_of[blockIdx.x] : blockIdx.x;
  bf16* const row = work.logits + blockIdx.x * work.pitch;
  const int label = work.labels[index];
  const auto store = [&](unsigned column, const float(&x)[packet], unsigned count) {
    if (count == 1) row[column] = __float2bfloat16_rn(x[0]);
    else *reinterpret_cast<uint4*>(row + column) = shared::pack(x);
  };
  for (unsigned column = work.columns + threadIdx.x; column < work.padded; column += loss_threads)
    row[column] = __float2bfloat16_rn(0);
  if (label == ignored) {  // nothing is read, whatever the logits are
    if (threadIdx.x == 0) work.losses[index] = 0;
    clear_columns(row, work.columns);
    return;
  }
  const float of_label = __bfloat162float(row[label]);  // before it is overwritten, after the barriers of the sum
  shared::MaxSum seen = shared::nothing_seen();
  for_columns(row, work.columns, [&](unsigned, float(&x)[packet], unsigned count) {
    if (count == packet) shared::add(seen, x);
    else {
#pragma unroll
      for (int j = 1; j < packet; ++j) x[j] = shared::minus_infinity();
      shared::add(seen, x);
    }
  });
  seen = shared::block_merge(seen, parts);
  const float weight = 1 / static_cast<float>(*work.counted), factor = weight / seen.sum;
  const float offset = shared::level(seen.maximum) * shared::log2_e;
  for_columns(row, work.columns, [&](unsigned column, float(&x)[packet], unsigned count) {
#pragma unroll
    for (int j = 0; j < packet; ++j)
      x[j] = shared::exponential(x[j], offset) * factor - (static_cast<int>(column) + j == label ? weight : 0);
    store(column, x, count);
  });
  if (threadIdx.x == 0) work.losses[index] = seen.maximum + logf(seen.sum) - of_label;
}

// One block: how many rows have a label.
static __global__ __launch_bounds__(loss_threads) void count_labels_kernel(const int* labels, unsigned* counted, unsigned rows) {
  __shared__ unsigned parts[device::largest_block_in_warps];
  unsigned own = 0;
  for (unsigned row = threadIdx.x; row < rows; row += loss_threads) own += labels[row] != ignored;
  own = device::block_sum(own, parts);
  if (threadIdx.x == 0) *counted = own;
}

inline void run_loss(cudaStream_t stream, const LossRows& work) {
  if (work.rows > 0) launch_kernel(stream, loss_kernel, {work.rows, loss_threads}, work);
}

}  // namespace aisp::ch13
