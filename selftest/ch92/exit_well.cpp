// SPDX-License-Identifier: Apache-2.0
// Ends its process with status 0 before there is a result.
#include "../doubling.hpp"

#include <unistd.h>

namespace aisp::ch92 {
namespace {

class ExitWell final : public selftest::Doubling {
 public:
  explicit ExitWell(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) { ::_exit(0); }
};

}  // namespace

extern constinit const selftest::Case exit_well{
    .expected = {selftest::Ends::crashed, "verify", "no_result"},
    .pair =
        {
            .teaches = "ends its process with status 0 before there is a result",
            .make = make<ExitWell>,
            .baseline = {"slow", call<&ExitWell::baseline>},
            .optimized = variants({{"doubled", call<&ExitWell::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch92
