// SPDX-License-Identifier: Apache-2.0
// Compared with its reference at a smaller shape than it is timed at.
#include "../doubling.hpp"

namespace aisp::ch90 {
namespace {

class Shaped final : public fixtures::Doubling {
 public:
  explicit Shaped(Setup& setup) : Doubling{setup, setup.shape(std::size_t{1} << 18, 4096)} {}
};

}  // namespace

extern constinit const Pair shaped{
    .teaches = "the reference of a large shape takes too long",
    .make = make<Shaped>,
    .baseline = {"doubled", call<&Shaped::doubled>},
    .optimized = variants({{"again", call<&Shaped::doubled>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .verification = Verification::small_shape,
};

}  // namespace aisp::ch90
