// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/text.hpp"
#include "report/html/parts.hpp"
#include "report/numbers.hpp"

namespace aisp::report {
namespace {

using evidence::PairResult;
using evidence::VariantResult;

struct Both {
  std::string target, variant;
  double here_ms = 0, there_ms = 0;
  std::optional<double> here_percent, there_percent;  // of the lower bound on its own machine

  double faster() const { return there_ms / here_ms; }
  std::optional<double> nearer() const {
    if (!here_percent || !there_percent || !(*here_percent > 0) || !(*there_percent > 0)) return std::nullopt;
    return *here_percent / *there_percent;
  }
};

const VariantResult* timed(const PairResult& pair, const std::string& name) {
  const auto found = std::find_if(pair.variants.begin(), pair.variants.end(), [&](const auto& v) { return v.name == name; });
  const bool usable = found != pair.variants.end() && found->timing && found->timing->summary.median > 0 &&
                      std::isfinite(found->timing->summary.median);
  return usable && pair.status == evidence::Status::passed ? &*found : nullptr;
}

bool same_work(const PairResult& a, const PairResult& b) {
  return label_in_run(a) == label_in_run(b) && a.sizes == b.sizes && a.scale == b.scale;
}

std::vector<Both> both_of(const evidence::RunRecord& run, const evidence::RunRecord& other) {
  std::vector<Both> all;
  for (const PairResult& here : run.pairs) {
    const auto there = std::find_if(other.pairs.begin(), other.pairs.end(), [&](const auto& p) { return same_work(here, p); });
    const VariantResult* const shown = headline(here);
    const std::string name = shown == nullptr ? "" : shown->name;
    const VariantResult *best = timed(here, name), *same = there == other.pairs.end() ? nullptr : timed(*there, name);
    if (best == nullptr || same == nullptr) continue;
    Both both{label_of(here), best->name, best->timing->summary.median, same->timing->summary.median, {}, {}};
    if (best->floor) both.here_percent = best->floor->percent;
    if (same->floor) both.there_percent = same->floor->percent;
    all.push_back(std::move(both));
  }
  return all;
}

double geometric_mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += std::log(value);
  return values.empty() ? 0 : std::exp(sum / static_cast<double>(values.size()));
}

BarChart chart_of(std::string title, std::vector<Bar> bars) {
  std::stable_sort(bars.begin(), bars.end(), [](const Bar& a, const Bar& b) { return a.value > b.value; });
  return {.title = std::move(title), .logarithmic = true, .reference = 1, .tick_unit = "x", .groups = {{"", std::move(bars)}}};
}

Bar bar_of(const Both& both, double ratio) {
  return {.name = both.target,
          .detail = both.variant,
          .value = ratio,
          .text = base::significant(ratio) + "x",
          .css_class = ratio < 1 ? "slower" : "best"};
}

std::string machine_of(const evidence::RunRecord& run) {
  const evidence::Manifest& m = run.manifest.machines.empty() ? run.manifest : run.manifest.machines.front();
  return m.gpus.empty() ? m.cpu : m.gpus.front().name;
}

std::string percent_or_dash(std::optional<double> percent) { return percent ? fmt::format("{:.0f} %", *percent) : "-"; }

}  // namespace

Machines compare_machines(const evidence::RunRecord& run, const evidence::RunRecord& other) {
  Machines result;
  result.rows = {{"pair", "variant", "here", "there", "here is", "of the lower bound here", "there", "normalised"}};
  std::vector<Bar> speed, normalised;
  std::vector<double> ratios, shares;
  for (const Both& both : both_of(run, other)) {
    ratios.push_back(both.faster());
    speed.push_back(bar_of(both, both.faster()));
    if (const auto nearer = both.nearer()) {
      shares.push_back(*nearer);
      normalised.push_back(bar_of(both, *nearer));
    }
    result.rows.push_back({both.target, both.variant, base::display_ms(both.here_ms), base::display_ms(both.there_ms),
                           base::significant(both.faster()) + "x as fast", percent_or_dash(both.here_percent),
                           percent_or_dash(both.there_percent), both.nearer() ? base::significant(*both.nearer()) + "x" : "-"});
  }
  const std::string names = fmt::format("Here: {} ({}); there: {} ({}).", run.manifest.run_id, machine_of(run),
                                        other.manifest.run_id, machine_of(other));
  if (ratios.empty()) {
    result.summary = names + " No pair passed in both.";
    return result;
  }
  result.summary = fmt::format("{} This run is {}x as fast as the other, the geometric mean over {}.", names,
                               base::significant(geometric_mean(ratios)), base::plural(ratios.size(), "pair"));
  if (!shares.empty())
    result.summary += fmt::format(
        " Measured against what each machine gives, it is {}x as near to the lower bound, over {}: what differs from 1 is not "
        "the machines' speed but how well the code uses them.",
        base::significant(geometric_mean(shares)), base::plural(shares.size(), "pair"));
  result.speed = chart_of("Speed: time there over time here", std::move(speed));
  result.normalised = chart_of("Normalised: share of the lower bound here over that there", std::move(normalised));
  return result;
}

}  // namespace aisp::report
