// SPDX-License-Identifier: Apache-2.0
// Refuses arguments of the engine that it would compute something else from, with one line. Statements `refuse_unless(...)` are
// no part of a pair's digest (docs/method.md).
#pragma once
#include <cstddef>
#include <stdexcept>
#include <string>

namespace aisp::attention {

inline void refuse_unless(bool holds, const std::string& otherwise) {
  if (!holds) throw std::logic_error{"attention: " + otherwise};
}

// Whether query heads share the heads of keys in groups of equal size.
inline bool in_groups(std::size_t heads, std::size_t kv_heads) { return kv_heads > 0 && heads > 0 && heads % kv_heads == 0; }
inline std::string uneven_groups(std::size_t heads, std::size_t kv_heads) {
  return std::to_string(heads) + " query heads cannot share " + std::to_string(kv_heads) +
         " heads of keys in equal groups; the first number must be a multiple of the second";
}
inline std::string other_heads(const char* one, std::size_t heads, const char* other, std::size_t others) {
  return std::string{one} + " has " + std::to_string(heads) + " heads and " + other + " has " + std::to_string(others) +
         "; both must have as many";
}

}  // namespace aisp::attention
