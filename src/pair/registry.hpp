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
// SHA-256 of each pair's code (cmake/digests.cmake says what belongs to it), in the order of the registry.
std::span<const std::string_view> source_digests();
// Of one entry; empty for an entry that is not of the registry.
inline std::string_view source_digest(const Entry& entry) {
  const std::span<const Entry> all = registry();
  for (std::size_t i = 0; i < all.size(); ++i)
    if (&all[i] == &entry) return source_digests()[i];
  return {};
}

// A file as it was when this was built, for reports to show.
struct SourceFile {
  std::string_view path;  // relative to the source tree
  std::string_view text;
};
// Of the pair at this place in the registry: its file, then the chapters' headers that it includes.
std::span<const SourceFile> source_files(std::size_t index);

}  // namespace aisp::pair
