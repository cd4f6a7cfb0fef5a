// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "evidence/result.hpp"
#include "pair/registry.hpp"
#include "run/wire/protocol.hpp"
#include "run/wire/request.hpp"

namespace aisp::run {

struct Progress {
  evidence::Stage stage = evidence::Stage::none;
  RoundProgress rounds{};  // while sampling
};

struct Supervision {
  std::filesystem::path log;  // the child's stdout and stderr; no file when empty
  std::string log_name;       // its name in the result: relative to the run folder
  std::size_t log_limit_bytes = std::size_t{16} << 20;
  double grace_s = 2;           // added to each limit below and each stage's, for a message that is late on a busy machine
  double startup_limit_s = 30;  // until the first stage begins, and between stages
  double exit_limit_s = 5;      // from the result, or the closed pipe, to the end of the process
  std::string executable = "/proc/self/exe";
  std::optional<std::chrono::steady_clock::time_point> deadline;  // deadline of the whole suite
  double suite_limit_s = 0;                                       // the suite's limit, for messages about the deadline
  std::function<bool()> interrupted;
  std::function<void(const Progress&)> on_progress;
  // Asks for a turn and waits for it, but no longer than `patience_s`; returns whether it has come. Called again until it has; no
  // limit but that of the suite counts the wait. Empty: it comes at once.
  std::function<bool(Turn turn, double patience_s)> turn{};
  // Tell of a rank whether it waits for others, which its limits do not count, and whether it has gone on for too long after
  // another had ended. Empty for other pairs.
  std::function<bool()> waits{}, alone{};
};

struct SupervisedRun {
  evidence::PairResult result;
  bool interrupted = false;  // the result is partial: the user stopped it
  bool stopped = false;      // its process had been stopped by a signal (SIGSTOP) when it was late
};

// Runs one pair in a child process with a process group of its own, enforces every stage's limit and reports how it ended. Leaves
// no process behind. Thread-safe; a child's faults never throw.
SupervisedRun supervise(const pair::Entry& entry, const Request& request, const Supervision& supervision);

}  // namespace aisp::run
