// SPDX-License-Identifier: Apache-2.0
// The pairs of the tree that this executable was built without, in a table that is generated at build time like the registry.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace aisp::pair {

struct NotBuilt {
  std::string_view chapter, name, source;  // as of a pair::Entry

  std::string target() const { return std::string{chapter} + ":" + std::string{name}; }
};

// Sorted by chapter, then name.
std::span<const NotBuilt> not_built();
// Returns the pairs that the build was configured with, as in "ch01,ch05:mmap"; empty: all.
std::string_view chosen_at_build();

}  // namespace aisp::pair
