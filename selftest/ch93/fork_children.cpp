// SPDX-License-Identifier: Apache-2.0
// Leaves child processes behind that hold every descriptor open.
#include "../doubling.hpp"

#include <unistd.h>

namespace aisp::ch93 {
namespace {

class ForkChildren final : public selftest::Doubling {
 public:
  explicit ForkChildren(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    if (!done_) misbehave();
    done_ = true;
    doubled(launch);
  }

 private:
  static void misbehave() {
    for (int i = 0; i < 3; ++i)
      if (::fork() == 0)
        for (;;) ::pause();
  }
  bool done_ = false;
};

}  // namespace

extern constinit const selftest::Case fork_children{
    .expected = {selftest::Ends::passed, "exit", "processes_left"},
    .pair =
        {
            .teaches = "leaves child processes behind that hold every descriptor open",
            .make = make<ForkChildren>,
            .baseline = {"slow", call<&ForkChildren::baseline>},
            .optimized = variants({{"doubled", call<&ForkChildren::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch93
