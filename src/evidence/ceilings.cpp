// SPDX-License-Identifier: Apache-2.0
#include "evidence/ceilings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/text.hpp"

namespace aisp::evidence {
namespace {

struct Reached {
  double flops_s = 0;
  std::string by;  // "cublaslt in ch09:gemm"
};

// Returns the guessed rate that a variant's lower bound stands on alone, in the pair's ceilings; null if there is none.
double* guessed_rate(PairResult& pair, const VariantResult& variant) {
  if (!pair.ceilings || !variant.floor || variant.floor->ceiling_from != CeilingFrom::guess) return nullptr;
  const std::string& math = variant.cost.math;
  const auto rate = pair.ceilings->flops_s.find(math);
  const bool alone = rate != pair.ceilings->flops_s.end() && variant.floor->limiter == "compute (" + math + ")" &&
                     variant.floor->ceiling == base::human_rate(rate->second, "FLOP");
  return alone ? &rate->second : nullptr;
}

}  // namespace

CeilingFrom source_of_flops(const ResultCeilings& ceilings, const std::string& math) {
  const auto found = ceilings.flops_from.find(math);
  return found == ceilings.flops_from.end() ? CeilingFrom::measured : found->second;
}

void take_better(double& best, CeilingFrom& from, double other, CeilingFrom other_from) {
  if (!(other > 0) || (best > 0 && other_from > from)) return;
  best = best > 0 && other_from == from ? std::max(best, other) : other;
  from = other_from;
}

void take_better_flops(ResultCeilings& best, const std::string& math, double flops_s, CeilingFrom from) {
  CeilingFrom own = source_of_flops(best, math);
  take_better(best.flops_s[math], own, flops_s, from);
  if (own == CeilingFrom::measured) best.flops_from.erase(math);
  else best.flops_from[math] = own;
}

std::vector<const PairResult*> raise_guessed_ceilings(std::vector<PairResult>& pairs) {
  std::map<std::pair<std::string, std::string>, Reached> most;  // by machine and type of math
  for (PairResult& pair : pairs)
    for (const VariantResult& variant : pair.variants) {
      const double* rate = guessed_rate(pair, variant);
      if (rate == nullptr || variant.role != VariantRole::library || claimable(pair, variant) == nullptr) continue;
      Reached& reached = most[{pair.machine, variant.cost.math}];
      if (const double flops_s = *rate * variant.floor->percent / 100; flops_s > *rate && flops_s > reached.flops_s)
        reached = {flops_s, fmt::format("{} in {}", variant.name, label_in_run(pair))};
    }
  std::vector<const PairResult*> raised;
  for (PairResult& pair : pairs) {
    std::map<double*, const Reached*> rates;  // changed after the floors, which are known by them
    for (VariantResult& variant : pair.variants) {
      double* const rate = guessed_rate(pair, variant);
      if (rate == nullptr) continue;
      const Reached& reached = most[{pair.machine, variant.cost.math}];
      if (!(reached.flops_s > *rate)) continue;
      variant.floor->milliseconds *= *rate / reached.flops_s;
      variant.floor->percent *= *rate / reached.flops_s;
      variant.floor->source += fmt::format("; raised to what {} reached", reached.by);
      variant.floor->ceiling = base::human_rate(reached.flops_s, "FLOP");
      rates[rate] = &reached;
    }
    for (const auto& [rate, reached] : rates) *rate = reached->flops_s;
    if (!rates.empty()) raised.push_back(&pair);
  }
  return raised;
}

}  // namespace aisp::evidence
