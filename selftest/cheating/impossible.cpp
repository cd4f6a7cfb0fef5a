// SPDX-License-Identifier: Apache-2.0
// They claim what no processor can do.
#include "doubling.hpp"

namespace aisp::ch94 {
namespace {

using namespace selftest;

class ClaimsFlops final : public Doubling {
 public:
  using Doubling::Doubling;
  Cost cost() const override { return {.flops = 1e15}; }
};

class ClaimsBytes final : public Doubling {
 public:
  using Doubling::Doubling;
  Cost cost() const override { return {.host_bytes = 1e15}; }
};

constexpr Expected told = fails("audit/possible_time", "measurement/possible_time");

}  // namespace

extern constinit const selftest::Case impossible_flops =
    pair_of<&Doubling::doubled, ClaimsFlops>({.does = "claims a petaflop in a fraction of a millisecond", .must = told});
extern constinit const selftest::Case impossible_bytes =
    pair_of<&Doubling::doubled, ClaimsBytes>({.does = "claims to move a petabyte in a fraction of a millisecond", .must = told});

}  // namespace aisp::ch94
