// SPDX-License-Identifier: Apache-2.0
// Needs 64 GPUs.
#include "../doubling.hpp"

namespace aisp::ch95 {
namespace {

class ManyGpus final : public fixtures::Doubling {
 public:
  explicit ManyGpus(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
};

}  // namespace

extern constinit const Pair many_gpus{
    .teaches = "needs 64 GPUs",
    .make = make<ManyGpus>,
    .baseline = {"slow", call<&ManyGpus::baseline>},
    .optimized = variants({{"doubled", call<&ManyGpus::optimized>}}),
    .tolerance = exact,
    .needs = {.gpus = 64},
};

}  // namespace aisp::ch95
