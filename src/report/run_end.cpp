// SPDX-License-Identifier: Apache-2.0
#include "report/run_end.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/math/statistics.hpp"
#include "base/system/terminal.hpp"
#include "base/text.hpp"
#include "report/numbers.hpp"
#include "report/warnings.hpp"

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

// Returns the pairs that have no result, by the reason.
std::vector<Said> skips_of(const evidence::SuiteResult& suite) {
  return grouped_by(suite.pairs, [](const PairResult& pair) {
    return pair.status == Status::skipped ? std::vector{pair.reason} : std::vector<std::string>{};
  });
}

std::string advice_of(const Said& skips) {
  for (const PairResult* pair : skips.pairs)
    for (const evidence::Problem& problem : pair->problems)
      if (!problem.advice.empty()) return problem.advice;
  return {};
}

std::string names_of(const Said& group) {
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
  for (const Said& group : skips_of(suite)) {
    const std::string many =
        fmt::format("{} {}", base::plural(group.pairs.size(), counted(suite)), outcome_of(*group.pairs.front()));
    text += base::on_screen(fmt::format("{} ({}): {}", paint(Style::dim, many), names_of(group), group.text)) + '\n';
    if (const std::string advice = advice_of(group); !advice.empty()) text += base::on_screen("    " + advice) + '\n';
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

namespace {

using evidence::PairResult;
using evidence::RunSummary;
using evidence::Status;

std::string machine_of(const evidence::Manifest& manifest) {
  if (!manifest.machines.empty()) return base::plural(manifest.machines.size(), "machine");
  if (manifest.gpus.empty()) return manifest.cpu.empty() ? "this machine" : manifest.cpu;
  std::map<std::string, std::size_t> gpus;
  for (const evidence::ManifestGpu& gpu : manifest.gpus) ++gpus[gpu.name];
  std::vector<std::string> texts;
  for (const auto& [name, number] : gpus) texts.push_back((number == 1 ? "one " : fmt::format("{} x ", number)) + name);
  return base::join(texts, " and ");
}

// The greatest speedup that half of those lessons reach that became faster.
double speedup_of_half(const std::vector<PairResult>& pairs) {
  std::vector<double> speedups;
  for (const PairResult& pair : pairs)
    if (const evidence::VariantResult* lesson = evidence::lesson_variant(pair))
      if (lesson->speedup->verdict == evidence::Verdict::faster) speedups.push_back(lesson->speedup->value);
  std::ranges::sort(speedups);
  return speedups.empty() ? 0 : speedups[speedups.size() / 2];
}

std::string faster_text(const evidence::RunRecord& run, const RunSummary& summary) {
  const std::string machine = machine_of(run.manifest);
  if (summary.speedups.count == 0) return "No pair was measured on " + machine;
  if (summary.speedups.count == 1)
    return fmt::format("{} became {}x as fast on {}", summary.speedups.best_target, base::significant(summary.speedups.best),
                       machine);
  std::string text = fmt::format("{} of {} pairs became faster on {}", summary.faster, summary.speedups.count, machine);
  if (summary.faster > 1) text += fmt::format(", half of them {}x or more", base::significant(speedup_of_half(run.pairs)));
  return text;
}

// "2 skipped (needs 2 GPUs, 1 visible)": the reason where all have the same.
std::string skipped_text(const std::vector<PairResult>& pairs, int skipped) {
  std::set<std::string> reasons;
  for (const PairResult& pair : pairs)
    if (pair.status == Status::skipped && pair.complete) reasons.insert(pair.reason);
  return fmt::format("{} skipped{}", skipped, reasons.size() == 1 ? " (" + *reasons.begin() + ")" : "");
}

std::string missing_text(const evidence::RunRecord& run, const RunSummary& summary) {
  const evidence::Outcomes& o = summary.outcomes;
  std::vector<std::string> texts;
  for (const auto& [number, word] : {std::pair{o.failed, "failed"},
                                     {o.timed_out, "timed out"},
                                     {o.crashed, "crashed"},
                                     {o.interrupted, "interrupted"},
                                     {o.not_started, "not started"}})
    if (number > 0) texts.push_back(fmt::format("{} {}", number, word));
  if (o.skipped > 0) texts.push_back(skipped_text(run.pairs, o.skipped));
  if (texts.empty()) return {};
  const int missing = o.selected - o.passed;
  return fmt::format("; {} {} no result: {}", base::plural(static_cast<std::size_t>(missing), "pair"),
                     missing == 1 ? "has" : "have", base::join(texts, ", "));
}

}  // namespace

std::string summary_sentence(const evidence::RunRecord& run, const RunSummary& summary) {
  std::string text = faster_text(run, summary);
  if (summary.library.of > 0)
    text += fmt::format("; the best variant is level with a vendor's library or ahead in {} of {}", summary.library.level,
                        summary.library.of);
  if (summary.speedups.count > 0) text += "; every result was checked against a float64 reference";
  return text + missing_text(run, summary) + ".";
}

}  // namespace aisp::report
