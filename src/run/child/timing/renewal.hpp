// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <random>
#include <vector>

#include "pair/session.hpp"
#include "verify/sample_watch.hpp"

namespace aisp::run {

// New inputs while samples are timed, in rounds that nobody can foresee: as often as they take a small part of the time, and at
// least twice. Once everything is new, constant inputs and files too, and every variant prepares again.
class Renewal {
 public:
  // `prepare_s`: what the preparing of all variants took; above `most_prepare_s` constant inputs stay as they are.
  Renewal(pair::Session& session, std::vector<const Variant*> variants, int min_rounds, std::uint64_t seed, double prepare_s,
          double most_prepare_s);

  // Constant inputs, files and what variants prepare stay as they are, because preparing again would take too long.
  bool keeps_what_is_prepared() const { return has_constants_ && everything_in_ < 0; }

  enum class Kind { none, variable, everything };
  // Before round `round`, `elapsed_s` after the first began. Whoever looks at outputs must have settled what it saw.
  Kind due(int round, double elapsed_s);
  // Draws them and returns the seed that gives the variable inputs again.
  std::uint64_t draw(Kind kind);
  // A drawing of the variable inputs takes a large part of such a time.
  bool dear_beside(double seconds) const { return draw_s_ > most_share * seconds; }

 private:
  static constexpr double most_share = 0.1;
  pair::Session& session_;
  std::vector<const Variant*> variants_;
  std::mt19937_64 random_;
  int everything_in_ = -1;  // rounds
  int variable_in_ = -1;
  bool has_constants_ = false;
  double draw_s_ = 0;
  double spent_s_ = 0;
};

// The inputs that timed rounds run on. Before others come, what was seen of the present ones is settled; against the float64
// reference once, in a round that nobody can foresee, or else at the end.
class PresentInputs {
 public:
  // `with_reference`: it is computed at all. `seed`: of the choice of the inputs that are compared with it.
  PresentInputs(Renewal renewal, verify::SampleWatch& watch, bool with_reference, std::uint64_t seed)
      : renewal_{std::move(renewal)}, watch_{watch}, with_reference_{with_reference}, random_{seed} {}

  Renewal& renewal() { return renewal_; }
  // Others, of this kind, take their place.
  void replace(Renewal::Kind kind) {
    if (reference_is_due() && random_() % 4 == 0) watch_.check_truth();
    watch_.settle();
    watch_.inputs_drawn(renewal_.draw(kind));
  }
  // No more samples come.
  void end() {
    if (reference_is_due()) watch_.check_truth();
    watch_.settle();
  }

 private:
  bool reference_is_due() const { return with_reference_ && watch_.truths_checked() == 0; }

  Renewal renewal_;
  verify::SampleWatch& watch_;
  bool with_reference_;
  std::mt19937_64 random_;
};

}  // namespace aisp::run
