// SPDX-License-Identifier: Apache-2.0
// They do the measured work in functions of the pair that nobody times.
#include "doubling.hpp"

namespace aisp::ch94 {
namespace {

using namespace selftest;

class Hooks final : public Doubling {
 public:
  using Doubling::Doubling;
  void work(Launch&) { fill_doubled(); }
  void nothing(Launch&) {}
};

}  // namespace

extern constinit const selftest::Case work_in_prepare =
    pair_of<&Hooks::nothing>({.does = "does the measured work in prepare, and nothing when measured",
                              .must = fails("verify/written"),
                              .prepare = call<&Hooks::work>});
extern constinit const selftest::Case work_in_reset =
    pair_of<&Hooks::nothing>({.does = "does the measured work in reset, and nothing when measured",
                              .must = fails("verify/written"),
                              .reset = call<&Hooks::work>});

}  // namespace aisp::ch94
