// SPDX-License-Identifier: Apache-2.0
// Prints 64 MB, and is otherwise honest.
#include "../doubling.hpp"

#include <cstdio>
#include <string>

namespace aisp::ch93 {
namespace {

class PrintMegabytes final : public fixtures::Doubling {
 public:
  explicit PrintMegabytes(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    if (!done_) misbehave();
    done_ = true;
    doubled(launch);
  }

 private:
  static void misbehave() {
    const std::string line(1023, 'x');
    std::puts("first words");
    for (int i = 0; i < 64 * 1024; ++i) std::puts(line.c_str());
    std::puts("last words");
    std::fflush(stdout);
  }
  bool done_ = false;
};

}  // namespace

extern constinit const Pair print_megabytes{
    .teaches = "prints 64 MB, and is otherwise honest",
    .make = make<PrintMegabytes>,
    .baseline = {"slow", call<&PrintMegabytes::baseline>},
    .optimized = variants({{"doubled", call<&PrintMegabytes::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch93
