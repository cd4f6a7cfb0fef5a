// SPDX-License-Identifier: Apache-2.0
// One element of four million is wrong.
#include "../doubling.cuh"

namespace aisp::ch97 {
namespace {

class GpuOneWrongElement final : public selftest::GpuDoubling {
 public:
  explicit GpuOneWrongElement(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    doubled(launch);
    set(count_ / 3, 5, 1, launch.stream);  // no input doubles to it
  }
};

}  // namespace

extern constinit const selftest::Case gpu_one_wrong_element{
    .expected = {selftest::Ends::failed, "verify", "baseline"},
    .pair =
        {
            .teaches = "one element of four million is wrong",
            .make = make<GpuOneWrongElement>,
            .baseline = {"slow", call<&GpuOneWrongElement::baseline>},
            .optimized = variants({{"doubled", call<&GpuOneWrongElement::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
