// SPDX-License-Identifier: Apache-2.0
// When cheats cheat that count their calls, and which check must see it; and what spies have in common.
#pragma once
#include <aisp/launch.hpp>
#include <aisp/selftest.hpp>

#include <stdexcept>
#include <string>

#include <unistd.h>

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

// Spies remember what they saw at first, and throw when a later run looks otherwise.
template <class Doubling>
class Spying : public Doubling {
 public:
  using Doubling::Doubling;
  void on_the_environment(Launch& launch) {
    std::string all;
    for (char** variable = environ; *variable != nullptr; ++variable) all.append(*variable).push_back('\n');
    look(launch, all);
  }

 protected:
  void look(Launch& launch, const std::string& now) {
    if (seen_.empty()) seen_ = now;
    if (now != seen_) throw std::runtime_error{"this run looks unlike the first: " + now + ", it was " + seen_};
    this->doubled(launch);
  }

 private:
  std::string seen_;
};

}  // namespace aisp::selftest
