// SPDX-License-Identifier: Apache-2.0
// A pair with a step beyond its lesson, a gain over another step than the one before, controls of both kinds and two libraries.
#include "../doubling.hpp"

namespace aisp::ch88 {
namespace {

class Ladder final : public fixtures::Doubling {
 public:
  explicit Ladder(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { repeat(launch, 32); }
  void lesson(Launch& launch) { repeat(launch, 8); }
  void beyond(Launch& launch) { repeat(launch, 2); }
  void aside(Launch& launch) { repeat(launch, 4); }
  void same_work(Launch& launch) { repeat(launch, 31); }
  void half(Launch&) {
    for (std::size_t i = 0; i < count_ / 2; ++i) out_[i] = 1;
  }
  void library(Launch& launch) { repeat(launch, 6); }

 private:
  void repeat(Launch& launch, int times) {
    for (int i = 0; i < times; ++i) doubled(launch);
  }
};

}  // namespace

extern constinit const Pair ladder{
    .teaches = "once is faster than many times",
    .lesson = "some",
    .make = make<Ladder>,
    .baseline = {"many", call<&Ladder::baseline>},
    .optimized = variants({{.name = "some", .run = call<&Ladder::lesson>},
                           {.name = "few", .run = call<&Ladder::beyond>},
                           {.name = "aside", .run = call<&Ladder::aside>, .gains_over = "some"}}),
    .controls = variants({{.name = "as_many", .run = call<&Ladder::same_work>},
                          {.name = "half", .run = call<&Ladder::half>, .outputs = no_outputs}}),
    .libraries = variants({{.name = "library", .run = call<&Ladder::library>},
                           {.name = "rounding", .run = call<&Ladder::beyond>, .changes_precision = true}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = within(1e-6),
};

}  // namespace aisp::ch88
