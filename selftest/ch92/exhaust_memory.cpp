// SPDX-License-Identifier: Apache-2.0
// Asks for memory until there is none; bounded, so that the machine survives.
#include "../doubling.hpp"

#include <sys/resource.h>

#include <memory>
#include <vector>

namespace aisp::ch92 {
namespace {

class ExhaustMemory final : public selftest::Doubling {
 public:
  explicit ExhaustMemory(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) {
    const rlimit limit{.rlim_cur = 2ull << 30, .rlim_max = 2ull << 30};
    ::setrlimit(RLIMIT_AS, &limit);
    for (;;) hoard_.push_back(std::make_unique<char[]>(64 << 20));
  }

 private:
  std::vector<std::unique_ptr<char[]>> hoard_;
};

}  // namespace

extern constinit const selftest::Case exhaust_memory{
    .expected = {selftest::Ends::failed, "verify", "run"},
    .pair =
        {
            .teaches = "asks for memory until there is none; bounded, so that the machine survives",
            .make = make<ExhaustMemory>,
            .baseline = {"slow", call<&ExhaustMemory::baseline>},
            .optimized = variants({{"doubled", call<&ExhaustMemory::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch92
