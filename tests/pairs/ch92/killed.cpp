// SPDX-License-Identifier: Apache-2.0
// Is killed from outside, as the kernel does when memory runs out.
#include "../doubling.hpp"

#include <signal.h>
#include <unistd.h>

namespace aisp::ch92 {
namespace {

class Killed final : public fixtures::Doubling {
 public:
  explicit Killed(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) { ::kill(::getpid(), SIGKILL); }
};

}  // namespace

extern constinit const Pair killed{
    .teaches = "is killed from outside, as the kernel does when memory runs out",
    .make = make<Killed>,
    .baseline = {"slow", call<&Killed::baseline>},
    .optimized = variants({{"doubled", call<&Killed::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch92
