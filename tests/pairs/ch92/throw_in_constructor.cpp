// SPDX-License-Identifier: Apache-2.0
// Throws while it is set up.
#include "../doubling.hpp"

#include <stdexcept>

namespace aisp::ch92 {
namespace {

class ThrowInConstructor final : public fixtures::Doubling {
 public:
  explicit ThrowInConstructor(Setup& setup) : Doubling{setup} { throw std::runtime_error{"no such table"}; }
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
};

}  // namespace

extern constinit const Pair throw_in_constructor{
    .teaches = "throws while it is set up",
    .make = make<ThrowInConstructor>,
    .baseline = {"slow", call<&ThrowInConstructor::baseline>},
    .optimized = variants({{"doubled", call<&ThrowInConstructor::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch92
