// SPDX-License-Identifier: Apache-2.0
// What pairs are expected to reach, from recorded runs: expectations/<hardware>/<chapter>.json.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "evidence/manifest.hpp"
#include "evidence/result.hpp"

namespace aisp::evidence {

struct ExpectedVariant {
  VariantRole role = VariantRole::optimized;
  double speedup = 0, speedup_low = 0, speedup_high = 0;  // over all runs recorded: of the last, the least and the most
  double median_ms = 0;
  std::optional<double> percent_of_floor;
  DeclaredCost cost;
};

// The run behind an expectation.
struct Recorded {
  std::string date_utc, run_id;
  std::string aisp_version, commit;  // the commit ends in "+changes" where the tree was not clean
  std::string gpu, driver, cuda, cpu;
  double power_limit_w = 0;
  int runs = 1;  // runs of this source on this kind of machine; the interval is over all of them
};

struct ExpectedPair {
  std::string source_digest;  // of the code that was measured
  Recorded recorded;
  std::string bound;  // as in PairResult
  std::string judged_by = "time";
  std::optional<Ceilings> ceilings;
  std::string baseline;  // name
  double baseline_median_ms = 0;
  DeclaredCost baseline_cost;
  std::map<std::string, ExpectedVariant> variants;
};

struct Expectations {
  int schema_version = evidence::schema_version;
  std::string hardware;  // h200, 2x_h200, host
  std::string chapter;
  std::map<std::string, ExpectedPair> pairs;  // by name, without the chapter
};

// The kind of hardware that a pair's result is of, as a folder's name: the GPU's name without vendor, memory size and form
// factor ("NVIDIA H200" is h200, "NVIDIA A100-SXM4-80GB" a100), with the number of GPUs when the pair used several; "host" for a
// host pair, empty for a pair that used none (skipped).
std::string hardware_key(const PairResult& pair, const Manifest& manifest);

std::filesystem::path expectations_path(const std::filesystem::path& folder, const std::string& hardware,
                                        const std::string& chapter);

// Nothing where there is no file; throws base::Error (Exit::usage) naming file and place where it cannot be read.
std::optional<Expectations> read_expectations(const std::filesystem::path& file);
Expectations parse_expectations(std::string_view text, const std::string& source);
// Every file of the folder, by hardware, then chapter; none when the folder is missing. Throws base::Error (Exit::usage) also for
// a file whose place contradicts what it says of itself.
std::vector<Expectations> read_all_expectations(const std::filesystem::path& folder);
// In whole or not at all; throws base::Error (Exit::unfit).
void write_expectations(const std::filesystem::path& file, const Expectations& expectations);

// Why a result cannot become an expectation ("it did not pass", "--scale 0.1", ...); nothing when it can.
std::optional<std::string> not_recordable(const PairResult& pair);
// The best optimized variant by speedup; nothing where only peers were recorded.
const std::pair<const std::string, ExpectedVariant>* best_of(const ExpectedPair& pair);

// Of a result that can be recorded. With `earlier` of the same code and kind of machine the intervals cover both.
ExpectedPair expected_of(const PairResult& pair, const Manifest& manifest, const ExpectedPair* earlier);

// A run's passed pairs in the form of expectations, whether they could be recorded or not: one for each kind of hardware and
// chapter.
std::vector<Expectations> as_expectations(const std::vector<PairResult>& pairs, const Manifest& manifest);

struct Recording {
  std::vector<std::filesystem::path> files;                   // written
  std::vector<std::string> recorded;                          // targets
  std::vector<std::pair<std::string, std::string>> left_out;  // label_in_run(), why
};
// Puts a run's results into the files below `folder`; whatever they hold of other pairs stays.
Recording record(const std::filesystem::path& folder, const SuiteResult& suite, const Manifest& manifest);

}  // namespace aisp::evidence
