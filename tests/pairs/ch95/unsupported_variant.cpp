// SPDX-License-Identifier: Apache-2.0
// One of two variants finds out that this machine cannot run it.
#include "../doubling.hpp"

namespace aisp::ch95 {
namespace {

class UnsupportedVariant final : public fixtures::Doubling {
 public:
  explicit UnsupportedVariant(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
  void refused(Launch&) { throw Unsupported{"the clock is not for sale"}; }
};

}  // namespace

extern constinit const Pair unsupported_variant{
    .teaches = "one of two variants finds out that this machine cannot run it",
    .lesson = "doubled",
    .make = make<UnsupportedVariant>,
    .baseline = {"slow", call<&UnsupportedVariant::baseline>},
    .optimized = variants({{"doubled", call<&UnsupportedVariant::optimized>}, {"refused", call<&UnsupportedVariant::refused>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch95
