// SPDX-License-Identifier: Apache-2.0
#include "evidence/result.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "evidence/range.hpp"

namespace aisp::evidence {

std::string place_of(const Problem& problem) {
  return std::string{to_string(problem.stage)} + (problem.variant.empty() ? "" : ", " + problem.variant);
}

std::string drift_note(double autocorrelation) {
  return fmt::format(
      "{} (autocorrelation {:.2f}): something changed slowly while they were taken, like the clock or other programs; the "
      "intervals are as wide as that asks for",
      drift_note_beginning, autocorrelation);
}

std::string sizes_text(const PairResult& pair) {
  std::string text;
  for (const auto& [name, value] : pair.sizes) text += (text.empty() ? "" : ", ") + name + "=" + std::to_string(value);
  return text;
}

std::string label_in_run(const PairResult& pair) {
  return pair.sweep_case.empty() ? pair.target : pair.target + " " + pair.sweep_case;
}

std::string label_of(const PairResult& pair) {
  if (!pair.sweep_case.empty()) return label_in_run(pair);
  return pair.sizes_set ? pair.target + " (" + sizes_text(pair) + ")" : pair.target;
}

std::string folder_of(const PairResult& pair) {
  return pair.chapter + "_" + pair.name + (pair.sweep_case.empty() ? "" : "/" + pair.sweep_case);
}

Counts count(const SuiteResult& suite) {
  Counts counts;
  for (const PairResult& pair : suite.pairs) {
    switch (pair.status) {
      case Status::passed: ++counts.passed; break;
      case Status::failed: ++counts.failed; break;
      case Status::timeout: ++counts.timeout; break;
      case Status::crashed: ++counts.crashed; break;
      case Status::skipped: ++counts.skipped; break;
    }
  }
  return counts;
}

static bool may_be_claimed(const PairResult& pair, const VariantResult& variant) {
  return pair.status == Status::passed && variant.role == VariantRole::optimized && variant.status == Status::passed &&
         variant.speedup;
}

static bool both_passed(const PairResult& pair, const VariantResult& variant) {
  return pair.status == Status::passed && variant.status == Status::passed;
}

const Speedup* claimable(const PairResult& pair, const VariantResult& variant) {
  return both_passed(pair, variant) && variant.speedup ? &*variant.speedup : nullptr;
}

const LibraryShare* claimable_share(const PairResult& pair, const VariantResult& variant) {
  return both_passed(pair, variant) && variant.library_share ? &*variant.library_share : nullptr;
}

const VariantResult* lesson_variant(const PairResult& pair) {
  const auto found = std::ranges::find(pair.variants, pair.lesson, &VariantResult::name);
  return found != pair.variants.end() && may_be_claimed(pair, *found) ? &*found : nullptr;
}

const VariantResult* best_variant(const PairResult& pair) {
  const VariantResult* best = nullptr;
  for (const VariantResult& variant : pair.variants) {
    if (!may_be_claimed(pair, variant)) continue;
    if (best == nullptr || variant.speedup->value > best->speedup->value) best = &variant;
  }
  return best;
}

std::optional<double> gpu_busy_percent(const VariantResult& variant) {
  if (!variant.gpu_busy_ms || !variant.timing || !(variant.timing->summary.median > 0)) return std::nullopt;
  // The two times are from different executions, so the busy time may be the longer one.
  return std::min(100.0, *variant.gpu_busy_ms / variant.timing->summary.median * 100);
}

std::optional<double> median_sm_clock_mhz(std::span<const GpuState> states) {
  std::vector<double> clocks_mhz;
  for (const GpuState& state : states)
    if (state.sm_clock_mhz > 0) clocks_mhz.push_back(state.sm_clock_mhz);
  if (clocks_mhz.empty()) return std::nullopt;
  return median_range(clocks_mhz).value;
}

}  // namespace aisp::evidence
