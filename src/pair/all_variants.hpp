// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/pair.hpp>

#include <vector>

namespace aisp::pair {

// The baseline, the optimized variants, the controls, then the libraries.
inline std::vector<const Variant*> all_variants(const Pair& pair) {
  std::vector<const Variant*> all{&pair.baseline};
  const auto add = [&](const Variants& variants) {
    for (const Variant& variant : variants) all.push_back(&variant);
  };
  add(pair.optimized);
  if (pair.controls) add(*pair.controls);
  if (pair.libraries) add(*pair.libraries);
  return all;
}

// The name of the optimized variant that shows what the pair teaches.
inline std::string_view lesson_of(const Pair& pair) { return pair.lesson.empty() ? pair.optimized[0].name : pair.lesson; }

}  // namespace aisp::pair
