// SPDX-License-Identifier: Apache-2.0
// How many codes of rotated rows may differ from those of the exact rotation.
#pragma once
#include <cmath>
#include <cstddef>

namespace aisp::ch19 {

// Returns how many of `codes` of whole rows, rotated with two roundings to bf16, may differ. 0.4 to 0.7 % change, and the number
// varies by more than by chance, because a row has one scale and its codes change together. The limit lies six deviations above
// the mean, at each size that tests/chapters simulates.
inline double most_changed_codes(std::size_t codes) {
  const auto count = static_cast<double>(codes);
  return 0.0075 * count + 0.55 * std::sqrt(count);
}

}  // namespace aisp::ch19
