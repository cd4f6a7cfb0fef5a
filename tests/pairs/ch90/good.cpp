// SPDX-License-Identifier: Apache-2.0
// An honest pair with two optimized variants and a library.
#include "../doubling.hpp"

namespace aisp::ch90 {
namespace {

class Good final : public fixtures::Doubling {
 public:
  explicit Good(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
  void added(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = in_.get()[i] + in_.get()[i];
  }
  void library(Launch& launch) { doubled(launch); }
};

}  // namespace

extern constinit const Pair good{
    .teaches = "doubling once is faster than doubling eight times",
    .lesson = "doubled",
    .make = make<Good>,
    .baseline = {"slow", call<&Good::baseline>},
    .optimized = variants({{"doubled", call<&Good::optimized>}, {"added", call<&Good::added>}}),
    .libraries = variants({{"library", call<&Good::library>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch90
