// SPDX-License-Identifier: Apache-2.0
// An honest pair.
#include "../doubling.hpp"

namespace aisp::ch96 {
namespace {

class Honest final : public selftest::Doubling {
 public:
  explicit Honest(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
};

}  // namespace

extern constinit const selftest::Case honest{
    .pair =
        {
            .teaches = "an honest pair",
            .make = make<Honest>,
            .baseline = {"slow", call<&Honest::baseline>},
            .optimized = variants({{"doubled", call<&Honest::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch96
