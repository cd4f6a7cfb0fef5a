// SPDX-License-Identifier: Apache-2.0
// Throws bytes that are no text.
#include "../doubling.hpp"

#include <stdexcept>

namespace aisp::ch92 {
namespace {

class ThrowBinary final : public fixtures::Doubling {
 public:
  explicit ThrowBinary(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) { throw std::runtime_error{"alas \xff\xfe"}; }
};

}  // namespace

extern constinit const Pair throw_binary{
    .teaches = "throws bytes that are no text",
    .make = make<ThrowBinary>,
    .baseline = {"slow", call<&ThrowBinary::baseline>},
    .optimized = variants({{"doubled", call<&ThrowBinary::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch92
