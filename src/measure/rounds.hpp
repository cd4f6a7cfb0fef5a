// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "evidence/words.hpp"
#include "measure/sample.hpp"
#include "measure/statistics/ratio.hpp"

namespace aisp::measure {

// With fewer rounds nothing is claimed.
inline constexpr int least_rounds = 5;

// Predicts whether one more round would end too late, by the longest so far.
class Deadline {
 public:
  Deadline(double seconds, const std::function<double()>& now_s)
      : now_s_{now_s}, last_s_{now_s()}, deadline_s_{last_s_ + seconds} {}
  // Returns whether the deadline comes before another round's end. Call it after each round.
  bool comes() {
    const double now_s = now_s_();
    longest_s_ = std::max(longest_s_, now_s - last_s_);
    last_s_ = now_s;
    return now_s + longest_s_ > deadline_s_;
  }

 private:
  std::function<double()> now_s_;
  double last_s_, deadline_s_;
  double longest_s_ = 0;
};

struct SamplingOptions {
  int min_rounds = 20;
  int max_rounds = 5000;
  // Cheap rounds continue until this many, or this much time: few rounds of a slow drift look narrow.
  int cheap_rounds = 500;
  double cheap_s = 0.3;
  // With fewer rounds no interval counts as narrow while the budget lasts, whatever they cost.
  int telling_rounds = 100;
  bool fixed_rounds = false;     // exactly min_rounds
  double relative_width = 0.01;  // target width of the 95 % interval of every speedup
  double budget_s = 3;           // time for sampling
  // After least_rounds no round begins that would end later than this, however many were requested.
  double deadline_s = std::numeric_limits<double>::infinity();
  bool alternate = true;
  std::uint64_t seed = 42;  // seed of the order within rounds
};

// The loop's access to the outside; tests give made-up times.
struct SamplingCallbacks {
  std::function<Sample(std::size_t variant)> time;
  std::function<Interval(const std::vector<Sample>& baseline, const std::vector<Sample>& variant)> speedup;
  std::function<void(int round, int expected)> after_round;
  std::function<double()> now_s;
  std::function<void(int round)> before_round{};  // not called without alternation
};

struct Sampling {
  std::vector<std::vector<Sample>> samples;  // per variant, in the order of the rounds
  int rounds = 0;
  evidence::StopReason stopped_because = evidence::StopReason::none;
};

// Times variants 0 .. variants - 1 (0 is the baseline) in rounds: one sample of each, in a new random order every round, until
// the intervals of all speedups are narrow, the budget ends or the deadline comes. Without alternation all rounds of one variant
// come before the next one's.
Sampling sample_rounds(std::size_t variants, const SamplingOptions& options, const SamplingCallbacks& callbacks);

}  // namespace aisp::measure
