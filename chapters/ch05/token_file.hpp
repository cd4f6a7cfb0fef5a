// SPDX-License-Identifier: Apache-2.0
// A file of token ids in samples of 4 KiB, as the pairs of this chapter read it.
#pragma once
#include <aisp/setup.hpp>

#include <cstddef>
#include <cstdint>

namespace aisp::ch05 {

constexpr std::size_t sample_tokens = 1024;
constexpr std::size_t sample_bytes = sample_tokens * sizeof(std::uint32_t);

inline FileInput token_file(Setup& setup) { return setup.file("tokens.bin", setup.scaled(std::size_t{512} << 20, sample_bytes)); }

// Which samples are read, in which order.
inline Input<std::uint32_t> random_samples(Setup& setup, const FileInput& file, std::size_t samples) {
  return setup.input<std::uint32_t>(samples, integers(0, static_cast<std::int64_t>(file.bytes() / sample_bytes) - 1));
}

// Modulo 2^32.
inline std::uint32_t sum_of(const std::uint32_t* tokens) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < sample_tokens; ++i) sum += tokens[i];
  return sum;
}

// The same from what the file was made of, without reading it.
inline std::uint32_t expected_sum(const FileInput& file, std::size_t sample) {
  constexpr std::size_t words = sample_bytes / sizeof(std::uint64_t);
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t word = file.word(sample * words + i);
    sum += static_cast<std::uint32_t>(word) + static_cast<std::uint32_t>(word >> 32);
  }
  return sum;
}

}  // namespace aisp::ch05
