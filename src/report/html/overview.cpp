// SPDX-License-Identifier: Apache-2.0
// The first screen: the run in a sentence and four figures, the pairs by name, and what to do next.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <tuple>
#include <vector>

#include "base/math/statistics.hpp"
#include "base/text.hpp"
#include "evidence/quantities.hpp"
#include "evidence/run_summary.hpp"
#include "report/html/parts.hpp"
#include "report/html/text.hpp"
#include "report/numbers.hpp"
#include "report/pictures/bar_picture.hpp"
#include "report/run_end.hpp"

namespace aisp::report::html {
namespace {

using evidence::CeilingFrom;
using evidence::PairResult;
using evidence::RunSummary;
using evidence::VariantResult;

constexpr double panel_px = 560;
constexpr std::size_t listed = 5;
// Bars that are longer end there, with a gap in them: how many times as slow a library is needs no scale.
constexpr double longest_bar = 4;

struct Shown {
  const PairResult* pair;
  const VariantResult* lesson;  // its speedup is the pair's
  const VariantResult* best;    // what the pair comes to, beside a library and the machine's limit
};

// The greatest speedup first.
std::vector<Shown> shown_of(const HtmlReport& report) {
  std::vector<Shown> all;
  for (const PairResult& pair : report.run.pairs)
    if (const VariantResult* lesson = headline(pair); lesson != nullptr && pair.sweep_case.empty() && lesson->speedup->value > 0)
      if (std::isfinite(lesson->speedup->value)) all.push_back({&pair, lesson, evidence::best_variant(pair)});
  std::ranges::stable_sort(all, std::greater{}, [](const Shown& shown) { return shown.lesson->speedup->value; });
  return all;
}

std::string tile(const std::string& figure, const std::string& words, std::string_view css_class = {}) {
  return fmt::format("<div class=\"tile {}\"><strong>{}</strong><span>{}</span></div>", css_class, figure, words);
}

std::size_t as_size(int number) { return static_cast<std::size_t>(std::max(number, 0)); }

// Host pairs and GPU pairs are kept apart: a lock that 16 threads fight over is no kernel.
std::string speedup_tile(const RunSummary& summary) {
  const auto& [gpu, host] = std::tie(summary.gpu_speedups, summary.host_speedups);
  const auto words = [](const evidence::SpeedupRange& range, std::string_view kind) {
    return base::plural(as_size(range.count), kind);
  };
  if (gpu.count == 0 && host.count == 0) return {};
  const std::string rest = gpu.count > 0 && host.count > 0
                               ? fmt::format("; {}x of {}", base::significant(host.geometric_mean), words(host, "host pair"))
                               : std::string{};
  const evidence::SpeedupRange& first = gpu.count > 0 ? gpu : host;
  return tile(base::significant(first.geometric_mean) + "x",
              "geometric mean of the lessons' speedups of " + words(first, gpu.count > 0 ? "GPU pair" : "host pair") + rest,
              "main");
}

bool is_guess(const VariantResult& variant) { return variant.floor && variant.floor->ceiling_from == CeilingFrom::guess; }

std::string gap_tile(const std::vector<Shown>& all) {
  std::vector<double> gaps;
  for (const Shown& shown : all)
    if (const auto gap = evidence::gap_closed(*shown.pair, *shown.lesson); gap && !is_guess(*shown.lesson))
      gaps.push_back(gap->value);
  if (gaps.empty()) return {};
  return tile(fmt::format("{:.0f}\u00a0%", base::median(gaps)),
              fmt::format("of the gap between baseline and the machine's limit closed by the lesson, median of {}",
                          base::plural(gaps.size(), "pair")),
              "main");
}

std::string limit_tile(const RunSummary& summary) {
  if (summary.limit.of == 0) return {};
  return tile(
      fmt::format("{} of {}", summary.limit.near, summary.limit.of),
      fmt::format("reach {:.0f}\u00a0% of the machine's limit, by their best variant{}", evidence::near_limit_percent,
                  summary.limit.guessed > 0 ? fmt::format("; {} more have no measured limit", summary.limit.guessed) : ""));
}

std::string library_tile(const RunSummary& summary) {
  if (summary.library.of == 0) return {};
  return tile(fmt::format("{} of {}", summary.library.level, summary.library.of),
              "level with the library or ahead, by their best variant");
}

std::string banners(const HtmlReport& report, const RunSummary& summary) {
  std::string text;
  const auto add = [&](const std::string& sentence) {
    if (!sentence.empty()) text += tag("p", escaped(sentence), "class=\"banner\"");
  };
  add(ended_early_text(summary));
  std::vector<std::string> wrong;
  for (const PairResult& pair : report.run.pairs)
    if (pair.status != evidence::Status::passed && pair.status != evidence::Status::skipped)
      wrong.push_back(link_to(pair) + " " + badge(pair.status));
  if (!wrong.empty())
    text += tag("p", fmt::format("<a href=\"#problems\">No result</a>: {}", base::join(wrong, ", ")), "class=\"banner\"");
  add(guessed_ceilings_text(summary));
  return text;
}

std::string gap_text(const Shown& shown) {
  const auto gap = evidence::gap_closed(*shown.pair, *shown.lesson);
  return gap ? fmt::format("{}{:.0f}\u00a0%", guess_mark(shown.lesson->floor->ceiling_from), gap->value) : "";
}

std::string pair_list(const std::string& title, std::span<const Shown> pairs) {
  std::string rows;
  for (const Shown& shown : pairs) {
    const double before = shown.pair->variants.front().timing ? shown.pair->variants.front().timing->summary.median : 0;
    const std::string times = before > 0 && shown.lesson->timing
                                  ? time_text(before) + " \u2192 " + time_text(shown.lesson->timing->summary.median)
                                  : "";
    rows +=
        tag("tr", tag("td", link_to(*shown.pair) + "<br>" + tag("small", breakable(shown.lesson->name))) +
                      tag("td", tag("b", base::significant(shown.lesson->speedup->value) + "x") + "<br>" + tag("small", times),
                          "class=\"number\"") +
                      tag("td", gap_text(shown), "class=\"number\"")) +
        "\n";
  }
  return tag("div",
             tag("h2", title) + fmt::format("<table><thead><tr><th scope=\"col\">pair, lesson</th><th scope=\"col\" "
                                            "class=\"number\">speedup</th><th scope=\"col\" class=\"number\">gap closed</th></tr>"
                                            "</thead><tbody>\n{}</tbody></table>",
                                            rows),
             "class=\"panel\"");
}

std::string pair_lists(const std::vector<Shown>& all) {
  const std::span<const Shown> span{all};
  if (all.empty()) return {};
  if (all.size() <= 2 * listed) return pair_list("Pairs by speedup", span);
  const std::vector<Shown> least{all.rbegin(), all.rbegin() + listed};
  return pair_list("Greatest speedups", span.first(listed)) + pair_list("Least speedups", least);
}

std::string command(const std::string& text) { return tag("code", escaped(text)); }

// The pair whose best variant is furthest from the machine's limit, which has most to gain.
const Shown* furthest_from_its_limit(const std::vector<Shown>& all) {
  const Shown* furthest = nullptr;
  for (const Shown& shown : all)
    if (shown.best != nullptr && shown.best->floor && !is_guess(*shown.best))
      if (furthest == nullptr || shown.best->floor->percent < furthest->best->floor->percent) furthest = &shown;
  return furthest;
}

std::string next_steps(const HtmlReport& report, const RunSummary& summary, const std::vector<Shown>& all) {
  const std::string run = report.run.manifest.run_id.empty() ? "RUN" : report.run.manifest.run_id;
  std::string items;
  const auto add = [&](const std::string& item) { items += tag("li", item) + "\n"; };
  if (summary.ended_early()) add(command("aisp run --resume " + run) + " finishes the run.");
  if (summary.outcomes.failed + summary.outcomes.timed_out + summary.outcomes.crashed > 0)
    add("<a href=\"#problems\">Problems</a> say for each pair what went wrong and what to do.");
  if (!summary.guessed.empty()) add(command("aisp peak --refresh") + " measures the ceilings that are guesses.");
  add(command("aisp analyze " + run) + " compares with what is recorded for this code and GPU.");
  add(command("aisp compare OTHER " + run) + " compares two runs, pair by pair.");
  if (const Shown* pair = furthest_from_its_limit(all))
    add(fmt::format("{} is furthest from the machine's limit ({:.0f}\u00a0%): {} counts what holds it back.",
                    link_to(*pair->pair), pair->best->floor->percent,
                    command(fmt::format("aisp run -t {} --profile full", pair->pair->target))));
  add("<a href=\"#pairs\">Pairs</a> show the lesson of each: its steps, its samples and the page that teaches it.");
  return tag("div", tag("h2", "What next") + tag("ul", items), "class=\"panel next\"");
}

Bar library_bar(const Shown& shown) {
  const evidence::LibraryShare& share = *shown.best->library_share;
  const double ratio = share.percent / 100;
  return {.name = label_of(*shown.pair),
          .detail = share.library,
          .value = ratio,
          .text = base::significant(ratio) + "x",
          .css_class = share.percent >= evidence::level_percent ? "best" : "optimized",
          .href = "#" + id_of(label_in_run(*shown.pair))};
}

std::string key(std::string_view css_class, std::string_view words) {
  return fmt::format(
      "<span class=\"key\"><svg class=\"picture\" viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect class=\"{}\" width=\"10\" "
      "height=\"10\"/></svg>{}</span>",
      css_class, words);
}

// Two columns of bars with one scale, so that no half of the panel stays empty.
std::string library_figures(std::vector<Bar> bars) {
  std::ranges::stable_sort(bars, std::greater{}, &Bar::value);
  BarChart chart{.title = "speed of each pair's best variant over that of the fastest library",
                 .logarithmic = true,
                 .reference = 1,
                 .most = std::clamp(bars.front().value, 1.25, longest_bar),
                 .least = std::min(0.8, bars.back().value),
                 .tick_unit = "x"};
  const std::size_t first = bars.size() > listed ? (bars.size() + 1) / 2 : bars.size();
  std::string figures;
  for (const auto& [from, to] : {std::pair{std::size_t{0}, first}, {first, bars.size()}}) {
    if (from == to) continue;
    chart.groups = {{.bars = {bars.begin() + static_cast<std::ptrdiff_t>(from), bars.begin() + static_cast<std::ptrdiff_t>(to)}}};
    figures += figure([&](double width) { return bar_picture(chart, width); }, panel_px);
  }
  return tag("div", figures, "class=\"columns\"");
}

// Names the calls that are no yardstick, with the reason.
std::string uncounted_libraries(const std::vector<Shown>& all) {
  std::string rows;
  std::size_t count = 0;
  for (const Shown& shown : all) {
    const std::string reason = evidence::why_no_yardstick(*shown.pair);
    if (reason.empty()) continue;
    ++count;
    rows += row({link_to(*shown.pair), breakable(shown.best->library_share->library), escaped(reason)});
  }
  if (count == 0) return {};
  return folded(fmt::format("Not counted: {} whose library call is no yardstick", base::plural(count, "pair")),
                table("pairs whose library is not counted", {"pair", "library", "why"}, rows));
}

std::string library_panel(const std::vector<Shown>& all) {
  std::vector<Bar> bars;
  for (const Shown& shown : all)
    if (shown.best != nullptr && shown.best->library_share && evidence::has_competitive_library(*shown.pair))
      if (shown.best->library_share->percent > 0) bars.push_back(library_bar(shown));
  const std::string uncounted = uncounted_libraries(all);
  if (bars.empty() && uncounted.empty()) return {};
  std::string text = tag("h2", "Best variants beside the library");
  if (!bars.empty())
    text += tag("p",
                key("best", "level with the library or ahead") + key("optimized", "behind it") +
                    "<span>Speed over the fastest library's that is as precise, on a logarithmic axis around 1x</span>",
                "class=\"note keys\"") +
            library_figures(std::move(bars));
  return tag("div", text + uncounted, "class=\"panel\"");
}

}  // namespace

std::string overview_part(const HtmlReport& report) {
  const RunSummary summary = evidence::summarize(report.run);
  const std::vector<Shown> all = shown_of(report);
  const std::string tiles = speedup_tile(summary) + gap_tile(all) + limit_tile(summary) + library_tile(summary);
  return tag("p", escaped(summary_sentence(report.run, summary)), "class=\"answer\"") + banners(report, summary) +
         (tiles.empty() ? "" : tag("div", tiles, "class=\"tiles\"")) +
         tag("div", pair_lists(all) + next_steps(report, summary, all), "class=\"panels\"") + library_panel(all);
}

}  // namespace aisp::report::html
