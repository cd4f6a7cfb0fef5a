// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "evidence/result.hpp"
#include "run/wire/protocol.hpp"

namespace aisp::run {

// Receives the child's messages; the real one writes JSON lines to the parent's pipe.
struct Reporter {
  std::function<void(const std::string& line)> send;
  std::function<void()> await_answer{};  // returns when the parent has answered
};

// Tells the parent which stage runs and how far it is, and keeps the watchdog's record. One stage at a time.
class Stages {
 public:
  explicit Stages(const Reporter& reporter) : reporter_{reporter} {}

  void begin(evidence::Stage stage, double limit_s);
  void end();
  // Ends the stage and waits for a turn among pairs that run at the same time. No stage's limit counts the wait.
  void await(Turn turn);
  void tell(const RoundProgress& progress) const;
  evidence::Stage current() const { return current_; }  // none between two stages
  const std::vector<evidence::StageRecord>& records() const { return records_; }
  double elapsed_s() const;  // since the child started
  double left_s() const;     // of the current stage's limit

 private:
  const Reporter& reporter_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  evidence::Stage current_ = evidence::Stage::none;
  std::vector<evidence::StageRecord> records_;
};

}  // namespace aisp::run
