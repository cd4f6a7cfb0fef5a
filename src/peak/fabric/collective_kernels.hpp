// SPDX-License-Identifier: Apache-2.0
// Data of which every element tells its rank and its place, and the check of what a collective made of them.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace aisp::peak {

// Whole numbers so small that any sum over ranks is exact in any order: hash(i) + rank.
void launch_pattern(float* data, std::size_t count, int rank, cudaStream_t stream);

// Element i is to be scale x hash(first + i % chunk) + offset + i / chunk.
struct Expected {
  std::size_t chunk = 0, first = 0;
  float scale = 1, offset = 0;
};
// Adds the number of elements that are not.
void launch_count_wrong(const float* data, std::size_t count, const Expected& expected, unsigned long long* wrong,
                        cudaStream_t stream);

}  // namespace aisp::peak
