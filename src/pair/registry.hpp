// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/pair.hpp>

#include <span>
#include <string>
#include <string_view>

namespace aisp::pair {

// One pair linked into this executable. The table is generated at build time from the chapter folders (cmake/registry.cmake).
struct Entry {
  std::string_view chapter;  // "ch07"
  std::string_view name;     // "transpose"
  std::string_view source;   // "chapters/ch07/transpose.cu", relative to the source tree
  const Pair* pair;

  std::string target() const { return std::string{chapter} + ":" + std::string{name}; }
};

// Sorted by chapter, then name.
std::span<const Entry> registry();

}  // namespace aisp::pair
