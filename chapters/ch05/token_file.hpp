// SPDX-License-Identifier: Apache-2.0
// A file of token ids in samples of equal length, as the pairs of this chapter read it.
#pragma once
#include <aisp/setup.hpp>

#include <cstddef>
#include <cstdint>

namespace aisp::ch05 {

// Which samples are read, in which order.
inline Input<std::uint32_t> random_samples(Setup& setup, const FileInput& file, std::size_t sample_bytes, std::size_t samples) {
  return setup.input<std::uint32_t>(samples, integers(0, static_cast<std::int64_t>(file.bytes() / sample_bytes) - 1));
}

// Modulo 2^32.
inline std::uint32_t sum_of(const std::uint32_t* tokens, std::size_t bytes) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < bytes / sizeof *tokens; ++i) sum += tokens[i];
  return sum;
}

// The same from what the file was made of, without reading it.
inline std::uint32_t expected_sum(const FileInput& file, std::size_t sample_bytes, std::size_t sample) {
  const std::size_t words = sample_bytes / sizeof(std::uint64_t);
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t word = file.word(sample * words + i);
    sum += static_cast<std::uint32_t>(word) + static_cast<std::uint32_t>(word >> 32);
  }
  return sum;
}

}  // namespace aisp::ch05
