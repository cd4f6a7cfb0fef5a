// SPDX-License-Identifier: Apache-2.0
// Needs a GPU, though its code would run anywhere.
#include "../doubling.hpp"

namespace aisp::ch95 {
namespace {

class GpuOnly final : public fixtures::Doubling {
 public:
  explicit GpuOnly(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
};

}  // namespace

extern constinit const Pair gpu_only{
    .teaches = "needs a GPU, though its code would run anywhere",
    .make = make<GpuOnly>,
    .baseline = {"slow", call<&GpuOnly::baseline>},
    .optimized = variants({{"doubled", call<&GpuOnly::optimized>}}),
    .tolerance = exact,
};

}  // namespace aisp::ch95
