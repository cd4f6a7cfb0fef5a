// SPDX-License-Identifier: Apache-2.0
#include "suite/suite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "base/system/clock.hpp"
#include "base/system/files.hpp"
#include "base/system/interrupt.hpp"
#include "base/system/places.hpp"
#include "base/text.hpp"
#include "evidence/ceilings.hpp"
#include "evidence/cost_check.hpp"
#include "evidence/run_summary.hpp"
#include "machine/host.hpp"
#include "profile/ranges.hpp"
#include "run/child/child.hpp"
#include "run/parent/supervise_ranks.hpp"
#include "run/parent/tool_profiles.hpp"
#include "run/wire/blank.hpp"
#include "suite/records/records.hpp"
#include "suite/schedule.hpp"
#include "suite/side_by_side.hpp"

namespace aisp::suite {
namespace {

using base::Error;
using evidence::PairResult;
using evidence::Status;

std::size_t job_count(const Configuration& configuration, std::size_t gpus) {
  const std::size_t wanted = configuration.jobs > 0 ? static_cast<std::size_t>(configuration.jobs) : gpus;
  return configuration.in_process ? 1 : std::max<std::size_t>(wanted, 1);
}

class Suite {
 public:
  Suite(const Task& task, const RunFolder& folder, Watcher& watcher)
      : task_{task},
        folder_{folder.path()},
        watcher_{watcher},
        records_{folder.path(), folder.id(), task, task.gpus},
        results_(task.placements.size()),
        have_(task.placements.size(), false),
        earlier_s_{evidence::wall_s_of(records_.earlier().results)},
        began_s_{base::monotonic_s()} {
    suite_.run_id = folder.id();
    suite_.started_utc = records_.started_utc();
    if (task.against) side_by_side_.emplace(*task.against, folder_, records_.manifest());
  }

  Finished run() {
    const profile::Scope range{"suite " + folder_.filename().string()};
    watcher_.suite_begun(folder_, task_.placements.size());
    for (const std::string& line : environment_warnings(task_.machine, task_.gpus)) watcher_.warned(line);
    try {
      if (task_.resumed) take_over();
      skip_what_cannot_run();
      for (const PairResult& result : task_.not_built) records_.note(result);
    } catch (const Error& error) {
      give_up(error.what());
    }
    run_the_rest();
    return finish();
  }

 private:
  void take_over() {
    EarlierPart part = suite::take_over(records_.earlier(), task_.placements, task_.configuration, task_.machine);
    for (auto& [index, result] : part.kept) {
      records_.restore(result);
      keep(index, std::move(result));
    }
    for (const std::string& line : part.notes) watcher_.warned(line);
  }

  void skip_what_cannot_run() {
    for (const Placement& placement : task_.placements) {
      if (have_[placement.index] || !placement.choices.empty()) continue;
      record(placement, run::skipped_result(*placement.entry, request_of(placement, {}), placement.obstacle, placement.advice));
    }
  }

  run::Request request_of(const Placement& placement, const std::vector<int>& gpus) const {
    run::Request request = run_request(placement);
    for (const int ordinal : gpus) request.gpus.push_back(task_.machine.gpus[static_cast<std::size_t>(ordinal)].uuid);
    if (!gpus.empty()) request.sm = task_.machine.gpus[static_cast<std::size_t>(gpus.front())].sm;
    request.takes_turns = placement.takes_turns && !task_.configuration.in_process;
    if (const Pair& pair = *placement.entry->pair; task_.world != nullptr && pair.needs.ranks.most > 1 && !gpus.empty())
      request.gpus = gpus_of_ranks(task_.world->processes(), rank_count(pair, 0));
    return request;
  }
  run::Request run_request(const Placement& placement) const {
    return request_for(*placement.entry, task_.configuration, placement.point);
  }

  void run_the_rest() {
    std::vector<Placement> open;
    for (const Placement& placement : task_.placements)
      if (!have_[placement.index]) open.push_back(placement);
    // The children of two executables take turns with one another.
    if (side_by_side_)
      for (Placement& placement : open) placement.takes_turns = false;
    const std::size_t jobs = job_count(task_.configuration, task_.gpus.size());
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
      // The wait for a GPU may have been long, so this check comes after it.
      const bool stop = must_stop();
      if (!stop) run_one(*assignment);
      schedule.give_back(*assignment);
      if (stop) return schedule.stop();
    }
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
      run::Request request = request_of(placement, assignment.gpus);
      const base::ScratchDirectory scratch{scratch_prefix, folder_};
      request.scratch_parent = std::filesystem::absolute(scratch.path()).string();
      request.run_folder = std::filesystem::absolute(folder_).string();
      const auto cpu_before = machine::read_cpu_times();
      const auto group_before = machine::read_group_events("/");
      PairResult result = task_.configuration.in_process ? run_here(placement, request) : run_children(placement, request);
      add_time_of_others(result, cpu_before, machine::read_cpu_times());
      add_quota(result, task_.machine.host.cpu_quota, group_before, machine::read_group_events("/"));
      profile_deeper(placement, request, result);
      add_environment(result, task_.machine, assignment.gpus);
      const std::lock_guard lock{mutex_};
      record(placement, std::move(result));
    } catch (const Error& error) {
      const std::lock_guard lock{mutex_};
      give_up(error.what());
    }
  }

  PairResult run_children(const Placement& placement, const run::Request& request) {
    const auto measure = [&](const Side& side) { return run_child(placement, request, side); };
    if (side_by_side_) return side_by_side_->measure(placement.entry->target(), measure);
    return measure({.executable = run::Supervision{}.executable, .folder = folder_});
  }

  PairResult run_child(const Placement& placement, run::Request request, const Side& side) {
    const std::string target = placement.label();
    request.run_folder = std::filesystem::absolute(side.folder).string();
    run::Supervision supervision;
    supervision.executable = side.executable.string();
    supervision.log_name = records_.log_name(placement);
    supervision.log = side.folder / supervision.log_name;
    base::make_directories(supervision.log.parent_path());
    supervision.interrupted = base::interrupted;
    const double left_s = task_.configuration.suite_timeout_s - (base::monotonic_s() - began_s_);
    supervision.deadline = std::chrono::steady_clock::now() +
                           std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>{left_s});
    supervision.suite_limit_s = task_.configuration.suite_timeout_s;
    supervision.on_progress = [&](const run::Progress& progress) {
      const std::lock_guard lock{mutex_};
      watcher_.pair_progressed(target, progress);
    };
    supervision.turn = [&](run::Turn wanted, double patience_s) { return schedule_->turn(placement, wanted, patience_s); };
    const Pair& pair = *placement.entry->pair;
    if (pair.needs.ranks.most == 1) return run::supervise(*placement.entry, request, supervision).result;
    return run::supervise_ranks(*placement.entry, request, supervision, rank_count(pair, request.gpus.size()), task_.world)
        .result;
  }

  int rank_count(const Pair& pair, std::size_t gpus) const {
    if (task_.world == nullptr) return run::rank_count(pair, gpus, task_.machine.host.cpus_usable);
    const std::size_t processes = task_.world->processes().size();
    return run::rank_count(pair, processes, static_cast<int>(processes));
  }

  void profile_deeper(const Placement& placement, const run::Request& request, PairResult& result) const {
    if (placement.entry->pair->needs.ranks.most > 1) return;
    const double multiplier = task_.configuration.timeout_multiplier;
    run::ToolSettings settings;
    settings.folder = folder_;
    settings.pair_folder = std::filesystem::path{records_.log_name(placement)}.parent_path().string();
    settings.executable = std::filesystem::read_symlink("/proc/self/exe").string();
    settings.ncu_limit_s *= multiplier;
    settings.nsys_limit_s *= multiplier;
    settings.interrupted = base::interrupted;
    run::add_tool_profiles(result, request, settings);
    if (task_.configuration.deep) evidence::judge_cost(result);
  }

  PairResult run_here(const Placement& placement, const run::Request& request) const {
    // A pair in this very process cannot be stopped in another way; those that ended before are in the log.
    const base::InterruptEndsAtOnce at_once{
        fmt::format("aisp: interrupted in {}; {}\n", placement.label(), way_on(task_.configuration, folder_))};
    PairResult result = run::run_pair(*placement.entry, request, {.send = [](const std::string&) {}});
    // A program that measures functions of its own has no other way, and gave no flag.
    if (!base::embedded()) result.warnings.emplace_back("ran inside aisp itself (--in-process): nothing watched its stages");
    return result;
  }

  // The time of this part and of those before it.
  double run_time_s() const { return earlier_s_ + base::monotonic_s() - began_s_; }

  // Records a result; once workers run, mutex_ must be held.
  void record(const Placement& placement, PairResult result) {
    result.ended_after_s = run_time_s();
    keep(placement.index, std::move(result));
    const PairResult& kept = results_[placement.index];
    watcher_.pair_ended(kept, done_, task_.placements.size());
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

  // Adds pairs that never started to the reports, so that nobody takes a part for the whole.
  void account_for_the_rest() {
    const bool interrupted = base::interrupted();
    const std::string reason = interrupted                ? "not started: interrupted"
                               : storage_trouble_.empty() ? "not started: the suite's time was up"
                                                          : "not started: results could not be written";
    for (const Placement& placement : task_.placements) {
      if (have_[placement.index]) continue;
      PairResult result = run::skipped_result(*placement.entry, run_request(placement), reason);
      result.complete = false;
      result.started_utc.clear();
      results_[placement.index] = std::move(result);
    }
  }

  // Writes a pair's own reports again.
  void rewrite(const PairResult& pair) {
    if (!storage_trouble_.empty()) return;
    try {
      records_.restore(pair);
    } catch (const Error& error) {
      give_up(error.what());
    }
  }

  // Whether a pair ended by itself: one that an interrupt ended, or kept from starting, is skipped and incomplete.
  static bool ended(const PairResult& pair) { return pair.complete || pair.status != Status::skipped; }

  Finished finish() {
    const bool late = out_of_time() && done_ < task_.placements.size() && !base::interrupted();
    account_for_the_rest();
    suite_.pairs = std::move(results_);
    suite_.pairs.insert(suite_.pairs.end(), task_.not_built.begin(), task_.not_built.end());
    for (const PairResult* raised : evidence::raise_guessed_ceilings(suite_.pairs)) rewrite(*raised);
    suite_.interrupted = base::interrupted() && !std::ranges::all_of(suite_.pairs, ended);
    suite_.wall_s = evidence::wall_s_of(suite_.pairs);
    Finished finished;
    const Records::Closing closing = records_.finish(suite_);
    // If the folder is gone, that is why other files could not be written either.
    if (storage_trouble_.empty() || closing.place != base::AppendFile::Place::here) storage_trouble_ = closing.trouble;
    finished.kept = closing.place != base::AppendFile::Place::taken;
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
  Records records_;
  std::optional<SideBySide> side_by_side_;
  std::vector<PairResult> results_;
  std::vector<bool> have_;
  double earlier_s_;
  double began_s_;
  evidence::SuiteResult suite_;
  std::size_t done_ = 0;
  std::string storage_trouble_;
  Schedule* schedule_ = nullptr;
  std::mutex mutex_;
};

}  // namespace

std::string way_on(const Configuration& configuration, const std::filesystem::path& folder) {
  return configuration.verify_only ? "run it again" : fmt::format("continue with --resume {}", folder.string());
}

base::Exit exit_status(const evidence::SuiteResult& suite) {
  if (suite.interrupted) return base::Exit::interrupted;
  const bool bad = std::any_of(suite.pairs.begin(), suite.pairs.end(), [](const PairResult& pair) {
    return pair.status != Status::passed && pair.status != Status::skipped;
  });
  return bad ? base::Exit::failed : base::Exit::good;
}

Finished run_suite(const Task& task, RunFolder folder, Watcher& watcher) { return Suite{task, folder, watcher}.run(); }

}  // namespace aisp::suite
