// SPDX-License-Identifier: Apache-2.0
// When cheats cheat that count their calls, and which check must see it.
#pragma once
#include <aisp/selftest.hpp>

namespace aisp::selftest {

// True for calls that are timed: all behind those of the verification. Warm-up, audit and second verification see them too.
class Calls {
 public:
  bool timed() { return ++calls_ >= 8; }
  int count() const { return calls_; }

 private:
  int calls_ = 0;
};

inline constexpr Expected wrong_when_timed = fails("measurement/timed_samples");
// Where chance decides in which run it shows first.
inline constexpr Expected unwritten_at_times = fails("verify/written", "verify/second_run", "measurement/timed_samples");
inline constexpr Expected stale_at_times = fails("verify/reference", "verify/second_run", "measurement/timed_samples");
// The times of timed rounds do not fit those of other executions.
inline constexpr Expected timed_otherwise = fails("measurement/timed_differently", "audit/timed_differently");

}  // namespace aisp::selftest
