// SPDX-License-Identifier: Apache-2.0
#include "report/pictures/ladder.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "report/numbers.hpp"

namespace aisp::report {
namespace {

using evidence::VariantResult;
using evidence::VariantRole;

std::string css_class_of(const evidence::PairResult& pair, const VariantResult& variant) {
  if (variant.role == VariantRole::control) return "unclear";
  if (variant.role != VariantRole::optimized) return std::string{to_string(variant.role)};
  return variant.name == pair.lesson ? "best" : "optimized";
}

Bar bar_of(const evidence::PairResult& pair, const VariantResult& variant) {
  Bar bar{.name = variant.name, .detail = standing_text(pair, variant), .css_class = css_class_of(pair, variant)};
  if (variant.role == VariantRole::baseline) {
    bar.value = 1;
    bar.text = "1x, " + median_text(variant);
    return bar;
  }
  const evidence::Speedup& speedup = *variant.speedup;
  bar.value = speedup.value;
  bar.low = speedup.low;
  bar.high = speedup.high;
  bar.text = base::significant(speedup.value) + "x";
  if (variant.gain && variant.gain->over != pair.variants.front().name) bar.text += " (" + gain_text(pair, variant) + ")";
  return bar;
}

}  // namespace

BarChart ladder_chart(const evidence::PairResult& pair) {
  BarChart chart{.title = "speedups of the variants of " + pair.target, .reference = 1, .tick_unit = "x", .value_px = 210};
  BarGroup group;
  double greatest = 1;
  for (const VariantResult& variant : pair.variants) {
    const bool is_baseline = variant.role == VariantRole::baseline && variant.timing && pair.status == evidence::Status::passed;
    if (!is_baseline && claimable(pair, variant) == nullptr) continue;
    group.bars.push_back(bar_of(pair, variant));
    greatest = std::max(greatest, group.bars.back().value);
  }
  chart.logarithmic = greatest > most_on_linear_scale;
  chart.groups.push_back(std::move(group));
  return chart;
}

}  // namespace aisp::report
