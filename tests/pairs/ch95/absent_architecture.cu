// SPDX-License-Identifier: Apache-2.0
// Limited to a compute capability that no GPU has.
#include "../doubling.hpp"

namespace aisp::ch95 {
namespace {

class AbsentArchitecture final : public fixtures::Doubling {
 public:
  explicit AbsentArchitecture(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
};

}  // namespace

extern constinit const Pair absent_architecture{
    .teaches = "limited to a compute capability that no GPU has",
    .make = make<AbsentArchitecture>,
    .baseline = {"slow", call<&AbsentArchitecture::baseline>},
    .optimized = variants({{"doubled", call<&AbsentArchitecture::optimized>}}),
    .tolerance = exact,
    .needs = {.min_sm = 99, .max_sm = 99},
};

}  // namespace aisp::ch95
