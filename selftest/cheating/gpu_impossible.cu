// SPDX-License-Identifier: Apache-2.0
// They claim what no chip can do.
#include "doubling.cuh"

namespace aisp::ch97 {
namespace {

using namespace selftest;

class ClaimsBytes final : public GpuDoubling {
 public:
  using GpuDoubling::GpuDoubling;
  Cost cost() const override { return {.bytes = 1000.0 * static_cast<double>(in_.bytes() + out_.bytes())}; }
};

class ClaimsFlops final : public GpuDoubling {
 public:
  using GpuDoubling::GpuDoubling;
  Cost cost() const override { return {.flops = 1e13}; }
};

constexpr Expected told = fails("audit/possible_time", "measurement/possible_time");

}  // namespace

extern constinit const selftest::Case gpu_impossible_time = pair_of<&GpuDoubling::doubled, ClaimsBytes>(
    {.does = "claims to move a thousand times the bytes that it moves", .must = told});
extern constinit const selftest::Case gpu_impossible_flops =
    pair_of<&GpuDoubling::doubled, ClaimsFlops>({.does = "claims ten teraflop in microseconds", .must = told});

}  // namespace aisp::ch97
