// SPDX-License-Identifier: Apache-2.0
#include "evidence/run_summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "base/text.hpp"
#include "evidence/fields.hpp"
#include "evidence/json.hpp"

namespace aisp::evidence {

AISP_DESCRIBE(Outcomes, selected, passed, failed, timed_out, crashed, skipped, interrupted, not_started)
AISP_DESCRIBE(SpeedupRange, count, geometric_mean, best, best_target, worst, worst_target)
AISP_DESCRIBE(ChapterSummary, chapter, outcomes, speedups)
AISP_DESCRIBE(LimitReach, near, of, guessed)
AISP_DESCRIBE(LibraryStanding, level, of, slow_libraries)
AISP_DESCRIBE(GuessedCeiling, of, ceiling, variants)

template <class Visitor>
void describe(RunSummary& s, Visitor& visit) {
  AISP_VISIT(visit, s, run_id, started_utc, wall_s, outcomes, chapters, speedups, gpu_speedups, host_speedups, faster,
             cannot_tell, slower, limit, library);
  visit("guessed_ceilings", s.guessed);
}

void to_json(json& to, const RunSummary& summary) { to = base::json_of(summary); }

namespace {

bool was_started(const PairResult& pair) { return !pair.started_utc.empty(); }

void add_outcome(Outcomes& outcomes, const PairResult& pair) {
  ++outcomes.selected;
  switch (pair.status) {
    case Status::passed: ++outcomes.passed; return;
    case Status::failed: ++outcomes.failed; return;
    case Status::timeout: ++outcomes.timed_out; return;
    case Status::crashed: ++outcomes.crashed; return;
    case Status::skipped: break;
  }
  if (pair.complete) ++outcomes.skipped;
  else ++(was_started(pair) ? outcomes.interrupted : outcomes.not_started);
}

SpeedupRange range_where(const std::vector<PairResult>& pairs, auto&& is_wanted) {
  SpeedupRange range;
  double logarithms = 0;
  for (const PairResult& pair : pairs) {
    const VariantResult* lesson = lesson_variant(pair);
    if (lesson == nullptr || !is_wanted(pair)) continue;
    const double value = lesson->speedup->value;
    if (range.count == 0 || value > range.best) {
      range.best = value;
      range.best_target = label_of(pair);
    }
    if (range.count == 0 || value < range.worst) {
      range.worst = value;
      range.worst_target = label_of(pair);
    }
    logarithms += std::log(value);
    ++range.count;
  }
  if (range.count > 0) range.geometric_mean = std::exp(logarithms / range.count);
  return range;
}

void add_verdicts(RunSummary& summary, const std::vector<PairResult>& pairs) {
  for (const PairResult& pair : pairs) {
    const VariantResult* lesson = lesson_variant(pair);
    if (lesson == nullptr) continue;
    switch (lesson->speedup->verdict) {
      case Verdict::faster: ++summary.faster; break;
      case Verdict::slower: ++summary.slower; break;
      case Verdict::cannot_tell: ++summary.cannot_tell; break;
    }
  }
}

void add_best_variants(RunSummary& summary, const std::vector<PairResult>& pairs) {
  for (const PairResult& pair : pairs) {
    const VariantResult* best = best_variant(pair);
    if (best == nullptr) continue;
    if (best->floor && best->floor->ceiling_from == CeilingFrom::guess) ++summary.limit.guessed;
    else if (best->floor) {
      ++summary.limit.of;
      if (best->floor->percent >= near_limit_percent) ++summary.limit.near;
    }
    if (!best->library_share) continue;
    if (!has_competitive_library(pair)) {
      ++summary.library.slow_libraries;
      continue;
    }
    ++summary.library.of;
    if (best->library_share->percent >= level_percent) ++summary.library.level;
  }
}

// Returns the rate alone, without "in the longest of 3 phases".
std::string rate_of(const std::string& ceiling) { return ceiling.substr(0, ceiling.find(" in the longest of ")); }

std::vector<GuessedCeiling> guessed_ceilings(const std::vector<PairResult>& pairs) {
  std::vector<GuessedCeiling> all;
  for (const PairResult& pair : pairs)
    for (const VariantResult& variant : pair.variants) {
      if (!variant.floor || variant.floor->ceiling_from != CeilingFrom::guess) continue;
      auto found = std::ranges::find(all, variant.floor->limiter, &GuessedCeiling::of);
      if (found == all.end())
        found = all.insert(all.end(), {.of = variant.floor->limiter, .ceiling = rate_of(variant.floor->ceiling)});
      ++found->variants;
    }
  std::ranges::stable_sort(all, std::ranges::greater{}, &GuessedCeiling::variants);
  return all;
}

// Adds the pairs of the selection that the suite lacks, as the log of a run that ended early does.
void add_not_started(std::vector<PairResult>& pairs, const Manifest& manifest) {
  std::set<std::string> known;
  for (const PairResult& pair : pairs) known.insert(label_in_run(pair));
  for (const std::string& target : manifest.targets) {
    const auto cases = manifest.cases.find(target);
    for (const std::string& name : cases == manifest.cases.end() ? std::vector<std::string>{""} : cases->second) {
      PairResult pair{.target = target, .chapter = target.substr(0, target.find(':')), .status = Status::skipped};
      pair.sweep_case = name;
      pair.complete = false;
      if (!known.contains(label_in_run(pair))) pairs.push_back(std::move(pair));
    }
  }
}

std::string way_on(const std::string& run_id, const Manifest& manifest) {
  if (!manifest.machines.empty()) return "continue its shards and merge them again";
  if (manifest.command_line.size() > 1 && manifest.command_line[1] == to_string(LogCommand::verify)) return "run it again";
  return fmt::format("aisp run --resume {} continues it", run_id);
}

std::string many(int number, std::string_view words) {
  return fmt::format("{} {} {}", number, number == 1 ? "was" : "were", words);
}

// "compute (bf16)" is known as bf16 to whoever measures it.
std::string short_name(const std::string& limiter) {
  constexpr std::string_view compute = "compute (";
  return limiter.starts_with(compute) ? limiter.substr(compute.size(), limiter.size() - compute.size() - 1) : limiter;
}

}  // namespace

double wall_s_of(const std::vector<PairResult>& pairs) {
  std::map<std::string, double> ended_s, in_pairs_s;
  for (const PairResult& pair : pairs) {
    ended_s[pair.machine] = std::max(ended_s[pair.machine], pair.ended_after_s);
    in_pairs_s[pair.machine] += pair.wall_s;
  }
  double longest_s = 0;
  for (const auto& [machine, time_s] : ended_s) longest_s = std::max(longest_s, time_s > 0 ? time_s : in_pairs_s[machine]);
  return longest_s;
}

std::string_view outcome_of(const PairResult& pair) {
  if (pair.status != Status::skipped || pair.complete) return to_string(pair.status);
  return was_started(pair) ? "interrupted" : "not started";
}

SpeedupRange range_of_lessons(const SuiteResult& suite) {
  return range_where(suite.pairs, [](const PairResult&) { return true; });
}

static const VariantResult* library_beside(const PairResult& pair, const VariantResult& variant) {
  if (!variant.library_share) return nullptr;
  const auto library = std::ranges::find(pair.variants, variant.library_share->library, &VariantResult::name);
  return library != pair.variants.end() && library->speedup ? &*library : nullptr;
}

std::string why_no_yardstick(const PairResult& pair) {
  constexpr double other_work = 1.25;
  const VariantResult* best = best_variant(pair);
  const VariantResult* library = best == nullptr ? nullptr : library_beside(pair, *best);
  if (library == nullptr) return {};
  if (library->speedup->verdict == Verdict::slower)
    return fmt::format("slower than the baseline: {}x", base::significant(library->speedup->value));
  for (const auto& [name, own, of_library] :
       {std::tuple{"bytes", best->cost.bytes, library->cost.bytes}, {"FLOPs", best->cost.flops, library->cost.flops}})
    if (own > 0 && of_library / own >= other_work)
      return fmt::format("another algorithm: {}x the {}", base::significant(of_library / own), name);
  return {};
}

bool has_competitive_library(const PairResult& pair) {
  const VariantResult* best = best_variant(pair);
  return best != nullptr && library_beside(pair, *best) != nullptr && why_no_yardstick(pair).empty();
}

int RunSummary::chapters_tested() const {
  return static_cast<int>(
      std::ranges::count_if(chapters, [](const ChapterSummary& chapter) { return chapter.outcomes.tested() > 0; }));
}

RunSummary summarize(const SuiteResult& suite, const Manifest& manifest) {
  std::vector<PairResult> pairs = suite.pairs;
  add_not_started(pairs, manifest);
  RunSummary summary{.run_id = suite.run_id, .started_utc = suite.started_utc, .wall_s = wall_s_of(pairs)};
  std::set<std::string> chapters;
  for (const PairResult& pair : pairs) {
    chapters.insert(pair.chapter);
    add_outcome(summary.outcomes, pair);
  }
  for (const std::string& chapter : chapters) {
    const auto of_chapter = [&](const PairResult& pair) { return pair.chapter == chapter; };
    ChapterSummary one{.chapter = chapter, .outcomes = {}, .speedups = range_where(pairs, of_chapter)};
    for (const PairResult& pair : pairs)
      if (of_chapter(pair)) add_outcome(one.outcomes, pair);
    summary.chapters.push_back(std::move(one));
  }
  summary.speedups = range_where(pairs, [](const PairResult&) { return true; });
  summary.gpu_speedups = range_where(pairs, [](const PairResult& pair) { return pair.device == Device::gpu; });
  summary.host_speedups = range_where(pairs, [](const PairResult& pair) { return pair.device == Device::host; });
  add_verdicts(summary, pairs);
  add_best_variants(summary, pairs);
  summary.guessed = guessed_ceilings(pairs);
  if (summary.ended_early()) summary.way_on = way_on(summary.run_id, manifest);
  return summary;
}

RunSummary summarize(const RunRecord& run) {
  return summarize({.run_id = run.manifest.run_id, .started_utc = run.manifest.started_utc, .pairs = run.pairs}, run.manifest);
}

json suite_json(const SuiteResult& suite, const Manifest& manifest) {
  json document = suite;
  document["summary"] = summarize(suite, manifest);
  return document;
}

std::string ended_early_text(const RunSummary& summary) {
  if (!summary.ended_early()) return {};
  const Outcomes& o = summary.outcomes;
  std::vector<std::string> parts;
  if (o.interrupted > 0) parts.push_back(many(o.interrupted, "interrupted"));
  if (o.not_started > 0) parts.push_back(many(o.not_started, "not started"));
  return fmt::format("The run ended early: of {} {}; {}", base::plural(static_cast<std::size_t>(o.selected), "selected pair"),
                     base::join(parts, " and "), summary.way_on);
}

std::string guessed_ceilings_text(const RunSummary& summary) {
  if (summary.guessed.empty()) return {};
  std::vector<std::string> names;
  for (const GuessedCeiling& ceiling : summary.guessed) names.push_back(short_name(ceiling.of));
  return fmt::format(
      "No measured ceiling for {}: percentages with ~ stand on a guess; aisp peak --refresh measures it, then run again",
      base::join(names, ", "));
}

}  // namespace aisp::evidence
