// SPDX-License-Identifier: Apache-2.0
#include "report/run_end.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "base/system/terminal.hpp"
#include "base/text.hpp"
#include "report/numbers.hpp"

namespace aisp::report {
namespace {

using base::Style;
using evidence::PairResult;
using evidence::Status;

// So far beyond its lower bound a variant shows that the ceilings are too low. Clocks differ by less between two moments.
constexpr double most_percent_of_floor = 105;

// More names than these are counted.
constexpr std::size_t most_names = 3;

// "measurement 3.1 s, verify 1.2 s": the stages that took a tenth of the time or more, the longest first.
std::string stages_of(const PairResult& pair) {
  std::map<evidence::Stage, double> times_s;
  for (const evidence::StageRecord& record : pair.watchdog) times_s[record.stage] += record.elapsed_s;
  std::vector<std::pair<double, evidence::Stage>> longest;
  for (const auto& [stage, time_s] : times_s)
    if (time_s >= pair.wall_s / 10) longest.emplace_back(time_s, stage);
  std::ranges::sort(longest, std::ranges::greater{});
  std::vector<std::string> texts;
  for (const auto& [time_s, stage] : longest)
    texts.push_back(fmt::format("{} {}", to_string(stage), base::human_duration(time_s)));
  return base::join(texts, ", ");
}

// Pairs that have no result for one reason.
struct Skips {
  std::string_view outcome;  // "skipped", "interrupted" or "not started"
  std::string reason, advice;
  std::vector<const PairResult*> pairs;
};

std::vector<Skips> skips_of(const evidence::SuiteResult& suite) {
  std::vector<Skips> groups;
  for (const PairResult& pair : suite.pairs) {
    if (pair.status != Status::skipped) continue;
    auto group = std::ranges::find(groups, pair.reason, &Skips::reason);
    if (group == groups.end()) group = groups.insert(groups.end(), {.outcome = outcome_of(pair), .reason = pair.reason});
    group->pairs.push_back(&pair);
    for (const evidence::Problem& problem : pair.problems)
      if (group->advice.empty()) group->advice = problem.advice;
  }
  return groups;
}

std::string names_of(const Skips& group) {
  std::vector<std::string> names;
  if (group.pairs.size() <= most_names) {
    for (const PairResult* pair : group.pairs) names.push_back(label_in_run(*pair));
    return base::join(names, ", ");
  }
  std::map<std::string, std::size_t> chapters;
  for (const PairResult* pair : group.pairs) ++chapters[pair->chapter];
  for (const auto& [chapter, count] : chapters) names.push_back(fmt::format("{}: {}", chapter, count));
  return base::join(names, ", ");
}

}  // namespace

// A pair that is measured at several sizes is several results.
std::string_view counted(const evidence::SuiteResult& suite) {
  const bool of_cases = std::ranges::any_of(suite.pairs, [](const auto& pair) { return !pair.sweep_case.empty(); });
  return of_cases ? "result" : "pair";
}

std::string outcomes_text(const evidence::Outcomes& outcomes, const base::Painter& paint) {
  std::vector<std::string> parts;
  const auto add = [&](int number, std::string_view word, Style style) {
    if (number > 0) parts.push_back(paint(style, fmt::format("{} {}", number, word)));
  };
  parts.push_back(fmt::format("{} passed", outcomes.passed));
  add(outcomes.failed, "failed", Style::red);
  add(outcomes.timed_out, "timed out", Style::red);
  add(outcomes.crashed, "crashed", Style::red);
  add(outcomes.skipped, "skipped", Style::dim);
  add(outcomes.interrupted, "interrupted", Style::yellow);
  add(outcomes.not_started, "not started", Style::yellow);
  return base::join(parts, ", ");
}

std::string chapter_sentence(const evidence::ChapterSummary& chapter, const base::Painter& paint) {
  const evidence::Outcomes& outcomes = chapter.outcomes;
  std::string text = paint(outcomes.passed == outcomes.selected ? Style::green : Style::bold,
                           fmt::format("{} of {} passed", outcomes.passed, outcomes.selected));
  const std::string all = outcomes_text(outcomes, paint);
  if (const std::size_t rest = all.find(", "); rest != std::string::npos) text += all.substr(rest);
  const evidence::SpeedupRange& range = chapter.speedups;
  if (range.count == 1) text += fmt::format("; speedup {}x", base::significant(range.best));
  if (range.count > 1) text += fmt::format("; geometric mean speedup {}x", base::significant(range.geometric_mean));
  return text;
}

std::string chapter_lines(const evidence::RunSummary& summary, const base::Painter& paint) {
  if (summary.outcomes.selected < 2) return {};
  std::size_t width = 0;
  for (const evidence::ChapterSummary& chapter : summary.chapters) width = std::max(width, chapter.chapter.size());
  std::string text;
  for (const evidence::ChapterSummary& chapter : summary.chapters)
    text += base::on_screen(fmt::format("{:<{}}  {}", chapter.chapter, width, chapter_sentence(chapter, paint))) + '\n';
  return text;
}

std::string slowest_lines(const evidence::SuiteResult& suite, const base::Painter& paint) {
  constexpr std::size_t most_pairs = 5;
  std::vector<const PairResult*> slowest;
  for (const PairResult& pair : suite.pairs)
    if (pair.status != Status::skipped && pair.wall_s > 0) slowest.push_back(&pair);
  if (slowest.size() < 2) return {};
  std::ranges::stable_sort(slowest, std::ranges::greater{}, &PairResult::wall_s);
  slowest.resize(std::min(slowest.size(), most_pairs));
  std::size_t width = 0;
  for (const PairResult* pair : slowest) width = std::max(width, label_in_run(*pair).size());
  std::string text = "Slowest:\n";
  for (const PairResult* pair : slowest) {
    const std::string stages = stages_of(*pair);
    text += base::on_screen(fmt::format("  {:<{}}  {}{}", label_in_run(*pair), width, base::human_duration(pair->wall_s),
                                        stages.empty() ? "" : paint(Style::dim, " (" + stages + ")"))) +
            '\n';
  }
  return text;
}

std::string skip_lines(const evidence::SuiteResult& suite, const base::Painter& paint) {
  std::string text;
  for (const Skips& group : skips_of(suite)) {
    const std::string many = fmt::format("{} {}", base::plural(group.pairs.size(), counted(suite)), group.outcome);
    text += base::on_screen(fmt::format("{} ({}): {}", paint(Style::dim, many), names_of(group), group.reason)) + '\n';
    if (!group.advice.empty()) text += base::on_screen("    " + group.advice) + '\n';
  }
  return text;
}

std::string low_ceilings_line(const evidence::SuiteResult& suite) {
  std::size_t many = 0;
  const PairResult* of = nullptr;
  const evidence::VariantResult* most = nullptr;
  for (const PairResult& pair : suite.pairs)
    for (const evidence::VariantResult& variant : pair.variants) {
      if (!variant.floor || variant.floor->ceiling_from == evidence::CeilingFrom::guess) continue;
      if (!(variant.floor->percent > most_percent_of_floor)) continue;
      ++many;
      if (most != nullptr && most->floor->percent >= variant.floor->percent) continue;
      of = &pair;
      most = &variant;
    }
  if (most == nullptr) return {};
  return base::on_screen(fmt::format("{} faster than the ceilings, most {} {} ({}): they were measured too low; aisp peak "
                                     "--refresh measures them again",
                                     base::plural(many, "variant"), label_in_run(*of), most->name, floor_text(*most->floor))) +
         '\n';
}

}  // namespace aisp::report
