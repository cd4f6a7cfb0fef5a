// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace aisp::measure {

// Launches a short kernel on the whole GPU, aisp_probe in profiles: its reading minus its own duration is the stopwatch's offset.
// `to` has probe_words words.
inline constexpr int probe_words = 128 * 128;
void launch_probe(std::uint32_t* to, cudaStream_t stream);
// Launch marker kernels, so that a profiler's records show where a sample begins and ends.
void launch_sample_begin(cudaStream_t stream);
void launch_sample_end(cudaStream_t stream);
// Holds `stream` until *flag >= wanted (mapped host memory): for drivers without stream memory operations.
void launch_spin_until(const std::uint32_t* flag, std::uint32_t wanted, cudaStream_t stream);
// Writes `bytes` at `data`, then reads them again: afterwards L2 holds nothing but clean lines of `data`.
void launch_evict_l2(void* data, std::size_t bytes, std::uint32_t value, cudaStream_t stream);
// The second half of launch_evict_l2: only reads if `data` holds `value` already.
void launch_read(void* data, std::size_t bytes, std::uint32_t value, cudaStream_t stream);

}  // namespace aisp::measure
