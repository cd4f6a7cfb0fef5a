// SPDX-License-Identifier: Apache-2.0
// Expected results of pairs, from recorded runs: expectations/<hardware>/<chapter>.json.
#pragma once
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "evidence/expectations/fingerprint.hpp"
#include "evidence/manifest.hpp"
#include "evidence/result.hpp"

namespace aisp::evidence {

// Metrics of a pair's subject, as recorded runs keep them: tokens a second, time to first token, pages that moved.
struct RecordedMetric {
  double value = std::numeric_limits<double>::quiet_NaN();  // median over the samples; a file that lacks it is refused
  std::string unit;
  Direction better = Direction::lower;
};
using RecordedMetrics = std::map<std::string, RecordedMetric>;  // by name

// The metrics that a variant reported, and of its tokens, where it marks some, `ttft`, `tpot` and `tokens_per_second`, unless it
// reported one of that name. Where a variant of the pair changes the precision, or a buffer holds narrow types, also
// `relative_l2_error`, against the float64 reference that rounds nothing but its inputs: what a speedup costs. Without those that
// are no number, which no file can hold.
RecordedMetrics metrics_to_record(const PairResult& pair, const VariantResult& variant);

// The version of expectation files, apart from that of results.
inline constexpr int expectations_version = 3;

struct RecordedVariant {
  double speedup = 0, speedup_low = 0, speedup_high = 0;  // of this run
  double median_ms = 0;
  std::optional<double> percent_of_floor;
  RecordedMetrics metrics;
};

// One run of one pair, in a process of its own.
struct RecordedRun {
  std::string date_utc, run_id;
  std::string aisp_version, commit;  // the commit ends in "+changes" where the tree was not clean
  std::string source_digest;         // of the code that was measured
  std::string machine;               // id_of() of the next
  Fingerprint fingerprint;           // files hold it once, by that id
  std::vector<std::string> gpu_ids;  // fingerprint.hpp; of host pairs all of the machine's; empty where nobody wrote them down
  double baseline_median_ms = 0;
  RecordedMetrics baseline_metrics;
  std::map<std::string, RecordedVariant> variants;
};

struct ExpectedVariant {
  VariantRole role = VariantRole::optimized;
  double speedup = 0, speedup_low = 0,
         speedup_high = 0;  // evidence/expectations/change.hpp: median of runs, and where further ones fall
  double median_ms = 0;
  std::optional<double> percent_of_floor;
  RecordedMetrics metrics;  // medians of the runs that have them
  DeclaredCost cost;
  std::vector<double> speedups, medians_ms;  // of each run, the latest last
};

// The latest of the runs behind an expectation, and their number.
struct Recorded {
  std::string date_utc, run_id;
  std::string aisp_version, commit;
  std::string gpu, driver, cuda, cpu;
  double power_limit_w = 0;
  int cpus_usable = 0, numa_nodes = 0;  // 0: nobody wrote them down
  std::string hypervisor;
  int runs = 0;
  std::set<std::string> gpu_ids;  // of those runs whose GPUs are known
};

// Marked with *: follows from the runs of the latest run's code, and of its machine where the host decides; no file holds it.
// Controls are recorded to be shown; no result is held against them.
struct ExpectedPair {
  std::string source_digest;    // * of the code that was measured
  Recorded recorded;            // *
  Bound bound = Bound::memory;  // as in PairResult
  std::string judged_by{time_metric};
  std::string lesson;         // as in PairResult
  bool host_decides = false;  // PairResult::host_dependent: its runs are compared with runs of the same kind of host alone
  std::optional<ResultCeilings> ceilings;
  std::string baseline;                     // name
  double baseline_median_ms = 0;            // *
  std::vector<double> baseline_medians_ms;  // * of each run
  RecordedMetrics baseline_metrics;         // *
  DeclaredCost baseline_cost;
  std::map<std::string, ExpectedVariant> variants;  // * but role and cost
  std::vector<RecordedRun> runs;                    // as they were recorded, the latest last; at least one in a file
};

struct Expectations {
  int schema_version = expectations_version;
  std::string hardware;  // h200, 2x_h200, host
  std::string chapter;
  std::map<std::string, ExpectedPair> pairs;  // by name, without the chapter
};

// The expectation of the recorded runs that match code and machine: the same code and, if the host decides, the same kind of
// host. If none match, the nearest latest runs and how they differ.
struct Applicable {
  ExpectedPair expected;
  bool same_code = true;
  std::vector<std::string> machine_differences;  // host_differences(), or other_host(); empty: the same, or it does not matter
};
// `gpus_here`: gpu_ids() of the machine, by which runs of its very host are told from those of others of its kind; none: all of
// its kind are taken.
Applicable applicable(const ExpectedPair& recorded, const std::string& source_digest, const Fingerprint& here,
                      const std::vector<std::string>& gpus_here = {});
// Returns the machine with the most runs of the latest code, the later of two: the default when no machine is given.
const Fingerprint& most_recorded_machine(const ExpectedPair& recorded);

std::filesystem::path expectations_path(const std::filesystem::path& folder, const std::string& hardware,
                                        const std::string& chapter);

// Nothing where there is no file; throws base::Error (Exit::usage) naming file and place where it cannot be read, holds a speedup
// that is none, or says that it is of another place.
std::optional<Expectations> read_expectations(const std::filesystem::path& file);
Expectations parse_expectations(std::string_view text, const std::string& source);
// Every file of the folder, by hardware, then chapter; none when the folder is missing. Throws as above.
std::vector<Expectations> read_all_expectations(const std::filesystem::path& folder);
// In whole or not at all; throws base::Error (Exit::unfit).
void write_expectations(const std::filesystem::path& file, const Expectations& expectations);

// Why a result cannot become an expectation ("it did not pass", "--scale 0.1", ...); nothing when it can.
std::optional<std::string> not_recordable(const PairResult& pair);
// Name of the first variant whose speedup is no number that a speedup can be; empty when there is none.
std::string variant_without_number(const PairResult& pair);
// Name of the optimized variant with the largest speedup, of the lesson where it reaches the same; empty when there is none.
std::string best_variant(const ExpectedPair& pair);

// Adds a result that can be recorded to those of `earlier`, which may be null. Runs of other code that it replaces are left out:
// those of its own machine, or all where the host does not decide. The same run recorded twice counts once.
ExpectedPair expected_of(const PairResult& pair, const Manifest& manifest, const ExpectedPair* earlier);

// A run's passed pairs in the form of expectations, whether they could be recorded or not: one for each kind of hardware and
// chapter.
std::vector<Expectations> as_expectations(const std::vector<PairResult>& pairs, const Manifest& manifest);

struct ExpectationUpdate {
  std::vector<std::filesystem::path> files;                   // written
  std::vector<std::string> recorded;                          // targets
  std::vector<std::pair<std::string, std::string>> left_out;  // label_in_run(), why
  std::vector<std::string> far;                               // variants far from their earlier runs, a sentence each
  std::map<std::string, std::string> wide;  // of each variant on each hardware: a sentence, or "" where it is not
};
// Puts a run's results into the files below `folder`; whatever they hold of other pairs and machines stays.
ExpectationUpdate record(const std::filesystem::path& folder, const SuiteResult& suite, const Manifest& manifest);

}  // namespace aisp::evidence
