// SPDX-License-Identifier: Apache-2.0
// The segments that segmented_sort sorts: lengths and keys.
#pragma once
#include <aisp/ragged.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace aisp::ch12::segments {

// The lengths that stand at borders of classes are always there.
inline std::vector<int> draw_offsets(std::size_t pairs, std::size_t mean, double spread) {
  std::vector<int> offsets(std::max<std::size_t>(pairs / mean, 1) + 1);
  const double median = static_cast<double>(mean) * std::exp(-spread * spread / 2);
  const auto lengths = spread == 0 ? integers(static_cast<std::int64_t>(mean), static_cast<std::int64_t>(mean))
                                   : log_normal(median, spread, 8, 65536);
  std::vector<std::int64_t> always;
  if (spread > 0 && offsets.size() > 1000)
    always = {0,   0,    1,    2,    16,   17,   64,   65,   128,  129,   256,   257,  512,
              513, 1024, 1025, 2048, 2049, 4096, 4097, 8192, 8193, 16384, 16385, 65536};
  ragged_offsets<int>(lengths, static_cast<std::int64_t>(pairs), always)(offsets, 1);
  return offsets;
}

// One key in 64 is equal to others, the largest among them, which is what fills up.
inline void draw_keys(std::span<std::uint32_t> keys, std::uint64_t seed) {
  constexpr std::uint32_t planted[] = {0, 5, 0xFFFFFFFE, 0xFFFFFFFF};
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::uint64_t bits = random_bits(seed, i);
    keys[i] = (bits >> 32) % 64 == 0 ? planted[bits % 4] : static_cast<std::uint32_t>(bits);
  }
}

}  // namespace aisp::ch12::segments
