// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "base/one_way.hpp"
#include "pair/session.hpp"
#include "verify/sample_watch.hpp"

namespace aisp::run {

// Renews inputs between timed samples, in random rounds: as often as that takes a small part of the time, and at least twice.
// Once it renews everything, constant inputs and files too, and every variant prepares again.
class Renewal {
 public:
  // `prepare_s`: the time that all variants took to prepare; above `most_prepare_s` constant inputs stay as they are.
  Renewal(pair::Session& session, std::vector<const Variant*> variants, int min_rounds, std::uint64_t seed, double prepare_s,
          double most_prepare_s);

  // Whether constant inputs, files and prepared data stay as they are, because preparing again would take too long.
  bool keeps_what_is_prepared() const { return has_constants_ && everything_in_ < 0; }

  enum class Kind { none, variable, everything };
  // Returns what to renew before round `round`, `elapsed_s` after the first began. Findings on the present inputs must be settled
  // before.
  Kind due(int round, double elapsed_s);
  // Renews inputs and returns the seed that gives the variable ones again.
  std::uint64_t draw(Kind kind);

 private:
  static constexpr double most_share = 0.1;
  pair::Session& session_;
  std::vector<const Variant*> variants_;
  base::OneWayRandom random_;
  int everything_in_ = -1;  // rounds
  int variable_in_ = -1;
  bool has_constants_ = false;
  double draw_s_ = 0;
  double spent_s_ = 0;
};

// The inputs of timed rounds. Before they are replaced, findings on them are settled; once, in a random round or else at the end,
// also against the float64 reference.
class PresentInputs {
 public:
  // `with_reference`: whether the reference is computed at all. `seed`: chooses the inputs that are compared with it.
  PresentInputs(Renewal renewal, verify::SampleWatch& watch, bool with_reference, std::uint64_t seed)
      : renewal_{std::move(renewal)}, watch_{watch}, with_reference_{with_reference}, random_{seed} {}

  Renewal& renewal() { return renewal_; }
  // Replaces inputs of this kind.
  void replace(Renewal::Kind kind) {
    if (reference_is_due() && random_() % 4 == 0) watch_.check_truth();
    watch_.resolve();
    watch_.inputs_drawn(renewal_.draw(kind));
  }
  // Settles the last inputs after the last sample.
  void end() {
    if (reference_is_due()) watch_.check_truth();
    watch_.resolve();
  }

 private:
  bool reference_is_due() const { return with_reference_ && watch_.truths_checked() == 0; }

  Renewal renewal_;
  verify::SampleWatch& watch_;
  bool with_reference_;
  base::OneWayRandom random_;
};

}  // namespace aisp::run
