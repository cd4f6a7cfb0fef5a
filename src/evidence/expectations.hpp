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
  double speedup = 0, speedup_low = 0, speedup_high = 0;  // over all runs recorded: of the last, the least and the most
  double median_ms = 0;
  std::optional<double> percent_of_floor;
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
  std::string judged_by = "time";
  double baseline_median_ms = 0;
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
// In whole or not at all; throws base::Error (Exit::unfit).
void write_expectations(const std::filesystem::path& file, const Expectations& expectations);

// Why a result cannot become an expectation ("it did not pass", "--scale 0.1", ...); nothing when it can.
std::optional<std::string> not_recordable(const PairResult& pair);
// Of a result that can be recorded. With `earlier` of the same code and kind of machine the intervals cover both.
ExpectedPair expected_of(const PairResult& pair, const Manifest& manifest, const ExpectedPair* earlier);

struct Recording {
  std::vector<std::filesystem::path> files;                   // written
  std::vector<std::string> recorded;                          // targets
  std::vector<std::pair<std::string, std::string>> left_out;  // target, why
};
// Puts a run's results into the files below `folder`; whatever they hold of other pairs stays.
Recording record(const std::filesystem::path& folder, const SuiteResult& suite, const Manifest& manifest);

}  // namespace aisp::evidence
