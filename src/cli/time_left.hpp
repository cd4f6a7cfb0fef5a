// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <map>
#include <string>

#include "run/wire/protocol.hpp"

namespace aisp::cli {

// Estimates how long a run will go on, and learns from its pairs how much longer or shorter they take than expected. Times are
// those of one clock, in seconds.
class TimeLeft {
 public:
  TimeLeft() = default;
  // `expected_s`: of each pair that can run, by its label; `at_once`: how many run at the same time.
  TimeLeft(std::map<std::string, double> expected_s, std::size_t at_once);

  void begun(const std::string& label, double now_s);
  // Takes the rounds of a pair that runs: from the first on they tell how long it will go on.
  void progressed(const std::string& label, const run::RoundProgress& rounds);
  void ended(const std::string& label, double now_s);

  // "2 min 30 s left", with `waiting` pairs that have not begun; empty if nothing is known.
  std::string text(std::size_t waiting, double now_s) const;

 private:
  struct Running {
    double began_s = 0;
    run::RoundProgress rounds;
  };
  double expected_s(const std::string& label) const;
  double mean_expected_s() const;
  // Returns the whole time of a pair that runs.
  double whole_s(const std::string& label, const Running& running, double factor, double now_s) const;
  double factor(double now_s) const;  // of expected times

  std::map<std::string, double> expected_s_;
  std::map<std::string, Running> running_;
  std::size_t at_once_ = 1;
  double measured_s_ = 0, expected_of_measured_s_ = 0;
};

}  // namespace aisp::cli
