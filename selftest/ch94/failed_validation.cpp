// SPDX-License-Identifier: Apache-2.0
// Its own validation objects.
#include "../doubling.hpp"

#include <stdexcept>

namespace aisp::ch94 {
namespace {

class FailedValidation final : public selftest::Doubling {
 public:
  explicit FailedValidation(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
  void validate(std::string_view variant) override {
    if (variant == "doubled") throw std::runtime_error{"the ledger does not balance"};
  }
};

}  // namespace

extern constinit const selftest::Case failed_validation{
    .expected = {selftest::Ends::failed, "verify", "run"},
    .pair =
        {
            .teaches = "its own validation objects",
            .make = make<FailedValidation>,
            .baseline = {"slow", call<&FailedValidation::baseline>},
            .optimized = variants({{"doubled", call<&FailedValidation::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch94
