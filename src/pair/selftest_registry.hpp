// SPDX-License-Identifier: Apache-2.0
// The pairs of the self-test: in every executable, never part of the registry.
#pragma once
#include <aisp/selftest.hpp>

#include <span>

#include "pair/registry.hpp"

namespace aisp::pair {

struct SelftestEntry {
  Entry entry;
  const selftest::Case* subject;
  std::string_view family;  // the file that it is in, as "hangs"
  std::string_view about;   // what the pairs of this family do, one sentence
};

// Sorted by chapter, then name; generated from the folder selftest (cmake/selftest.cmake).
std::span<const SelftestEntry> selftest_registry();

}  // namespace aisp::pair
