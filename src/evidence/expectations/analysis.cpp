// SPDX-License-Identifier: Apache-2.0
#include "evidence/expectations/analysis.hpp"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/hardware_key.hpp"
#include "base/text.hpp"

namespace aisp::evidence {
namespace {

// By the target's place in the order of the runs, hardware and machine: what two machines measured repeats nothing.
using GroupKey = std::tuple<std::size_t, std::string, std::string>;

bool counts(const AnalysisRow& row, const AnalysisOptions& options) {
  if (is_regressed(row) && (row.confirmed || !options.require_confirmation)) return true;
  const bool doubtful = row.finding == Finding::slower || row.finding == Finding::drifted || row.finding == Finding::stale;
  return options.strict && (doubtful || row.lost_coverage);
}

bool is_skipped(const Measurement& measurement) { return measurement.pair->status == Status::skipped; }

bool went_wrong(const PairResult& pair) {
  return pair.status == Status::failed || pair.status == Status::timeout || pair.status == Status::crashed;
}

class Analyst {
 public:
  Analyst(const std::vector<RunRecord>& runs, ExpectationFolder& expectations, const AnalysisOptions& options)
      : runs_{runs}, expectations_{expectations} {
    analysis_.options = options;
  }

  Analysis work() {
    gather();
    for (auto& [key, measurements] : groups_) {
      // In a merge of machines a pair that one of them cannot run is no news if another did.
      if (measured_.contains(measurements.front().pair->target)) std::erase_if(measurements, is_skipped);
      if (!measurements.empty()) add_group(key, measurements);
    }
    add_missing();
    for (AnalysisRow& row : analysis_.rows) row.counts_as_regression = counts(row, analysis_.options);
    return std::move(analysis_);
  }

 private:
  void gather() {
    for (const RunRecord& run : runs_) {
      analysis_.runs.push_back(run.folder.string());
      analysis_.warnings.insert(analysis_.warnings.end(), run.warnings.begin(), run.warnings.end());
      for (const PairResult& pair : run.pairs) {
        if (pair.status == Status::skipped && !pair.complete) continue;  // never started: see add_missing()
        labels_.insert(label_in_run(pair));
        if (pair.status != Status::skipped) measured_.insert(pair.target);
        const std::size_t order = targets_.emplace(pair.target, targets_.size()).first->second;
        groups_[{order, hardware_key(pair, run.manifest), machine_of(pair, run.manifest)}].push_back({&run, &pair});
      }
    }
    for (auto& [key, measurements] : groups_)
      std::stable_sort(measurements.begin(), measurements.end(),
                       [](const Measurement& a, const Measurement& b) { return a.pair->started_utc < b.pair->started_utc; });
  }

  // The id of the first run's machine that is the same one as far as times go: drivers may be updated between two runs.
  std::string machine_of(const PairResult& pair, const Manifest& manifest) {
    const Fingerprint fingerprint = fingerprint_of(pair, manifest);
    for (const Fingerprint& known : machines_)
      if (known.hardware == fingerprint.hardware && (known == fingerprint || host_differences(known, fingerprint).empty()))
        return id_of(known);
    machines_.push_back(fingerprint);
    return id_of(fingerprint);
  }

  AnalysisRow row_of(const GroupKey& key, const Measurement& measurement, Finding finding, std::string detail) {
    return {.target = measurement.pair->target,
            .hardware = std::get<1>(key),
            .machine = std::get<2>(key),
            .finding = finding,
            .measurements = 1,
            .run_id = measurement.run->manifest.run_id,
            .detail = std::move(detail)};
  }

  void add_group(const GroupKey& key, const std::vector<Measurement>& measurements) {
    for (const Measurement& m : measurements)
      if (went_wrong(*m.pair)) {
        const std::string which = m.pair->sweep_case.empty() ? "" : "case " + m.pair->sweep_case + ": ";
        const std::string reason = m.pair->reason.empty() ? std::string{to_string(m.pair->status)} : m.pair->reason;
        analysis_.rows.push_back(row_of(key, m, Finding::failed, which + reason));
        return;
      }
    std::vector<Measurement> comparable;
    for (const Measurement& m : measurements)
      if (!not_recordable(*m.pair)) comparable.push_back(m);
    if (comparable.empty()) return add_skipped(key, measurements.back());
    const PairResult& last = *comparable.back().pair;
    // Runs before a change of the code say nothing about the code of the last.
    std::erase_if(comparable, [&](const Measurement& m) { return m.pair->source_digest != last.source_digest; });
    const ExpectedPair* expected = expectations_.find(std::get<1>(key), last.chapter, last.name);
    for (AnalysisRow& row : judge(comparable, expected, analysis_.options.threshold)) {
      row.hardware = std::get<1>(key);
      row.machine = std::get<2>(key);
      analysis_.rows.push_back(std::move(row));
    }
  }

  void add_skipped(const GroupKey& key, const Measurement& m) {
    AnalysisRow row = row_of(key, m, Finding::skipped,
                             is_skipped(m) ? m.pair->reason : "not compared: " + not_recordable(*m.pair).value_or(""));
    if (is_skipped(m) && !m.pair->reason.starts_with(not_built) && is_expected_of(m)) {
      row.lost_coverage = true;
      row.detail += "; it ran when the expectations of this hardware were recorded";
    }
    analysis_.rows.push_back(std::move(row));
  }

  // A skipped pair used no hardware, so any of its machine's counts.
  bool is_expected_of(const Measurement& m) {
    PairResult as_if = *m.pair;
    if (as_if.device == Device::host)
      return expectations_.find(std::string{base::hardware_of_hosts}, as_if.chapter, as_if.name) != nullptr;
    for (const ManifestGpu& gpu : manifest_of(*m.pair, m.run->manifest).gpus) {
      as_if.gpus = {gpu.uuid};
      if (expectations_.find(hardware_key(as_if, m.run->manifest), as_if.chapter, as_if.name) != nullptr) return true;
    }
    return false;
  }

  void add_missing() {
    for (const RunRecord& run : runs_) {
      if (run.confirmation) continue;
      for (const std::string& target : run.manifest.targets) add_missing(run, target);
    }
  }

  void add_missing(const RunRecord& run, const std::string& target) {
    const std::string cases = base::join(missing_cases(run, target), ", ");
    const bool none_at_all = targets_.emplace(target, targets_.size()).second;
    if (!none_at_all && cases.empty()) return;
    AnalysisRow row{.target = target, .finding = Finding::missing, .run_id = run.manifest.run_id};
    row.detail = cases.empty() ? "selected, but it has no result" : "selected, but no result of the sweep's cases " + cases;
    row.detail += ": the run ended early; continue it with aisp run --resume";
    analysis_.rows.push_back(std::move(row));
  }

  // Returns each case once, also where several runs lack it.
  std::vector<std::string> missing_cases(const RunRecord& run, const std::string& target) {
    std::vector<std::string> missing;
    if (const auto cases = run.manifest.cases.find(target); cases != run.manifest.cases.end())
      for (const std::string& name : cases->second)
        if (labels_.insert(label_in_run({.target = target, .sweep_case = name})).second) missing.push_back(name);
    return missing;
  }

  const std::vector<RunRecord>& runs_;
  ExpectationFolder& expectations_;
  Analysis analysis_;
  std::map<GroupKey, std::vector<Measurement>> groups_;
  std::vector<Fingerprint> machines_;
  std::map<std::string, std::size_t> targets_;  // in the order in which the runs have them
  std::set<std::string> measured_, labels_;     // targets that some run did not skip; targets with the case of a sweep
};

}  // namespace

const ExpectedPair* ExpectationFolder::find(const std::string& hardware, const std::string& chapter, const std::string& name) {
  if (hardware.empty()) return nullptr;
  const std::filesystem::path path = expectations_path(folder_, hardware, chapter);
  auto file = files_.find(path);
  if (file == files_.end()) file = files_.emplace(path, read_expectations(path)).first;
  if (!file->second) return nullptr;
  const auto pair = file->second->pairs.find(name);
  return pair == file->second->pairs.end() ? nullptr : &pair->second;
}

Analysis analyze(const std::vector<RunRecord>& runs, ExpectationFolder& expectations, const AnalysisOptions& options) {
  return Analyst{runs, expectations, options}.work();
}

bool was_compared(const AnalysisRow& row) {
  if (row.finding == Finding::stale) return row.would_be.has_value();
  return row.speedup && row.expected && row.finding != Finding::other_machine;
}

bool is_regressed(const AnalysisRow& row) {
  return row.finding == Finding::regressed || (row.finding == Finding::stale && row.would_be == Finding::regressed);
}

base::Exit exit_status(const Analysis& analysis) {
  bool regressed = false, compared = false;
  for (const AnalysisRow& row : analysis.rows) {
    if (row.finding == Finding::failed || row.finding == Finding::missing) return base::Exit::failed;
    regressed = regressed || row.counts_as_regression;
    compared = compared || was_compared(row);
  }
  if (regressed) return base::Exit::regression;
  return compared ? base::Exit::good : base::Exit::nothing;
}

}  // namespace aisp::evidence
