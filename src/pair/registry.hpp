// SPDX-License-Identifier: Apache-2.0
// The pairs that are linked into this executable, in tables that are generated at build time.
#pragma once
#include <aisp/pair.hpp>
#include <aisp/selftest.hpp>

#include <span>
#include <string>
#include <string_view>

namespace aisp::pair {

// The table of these is generated from the chapter folders (cmake/registry.cmake).
struct Entry {
  std::string_view chapter;  // "ch07"
  std::string_view name;     // "transpose"
  std::string_view source;   // "chapters/ch07/transpose.cu", relative to the source tree
  const Pair* pair;

  std::string target() const { return std::string{chapter} + ":" + std::string{name}; }
};

// Sorted by chapter, then name.
std::span<const Entry> registry();

// A pair of the self-test: in every executable, never part of the registry.
struct SelftestEntry {
  Entry entry;
  const selftest::Case* subject;
  std::string_view family;  // the file that it is in, as "hangs"
  std::string_view about;   // what the pairs of this family do, one sentence
};

// Sorted by chapter, then name; generated from the folder selftest (cmake/selftest.cmake).
std::span<const SelftestEntry> selftest_registry();

// A pair of the tree that this executable was built without.
struct NotBuilt {
  std::string_view chapter, name, source;  // as of a pair::Entry

  std::string target() const { return std::string{chapter} + ":" + std::string{name}; }
};

// Sorted by chapter, then name.
std::span<const NotBuilt> not_built();
// Returns the pairs that the build was configured with, as in "ch01,ch05:mmap"; empty: all.
std::string_view chosen_at_build();

}  // namespace aisp::pair
