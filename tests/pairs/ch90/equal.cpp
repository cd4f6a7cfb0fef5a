// SPDX-License-Identifier: Apache-2.0
// Two variants that do the same: no verdict may be claimed.
#include "../doubling.hpp"

namespace aisp::ch90 {
namespace {

// Long enough that the clock's own ticks are far below the smallest difference that a verdict rests on.
class Equal final : public fixtures::Doubling {
 public:
  explicit Equal(Setup& setup) : Doubling{setup, std::size_t{1} << 20} {}
};

}  // namespace

extern constinit const Pair equal{
    .teaches = "two variants that do the same: no verdict may be claimed",
    .make = make<Equal>,
    .baseline = {"doubled", call<&Equal::doubled>},
    .optimized = variants({{"again", call<&Equal::doubled>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch90
