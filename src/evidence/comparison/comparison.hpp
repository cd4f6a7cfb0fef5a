// SPDX-License-Identifier: Apache-2.0
// Run against run, machine against machine, or baseline against optimized, over everything that was measured.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "evidence/expectations/analysis.hpp"
#include "evidence/expectations/change.hpp"
#include "evidence/manifest.hpp"
#include "evidence/range.hpp"
#include "evidence/run_record.hpp"

namespace aisp::evidence {

struct MetricChange {
  std::string target, variant;
  std::string metric, unit;  // "time" in ms, "speedup", "device_peak", what the pair reports, "counters.dram_read_bytes"
  Direction better = Direction::lower;
  Range before, after;
  double change_percent = 0;
  Change change = Change::same;
  // Between two runs: worse, with intervals on both sides, by more than processes of equal code differ by, not decided by the
  // host, and measured where both can be compared. For two executables in turns see compare_sides().
  bool is_regression = false;
  std::string detail;                         // "median SM clock 1980 MHz, then 1455 MHz"; may be empty
  std::vector<double> before_raw, after_raw;  // samples as they were read; empty for single readings
};

struct StatusChange {
  std::string target;
  Status before = Status::passed, after = Status::passed;
  std::string reason;  // of the later
};

struct OutputChange {  // bits that are not the same though seed and size are
  std::string target, variant, output;
  bool repeatable = true;  // in both runs two executions gave equal bits
};

struct SizeChange {  // of a workload: nothing else of the two is compared then
  std::string target, before, after;
};

struct RunComparison {
  double threshold = 0;
  std::string before, after;  // folders, or "baseline" and "optimized" of `run`
  std::string run;            // the only run there is; empty when there are two
  bool same_hardware = true;
  std::vector<std::string> machine_differences;  // of the hosts, in words; empty: one machine, or two that are alike
  std::vector<MetricChange> metrics;
  std::vector<StatusChange> statuses;
  std::vector<SizeChange> sizes;
  std::vector<OutputChange> outputs;
  std::size_t equal_outputs = 0;
  std::vector<std::string> only_before, only_after, source_changed;  // targets
  std::vector<ManifestDifference> causes;                            // of the manifests, likely ones first
};
void to_json(nlohmann::json& json, const RunComparison& comparison);

// Whether a pair that passed before failed after.
bool broke_something(const RunComparison& comparison);

// How many times as fast the later side is, over all variants that both timed.
struct Overall {
  std::size_t kernels = 0, pairs = 0;  // variants that both timed, and the pairs that they belong to
  double geometric_mean = 0, least = 0, most = 0;
  std::string least_of, most_of;  // "ch07:transpose tiled"
};
Overall overall(const RunComparison& comparison);

// Compares two runs. With recorded runs of a pair's code, its own spread between processes decides what is worse, and of all
// speedups that are called worse at most a tenth is expected to be luck: of hundreds some would be, each judged alone.
RunComparison compare_runs(const RunRecord& before, const RunRecord& after, double threshold,
                           ExpectationFolder* recordings = nullptr);
RunComparison compare_variants(const RunRecord& run, double threshold);

// Differences of two manifests that can explain a change: without names of places, most likely ones first.
std::vector<ManifestDifference> likely_causes(const Manifest& before, const Manifest& after);

// Two executables that took turns: `before[i]` and `after[i]` are processes of one turn. Intervals are those over the processes
// of a side: from the lowest to the highest end of any; values are means. A regression is a time that is worse, or a speedup that
// is although the baseline's time did not get better.
RunComparison compare_sides(const std::vector<RunRecord>& before, const std::vector<RunRecord>& after, double threshold);

// The targets of its regressions.
std::set<std::string> slower_targets(const RunComparison& comparison);

}  // namespace aisp::evidence
