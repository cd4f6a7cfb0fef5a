// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/one_way.hpp"
#include "measure/execution.hpp"
#include "measure/sample.hpp"
#include "pair/memory/snapshot.hpp"
#include "pair/session.hpp"
#include "verify/verifier.hpp"

namespace aisp::verify {

// Checks the outputs of timed samples. For each set of inputs, the outputs of the first variant that runs (and changes no
// precision) are the truth; the first sample of every other is compared with them in full, later ones by digest with the
// variant's own first, and in full if bits differ. Outputs of a variant that changes precision are kept until there is a truth.
// If the truth and the baseline differ, the baseline is right.
class SampleWatch {
 public:
  // `outcomes` of the verification, in the order of `variants`; the first is the baseline.
  SampleWatch(pair::Session& session, std::vector<const Variant*> variants, const std::vector<Outcome>& outcomes,
              std::uint64_t seed);

  // Notes that all inputs have new contents; `seed` gives them again (Session::refill_variable).
  void inputs_drawn(std::uint64_t seed);
  // Returns what to capture in the next sample of variant `v`.
  measure::Capture plan(std::size_t v);
  // Sets the share of samples that is looked at more closely.
  void watch(double share) { watched_share_ = share; }
  void inspect(std::size_t v, const measure::Capture& capture, measure::Sample& sample);
  // Compares the truth of the present inputs with the float64 reference, at places drawn now. Call it between rounds.
  void check_truth();
  // Decides which variants are wrong where outputs differed. Call it between rounds, before inputs change.
  void resolve();

  struct Findings {
    evidence::SampleChecks counts;
    std::vector<std::string> wrong, gate;  // in words, the first few
    std::vector<double> idle_cpu_ms;
    int looks_without_end = 0;  // at outputs while the stream was held back: they waited for it
  };
  const Findings& of(std::size_t v) const { return states_[v].findings; }
  int truths_checked() const { return truths_checked_; }

 private:
  struct Early {
    int round;
    std::vector<std::uint64_t> digests;
  };
  struct State {
    const Variant* variant;
    const Outcome* outcome;
    std::vector<int> outputs;
    bool plain = true;                                   // all outputs are in order and of full length, so that digests suffice
    std::optional<std::vector<std::uint64_t>> expected;  // digests of its first sample on the present inputs
    bool ran = false;                                    // on the present inputs
    std::string difference;                              // difference from the truth of the present inputs
    std::optional<Early> early;                          // sample of the present inputs that came before the truth
    std::vector<pair::Snapshot> copies;                  // outputs of that sample
    int wrong = 0;                                       // samples on the present inputs that differed from it
    Findings findings;
  };

  void compare(std::size_t v, const std::vector<std::uint64_t>& digests, int round);
  // Compares the outputs as they are, or copies of them, with the truth.
  std::string difference_from_truth(const State& state, const std::vector<pair::Snapshot>* copies) const;
  void keep_as_truth(std::size_t v);
  void make_room(const State& state, std::vector<pair::Snapshot>& copies);
  void copy_outputs(const State& state, std::vector<pair::Snapshot>& copies);
  void judge_early_samples();
  void found(State& state, const std::vector<std::uint64_t>& digests, int round, const std::string& text);
  Tolerance limits_of(const State& state, int output) const;
  std::size_t length_of(int output) const;
  void add_wrong(State& state, const std::string& text);
  bool chance(double share) { return std::uniform_real_distribution<>{}(random_) < share; }

  pair::Session& session_;
  std::vector<State> states_;
  base::OneWayRandom random_;
  pair::DigestKey key_{};  // of the digests on the present inputs
  std::uint64_t inputs_ = 0;
  bool fresh_ = true;  // no variant has run on the present inputs
  std::optional<std::size_t> truth_of_;
  std::vector<pair::Snapshot> truth_;  // outputs of that variant, in its order
  std::string truth_is_wrong_;         // how it differs from the baseline
  int truths_checked_ = 0;
  double digest_share_ = 1;  // share of samples whose outputs are checked
  double watched_share_ = 0.125;
};

}  // namespace aisp::verify
