// SPDX-License-Identifier: Apache-2.0
// Writes nonsense to every open descriptor.
#include "../doubling.hpp"

#include <unistd.h>

namespace aisp::ch93 {
namespace {

class GarbageOnPipe final : public fixtures::Doubling {
 public:
  explicit GarbageOnPipe(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    if (!done_) misbehave();
    done_ = true;
    doubled(launch);
  }

 private:
  static void misbehave() {
    for (int descriptor = 3; descriptor < 64; ++descriptor)
      [[maybe_unused]] const auto ignored = ::write(descriptor, "\n{not json\xff\n[1,2\n", 17);
  }
  bool done_ = false;
};

}  // namespace

extern constinit const Pair garbage_on_pipe{
    .teaches = "writes nonsense to every open descriptor",
    .make = make<GarbageOnPipe>,
    .baseline = {"slow", call<&GarbageOnPipe::baseline>},
    .optimized = variants({{"doubled", call<&GarbageOnPipe::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch93
