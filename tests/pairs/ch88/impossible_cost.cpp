// SPDX-License-Identifier: Apache-2.0
#include "../doubling.hpp"

namespace aisp::ch88 {
namespace {

class ImpossibleCost final : public fixtures::Doubling {
 public:
  explicit ImpossibleCost(Setup& setup) : Doubling{setup} {}
  Cost cost() const override { return {.bytes = 1e6}; }
  Cost variant_cost(std::string_view variant) const override {
    if (variant == "negative") return {.host_bytes = -1e6};
    if (variant == "free") return {};
    return cost();
  }
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
};

}  // namespace

extern constinit const Pair impossible_cost{
    .teaches = "declares device memory on the host, a negative cost and no cost",
    .lesson = "free",
    .make = make<ImpossibleCost>,
    .baseline = {"on_a_device", call<&ImpossibleCost::baseline>},
    .optimized = variants({{"negative", call<&ImpossibleCost::optimized>}, {"free", call<&ImpossibleCost::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch88
