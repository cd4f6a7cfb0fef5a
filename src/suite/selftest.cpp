// SPDX-License-Identifier: Apache-2.0
#include "suite/selftest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/clock.hpp"
#include "base/files.hpp"
#include "base/interrupt.hpp"
#include "base/lock.hpp"
#include "base/text.hpp"
#include "machine/gpu_lock.hpp"
#include "run/blank.hpp"
#include "run/supervisor.hpp"
#include "suite/placement.hpp"

namespace aisp::suite {
namespace {

using evidence::PairResult;
using evidence::Status;

// Enough for every honest pair on a busy machine; cheats that never end bring shorter ones.
constexpr double stage_limit_s = 30;
constexpr double grace_s = 0.5;
constexpr double exit_limit_s = 1;
constexpr double sampling_budget_s = 0.1;
constexpr int rounds = 10;

Status status_of(selftest::Ends ends) {
  switch (ends) {
    case selftest::Ends::passed: return Status::passed;
    case selftest::Ends::failed: return Status::failed;
    case selftest::Ends::timeout: return Status::timeout;
    case selftest::Ends::crashed: return Status::crashed;
  }
  return Status::passed;
}

double& limit_of(run::StageLimits& limits, std::string_view stage) {
  if (stage == "setup") return limits.setup;
  if (stage == "warmup") return limits.warmup;
  if (stage == "measurement") return limits.measurement;
  if (stage == "audit") return limits.audit;
  if (stage == "teardown") return limits.teardown;
  return limits.verify;  // of both verifications
}

run::Request request_for(const pair::SelftestEntry& entry, const std::filesystem::path& scratch) {
  run::Request request;
  request.target = entry.entry.target();
  request.iterations = rounds;
  request.warmup = 1;
  request.budget_s = sampling_budget_s;
  request.reproducible = entry.subject->reproducible;
  request.limits = {.setup = stage_limit_s,
                    .verify = stage_limit_s,
                    .warmup = stage_limit_s,
                    .measurement = stage_limit_s,
                    .audit = stage_limit_s,
                    .teardown = stage_limit_s};
  if (entry.subject->limit_s > 0) limit_of(request.limits, entry.subject->expected.stage) = entry.subject->limit_s;
  request.scratch_parent = std::filesystem::absolute(scratch).string();
  return request;
}

std::string outcome_text(std::string_view status, const std::vector<std::string>& checks) {
  return checks.empty() ? std::string{status} : fmt::format("{}: {}", status, base::join(checks, ", "));
}

std::string expected_text(const selftest::Expected& expected) {
  if (expected.honest()) return "passed";
  return outcome_text(evidence::to_string(status_of(expected.ends)), {fmt::format("{}/{}", expected.stage, expected.check)});
}

// Each stage and check that complained, once.
std::vector<std::string> complaints(const PairResult& result) {
  std::vector<std::string> checks;
  for (const evidence::Problem& problem : result.problems) {
    if (problem.check == "output") continue;  // the last words of a dead process
    std::string check = fmt::format("{}/{}", problem.stage, problem.check);
    if (std::find(checks.begin(), checks.end(), check) == checks.end()) checks.push_back(std::move(check));
  }
  return checks;
}

bool without_cupti(const PairResult& result) {
  return std::any_of(result.lost.begin(), result.lost.end(),
                     [](const std::string& lost) { return lost.starts_with("no CUPTI"); });
}

// Why the harness did not do what it should have with a cheat; empty: it did.
std::string slip(const selftest::Expected& expected, const PairResult& result) {
  if (result.status != status_of(expected.ends)) return fmt::format("it ended as {}", evidence::to_string(result.status));
  const bool named = std::any_of(result.problems.begin(), result.problems.end(), [&](const evidence::Problem& problem) {
    return problem.stage == expected.stage && problem.check == expected.check;
  });
  if (!named) return result.problems.empty() ? "nothing was noticed" : "other checks noticed it only";
  if (result.status != Status::passed && !result.best.empty()) return "a speedup was claimed all the same";
  return {};
}

SelftestLine blank_line(const pair::SelftestEntry& entry) {
  return {.name = std::string{entry.entry.name},
          .device = std::string{run::to_string(entry.subject->pair.device)},
          .does = std::string{entry.subject->pair.teaches},
          .honest = entry.subject->expected.honest(),
          .expected = expected_text(entry.subject->expected)};
}

SelftestLine skipped_line(const pair::SelftestEntry& entry, std::string reason) {
  SelftestLine line = blank_line(entry);
  line.reason = std::move(reason);
  return line;
}

PairResult try_one(const pair::SelftestEntry& entry, run::Request request) {
  run::Supervision supervision;
  supervision.grace_s = grace_s;
  supervision.exit_limit_s = exit_limit_s;
  supervision.interrupted = base::interrupted;
  return run::supervise(entry.entry, request, supervision).result;
}

std::optional<base::FileLock> lock_first_gpu(const machine::Machine& machine, const std::vector<Placement>& placements) {
  const auto on_gpu = [](const Placement& placement) { return !placement.choices.empty() && !placement.choices[0].empty(); };
  const auto first = std::find_if(placements.begin(), placements.end(), on_gpu);
  if (first == placements.end()) return std::nullopt;
  return machine::lock_gpu(machine.gpus[static_cast<std::size_t>(first->choices[0][0])].uuid, "aisp selftest");
}

}  // namespace

std::string_view to_string(SelftestVerdict verdict) {
  switch (verdict) {
    case SelftestVerdict::caught: return "caught";
    case SelftestVerdict::slipped: return "slipped";
    case SelftestVerdict::passed: return "passed";
    case SelftestVerdict::false_alarm: return "false_alarm";
    case SelftestVerdict::skipped: return "skipped";
  }
  return "skipped";
}

std::size_t SelftestReport::count(SelftestVerdict verdict) const {
  const auto has = [verdict](const SelftestLine& line) { return line.verdict == verdict; };
  return static_cast<std::size_t>(std::count_if(lines.begin(), lines.end(), has));
}

bool SelftestReport::good() const { return count(SelftestVerdict::slipped) == 0 && count(SelftestVerdict::false_alarm) == 0; }

std::vector<const pair::SelftestEntry*> select_selftest(bool host, bool gpu) {
  std::vector<const pair::SelftestEntry*> selected;
  for (const pair::SelftestEntry& entry : pair::selftest_registry())
    if (entry.subject->pair.device == Device::host ? host : gpu) selected.push_back(&entry);
  return selected;
}

SelftestLine judge_selftest(const pair::SelftestEntry& entry, const PairResult& result) {
  const selftest::Expected& expected = entry.subject->expected;
  SelftestLine line = blank_line(entry);
  line.wall_s = result.wall_s;
  line.happened = outcome_text(evidence::to_string(result.status), complaints(result));
  if (result.status == Status::skipped) {
    line.reason = result.reason;
    return line;
  }
  if (expected.honest()) {
    const bool good = result.status == Status::passed && result.problems.empty();
    line.verdict = good ? SelftestVerdict::passed : SelftestVerdict::false_alarm;
    if (!good) line.reason = result.problems.empty() ? result.reason : result.problems.front().message;
    return line;
  }
  line.reason = slip(expected, result);
  if (line.reason.empty()) line.verdict = SelftestVerdict::caught;
  else if (entry.subject->needs_cupti && without_cupti(result)) line.reason = "CUPTI cannot record here";
  else line.verdict = SelftestVerdict::slipped;
  return line;
}

SelftestReport run_selftest(const SelftestTask& task) {
  const double began_s = base::monotonic_s();
  std::vector<const pair::Entry*> entries;
  for (const pair::SelftestEntry* entry : task.selected) entries.push_back(&entry->entry);
  const std::vector<Placement> placements = place(entries, task.machine, choose_gpus(task.machine, {}));
  const std::optional<base::FileLock> lock = lock_first_gpu(task.machine, placements);
  const base::ScratchDirectory scratch{"aisp-selftest-", std::filesystem::temp_directory_path()};
  SelftestReport report;
  for (const Placement& placement : placements) {
    if (base::interrupted()) break;
    const pair::SelftestEntry& entry = *task.selected[placement.index];
    if (placement.choices.empty()) {
      report.lines.push_back(skipped_line(entry, placement.obstacle));
    } else {
      run::Request request = request_for(entry, scratch.path());
      for (const int ordinal : placement.choices[0])
        request.gpus.push_back(task.machine.gpus[static_cast<std::size_t>(ordinal)].uuid);
      report.lines.push_back(judge_selftest(entry, try_one(entry, std::move(request))));
    }
    if (!base::interrupted()) task.on_line(report.lines.back());
  }
  report.interrupted = base::interrupted();
  report.wall_s = base::monotonic_s() - began_s;
  return report;
}

}  // namespace aisp::suite
