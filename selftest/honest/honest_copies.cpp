// SPDX-License-Identifier: Apache-2.0
// Two copies of one function, of which neither is the faster.
#include "doubling.hpp"

namespace aisp::ch96 {
namespace {

using namespace selftest;

// Each is compiled by itself, as if it stood elsewhere: nothing but the place of its loop could tell them apart.
class Copies final : public Doubling {
 public:
  using Doubling::Doubling;
  [[gnu::noipa]] void here(Launch&) {
    const float* in = in_.get();
    float* out = out_.get();
    for (std::size_t i = 0; i < count_; ++i) out[i] = in[i] + in[i];
  }
  [[gnu::noipa]] void there(Launch&) {
    const float* in = in_.get();
    float* out = out_.get();
    for (std::size_t i = 0; i < count_; ++i) out[i] = in[i] + in[i];
  }
};

}  // namespace

extern constinit const selftest::Case honest_copies =
    pair_of<&Copies::there>({.does = "is a second copy of the baseline", .baseline = call<&Copies::here>, .copies = true});

}  // namespace aisp::ch96
