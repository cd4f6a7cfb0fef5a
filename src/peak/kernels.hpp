// SPDX-License-Identifier: Apache-2.0
// The loads of `aisp peak` that no library has. Sizes in bytes are multiples of 16 KiB; `sink` is a word that nobody reads.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace aisp::peak {

// Uniform in [-1, 1), int8: all bits. What a chip draws, and with it its clock, depends on the data.
enum class Element : std::uint8_t { fp64, fp32, bf16, fp16, fp8, int8 };
std::size_t bytes_of(Element element);
void launch_fill(void* data, Element element, std::size_t count, std::uint32_t seed, cudaStream_t stream);

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
