// SPDX-License-Identifier: Apache-2.0
#include "report/library_share.hpp"

#include <cmath>

#include "report/numbers.hpp"

namespace aisp::report {

using evidence::VariantRole;

std::optional<LibraryShare> library_share(const evidence::PairResult& pair, const evidence::VariantResult& variant) {
  if (variant.role == VariantRole::peer) return std::nullopt;
  const evidence::Speedup* const own = claimable(pair, variant);
  const bool is_baseline = variant.role == VariantRole::baseline;
  if (own == nullptr && !is_baseline) return std::nullopt;
  const evidence::VariantResult* fastest = nullptr;
  for (const evidence::VariantResult& other : pair.variants) {
    if (other.role != VariantRole::peer || claimable(pair, other) == nullptr || !(other.speedup->value > 0)) continue;
    if (fastest == nullptr || other.speedup->value > fastest->speedup->value) fastest = &other;
  }
  if (fastest == nullptr) return std::nullopt;
  const double percent = (is_baseline ? 1 : own->value) / fastest->speedup->value * 100;
  if (!std::isfinite(percent)) return std::nullopt;
  return LibraryShare{fastest->name, percent};
}

}  // namespace aisp::report
