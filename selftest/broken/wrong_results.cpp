// SPDX-License-Identifier: Apache-2.0
// Their results are wrong every time they run.
#include "doubling.hpp"

#include <bit>
#include <cstdint>
#include <limits>
#include <stdexcept>

namespace aisp::ch94 {
namespace {

using namespace selftest;

class Wrong final : public Doubling {
 public:
  using Doubling::Doubling;
  void with_zeros(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = 0;
  }
  void with_one_element(Launch&) {
    fill_doubled();
    out_[count_ / 3] += 1;
  }
  void with_nan(Launch&) {
    fill_doubled();
    out_[count_ / 2] = std::numeric_limits<float>::quiet_NaN();
  }
  void without_the_last(Launch&) {
    for (std::size_t i = 0; i + 1 < count_; ++i) out_[i] = 2 * in_.get()[i];
  }
  void in_baseline_too(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = in_.get()[i] / 2;
  }
  void in_precision(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(2 * in_.get()[i]);
      out_[i] = std::bit_cast<float>(bits & 0xFFFF8000u);
    }
  }
  void in_bits(Launch&) {
    const float wobble = 1 + 1e-7f * static_cast<float>(++executions_ % 3);
    for (std::size_t i = 0; i < count_; ++i) out_[i] = 2 * in_.get()[i] * wobble;
  }
  void in_inputs(Launch&) {
    fill_doubled();
    const_cast<float*>(in_.get())[7] = 0.5f;
  }
  void beyond_the_end(Launch&) {
    fill_doubled();
    out_[count_] = 1;
  }

 private:
  int executions_ = 0;
};

class FailsValidation final : public Doubling {
 public:
  using Doubling::Doubling;
  void validate(std::string_view variant) override {
    if (variant == "doubled") throw std::runtime_error{"the ledger does not balance"};
  }
};

}  // namespace

extern constinit const selftest::Case beaten_best =
    pair_of<&Doubling::slow, Wrong>({.does = "calls itself the fastest of a set, and a member is faster",
                                     .must = passes_with("audit/best_of_set"),
                                     .baseline = call<&Doubling::doubled>,
                                     .best_of = "slow"});
extern constinit const selftest::Case zeros =
    pair_of<&Wrong::with_zeros>({.does = "writes zeros", .must = fails("verify/reference")});
extern constinit const selftest::Case wrong_result =
    pair_of<&Wrong::with_one_element>({.does = "one element is wrong", .must = fails("verify/baseline")});
extern constinit const selftest::Case nan_output =
    pair_of<&Wrong::with_nan>({.does = "one element is not a number", .must = fails("verify/finite")});
extern constinit const selftest::Case unwritten_elements =
    pair_of<&Wrong::without_the_last>({.does = "the last element is never written", .must = fails("verify/written")});
extern constinit const selftest::Case wrong_baseline =
    pair_of<&Wrong::in_baseline_too>({.does = "the baseline is wrong, and the variant agrees with it",
                                      .must = fails("verify/reference"),
                                      .baseline = call<&Wrong::in_baseline_too>});
extern constinit const selftest::Case lower_precision = pair_of<&Wrong::in_precision>(
    {.does = "rounds its result to 8 bits of mantissa", .must = fails("verify/reference"), .tolerance = automatic});
extern constinit const selftest::Case non_deterministic =
    pair_of<&Wrong::in_bits>({.does = "gives slightly other bits every time, within its tolerance",
                              .must = fails("verify/reproducible"),
                              .tolerance = within(1e-5),
                              .reproducible = true,
                              .deterministic = false});
extern constinit const selftest::Case hidden_non_determinism =
    pair_of<&Wrong::in_bits>({.does = "gives other bits every time and claims to be deterministic",
                              .must = fails("verify/reproducible"),
                              .tolerance = within(1e-5),
                              .reproducible = true});
extern constinit const selftest::Case modified_inputs =
    pair_of<&Wrong::in_inputs>({.does = "changes its inputs after it has used them", .must = fails("verify/inputs_unchanged")});
extern constinit const selftest::Case out_of_bounds =
    pair_of<&Wrong::beyond_the_end>({.does = "writes one element behind its output", .must = fails("verify/red_zones")});
extern constinit const selftest::Case failed_validation =
    pair_of<&Doubling::doubled, FailsValidation>({.does = "its own validation objects", .must = fails("verify/run")});

}  // namespace aisp::ch94
