// SPDX-License-Identifier: Apache-2.0
#include "../doubling.hpp"

namespace aisp::ch88 {
namespace {

class Loose final : public fixtures::Doubling {
 public:
  explicit Loose(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = 2.00001F * in_.get()[i];
  }
};

}  // namespace

extern constinit const Pair loose{
    .teaches = "allows four thousand times the error that it has",
    .make = make<Loose>,
    .baseline = {"slow", call<&Loose::baseline>},
    .optimized = variants({{"nearly", call<&Loose::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = within(2e-2),
};

}  // namespace aisp::ch88
