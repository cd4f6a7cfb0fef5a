// SPDX-License-Identifier: Apache-2.0
// Prints without end.
#include "../doubling.hpp"

#include <cstdio>
#include <string>

namespace aisp::ch92 {
namespace {

class EndlessOutput final : public selftest::Doubling {
 public:
  explicit EndlessOutput(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) {
    const std::string line(1023, 'x');
    for (;;) std::puts(line.c_str());
  }
};

}  // namespace

extern constinit const selftest::Case endless_output{
    .expected = {selftest::Ends::timeout, "verify", "stage_limit"},
    .limit_s = 1,
    .pair =
        {
            .teaches = "prints without end",
            .make = make<EndlessOutput>,
            .baseline = {"slow", call<&EndlessOutput::baseline>},
            .optimized = variants({{"doubled", call<&EndlessOutput::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch92
