// SPDX-License-Identifier: Apache-2.0
#include "run/parent/ending.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>

#include "base/system/crash_trace.hpp"
#include "measure/rounds.hpp"
#include "run/wire/blank.hpp"

namespace aisp::run {
namespace {

using evidence::PairResult;
using evidence::Stage;
using evidence::Status;

std::string signal_words(int number) {
  switch (number) {
    case SIGSEGV: return "SIGSEGV, invalid memory access";
    case SIGBUS: return "SIGBUS, bad memory mapping or truncated file";
    case SIGABRT: return "SIGABRT, abort() or an uncaught exception";
    case SIGFPE: return "SIGFPE, integer division by zero";
    case SIGILL: return "SIGILL, illegal instruction for this CPU";
    case SIGXCPU: return "SIGXCPU, the limit on CPU time (ulimit -t)";
    case SIGXFSZ: return "SIGXFSZ, the limit on the size of files (ulimit -f)";
    default: break;
  }
  const char* name = ::sigabbrev_np(number);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", number);
}

Stage last_stage(const Ending& ending) { return ending.stages.empty() ? Stage::start : ending.stages.back().stage; }

std::string see_log(const Ending& ending) {
  if (ending.result.sizes.contains(size_of_ranks)) return "see " + ending.log_name;  // ranks have processes, or do not run
  return ending.log_name.empty() ? std::string{"rerun with --in-process under a debugger"}
                                 : fmt::format("see {}, or rerun with --in-process under a debugger", ending.log_name);
}

// Takes the child's result but the parent's identity and bookkeeping: a faulty child must not be able to pass for another pair.
PairResult adopt_report(const Ending& ending) {
  if (!ending.report) return ending.result;
  PairResult result = ending.report->result;
  const PairResult& blank = ending.result;
  const auto keep = [&](auto... members) { ((result.*members = blank.*members), ...); };
  keep(&PairResult::target, &PairResult::chapter, &PairResult::name, &PairResult::teaches, &PairResult::bound,
       &PairResult::device, &PairResult::sweep_case, &PairResult::sizes_set, &PairResult::reproducible, &PairResult::alternated,
       &PairResult::started_utc);
  result.host_dependent |= blank.host_dependent;  // a child may have found another reason
  if (result.gpus.empty()) result.gpus = blank.gpus;
  result.complete = ending.report->is_final;
  return result;
}

void add_problem(PairResult& result, Stage stage, std::string check, std::string message, std::string advice = {},
                 std::string variant = {}) {
  result.problems.push_back({stage, std::move(variant), std::move(check), std::move(message), std::move(advice)});
}

// "verify, in 'threads'"
std::string with_variant(Stage stage, const Ending& ending) {
  return std::string{to_string(stage)} + (ending.variant.empty() ? "" : fmt::format(", in '{}'", ending.variant));
}

// Rounds a value of --timeout-multiplier up: to whole numbers from 1 on.
double rounded_up(double multiplier) { return multiplier > 1 ? std::ceil(multiplier) : std::ceil(multiplier * 100) / 100; }

// Returns the --timeout-multiplier that would have been enough, if known.
std::string what_would_do(const Ending& ending) {
  const double now = ending.timeout_multiplier;
  if (ending.late_stage == Stage::warmup || ending.late_stage == Stage::measurement) {
    Ending::Rounds seen;
    for (const Stage stage : {Stage::measurement, Stage::warmup})
      if (const auto found = ending.rounds.find(stage); found != ending.rounds.end() && seen.count == 0) seen = found->second;
    const double round_s = seen.count > 0 ? seen.took_s / seen.count : ending.elapsed_s;
    constexpr double reserve = 1.1;
    const double needed_s = reserve * measure::least_rounds * round_s;
    if (needed_s > ending.limit_s)
      return fmt::format(
          "if it is slow rather than stuck: a round takes {}{:.1f} s, and {} are the least, so "
          "--timeout-multiplier {:g} {}",
          seen.count > 0 ? "" : "more than ", round_s, measure::least_rounds, rounded_up(now * needed_s / ending.limit_s),
          seen.count > 0 ? "would do" : "is the least that may do");
  }
  return fmt::format("if it is slow rather than stuck, --timeout-multiplier {:g} doubles every limit", 2 * now);
}

void describe_timeout(const Ending& ending, PairResult& result) {
  result.status = Status::timeout;
  result.timeout_stage = ending.killed_for == KilledFor::suite_deadline ? Stage::suite : ending.late_stage;
  result.timeout_limit_seconds = ending.limit_s;
  result.timeout_duration_seconds = ending.elapsed_s;
  if (ending.killed_for == KilledFor::suite_deadline) {
    result.reason = fmt::format("stopped in {}: the suite's time of {:g} s was up", to_string(ending.late_stage), ending.limit_s);
    add_problem(result, ending.late_stage, "suite_deadline", result.reason,
                "raise --suite-timeout; what aisp run left open, --resume continues");
    return;
  }
  result.reason = fmt::format("{} took longer than its limit of {:g} s and was killed after {:.1f} s",
                              to_string(ending.late_stage), ending.limit_s, ending.elapsed_s);
  if (!ending.variant.empty()) result.reason += fmt::format(", in '{}'", ending.variant);
  if (ending.stopped) result.reason += "; its process had been stopped by a signal (SIGSTOP or SIGTSTP)";
  add_problem(result, ending.late_stage, "stage_limit",
              fmt::format("{} ({:g} s of grace beyond the limit)", result.reason, ending.grace_s),
              fmt::format("{}; {}", what_would_do(ending), see_log(ending)), ending.variant);
}

// Whether the kernel killed the child for using up its CPU time, which it does without a message.
bool used_up_cpu_time(const base::ExitState& exit) {
  rlimit limit{};
  constexpr double accounting_s = 0.1;  // largest difference between the kernel's two accounts
  return ::getrlimit(RLIMIT_CPU, &limit) == 0 && limit.rlim_max != RLIM_INFINITY &&
         exit.user_s + exit.system_s >= static_cast<double>(limit.rlim_max) - accounting_s;
}

void describe_kill(const Ending& ending, PairResult& result) {
  const Stage stage = last_stage(ending);
  const std::string where = with_variant(stage, ending);
  const double peak_mib = static_cast<double>(ending.exit.peak_rss_bytes) / (1 << 20);
  std::string advice;
  if (ending.killed_for_memory) {
    result.reason = fmt::format("killed in {}, probably out of memory (it held up to {:.0f} MiB)", where, peak_mib);
    advice = "look for 'Out of memory' in dmesg and for the container's memory limit; --scale 0.5 halves the workload";
  } else if (used_up_cpu_time(ending.exit)) {
    result.reason = fmt::format("killed in {} at the limit on CPU time, after {:.0f} s of it", where,
                                ending.exit.user_s + ending.exit.system_s);
    advice = "raise the limit (ulimit -t)";
  } else {
    result.reason = fmt::format("killed from outside in {} (it held up to {:.0f} MiB)", where, peak_mib);
    advice = "a user, a batch system or a container's manager sent it; the kernel's own log (dmesg) names none of its own";
  }
  add_problem(result, stage, "killed", fmt::format("SIGKILL that aisp did not send; {}", result.reason), advice, ending.variant);
}

void describe_signal(const Ending& ending, PairResult& result) {
  const int number = ending.exit.code;
  if (number == SIGKILL) return describe_kill(ending, result);
  const Stage stage = last_stage(ending);
  const double peak_mib = static_cast<double>(ending.exit.peak_rss_bytes) / (1 << 20);
  result.reason = fmt::format("crashed in {} ({})", with_variant(stage, ending), signal_words(number));
  add_problem(
      result, stage, "signal",
      fmt::format("{}{}; it held up to {:.0f} MiB", result.reason, ending.exit.core_dumped ? ", core dumped" : "", peak_mib),
      see_log(ending), ending.variant);
}

void describe_stack(const Ending& ending, PairResult& result) {
  const std::string frames = base::stack_text(ending.crash_places);
  if (!frames.empty()) add_problem(result, last_stage(ending), "stack", "it crashed in" + frames, {}, ending.variant);
}

void describe_death(const Ending& ending, PairResult& result) {
  result.status = Status::crashed;
  const Stage stage = last_stage(ending);
  if (ending.killed_for == KilledFor::lost_rank) {
    result.status = Status::failed;
    result.reason = fmt::format("waited in {} for a rank that had ended, and was killed", with_variant(stage, ending));
    add_problem(result, stage, "ranks", result.reason);
    return;
  } else if (ending.killed_for == KilledFor::silence) {
    result.reason = fmt::format("closed its result pipe in {} and lived on without a result", with_variant(stage, ending));
    add_problem(result, stage, "silent", fmt::format("{}; it was killed", result.reason), see_log(ending), ending.variant);
  } else if (ending.exit.signalled) {
    describe_signal(ending, result);
    describe_stack(ending, result);
  } else {
    result.reason = fmt::format("ended in {} with exit status {} and no result", with_variant(stage, ending), ending.exit.code);
    add_problem(result, stage, "no_result", result.reason, see_log(ending), ending.variant);
  }
  if (!ending.log_tail.empty()) add_problem(result, stage, "output", fmt::format("its last output:\n{}", ending.log_tail));
}

void describe_interrupt(const Ending& ending, PairResult& result) {
  result.status = Status::skipped;
  result.reason = fmt::format("interrupted in {}", to_string(ending.late_stage));
}

// Describes what went wrong although the result stands.
void describe_exit(const Ending& ending, PairResult& result) {
  if (ending.killed_for != KilledFor::nothing)
    add_problem(result, Stage::exit, "exit_limit",
                fmt::format("its process did not end within {:g} s after its result and was killed after {:.1f} s",
                            ending.limit_s, ending.elapsed_s),
                see_log(ending));
  else if (ending.exit.signalled)
    add_problem(result, Stage::exit, "signal",
                fmt::format("its process crashed after its result ({})", signal_words(ending.exit.code)), see_log(ending));
}

// Measurements and verification made before do not depend on how profiling of the variants ended.
bool died_looking_inside(const Ending& ending) {
  return ending.report && !ending.report->is_final && ending.report->result.status == Status::passed &&
         (last_stage(ending) == Stage::profiling || last_stage(ending) == Stage::counters) &&
         ending.killed_for != KilledFor::interrupt;
}

void describe_lost_profile(const Ending& ending, PairResult& result) {
  PairResult death;
  if (ending.killed_for == KilledFor::stage_limit || ending.killed_for == KilledFor::suite_deadline)
    describe_timeout(ending, death);
  else describe_death(ending, death);
  result.complete = true;
  const bool counting = last_stage(ending) == Stage::counters;
  result.lost.push_back({counting ? evidence::LostKind::counters : evidence::LostKind::profile,
                         fmt::format("no {} of every variant: {}", counting ? "counters" : "profile", death.reason)});
}

void describe_surroundings(const Ending& ending, PairResult& result) {
  if (ending.stuck)
    add_problem(result, last_stage(ending), "unkillable", "its process is still there after SIGKILL, stuck in a kernel driver",
                "the GPU may be unusable until the driver is reloaded or the machine restarted; see dmesg");
  if (!ending.left_behind.empty()) {
    const std::size_t count = ending.left_behind.size();
    add_problem(result, Stage::exit, "processes_left",
                fmt::format("{} {} it had started ({}) still ran after it had ended; killed", count,
                            count == 1 ? "process" : "processes", ending.left_behind.front().name),
                "a pair must wait for the processes that it starts");
  }
  if (ending.unreadable_lines > 0)
    result.warnings.push_back(fmt::format("{} unreadable line{} on its result pipe, the first: '{}'", ending.unreadable_lines,
                                          ending.unreadable_lines == 1 ? "" : "s", ending.first_unreadable));
  if (ending.log_dropped_bytes > 0)
    result.warnings.push_back(
        fmt::format("its output was too long: {} MiB in the middle were not kept", ending.log_dropped_bytes >> 20));
  if (!ending.log_trouble.empty()) result.warnings.push_back(ending.log_trouble);
}

}  // namespace

PairResult describe(Ending ending) {
  PairResult result = adopt_report(ending);
  const bool lost_profile = died_looking_inside(ending);
  const bool final = lost_profile || (ending.report && ending.report->is_final);
  if (!final) result.complete = false;
  if (lost_profile) describe_lost_profile(ending, result);
  else if (final) describe_exit(ending, result);
  else if (ending.killed_for == KilledFor::interrupt) describe_interrupt(ending, result);
  else if (ending.killed_for == KilledFor::stage_limit || ending.killed_for == KilledFor::suite_deadline)
    describe_timeout(ending, result);
  else describe_death(ending, result);
  describe_surroundings(ending, result);
  if (!final) result.best.clear();
  if (!ending.stages.empty()) result.watchdog = std::move(ending.stages);
  result.wall_s = ending.wall_s;
  result.log = ending.log_name;
  return result;
}

}  // namespace aisp::run
