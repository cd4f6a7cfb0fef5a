// SPDX-License-Identifier: Apache-2.0
// Recurses without end.
#include "../doubling.hpp"

namespace aisp::ch92 {
namespace {

class StackOverflow final : public fixtures::Doubling {
 public:
  explicit StackOverflow(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) { dig(1); }

 private:
  static int dig(int depth) {
    volatile char page[4096];
    page[depth % 4096] = static_cast<char>(depth);
    return depth > 0 ? dig(depth + 1) + page[1] : page[0];
  }
};

}  // namespace

extern constinit const Pair stack_overflow{
    .teaches = "recurses without end",
    .make = make<StackOverflow>,
    .baseline = {"slow", call<&StackOverflow::baseline>},
    .optimized = variants({{"doubled", call<&StackOverflow::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch92
