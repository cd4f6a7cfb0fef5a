// SPDX-License-Identifier: Apache-2.0
// Rows of a cache that no step writes: poisoned before a run that is to write them, or copied to a cache of another kind.
#pragma once
#include "decoder.hpp"

namespace aisp::decoder {

// blockIdx: the position from first[sequence] on, the sequence.
template <class Cache>
__global__ void poison_kernel(Step<Cache> step, const int* first, const int* count) {
  const int sequence = static_cast<int>(blockIdx.y), i = static_cast<int>(blockIdx.x);
  if (i >= count[sequence]) return;
  const int head_size = step.model.shape.head_size, columns = step.model.shape.kv_columns();
  for (int layer = 0; layer < step.model.shape.layers; ++layer)
    for (int e = static_cast<int>(threadIdx.x); e < columns; e += static_cast<int>(blockDim.x)) {
      const std::size_t to =
          layer * step.layer_elements + step.cache.at(sequence, e / head_size, first[sequence] + i) + e % head_size;
      const_cast<bf16*>(step.cache.k)[to] = const_cast<bf16*>(step.cache.v)[to] = __ushort_as_bfloat16(0x7FFF);
    }
}

// The first lengths[sequence] rows of each sequence, in all layers. blockIdx: the position, the sequence.
template <class From, class To>
__global__ void copy_rows_kernel(Step<From> from, Step<To> to, const int* lengths) {
  const int sequence = static_cast<int>(blockIdx.y), position = static_cast<int>(blockIdx.x);
  if (position >= lengths[sequence]) return;
  const int head_size = from.model.shape.head_size, columns = from.model.shape.kv_columns();
  for (int layer = 0; layer < from.model.shape.layers; ++layer)
    for (int e = static_cast<int>(threadIdx.x); e < columns; e += static_cast<int>(blockDim.x)) {
      const std::size_t source = layer * from.layer_elements + from.cache.at(sequence, e / head_size, position) + e % head_size;
      const std::size_t target = layer * to.layer_elements + to.cache.at(sequence, e / head_size, position) + e % head_size;
      const_cast<bf16*>(to.cache.k)[target] = from.cache.k[source];
      const_cast<bf16*>(to.cache.v)[target] = from.cache.v[source];
    }
}

}  // namespace aisp::decoder
