// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <map>
#include <string>

#include "base/system/terminal.hpp"
#include "report/console.hpp"
#include "run/wire/protocol.hpp"
#include "suite/suite.hpp"

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

// The output of `aisp run` while it runs: one line a pair on standard output, a live line with the time left and warnings on
// standard error.
class ProgressDisplay final : public suite::Watcher {
 public:
  struct ProgressOptions {
    bool results = true;  // lines on the standard output
    bool live = false;    // the standard error is a terminal that can redraw a line
    bool quiet = false;   // neither, only warnings
    base::Painter paint;
    report::LineWidths widths;
    TimeLeft left;
  };
  explicit ProgressDisplay(const ProgressOptions& options) : options_{options} {}
  ~ProgressDisplay() override { erase(); }

  void suite_begun(const std::filesystem::path& folder, std::size_t pairs) override;
  void pair_begun(const std::string& target, const std::vector<int>& gpus) override;
  void pair_progressed(const std::string& target, const run::Progress& progress) override;
  void pair_ended(const evidence::PairResult& result, std::size_t done, std::size_t pairs) override;
  void warned(const std::string& line) override;

  // Why lines could not be written to the standard output; empty when they could.
  const std::string& output_trouble() const { return output_trouble_; }

 private:
  void erase();
  void draw();
  bool drawn_lately() const;

  ProgressOptions options_;
  std::map<std::string, std::string> running_;  // target -> what it does
  std::size_t done_ = 0;
  std::size_t pairs_ = 0;
  bool drawn_ = false;
  double drawn_s_ = 0;  // when
  std::string output_trouble_;
};

// The line before the first result: "61 pairs on 8 x NVIDIA H200 and the host, 12 skipped, about 5 min". Without the time where
// part of the pairs is taken over from an earlier run, or another executable takes turns.
std::string heading(const suite::Task& task);

// Describes what a pair is doing, as in "interval 1.8 % (until 1 %), 2.1 of 3 s".
std::string doing_text(const run::Progress& progress);

// Returns the estimate for the task's pairs before any has begun.
TimeLeft time_left(const suite::Task& task);

}  // namespace aisp::cli
