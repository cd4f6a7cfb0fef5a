// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <random>

#include "run/child/timing/renewal.hpp"
#include "verify/sample_watch.hpp"

namespace aisp::run {

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
