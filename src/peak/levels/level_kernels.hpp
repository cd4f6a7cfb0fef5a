// SPDX-License-Identifier: Apache-2.0
// The kernels of `aisp peak --levels`. A chase is one thread: each load gives the address of the next.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace aisp::peak {

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

}  // namespace aisp::peak
