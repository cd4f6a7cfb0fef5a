// SPDX-License-Identifier: Apache-2.0
// Writes through a wild pointer.
#include "../doubling.hpp"

#include <cstdint>

namespace aisp::ch92 {
namespace {

class Segfault final : public selftest::Doubling {
 public:
  explicit Segfault(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) {
    volatile std::uintptr_t wild = 16;
    *reinterpret_cast<volatile int*>(wild) = 1;
  }
};

}  // namespace

extern constinit const selftest::Case segfault{
    .expected = {selftest::Ends::crashed, "verify", "signal"},
    .pair =
        {
            .teaches = "writes through a wild pointer",
            .make = make<Segfault>,
            .baseline = {"slow", call<&Segfault::baseline>},
            .optimized = variants({{"doubled", call<&Segfault::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch92
