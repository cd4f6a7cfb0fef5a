// SPDX-License-Identifier: Apache-2.0
// Forgets 4 MB at every execution.
#include "../doubling.hpp"

namespace aisp::ch93 {
namespace {

class LeakMemory final : public selftest::Doubling {
 public:
  explicit LeakMemory(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    char* volatile lost = new char[4 << 20];
    for (std::size_t i = 0; i < (4u << 20); i += 4096) lost[i] = 1;
    doubled(launch);
  }
};

}  // namespace

extern constinit const selftest::Case leak_memory{
    .expected = {selftest::Ends::failed, "verify", "memory"},
    .pair =
        {
            .teaches = "forgets 4 MB at every execution",
            .make = make<LeakMemory>,
            .baseline = {"slow", call<&LeakMemory::baseline>},
            .optimized = variants({{"doubled", call<&LeakMemory::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch93
