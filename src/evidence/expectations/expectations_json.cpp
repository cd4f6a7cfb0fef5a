// SPDX-License-Identifier: Apache-2.0
// Files of expectations: what they hold and what they must not.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "evidence/expectations/change.hpp"
#include "evidence/expectations/expectations.hpp"
#include "evidence/fields.hpp"
#include "evidence/json.hpp"

namespace aisp::evidence {

namespace fs = std::filesystem;

static constexpr std::size_t largest_file_bytes = std::size_t{16} << 20;

// As the file holds it: fingerprints apart, because many runs share one.
struct ExpectationsFile {
  int schema_version = 0;
  std::string hardware, chapter;
  std::map<std::string, Fingerprint> machines;
  std::map<std::string, ExpectedPair> pairs;
};

AISP_DESCRIBE(Fingerprint, hardware, cpu, cpus_usable, numa_nodes, cpu_quota, hypervisor, memory_bytes, gpu, driver, cuda,
              power_limit_w, libraries)
AISP_DESCRIBE(RecordedMetric, value, unit, better)

template <class Visitor>
void describe(RecordedVariant& v, Visitor& visit) {
  AISP_VISIT(visit, v, speedup, speedup_low, speedup_high, median_ms, percent_of_floor);
  describe_unless_empty("metrics", v.metrics, visit);
}

template <class Visitor>
void describe(RecordedRun& r, Visitor& visit) {
  AISP_VISIT(visit, r, date_utc, run_id, aisp_version, commit, source_digest, machine, baseline_median_ms, variants);
  describe_unless_empty("gpus", r.gpu_ids, visit);
  describe_unless_empty("baseline_metrics", r.baseline_metrics, visit);
}

// The rest follows from the runs.
AISP_DESCRIBE(ExpectedVariant, role, cost)
AISP_DESCRIBE(ExpectedPair, bound, judged_by, lesson, host_decides, ceilings, baseline, baseline_cost, variants, runs)
AISP_DESCRIBE(ExpectationsFile, schema_version, hardware, chapter, machines, pairs)

namespace {

[[noreturn]] void refuse(const std::string& place, const std::string& what) {
  throw base::Error{base::Exit::usage, fmt::format("{}: {}", place, what)};
}

void check_version(const json& document, const std::string& source, int version) {
  const char* again = "record it again with aisp run --update-expectations";
  if (!document.contains("schema_version")) refuse(source, fmt::format("there is no schema_version; {}", again));
  if (version != expectations_version)
    refuse(source, fmt::format("schema_version {} is not {}, which this aisp reads; {}", version, expectations_version, again));
}

bool is_time(double milliseconds) { return std::isfinite(milliseconds) && milliseconds >= 0; }

void check_metrics(const RecordedMetrics& metrics, const std::string& place) {
  for (const auto& [name, metric] : metrics)
    if (!std::isfinite(metric.value)) refuse(fmt::format("{}.{}", place, name), "no number");
}

void check_run(const RecordedRun& run, const std::string& place) {
  if (!is_time(run.baseline_median_ms)) refuse(place + ".baseline_median_ms", "no time of the baseline");
  check_metrics(run.baseline_metrics, place + ".baseline_metrics");
  for (const auto& [name, variant] : run.variants) {
    const std::string inside = place + ".variants." + name;
    if (!is_ratio({variant.speedup, variant.speedup_low, variant.speedup_high}))
      refuse(inside, fmt::format("the speedup {} [{}, {}] is none: its interval must be above 0 and hold it", variant.speedup,
                                 variant.speedup_low, variant.speedup_high));
    if (!is_time(variant.median_ms)) refuse(inside + ".median_ms", "no time");
    check_metrics(variant.metrics, inside + ".metrics");
  }
}

void check_place(const fs::path& file, const Expectations& found) {
  const std::string hardware = file.parent_path().filename().string(), chapter = file.stem().string();
  if (found.hardware == hardware && found.chapter == chapter) return;
  refuse(file.string(), fmt::format("it says that it is of {} {}; move it to its place or record it again with "
                                    "aisp run --update-expectations",
                                    found.hardware, found.chapter));
}

}  // namespace

Expectations parse_expectations(std::string_view text, const std::string& source) {
  const json document = parse_json(text, source);
  ExpectationsFile file;
  Reader reader{document, source};
  describe(file, reader);
  check_version(document, source, file.schema_version);
  for (auto& [name, pair] : file.pairs) {
    const std::string place = source + ".pairs." + name;
    if (pair.runs.empty()) refuse(place, "it has no runs");
    if (pair.lesson.empty()) refuse(place, "it names no lesson");
    for (std::size_t i = 0; i < pair.runs.size(); ++i) {
      RecordedRun& run = pair.runs[i];
      const std::string of_run = fmt::format("{}.runs[{}]", place, i);
      const auto machine = file.machines.find(run.machine);
      if (machine == file.machines.end()) refuse(of_run, "its machine is not among the file's");
      run.fingerprint = machine->second;
      check_run(run, of_run);
    }
    pair = applicable(pair, pair.runs.back().source_digest, most_recorded_machine(pair)).expected;
  }
  return {file.schema_version, file.hardware, file.chapter, std::move(file.pairs)};
}

std::optional<Expectations> read_expectations(const fs::path& file) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return std::nullopt;
  Expectations found = parse_expectations(base::read_file(file, largest_file_bytes), file.string());
  check_place(file, found);
  return found;
}

void write_expectations(const fs::path& path, const Expectations& expectations) {
  ExpectationsFile file{expectations.schema_version, expectations.hardware, expectations.chapter, {}, expectations.pairs};
  for (const auto& [name, pair] : file.pairs)
    for (const RecordedRun& run : pair.runs) file.machines.emplace(run.machine, run.fingerprint);
  json document;
  Writer writer{document};
  describe(file, writer);
  base::make_directories(path.parent_path());
  base::write_atomically(path, json_text(document, 2) + '\n');
}

namespace fs = std::filesystem;

namespace {

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator entry{folder, error}; !error && entry != fs::directory_iterator{}; entry.increment(error))
    entries.push_back(entry->path());
  if (error) throw base::Error{base::Exit::usage, fmt::format("cannot read {}: {}", folder.string(), error.message())};
  std::sort(entries.begin(), entries.end());
  return entries;
}

}  // namespace

std::vector<Expectations> as_expectations(const std::vector<PairResult>& pairs, const Manifest& manifest) {
  std::map<std::pair<std::string, std::string>, Expectations> files;
  for (const PairResult& pair : pairs) {
    if (best_variant(pair) == nullptr) continue;
    const std::string hardware = hardware_key(pair, manifest);
    Expectations& file = files[{hardware, pair.chapter}];
    file.hardware = hardware;
    file.chapter = pair.chapter;
    file.pairs[label_in_run(pair).substr(pair.chapter.size() + 1)] = expected_of(pair, manifest, nullptr);
  }
  std::vector<Expectations> all;
  for (auto& [key, file] : files) all.push_back(std::move(file));
  return all;
}

std::vector<Expectations> read_all_expectations(const fs::path& folder) {
  std::vector<Expectations> all;
  std::error_code ignored;
  if (!fs::exists(folder, ignored)) return all;
  for (const fs::path& hardware : sorted_entries(folder)) {
    if (!fs::is_directory(hardware, ignored)) continue;
    for (const fs::path& file : sorted_entries(hardware)) {
      if (file.extension() != ".json") continue;
      std::optional<Expectations> found = read_expectations(file);
      if (found) all.push_back(std::move(*found));
    }
  }
  return all;
}

}  // namespace aisp::evidence
