// SPDX-License-Identifier: Apache-2.0
// Throws something that is no exception class.
#include "../doubling.hpp"

namespace aisp::ch92 {
namespace {

class ThrowUnknown final : public fixtures::Doubling {
 public:
  explicit ThrowUnknown(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) { throw 42; }
};

}  // namespace

extern constinit const Pair throw_unknown{
    .teaches = "throws something that is no exception class",
    .make = make<ThrowUnknown>,
    .baseline = {"slow", call<&ThrowUnknown::baseline>},
    .optimized = variants({{"doubled", call<&ThrowUnknown::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch92
