// SPDX-License-Identifier: Apache-2.0
// Hangs and ignores every polite signal.
#include "../doubling.hpp"

#include <csignal>

namespace aisp::ch91 {
namespace {

class HangIgnoringSignals final : public selftest::Doubling {
 public:
  explicit HangIgnoringSignals(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) {
    for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) std::signal(number, SIG_IGN);
    selftest::hang();
  }
};

}  // namespace

extern constinit const selftest::Case hang_ignoring_signals{
    .expected = {selftest::Ends::timeout, "verify", "stage_limit"},
    .limit_s = 1,
    .pair =
        {
            .teaches = "hangs and ignores every polite signal",
            .make = make<HangIgnoringSignals>,
            .baseline = {"slow", call<&HangIgnoringSignals::baseline>},
            .optimized = variants({{"doubled", call<&HangIgnoringSignals::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch91
