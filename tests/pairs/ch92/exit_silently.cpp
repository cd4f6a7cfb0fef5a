// SPDX-License-Identifier: Apache-2.0
// Ends its process with exit(3), without a word.
#include "../doubling.hpp"

#include <cstdlib>

namespace aisp::ch92 {
namespace {

class ExitSilently final : public fixtures::Doubling {
 public:
  explicit ExitSilently(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) { std::exit(3); }
};

}  // namespace

extern constinit const Pair exit_silently{
    .teaches = "ends its process with exit(3), without a word",
    .make = make<ExitSilently>,
    .baseline = {"slow", call<&ExitSilently::baseline>},
    .optimized = variants({{"doubled", call<&ExitSilently::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch92
