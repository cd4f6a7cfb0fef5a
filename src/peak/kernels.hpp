// SPDX-License-Identifier: Apache-2.0
// The loads of `aisp peak` that no library has. Sizes in bytes are multiples of 16 KiB; `sink` is a word that nobody reads.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "machine/number_types.hpp"

namespace aisp::peak {

// Uniform in [-1, 1), int8: all bits. What a chip draws, and with it its clock, depends on the data.
// Throws for tf32 and what is narrower than a byte.
void launch_fill(void* data, machine::NumberType element, std::size_t count, std::uint32_t seed, cudaStream_t stream);

void launch_read(const void* from, std::size_t bytes, std::uint32_t* sink, cudaStream_t stream);
void launch_write(void* to, std::size_t bytes, cudaStream_t stream);
void launch_copy(const void* from, void* to, std::size_t bytes, cudaStream_t stream);
void launch_triad(const void* b, const void* c, void* a, std::size_t bytes, cudaStream_t stream);  // a = b + 3 c, float

// Reads `data`, a power of two of bytes, over and over past L1; the result is the number of bytes read.
double launch_l2_read(const void* data, std::size_t bytes, int sms, int passes, std::uint32_t* sink, cudaStream_t stream);
double launch_shared_read(int sms, int rounds, std::uint32_t* sink, cudaStream_t stream);

// Independent chains of fused multiply-adds on every SM; the result is the number of operations, two for each.
double launch_fma_fp32(int sms, int rounds, void* sink, cudaStream_t stream);
double launch_fma_fp64(int sms, int rounds, void* sink, cudaStream_t stream);

void launch_empty(cudaStream_t stream);

}  // namespace aisp::peak
