// SPDX-License-Identifier: Apache-2.0
#include "suite/suite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <thread>

#include "base/clock.hpp"
#include "base/files.hpp"
#include "base/interrupt.hpp"
#include "base/text.hpp"
#include "evidence/cost_check.hpp"
#include "machine/gpu_lock.hpp"
#include "machine/host.hpp"
#include "profile/ranges.hpp"
#include "run/blank.hpp"
#include "run/child.hpp"
#include "run/tool_profiles.hpp"
#include "suite/environment.hpp"
#include "suite/records.hpp"
#include "suite/resume.hpp"
#include "suite/schedule.hpp"
#include "suite/side_by_side.hpp"
#include "suite/sweep.hpp"

namespace aisp::suite {
namespace {

using base::Error;
using evidence::PairResult;
using evidence::Status;

std::vector<base::FileLock> lock_gpus(const machine::Machine& machine, const std::vector<Placement>& placements,
                                      const std::string& purpose) {
  std::vector<int> used;
  for (const Placement& placement : placements)
    for (const auto& choice : placement.choices) used.insert(used.end(), choice.begin(), choice.end());
  // In one order for all runs, so that two of them cannot each hold what the other waits for.
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  std::vector<base::FileLock> locks;
  for (const int ordinal : used)
    locks.push_back(machine::lock_gpu(machine.gpus[static_cast<std::size_t>(ordinal)].uuid, purpose));
  return locks;
}

std::size_t job_count(const Configuration& configuration, std::size_t gpus) {
  const std::size_t wanted = configuration.jobs > 0 ? static_cast<std::size_t>(configuration.jobs) : gpus;
  return configuration.in_process ? 1 : std::clamp<std::size_t>(wanted, 1, std::max<std::size_t>(gpus, 1));
}

class Suite {
 public:
  Suite(const Task& task, const RunFolder& folder, Watcher& watcher)
      : task_{task},
        folder_{folder.path()},
        watcher_{watcher},
        gpus_{choose_gpus(task.machine, task.configuration.gpus)},
        placements_{one_for_each_case(place(task.selected, task.machine, gpus_), task.configuration)},
        locks_{lock_gpus(task.machine, placements_, base::join(task.command_line, " "))},
        records_{folder.path(), folder.id(), task, gpus_},
        results_(placements_.size()),
        have_(placements_.size(), false),
        began_s_{base::monotonic_s()} {
    suite_.run_id = folder.id();
    suite_.started_utc = records_.started_utc();
    if (task.against) side_by_side_.emplace(*task.against, folder_, records_.manifest());
  }

  Finished run() {
    const profile::Scope range{"suite " + folder_.filename().string()};
    watcher_.suite_begun(folder_, placements_.size());
    for (const std::string& line : environment_warnings(task_.machine, gpus_)) watcher_.warned(line);
    try {
      if (task_.resumed) take_over();
      skip_what_cannot_run();
    } catch (const Error& error) {
      give_up(error.what());
    }
    run_the_rest();
    return finish();
  }

 private:
  void take_over() {
    std::map<std::string, PairResult> earlier;
    for (const PairResult& result : records_.earlier().results) earlier.insert_or_assign(label_in_run(result), result);
    for (const std::string& line : records_.earlier().warnings) watcher_.warned(line);
    std::vector<std::string> others;
    for (const Placement& placement : placements_) {
      const auto found = earlier.find(placement.label());
      // What was skipped is asked again: the library may be there now.
      if (found == earlier.end() || !found->second.complete || found->second.status == Status::skipped) continue;
      if (const std::string other = other_settings(found->second, placement, run_request(placement), task_.machine);
          !other.empty()) {
        others.push_back(fmt::format("{} ({})", placement.label(), other));
        continue;
      }
      records_.restore(found->second);
      keep(placement.index, std::move(found->second));
    }
    if (done_ > 0) watcher_.warned(fmt::format("resumed: {} of {} pairs were done already", done_, placements_.size()));
    if (!others.empty())
      watcher_.warned(fmt::format("resumed: measured again, because done with other settings: {}", base::join(others, ", ")));
  }

  void skip_what_cannot_run() {
    for (const Placement& placement : placements_) {
      if (have_[placement.index] || !placement.choices.empty()) continue;
      record(placement, run::skipped_result(*placement.entry, request(placement, {}), placement.obstacle, placement.advice));
    }
  }

  run::Request request(const Placement& placement, const std::vector<int>& gpus) const {
    run::Request request = run_request(placement);
    for (const int ordinal : gpus) request.gpus.push_back(task_.machine.gpus[static_cast<std::size_t>(ordinal)].uuid);
    if (!gpus.empty()) request.sm = task_.machine.gpus[static_cast<std::size_t>(gpus.front())].sm;
    return request;
  }
  run::Request run_request(const Placement& placement) const {
    return request_for(*placement.entry, task_.configuration, placement.sweep_case);
  }

  void run_the_rest() {
    std::vector<Placement> open;
    for (const Placement& placement : placements_)
      if (!have_[placement.index]) open.push_back(placement);
    const std::size_t jobs = job_count(task_.configuration, gpus_.size());
    Schedule schedule{open, jobs};
    schedule_ = &schedule;
    std::vector<std::thread> workers;
    for (std::size_t i = 1; i < jobs; ++i) workers.emplace_back([&] { work(schedule); });
    work(schedule);
    for (std::thread& worker : workers) worker.join();
    schedule_ = nullptr;
  }

  void work(Schedule& schedule) {
    while (const auto assignment = schedule.take()) {
      // The wait for a GPU may have been long, so the question comes after it.
      const bool stop = must_stop();
      if (!stop) run_one(*assignment);
      schedule.give_back(*assignment);
      if (stop) break;
    }
    schedule.stop();
  }

  bool must_stop() {
    const std::lock_guard lock{mutex_};
    return base::interrupted() || out_of_time() || !storage_trouble_.empty();
  }

  bool out_of_time() const { return base::monotonic_s() - began_s_ > task_.configuration.suite_timeout_s; }

  void run_one(const Schedule::Assignment& assignment) {
    const Placement& placement = *assignment.placement;
    {
      const std::lock_guard lock{mutex_};
      watcher_.pair_begun(placement.label(), assignment.gpus);
    }
    try {
      run::Request wish = request(placement, assignment.gpus);
      const base::ScratchDirectory scratch{".scratch-", folder_};
      wish.scratch_parent = std::filesystem::absolute(scratch.path()).string();
      wish.run_folder = std::filesystem::absolute(folder_).string();
      const auto cpu_before = machine::read_cpu_times();
      PairResult result = task_.configuration.in_process ? run_here(placement, wish) : run_children(placement, wish);
      const auto cpu_after = machine::read_cpu_times();
      if (cpu_before && cpu_after) add_stolen_time(result, machine::stolen_time(*cpu_before, *cpu_after));
      profile_deeper(placement, wish, result);
      add_environment(result, task_.machine, assignment.gpus);
      const std::lock_guard lock{mutex_};
      record(placement, std::move(result));
    } catch (const Error& error) {
      const std::lock_guard lock{mutex_};
      give_up(error.what());
    }
  }

  PairResult run_children(const Placement& placement, const run::Request& wish) {
    const auto measure = [&](const Side& side) { return run_child(placement, wish, side); };
    if (side_by_side_) return side_by_side_->measure(placement.entry->target(), measure);
    return measure({.executable = run::Supervision{}.executable, .folder = folder_});
  }

  PairResult run_child(const Placement& placement, run::Request wish, const Side& side) {
    const std::string target = placement.label();
    wish.run_folder = std::filesystem::absolute(side.folder).string();
    run::Supervision supervision;
    supervision.executable = side.executable.string();
    supervision.log_name = records_.log_name(placement);
    supervision.log = side.folder / supervision.log_name;
    base::make_directories(supervision.log.parent_path());
    supervision.interrupted = base::interrupted;
    const double left_s = task_.configuration.suite_timeout_s - (base::monotonic_s() - began_s_);
    supervision.deadline = std::chrono::steady_clock::now() +
                           std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>{left_s});
    supervision.on_progress = [&](const run::Progress& progress) {
      const std::lock_guard lock{mutex_};
      watcher_.pair_progressed(target, progress);
    };
    return run::supervise(*placement.entry, wish, supervision).result;
  }

  void profile_deeper(const Placement& placement, const run::Request& wish, PairResult& result) const {
    const double multiplier = task_.configuration.timeout_multiplier;
    run::ToolSettings settings;
    settings.folder = folder_;
    settings.pair_folder = std::filesystem::path{records_.log_name(placement)}.parent_path().string();
    settings.executable = std::filesystem::read_symlink("/proc/self/exe").string();
    settings.ncu_limit_s *= multiplier;
    settings.nsys_limit_s *= multiplier;
    settings.interrupted = base::interrupted;
    run::add_tool_profiles(result, wish, settings);
    if (task_.configuration.deep) evidence::judge_cost(result);
  }

  static PairResult run_here(const Placement& placement, const run::Request& wish) {
    PairResult result = run::run_pair(*placement.entry, wish, {.send = [](const std::string&) {}});
    result.warnings.emplace_back("ran inside aisp itself (--in-process): nothing watched its stages");
    return result;
  }

  // With mutex_ held once workers run.
  void record(const Placement& placement, PairResult result) {
    keep(placement.index, std::move(result));
    const PairResult& kept = results_[placement.index];
    watcher_.pair_ended(kept, done_, placements_.size());
    if (storage_trouble_.empty()) records_.add(kept);
  }

  void keep(std::size_t index, PairResult result) {
    results_[index] = std::move(result);
    have_[index] = true;
    ++done_;
  }

  void give_up(const std::string& trouble) {
    if (storage_trouble_.empty()) storage_trouble_ = trouble;
    if (schedule_ != nullptr) schedule_->stop();
  }

  // What never started is in the reports too, so that nobody takes a part for the whole.
  void account_for_the_rest() {
    const bool interrupted = base::interrupted();
    const std::string reason = interrupted                ? "not started: interrupted"
                               : storage_trouble_.empty() ? "not started: the suite's time was up"
                                                          : "not started: results could not be written";
    for (const Placement& placement : placements_) {
      if (have_[placement.index]) continue;
      PairResult result = run::skipped_result(*placement.entry, run_request(placement), reason);
      result.complete = false;
      results_[placement.index] = std::move(result);
    }
  }

  Finished finish() {
    const bool late = out_of_time() && done_ < placements_.size() && !base::interrupted();
    account_for_the_rest();
    suite_.pairs = std::move(results_);
    suite_.interrupted = base::interrupted();
    suite_.wall_s = base::monotonic_s() - began_s_;
    Finished finished;
    try {
      records_.finish(suite_);
    } catch (const Error& error) {
      if (storage_trouble_.empty()) storage_trouble_ = error.what();
    }
    finished.status = exit_status(suite_);
    if (finished.status == base::Exit::good && (late || !storage_trouble_.empty())) finished.status = base::Exit::failed;
    finished.out_of_time = late;
    finished.suite = std::move(suite_);
    finished.manifest = records_.manifest();
    finished.folder = folder_;
    finished.storage_trouble = storage_trouble_;
    return finished;
  }

  const Task& task_;
  std::filesystem::path folder_;
  Watcher& watcher_;
  std::vector<int> gpus_;
  std::vector<Placement> placements_;
  std::vector<base::FileLock> locks_;
  Records records_;
  std::optional<SideBySide> side_by_side_;
  std::vector<PairResult> results_;
  std::vector<bool> have_;
  double began_s_;
  evidence::SuiteResult suite_;
  std::size_t done_ = 0;
  std::string storage_trouble_;
  Schedule* schedule_ = nullptr;
  std::mutex mutex_;
};

}  // namespace

base::Exit exit_status(const evidence::SuiteResult& suite) {
  if (suite.interrupted) return base::Exit::interrupted;
  const bool bad = std::any_of(suite.pairs.begin(), suite.pairs.end(), [](const PairResult& pair) {
    return pair.status != Status::passed && pair.status != Status::skipped;
  });
  return bad ? base::Exit::failed : base::Exit::good;
}

Finished run_suite(const Task& task, RunFolder folder, Watcher& watcher) { return Suite{task, folder, watcher}.run(); }

}  // namespace aisp::suite
