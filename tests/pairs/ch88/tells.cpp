// SPDX-License-Identifier: Apache-2.0
// A pair that tells its inputs in its log, and the places that it takes for its own.
#include <cstdio>
#include <cstdlib>

#include "../doubling.hpp"

namespace aisp::ch88 {
namespace {

class Tells final : public fixtures::Doubling {
 public:
  explicit Tells(Setup& setup) : Doubling{setup} {
    for (const char* variable : {"HOME", "TMPDIR"}) std::printf("%s %s\n", variable, std::getenv(variable));
  }
  void tell(Launch& launch) {
    std::printf("input %a\n", static_cast<double>(in_[0]));
    doubled(launch);
  }
};

}  // namespace

extern constinit const Pair tells{
    .teaches = "a process says which inputs it was given",
    .make = make<Tells>,
    .baseline = {"slow", call<&Tells::slow>},
    .optimized = variants({{"tells", call<&Tells::tell>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch88
