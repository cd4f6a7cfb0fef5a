// SPDX-License-Identifier: Apache-2.0
// Closes every descriptor but the first three, then stays.
#include "../doubling.hpp"

#include <unistd.h>

namespace aisp::ch93 {
namespace {

class ClosePipe final : public selftest::Doubling {
 public:
  explicit ClosePipe(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    if (!done_) misbehave();
    done_ = true;
    doubled(launch);
  }

 private:
  static void misbehave() {
    for (int descriptor = 3; descriptor < 1024; ++descriptor) ::close(descriptor);
    selftest::hang();
  }
  bool done_ = false;
};

}  // namespace

extern constinit const selftest::Case close_pipe{
    .expected = {selftest::Ends::crashed, "verify", "silent"},
    .pair =
        {
            .teaches = "closes every descriptor but the first three, then stays",
            .make = make<ClosePipe>,
            .baseline = {"slow", call<&ClosePipe::baseline>},
            .optimized = variants({{"doubled", call<&ClosePipe::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch93
