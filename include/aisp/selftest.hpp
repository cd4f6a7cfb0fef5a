// SPDX-License-Identifier: Apache-2.0
// What a pair of the self-test declares beside itself: how aisp must find it out.
#pragma once
#include <aisp/pair.hpp>

#include <cstdint>
#include <string_view>

namespace aisp::selftest {

enum class Ends : std::uint8_t { passed, failed, timeout, crashed };

struct Expected {
  Ends ends = Ends::passed;
  std::string_view stage{};  // in which a problem must be reported,
  std::string_view check{};  // and by which check; none: an honest pair, of which nothing may be said
  constexpr bool honest() const { return check.empty(); }
};

struct Case {
  Expected expected;
  bool reproducible = false;  // runs with --reproducible
  bool needs_cupti = false;   // nothing but the profiler can see it
  double limit_s = 0;         // of the expected stage, for what never ends; 0: the default
  Pair pair;
};

}  // namespace aisp::selftest
