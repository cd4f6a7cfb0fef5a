// SPDX-License-Identifier: Apache-2.0
// Changes its inputs after it has used them.
#include "../doubling.hpp"

namespace aisp::ch94 {
namespace {

class ModifiedInputs final : public selftest::Doubling {
 public:
  explicit ModifiedInputs(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    doubled(launch);
    const_cast<float*>(in_.get())[7] = 0.5f;
  }
};

}  // namespace

extern constinit const selftest::Case modified_inputs{
    .expected = {selftest::Ends::failed, "verify", "inputs_unchanged"},
    .pair =
        {
            .teaches = "changes its inputs after it has used them",
            .make = make<ModifiedInputs>,
            .baseline = {"slow", call<&ModifiedInputs::baseline>},
            .optimized = variants({{"doubled", call<&ModifiedInputs::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch94
