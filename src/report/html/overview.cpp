// SPDX-License-Identifier: Apache-2.0
// The first screen: the run in a few figures and two pictures.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.hpp"
#include "report/html/parts.hpp"
#include "report/html/text.hpp"
#include "report/numbers.hpp"
#include "report/pictures/bar_picture.hpp"
#include "report/pictures/scale.hpp"

namespace aisp::report::html {
namespace {

using evidence::PairResult;
using evidence::VariantResult;

constexpr double panel_px = 560, least_height = 190, greatest_height = 420;
// A variant this near to a mark has reached it, as far as measurements tell.
constexpr double near_the_bound_percent = 90, level_percent = 99;

std::string tile(std::string_view figure, std::string_view words, std::string_view css_class = {}) {
  return fmt::format("<div class=\"tile {}\"><strong>{}</strong><span>{}</span></div>", css_class, figure, words);
}

struct Shown {
  const PairResult* pair;
  const VariantResult* variant;  // the lesson's, whose speedup is the pair's
  const VariantResult* best;     // what the pair comes to, beside a library and the machine's limit
  double speedup;
};

std::vector<Shown> shown_of(const HtmlReport& report) {
  std::vector<Shown> all;
  for (const PairResult& pair : report.run.pairs)
    if (const VariantResult* lesson = headline(pair); lesson != nullptr && pair.sweep_case.empty() && lesson->speedup->value > 0)
      if (std::isfinite(lesson->speedup->value))
        all.push_back({&pair, lesson, evidence::best_variant(pair), lesson->speedup->value});
  std::stable_sort(all.begin(), all.end(), [](const Shown& a, const Shown& b) { return a.speedup > b.speedup; });
  return all;
}

// Host pairs and GPU pairs are kept apart: a lock that 16 threads fight over is no kernel.
std::string speedup_tiles(const HtmlReport& report) {
  std::string text;
  for (const auto& [device, words] : {std::pair{evidence::Device::gpu, "GPU pair"}, {evidence::Device::host, "host pair"}}) {
    evidence::SuiteResult suite;
    for (const PairResult& pair : report.run.pairs)
      if (pair.device == device) suite.pairs.push_back(pair);
    const SpeedupRange range = range_of_lessons(suite);
    if (range.count > 0)
      text +=
          tile(base::significant(range.geometric_mean) + "x",
               fmt::format("geometric mean of the speedups of {}", base::plural(static_cast<std::size_t>(range.count), words)),
               "main");
  }
  return text;
}

std::string share_tiles(const std::vector<Shown>& all) {
  if (all.empty()) return {};
  const auto percent_above = [&](double speedup) {
    return 100 * std::count_if(all.begin(), all.end(), [&](const Shown& b) { return b.speedup >= speedup; }) /
           static_cast<std::ptrdiff_t>(all.size());
  };
  std::string text =
      tile(fmt::format("{}\u00a0%", percent_above(2)), fmt::format("at least 2x; {}\u00a0% at least 10x", percent_above(10)));
  std::size_t bounded = 0, near_bound = 0, beside = 0, level = 0;
  for (const Shown& shown : all) {
    const auto& floor = shown.best->floor;
    bounded += floor ? 1 : 0;
    near_bound += floor && floor->percent >= near_the_bound_percent ? 1 : 0;
    const auto& share = shown.best->library_share;
    beside += share ? 1 : 0;
    level += share && share->percent >= level_percent ? 1 : 0;
  }
  if (bounded > 0)
    text += tile(fmt::format("{} of {}", near_bound, bounded),
                 fmt::format("reach {:.0f}\u00a0% of the machine's limit, by their best variant", near_the_bound_percent));
  if (beside > 0) text += tile(fmt::format("{} of {}", level, beside), "level with the library or faster, by their best variant");
  return text;
}

std::string verdict_tile(const HtmlReport& report) {
  int faster = 0, slower = 0, open = 0;
  for (const PairResult& pair : report.run.pairs)
    if (const VariantResult* best = headline(pair)) {
      const evidence::Verdict verdict = best->speedup->verdict;
      ++(verdict == evidence::Verdict::faster ? faster : verdict == evidence::Verdict::slower ? slower : open);
    }
  if (slower + open == 0) return {};
  return tile(fmt::format("{} / {} / {}", faster, open, slower), "faster / cannot tell / slower");
}

std::string outcome_tiles(const HtmlReport& report) {
  evidence::SuiteResult suite;
  suite.pairs = report.run.pairs;
  const evidence::Counts counts = count(suite);
  std::string text = tile(fmt::format("{} of {}", counts.passed, suite.pairs.size()), "pairs passed");
  std::vector<std::string> wrong;
  for (const auto& [number, words] :
       {std::pair{counts.failed, "failed"}, {counts.timeout, "timed out"}, {counts.crashed, "crashed"}})
    if (number > 0) wrong.push_back(fmt::format("{} {}", number, words));
  if (wrong.size() == 1) wrong.front().erase(0, wrong.front().find(' ') + 1);
  if (!wrong.empty())
    text += tile(std::to_string(counts.failed + counts.timeout + counts.crashed),
                 fmt::format("<a href=\"#problems\">{}</a>", base::join(wrong, ", ")), "bad");
  if (counts.skipped > 0) text += tile(std::to_string(counts.skipped), "<a href=\"#problems\">skipped</a>");
  return text;
}

// A column for each pair, the greatest speedup first; names appear under the pointer.
svg::Picture speedup_columns(const std::vector<Shown>& all, double width, double height) {
  constexpr double left = 44, right = 8, top = 14;
  const double bottom = height - 24;
  const double least = std::min(all.back().speedup, 1.0);
  const Scale scale{true, least, std::max(all.front().speedup, least * 2), bottom, top};
  std::string body;
  for (const double tick : scale.ticks(6))
    body += svg::line("grid", left, scale.at(tick), width - right, scale.at(tick)) +
            svg::text("tick", left - 6, scale.at(tick) + 4, fmt::format("{:.6g}x", tick), "end");
  const double pitch = (width - left - right) / static_cast<double>(all.size()), column = std::min(pitch * 0.78, 26.0);
  const double one = scale.at(1);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Shown& best = all[i];
    const double y = scale.at(best.speedup), x = left + (static_cast<double>(i) + 0.5) * pitch - column / 2;
    const std::string_view css_class = best.variant->speedup->verdict == evidence::Verdict::cannot_tell ? "unclear"
                                       : best.speedup < 1                                               ? "slower"
                                       : best.pair->device == evidence::Device::host                    ? "optimized"
                                                                                                        : "best";
    body += svg::link(
        "#" + id_of(label_in_run(*best.pair)),
        svg::rect(css_class, x, std::min(y, one), column, std::max(std::abs(one - y), 1.0),
                  fmt::format("{} {}: {}", label_of(*best.pair), best.variant->name, speedup_text(*best.variant->speedup))));
  }
  body += svg::line("frame", left, one, width - right, one);
  body += svg::rect("best", left, height - 15, 10, 10) + svg::text("small", left + 15, height - 6, "GPU pair");
  body += svg::rect("optimized", left + 85, height - 15, 10, 10) + svg::text("small", left + 100, height - 6, "host pair");
  return {fmt::format("speedups of {}, sorted, from {}x to {}x", base::plural(all.size(), "pair"),
                      base::significant(all.front().speedup), base::significant(all.back().speedup)),
          width, height, body};
}

BarChart library_chart(const std::vector<Shown>& all) {
  BarChart chart{.title = "speed of each pair's best variant in percent of the fastest library",
                 .reference = 100,
                 .most = 150,
                 .tick_unit = "%"};
  BarGroup group;
  for (const Shown& shown : all)
    if (const auto& share = shown.best->library_share)
      group.bars.push_back({.name = label_of(*shown.pair),
                            .detail = share->library,
                            .value = share->percent,
                            .text = fmt::format("{:.0f}\u00a0%", share->percent),
                            .css_class = share->percent >= level_percent ? "best" : "optimized",
                            .href = "#" + id_of(label_in_run(*shown.pair))});
  std::stable_sort(group.bars.begin(), group.bars.end(), [](const Bar& a, const Bar& b) { return a.value > b.value; });
  chart.groups.push_back(std::move(group));
  return chart;
}

std::string panel(const std::string& title, const std::string& picture) {
  return tag("div", tag("h2", title) + picture, "class=\"panel\"");
}

}  // namespace

std::string overview_part(const HtmlReport& report) {
  const std::vector<Shown> all = shown_of(report);
  std::string text =
      tag("div", speedup_tiles(report) + share_tiles(all) + verdict_tile(report) + outcome_tiles(report), "class=\"tiles\"");
  std::string panels;
  const BarChart chart = library_chart(all);
  if (all.size() > 1)
    panels += panel("Speedups", figure(
                                    [&](double width) {
                                      // As high as the picture beside it.
                                      const bool alone = chart.empty() || width < panel_px;
                                      const double height = alone ? least_height : bar_picture(chart, width).height;
                                      return speedup_columns(all, width, std::clamp(height, least_height, greatest_height));
                                    },
                                    chart.empty() ? svg::wide_px : panel_px));
  if (!chart.empty())
    panels +=
        panel("Best variants beside the library", figure([&](double width) { return bar_picture(chart, width); }, panel_px));
  if (!panels.empty()) text += tag("div", panels, "class=\"panels\"");
  return text;
}

}  // namespace aisp::report::html
