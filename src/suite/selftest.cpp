// SPDX-License-Identifier: Apache-2.0
#include "suite/selftest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "base/error.hpp"
#include "base/system/clock.hpp"
#include "base/system/files.hpp"
#include "base/system/interrupt.hpp"
#include "base/system/lock.hpp"
#include "base/text.hpp"
#include "machine/gpu_lock.hpp"
#include "run/parent/supervisor.hpp"
#include "run/wire/blank.hpp"
#include "suite/placement.hpp"
#include "suite/settings/configuration.hpp"

namespace aisp::suite {
namespace {

using evidence::PairResult;
using evidence::Stage;
using evidence::Status;

// Enough for every correct pair on a busy machine; cheats that never end set shorter limits.
constexpr double stage_limit_s = 30;
constexpr double grace_s = 0.5;
constexpr double exit_limit_s = 1;
constexpr double sampling_budget_s = 0.1;
constexpr int rounds = 10;
constexpr int most_at_once = 8;

Status status_of(selftest::Ends ends) {
  switch (ends) {
    case selftest::Ends::passed: return Status::passed;
    case selftest::Ends::failed: return Status::failed;
    case selftest::Ends::timeout: return Status::timeout;
    case selftest::Ends::crashed: return Status::crashed;
  }
  return Status::passed;
}

// Cheats name stages in the words of reports.
Stage stage_of(const selftest::Complaint& by) {
  const std::optional<Stage> stage = base::find_word<Stage>(by.stage);
  if (!stage) throw base::Error{base::Exit::unfit, fmt::format("the self-test names a stage '{}', which there is not", by.stage)};
  return *stage;
}

double& limit_of(run::StageLimits& limits, Stage stage) {
  switch (stage) {
    case Stage::setup: return limits.setup;
    case Stage::warmup: return limits.warmup;
    case Stage::measurement: return limits.measurement;
    case Stage::audit: return limits.audit;
    case Stage::teardown: return limits.teardown;
    default: return limits.verify;  // limit of both verifications
  }
}

run::Request request_for(const pair::SelftestEntry& entry, const std::filesystem::path& scratch) {
  run::Request request;
  request.target = entry.entry.target();
  request.seed = drawn_seed();
  request.iterations = std::max(rounds, entry.subject->rounds);
  request.warmup = 1;
  request.budget_s = sampling_budget_s;
  request.reproducible = entry.subject->reproducible;
  request.limits = {.setup = stage_limit_s,
                    .verify = stage_limit_s,
                    .warmup = stage_limit_s,
                    .measurement = stage_limit_s,
                    .audit = stage_limit_s,
                    .teardown = stage_limit_s};
  const selftest::Expected& expected = entry.subject->expected;
  if (expected.limit_s > 0) limit_of(request.limits, stage_of(expected.by[0])) = expected.limit_s;
  request.scratch_parent = std::filesystem::absolute(scratch).string();
  return request;
}

std::string outcome_text(std::string_view status, const std::vector<std::string>& checks, const char* between) {
  return checks.empty() ? std::string{status} : fmt::format("{}: {}", status, base::join(checks, between));
}

std::string expected_text(const selftest::Expected& expected) {
  if (expected.spy) return "passed: it sees nothing";
  std::vector<std::string> checks;
  for (const selftest::Complaint& by : expected.by)
    if (!by.check.empty()) checks.push_back(fmt::format("{}/{}", by.stage, by.check));
  return outcome_text(evidence::to_string(status_of(expected.ends)), checks, " or ");
}

// Returns each stage and check that complained, once.
std::vector<std::string> complaints(const PairResult& result) {
  std::vector<std::string> checks;
  for (const evidence::Problem& problem : result.problems) {
    if (problem.check == "output" || problem.check == "stack") continue;  // these come from a process that died
    std::string check = fmt::format("{}/{}", to_string(problem.stage), problem.check);
    if (std::find(checks.begin(), checks.end(), check) == checks.end()) checks.push_back(std::move(check));
  }
  return checks;
}

bool without_cupti(const PairResult& result) {
  return std::ranges::find(result.lost, evidence::LostKind::cupti, &evidence::Lost::kind) != result.lost.end();
}

// Whether the check of a baseline's times was off because other programs had the CPUs, and nothing else could complain.
bool was_too_busy(const selftest::Expected& expected, const PairResult& result) {
  if (result.status != Status::passed || expected.by[0].check != "timed_differently") return false;
  return std::ranges::any_of(result.variants, [](const evidence::VariantResult& variant) {
    const auto is_off = [&](const char* note) {
      return variant.checks && std::ranges::find(variant.checks->off, note) != variant.checks->off.end();
    };
    return is_off(evidence::busy_when_verified) || is_off(run::longer_in_rounds_only);
  });
}

// Returns how the harness's reaction to a cheat differed from the expected one; empty if it did not.
std::string slip(const selftest::Expected& expected, const PairResult& result) {
  if (expected.spy && !result.problems.empty()) return result.problems.front().message;
  if (result.status != status_of(expected.ends)) return fmt::format("it ended as {}", evidence::to_string(result.status));
  if (expected.spy) return {};
  const bool named = std::any_of(result.problems.begin(), result.problems.end(), [&](const evidence::Problem& problem) {
    return std::any_of(expected.by.begin(), expected.by.end(), [&](const selftest::Complaint& by) {
      return !by.check.empty() && problem.stage == stage_of(by) && problem.check == by.check;
    });
  });
  if (!named) return result.problems.empty() ? "nothing was noticed" : "other checks noticed it only";
  if (result.status != Status::passed && !result.best.empty()) return "a speedup was claimed all the same";
  return {};
}

// Returns what was reported about two copies of one function; empty if they cannot be told apart.
std::string difference_of_copies(const PairResult& result) {
  for (const evidence::VariantResult& variant : result.variants)
    if (variant.speedup && variant.speedup->verdict != evidence::Verdict::cannot_tell)
      return fmt::format("the second copy was called {}: {:.3f}x [{:.3f}, {:.3f}]", to_string(variant.speedup->verdict),
                         variant.speedup->value, variant.speedup->low, variant.speedup->high);
  return {};
}

SelftestLine blank_line(const pair::SelftestEntry& entry) {
  return {.family = std::string{entry.family},
          .about = std::string{entry.about},
          .name = std::string{entry.entry.name},
          .device = run::recorded(entry.subject->pair.device),
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

// Whether it may run at the same time as others: a host cheat that ends before anything is timed.
bool stands_company(const pair::SelftestEntry& entry) {
  const selftest::Expected& expected = entry.subject->expected;
  if (entry.subject->pair.device != Device::host || expected.honest()) return false;
  return std::all_of(expected.by.begin(), expected.by.end(), [](const selftest::Complaint& by) {
    return by.check.empty() || stage_of(by) == Stage::setup || stage_of(by) == Stage::verify;
  });
}

// Runs the selected pairs, several at a time if requested, and keeps a line for each.
class Rehearsal {
 public:
  Rehearsal(const SelftestTask& task, const std::vector<Placement>& placements)
      : task_{task}, placements_{placements}, lines_(placements.size()) {}

  template <class Chosen>
  void run(std::size_t at_once, const Chosen& chosen) {
    std::vector<const Placement*> waiting;
    for (const Placement& placement : placements_)
      if (chosen(*task_.selected[placement.index])) waiting.push_back(&placement);
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
      for (std::size_t i = next++; i < waiting.size() && !base::interrupted(); i = next++) run_one(*waiting[i]);
    };
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < std::min(at_once, waiting.size()); ++i) others.emplace_back(work);
    work();
  }

  // Returns the lines of the pairs that were run, in the order of the selection.
  std::vector<SelftestLine> lines() const {
    std::vector<SelftestLine> done;
    for (const std::optional<SelftestLine>& line : lines_)
      if (line) done.push_back(*line);
    return done;
  }

 private:
  void run_one(const Placement& placement) {
    SelftestLine line = line_of(placement);
    if (base::interrupted()) return;  // it was killed, so its result says nothing
    const std::lock_guard lock{mutex_};
    task_.on_line(line);
    lines_[placement.index] = std::move(line);
  }

  SelftestLine line_of(const Placement& placement) const {
    const pair::SelftestEntry& entry = *task_.selected[placement.index];
    if (placement.choices.empty()) return skipped_line(entry, placement.obstacle);
    run::Request request = request_for(entry, scratch_.path());
    for (const int ordinal : placement.choices[0])
      request.gpus.push_back(task_.machine.gpus[static_cast<std::size_t>(ordinal)].uuid);
    return judge_selftest(entry, try_one(entry, std::move(request)));
  }

  const SelftestTask& task_;
  const std::vector<Placement>& placements_;
  base::ScratchDirectory scratch_{"aisp-selftest-", std::filesystem::temp_directory_path()};
  std::mutex mutex_;
  std::vector<std::optional<SelftestLine>> lines_;
};

std::size_t usable_cpus(const machine::Machine& machine) {
  return static_cast<std::size_t>(std::clamp(machine.host.cpus_usable, 1, most_at_once));
}

}  // namespace

std::size_t SelftestReport::count(SelftestVerdict verdict) const {
  const auto has = [verdict](const SelftestLine& line) { return line.verdict == verdict; };
  return static_cast<std::size_t>(std::count_if(lines.begin(), lines.end(), has));
}

std::size_t SelftestFamily::count(SelftestVerdict verdict) const {
  const auto has = [verdict](const SelftestLine* line) { return line->verdict == verdict; };
  return static_cast<std::size_t>(std::count_if(lines.begin(), lines.end(), has));
}

double SelftestFamily::wall_s() const {
  double sum = 0;
  for (const SelftestLine* line : lines) sum += line->wall_s;
  return sum;
}

std::vector<SelftestFamily> families_of(const SelftestReport& report) {
  std::vector<SelftestFamily> families;
  for (const SelftestLine& line : report.lines) {
    const auto known =
        std::find_if(families.begin(), families.end(), [&](const SelftestFamily& family) { return family.name == line.family; });
    SelftestFamily& family =
        known != families.end() ? *known : families.emplace_back(SelftestFamily{line.family, line.about, {}});
    family.lines.push_back(&line);
  }
  return families;
}

bool SelftestReport::good() const { return count(SelftestVerdict::slipped) == 0 && count(SelftestVerdict::false_alarm) == 0; }

std::vector<const pair::SelftestEntry*> select_selftest(bool host, bool gpu, const std::vector<std::string>& names) {
  std::vector<const pair::SelftestEntry*> selected;
  std::set<std::string> known;
  for (const pair::SelftestEntry& entry : pair::selftest_registry()) {
    const std::array<std::string, 2> called{std::string{entry.entry.name}, std::string{entry.family}};
    known.insert(called.begin(), called.end());
    const bool wanted = names.empty() || std::ranges::find_first_of(names, called) != names.end();
    if (wanted && (entry.subject->pair.device == Device::host ? host : gpu)) selected.push_back(&entry);
  }
  for (const std::string& name : names)
    if (!known.contains(name)) {
      const std::vector<std::string> near = base::nearest({known.begin(), known.end()}, name);
      throw base::Error{base::Exit::usage,
                        fmt::format("unknown pair or family of the self-test '{}'; {}", name,
                                    near.empty() ? "docs/method.md lists the families" : "near it: " + base::join(near, ", "))};
    }
  return selected;
}

SelftestLine judge_selftest(const pair::SelftestEntry& entry, const PairResult& result) {
  const selftest::Expected& expected = entry.subject->expected;
  SelftestLine line = blank_line(entry);
  line.wall_s = result.wall_s;
  line.happened = outcome_text(evidence::to_string(result.status), complaints(result), ", ");
  if (result.status == Status::skipped) {
    line.reason = result.reason;
    return line;
  }
  if (expected.honest()) {
    const bool good = result.status == Status::passed && result.problems.empty();
    if (!good) line.reason = result.problems.empty() ? result.reason : result.problems.front().message;
    else if (entry.subject->copies) line.reason = difference_of_copies(result);
    line.verdict = good && line.reason.empty() ? SelftestVerdict::passed : SelftestVerdict::false_alarm;
    return line;
  }
  line.reason = slip(expected, result);
  if (line.reason.empty()) line.verdict = SelftestVerdict::caught;
  else if (entry.subject->needs_cupti && without_cupti(result)) line.reason = "CUPTI cannot record here";
  else if (was_too_busy(expected, result)) line.reason = "cannot tell: the machine was busy";
  else line.verdict = SelftestVerdict::slipped;
  return line;
}

SelftestReport run_selftest(const SelftestTask& task) {
  const double began_s = base::monotonic_s();
  std::vector<const pair::Entry*> entries;
  for (const pair::SelftestEntry* entry : task.selected) entries.push_back(&entry->entry);
  const std::vector<Placement> placements = place(entries, task.machine, choose_gpus(task.machine, {}));
  const std::optional<base::FileLock> lock = lock_first_gpu(task.machine, placements);
  Rehearsal rehearsal{task, placements};
  rehearsal.run(usable_cpus(task.machine), stands_company);
  rehearsal.run(1, [](const pair::SelftestEntry& entry) { return !stands_company(entry); });
  SelftestReport report;
  report.lines = rehearsal.lines();
  report.interrupted = base::interrupted();
  report.wall_s = base::monotonic_s() - began_s;
  return report;
}

}  // namespace aisp::suite
