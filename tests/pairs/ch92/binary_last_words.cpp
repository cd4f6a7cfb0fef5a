// SPDX-License-Identifier: Apache-2.0
// Prints bytes that are no text, then dies.
#include "../doubling.hpp"

#include <cstdio>
#include <cstdlib>

namespace aisp::ch92 {
namespace {

class BinaryLastWords final : public fixtures::Doubling {
 public:
  explicit BinaryLastWords(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) {
    std::puts("alas \xff\xfe");
    std::fflush(stdout);
    std::abort();
  }
};

}  // namespace

extern constinit const Pair binary_last_words{
    .teaches = "prints bytes that are no text, then dies",
    .make = make<BinaryLastWords>,
    .baseline = {"slow", call<&BinaryLastWords::baseline>},
    .optimized = variants({{"doubled", call<&BinaryLastWords::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch92
