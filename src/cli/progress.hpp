// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <string>

#include "base/system/terminal.hpp"
#include "cli/time_left.hpp"
#include "report/console.hpp"
#include "suite/suite.hpp"

namespace aisp::cli {

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
