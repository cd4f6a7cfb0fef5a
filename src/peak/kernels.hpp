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

// By the SM's clock and by the GPU's timer, both read in the kernel.
struct ChaseTime {
  std::uint64_t cycles = 0, ns = 0;
};

// Each place holds the address of the next in the order, the last that of the first; or each its own.
enum class Links : std::uint8_t { cycle, self };
void launch_link(void* base, const std::uint64_t* order, std::size_t count, Links links, cudaStream_t stream);
// All places into L2, those of the order's end last, as a chase would leave them.
void launch_touch(const void* base, const std::uint64_t* order, std::size_t count, std::uint32_t* sink, cudaStream_t stream);

// `steps`, a multiple of chase_unroll, are timed after `warm` more. `through_l1`: loads are cached in L1 too.
inline constexpr int chase_unroll = 16;
void launch_chase(const void* first, std::size_t warm, std::size_t steps, bool through_l1, ChaseTime* time, cudaStream_t stream);
// Cycles of a load of each place, which points to itself, from L2.
void launch_line_latencies(const void* base, const std::uint64_t* order, std::size_t count, float* cycles, cudaStream_t stream);

// Dependent operations of each chase: a multiply-add in registers, then a load from shared memory.
inline constexpr int on_chip_steps = 1 << 16;
void launch_on_chip_chase(ChaseTime* registers, ChaseTime* shared, std::uint32_t* sink, cudaStream_t stream);

// Every SM reads through the same `bytes`, a multiple of level_chunk_bytes, each from another place on, through L1; of more than
// L2 holds, each reads its part. The result is the number of bytes that all read together.
inline constexpr std::size_t level_chunk_bytes = 16384;
double launch_level_read(const void* data, std::size_t bytes, int sms, std::size_t l2_bytes, std::uint32_t* sink,
                         cudaStream_t stream);

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
