// SPDX-License-Identifier: Apache-2.0
// A run in a few figures: terminal, Markdown, JSON and HTML all show these.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "evidence/manifest.hpp"
#include "evidence/result.hpp"
#include "evidence/run_record.hpp"

namespace aisp::evidence {

// Each selected pair, or case of a sweep, counts once.
struct Outcomes {
  int selected = 0;
  int passed = 0, failed = 0, timed_out = 0, crashed = 0;
  int skipped = 0;      // the machine, or the build, lacks what the pair needs
  int interrupted = 0;  // stopped while it ran, before it had a result
  int not_started = 0;  // the run ended before

  int tested() const { return passed + failed + timed_out + crashed; }
  int unfinished() const { return interrupted + not_started; }
};

// Returns "passed", ..., "skipped", and for a pair that has no result because the run ended early "interrupted" or "not started".
std::string_view outcome_of(const PairResult& pair);

// Speedups of the variants that show their pairs' lessons; `count` is 0 for none, and then so is everything.
struct SpeedupRange {
  int count = 0;
  double geometric_mean = 0, best = 0, worst = 0;
  std::string best_target, worst_target;  // label_of() the pair
};
SpeedupRange range_of_lessons(const SuiteResult& suite);

struct ChapterSummary {
  std::string chapter;
  Outcomes outcomes;
  SpeedupRange speedups;
};

// The pairs whose best variant comes within `near_limit_percent` of its lower bound, of those whose ceiling is no guess.
struct LimitReach {
  int near = 0, of = 0;
  int guessed = 0;  // pairs left out because their ceiling is a guess
};
inline constexpr double near_limit_percent = 90;

// The pairs whose best variant is level with the fastest library or ahead, of those with a library that is a yardstick.
struct LibraryStanding {
  int level = 0, of = 0;
  int slow_libraries = 0;  // pairs left out because the library is none: why_no_yardstick()
};
inline constexpr double level_percent = 99;

// Returns why the library beside a pair's best variant is no yardstick: it is slower than the baseline, or it does other work, by
// its declared bytes or FLOPs; empty if it is one, or there is none.
std::string why_no_yardstick(const PairResult& pair);
// Whether a pair's best variant may be counted beside a library.
bool has_competitive_library(const PairResult& pair);

// The resource, and the number of variants whose lower bound stands on a guess of its rate.
struct GuessedCeiling {
  std::string of;       // "memory", "compute (bf16)", "L2"
  std::string ceiling;  // "739 TFLOP/s"
  int variants = 0;
};

// Returns the time that a run took, over all its parts; of merged shards, which ran at once, that of the longest. Of results that
// do not say when they ended it is the time in pairs.
double wall_s_of(const std::vector<PairResult>& pairs);

struct RunSummary {
  std::string run_id, started_utc;
  double wall_s = 0;  // wall_s_of() its pairs
  Outcomes outcomes;
  std::vector<ChapterSummary> chapters;                // those of the selected pairs, in order
  SpeedupRange speedups, gpu_speedups, host_speedups;  // of all pairs; of GPU pairs and host pairs alone
  int faster = 0, cannot_tell = 0, slower = 0;         // verdicts on the lessons
  LimitReach limit;
  LibraryStanding library;
  std::vector<GuessedCeiling> guessed;  // those with the most variants first
  std::string way_on;                   // what to do if the run ended early

  int chapters_tested() const;
  bool ended_early() const { return outcomes.unfinished() > 0; }
};

// `manifest` names the selection: a pair that the suite lacks was not started.
RunSummary summarize(const SuiteResult& suite, const Manifest& manifest);
RunSummary summarize(const RunRecord& run);

// "The run ended early: of 163 selected pairs 1 was interrupted and 3 were not started; aisp run --resume nightly continues it";
// empty if it did not.
std::string ended_early_text(const RunSummary& summary);
// "No measured ceiling for bf16, L2: percentages with ~ stand on a guess; ..."; empty if none is a guess.
std::string guessed_ceilings_text(const RunSummary& summary);

void to_json(nlohmann::json& json, const RunSummary& summary);
// The suite with its summary: benchmark_test_results.json.
nlohmann::json suite_json(const SuiteResult& suite, const Manifest& manifest);

}  // namespace aisp::evidence
