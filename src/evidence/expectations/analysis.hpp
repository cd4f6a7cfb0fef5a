// SPDX-License-Identifier: Apache-2.0
// Runs compared with recorded expectations, by which a gate decides; docs/method.md says how and why.
#pragma once
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "evidence/expectations/change.hpp"
#include "evidence/expectations/expectations.hpp"
#include "evidence/range.hpp"
#include "evidence/run_record.hpp"

namespace aisp::evidence {

// Begins the reason of a pair that is skipped because the executable was built without it.
inline constexpr std::string_view not_built = "not built";

// Best news last, as tables sort them.
enum class Finding { failed, missing, regressed, slower, drifted, rebased, stale, other_machine, skipped, fresh, improved, ok };
constexpr base::Words<12> words_of(Finding) {
  return {{"failed", "missing", "regressed", "slower", "drifted", "rebased", "stale", "other_machine", "skipped", "new",
           "improved", "ok"}};
}

struct AnalysisRow {
  std::string target, hardware;
  std::string machine;  // id_of() its fingerprint: runs of other machines have rows of their own
  std::string variant;  // empty: the whole pair
  bool lesson = false;  // it shows what the pair teaches
  bool best = false;    // the pair's best optimized variant
  Finding finding = Finding::ok;
  std::optional<Finding> would_be;         // of a stale row: what the comparison with the other code says
  bool confirmed = false;                  // regressed, or would be, in two measurements or more
  bool lost_coverage = false;              // skipped, though expectations of this machine's hardware exist
  bool counts_as_regression = false;       // it turns a gate red as a regression
  int measurements = 0;                    // of this code, in all runs given
  std::optional<Range> speedup, expected;  // of the last measurement
  std::optional<double> median_ms, expected_median_ms;
  std::optional<double> baseline_median_ms, expected_baseline_median_ms;
  std::optional<double> percent_of_floor, gpu_busy_percent;
  std::string run_id;  // of the last measurement
  std::string detail;  // one clause for the reader; may be empty
};
void to_json(nlohmann::json& json, const AnalysisRow& row);

struct AnalysisOptions {
  double threshold = 0.05;
  bool strict = false;                // slower, drifted, stale and lost coverage count as regressions
  bool require_confirmation = false;  // a regression counts only when confirmed
};

struct Analysis {
  AnalysisOptions options;
  std::vector<std::string> runs;
  std::vector<AnalysisRow> rows;
  std::vector<std::string> warnings;
};

// The files below one folder, each read once and when it is first asked for.
class ExpectationFolder {
 public:
  explicit ExpectationFolder(std::filesystem::path folder) : folder_{std::move(folder)} {}
  const ExpectedPair* find(const std::string& hardware, const std::string& chapter, const std::string& name);
  const std::filesystem::path& path() const { return folder_; }

 private:
  std::filesystem::path folder_;
  std::map<std::filesystem::path, std::optional<Expectations>> files_;
};

Analysis analyze(const std::vector<RunRecord>& runs, ExpectationFolder& expectations, const AnalysisOptions& options);

// Whether measured times were compared with expected ones, those of other code included where that comparison counts.
bool was_compared(const AnalysisRow& row);
// Whether it regressed, or is stale and would be regressed.
bool is_regressed(const AnalysisRow& row);
// Returns `failed` if anything failed or is missing, else `regression`, else `good`; `nothing` if nothing was compared: a gate
// without anything to judge by must not be green.
base::Exit exit_status(const Analysis& analysis);

struct Measurement {
  const RunRecord* run;
  const PairResult* pair;
};

// One row for each optimized variant. `measurements`: passed, of the same code, oldest first, at least one; `expected` may be
// null.
std::vector<AnalysisRow> judge(const std::vector<Measurement>& measurements, const ExpectedPair* expected, double threshold);

}  // namespace aisp::evidence
