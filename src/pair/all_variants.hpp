// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/pair.hpp>

#include <vector>

namespace aisp::pair {

// The baseline, the optimized variants, then the peers.
inline std::vector<const Variant*> all_variants(const Pair& pair) {
  std::vector<const Variant*> all{&pair.baseline};
  for (const Variant& variant : pair.optimized) all.push_back(&variant);
  if (pair.peers)
    for (const Variant& variant : *pair.peers) all.push_back(&variant);
  return all;
}

}  // namespace aisp::pair
