// SPDX-License-Identifier: Apache-2.0
// How fast a variant is beside the fastest library that was timed in the same rounds.
#pragma once
#include <optional>
#include <string>

#include "evidence/result.hpp"

namespace aisp::report {

struct LibraryShare {
  std::string library;
  double percent = 0;  // 100: level with it
};

// Nothing without a library, and of the library itself.
std::optional<LibraryShare> library_share(const evidence::PairResult& pair, const evidence::VariantResult& variant);

}  // namespace aisp::report
