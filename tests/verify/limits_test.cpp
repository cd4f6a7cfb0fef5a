// SPDX-License-Identifier: Apache-2.0
// Limits of each output, of each group of an output, of codes and of bits, each with a fault that only it can see.
#include <cuda_bf16.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "verify/sample_watch.hpp"
#include "verify/verifier.hpp"

namespace aisp::verify {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::size_t heads = 16, width = 64, tokens = 32, count = tokens * heads * width;
constexpr Axis by_head{width, heads};  // [tokens, heads, width]
constexpr std::size_t flat_head = 5;

// Head 5 is a thousandth of the others.
class CodedHeads final : public Workload {
 public:
  explicit CodedHeads(Setup& setup)
      : x_{setup.input<float>(count, uniform(1, 2).times(1e-3f, at(by_head, flat_head)))},
        y_{setup.output<float>(count, {.name = "y", .groups = by_head})},
        codes_{setup.output<std::int8_t>(count, {.name = "codes"})} {}

  Cost cost() const override { return {.host_bytes = 9.0 * count}; }
  double expected_output(int output, std::size_t i) const override {
    return output == 0 ? x_.host(i) : std::nearbyint(60 * x_.host(i));
  }

  void honest(Launch&) { all(1, 0, 0); }
  void flat_head_is_off(Launch&) { all(1.01f, 0, 0); }
  void few_codes_are_off(Launch&) { all(1, 200, 1); }
  void many_codes_are_off(Launch&) { all(1, 10, 1); }
  void codes_are_far_off(Launch&) { all(1, 100, 2); }
  void last_bit(Launch& launch) {
    honest(launch);
    y_[4321] = std::nextafterf(y_[4321], 10);
  }
  void again_with_last_bit(Launch& launch) { last_bit(launch); }

 private:
  // Every `every`-th code is off by `steps`.
  void all(float of_flat_head, std::size_t every, int steps) {
    for (std::size_t i = 0; i < count; ++i) {
      y_[i] = by_head.place(i) == flat_head ? of_flat_head * x_[i] : x_[i];
      codes_[i] =
          static_cast<std::int8_t>(std::nearbyint(60 * static_cast<double>(x_[i])) + (every != 0 && i % every == 0 ? steps : 0));
    }
  }
  Input<float> x_;
  Output<float> y_;
  Output<std::int8_t> codes_;
};

constexpr Tolerances limits = per_output({within(2e-3), within_steps(1, 0.01)});
constexpr Pair coded_heads_pair{
    .teaches = "test",
    .make = make<CodedHeads>,
    .baseline = {.name = "honest", .run = call<&CodedHeads::honest>},
    .optimized = variants({{.name = "same", .run = call<&CodedHeads::honest>, .same_bits_as = "honest"}}),
    .device = Device::host,
    .tolerance = limits};

// The checks that a variant beside the honest baseline fails, and what they say.
std::vector<std::string> said_of(const std::vector<const Variant*>& variants, bool with_reference = true,
                                 bool with_baseline = true) {
  pair::Session session{coded_heads_pair, {}};
  const auto outcomes =
      verify(session, variants, {.seed = 7, .compare_with_reference = with_reference, .compare_with_baseline = with_baseline});
  EXPECT_TRUE(outcomes[0].passed()) << outcomes[0].problems.front().message;
  std::vector<std::string> said;
  for (const evidence::Problem& problem : outcomes.back().problems) said.push_back(problem.check + ": " + problem.message);
  return said;
}
std::vector<std::string> said_of(const Variant& variant, bool with_reference = true, bool with_baseline = true) {
  return said_of({&coded_heads_pair.baseline, &variant}, with_reference, with_baseline);
}

TEST(Limits, HonestVariantsPass) {
  EXPECT_THAT(said_of(coded_heads_pair.optimized[0]), IsEmpty());
  EXPECT_THAT(said_of({.name = "few", .run = call<&CodedHeads::few_codes_are_off>}), IsEmpty());
}

TEST(Limits, AFlatHeadDoesNotHideAmongOthers) {
  const Variant off{.name = "off", .run = call<&CodedHeads::flat_head_is_off>};
  EXPECT_THAT(said_of(off, true, false), ElementsAre(HasSubstr("reference: y, group 5 of 16: relative L2 error 0.01")));
  EXPECT_THAT(said_of(off, false, true), ElementsAre(HasSubstr("baseline: y, group 5 of 16 differs")));
  EXPECT_LT(1e-3 * 0.01 / 4, limits.of(0).relative_l2) << "without groups its error is far below the limit";
}

TEST(Limits, EachOutputHasItsOwn) {
  // A step of a code is 1 %: more than the first output's limit allows.
  EXPECT_THAT(said_of({.name = "few", .run = call<&CodedHeads::few_codes_are_off>}), IsEmpty());
  EXPECT_THAT(
      said_of({.name = "few", .run = call<&CodedHeads::few_codes_are_off>, .tolerance = per_output({within(2e-3), exact})},
              false),
      ElementsAre(HasSubstr("elements of codes differ")));
  EXPECT_THAT(said_of({.name = "few", .run = call<&CodedHeads::few_codes_are_off>, .tolerance = exact}, false),
              ElementsAre(HasSubstr("elements of codes differ")));
}

TEST(Limits, CodesMayBeAStepAwayInAShareOfTheElements) {
  EXPECT_THAT(
      said_of({.name = "many", .run = call<&CodedHeads::many_codes_are_off>}, true, false),
      ElementsAre(testing::AllOf(HasSubstr("reference: "), HasSubstr("by up to 1 steps of their type (1 in 1 % may be)"))));
  EXPECT_THAT(said_of({.name = "many", .run = call<&CodedHeads::many_codes_are_off>}, false, true),
              ElementsAre(HasSubstr("baseline: 3277 of 32768 elements of codes differ")));
  EXPECT_THAT(said_of({.name = "far",
                       .run = call<&CodedHeads::codes_are_far_off>,
                       .tolerance = per_output({within(2e-3), within_steps(1, 1)})},
                      true, false),
              ElementsAre(HasSubstr("by up to 2 steps of their type (1 in 1e+02 % may be)")));
}

// Copies numbers to bf16, some variants with a factor.
class Rounded : public Workload {
 public:
  explicit Rounded(Setup& setup, const Pattern& pattern = uniform(-1, 1))
      : x_{setup.input<float>(count, pattern)}, y_{setup.output<__nv_bfloat16>(count, {.name = "y"})} {}
  Cost cost() const override { return {.host_bytes = 6.0 * count}; }
  double expected(std::size_t i) const override { return x_.host(i); }
  double expected_quantized(std::string_view, int, std::size_t i) const override { return 0.25 * x_.host(i); }
  void honest(Launch&) { all(1); }
  void too_large(Launch&) { all(1.0012f); }
  void a_quarter(Launch&) { all(0.25f); }

 private:
  void all(float factor) {
    for (std::size_t i = 0; i < count; ++i) y_[i] = __float2bfloat16_rn(factor * x_[i]);
  }
  Input<float> x_;
  Output<__nv_bfloat16> y_;
};
// Every number lies between one of bf16 and the middle to the next.
class RoundedDown final : public Rounded {
 public:
  explicit RoundedDown(Setup& setup) : Rounded{setup, uniform(1.001f, 1.002f)} {}
};

template <class W>
constexpr Pair rounded_pair{.teaches = "test",
                            .make = make<W>,
                            .baseline = {.name = "honest", .run = call<&W::honest>},
                            .optimized = variants({{.name = "same", .run = call<&W::honest>}}),
                            .device = Device::host};

template <class W>
std::vector<std::string> said_of_rounded(const Variant& variant) {
  pair::Session session{rounded_pair<W>, {}};
  const auto outcomes = verify(session, {&rounded_pair<W>.baseline, &variant}, {.seed = 7});
  std::vector<std::string> said;
  for (const Outcome& outcome : outcomes)
    for (const evidence::Problem& problem : outcome.problems) said.push_back(problem.check + ": " + problem.message);
  return said;
}

TEST(Limits, AnErrorOfOneSignDoesNotHideBelowRoundings) {
  EXPECT_THAT(said_of_rounded<Rounded>({.name = "same", .run = call<&Rounded::honest>}), IsEmpty());
  EXPECT_THAT(said_of_rounded<Rounded>({.name = "large", .run = call<&Rounded::too_large>}),
              ElementsAre(HasSubstr("reference: y is off by 0.0012 of its size in one direction")));
}

TEST(Limits, NumbersThatAreRoundedAlikeAreNoErrorOfOneSign) {
  EXPECT_THAT(said_of_rounded<RoundedDown>({.name = "same", .run = call<&RoundedDown::honest>}), IsEmpty());
}

TEST(Limits, QuantizingDoesNotExcuseEveryError) {
  EXPECT_THAT(said_of_rounded<Rounded>({.name = "quarter", .run = call<&Rounded::a_quarter>, .changes_precision = true}),
              testing::Contains(HasSubstr("reference: y is off by 0.75 (relative L2) from the reference that is not quantized")));
}

TEST(Limits, StepsAreOfTheOutputsType) {
  EXPECT_EQ(pair::steps_between(1, 1 + 1.0 / 128, ElementType::bf16), 1);
  EXPECT_EQ(pair::steps_between(-0.0, 0.0, ElementType::bf16), 0);
  EXPECT_EQ(pair::steps_between(448, 416, ElementType::e4m3), 1);
  EXPECT_EQ(pair::steps_between(0x1p-9, -0x1p-9, ElementType::e4m3), 2);
  EXPECT_EQ(pair::steps_between(-128, 127, ElementType::i8), 255);
  EXPECT_EQ(pair::steps_between(3, 500, ElementType::u8), 252) << "what is beyond the type saturates";
  EXPECT_TRUE(std::isinf(pair::steps_between(1, NAN, ElementType::f32)));
}

TEST(SameBits, OneBitIsFound) {
  const Variant bit{.name = "bit", .run = call<&CodedHeads::last_bit>};
  EXPECT_THAT(said_of(bit), IsEmpty()) << "the tolerance does not see it";
  Variant declared = bit;
  declared.same_bits_as = "honest";
  EXPECT_THAT(said_of(declared), ElementsAre(HasSubstr("same_bits: the bits of y are not those of honest")));
}

TEST(SameBits, OfAnotherVariantThanTheBaseline) {
  const Variant bit{.name = "bit", .run = call<&CodedHeads::last_bit>};
  const Variant again{.name = "again", .run = call<&CodedHeads::again_with_last_bit>, .same_bits_as = "bit"};
  const Variant honest{.name = "other", .run = call<&CodedHeads::honest>, .same_bits_as = "bit"};
  EXPECT_THAT(said_of({&coded_heads_pair.baseline, &bit, &again}), IsEmpty());
  EXPECT_THAT(said_of({&coded_heads_pair.baseline, &bit, &honest}),
              ElementsAre(HasSubstr("same_bits: the bits of y are not those of bit")));
}

TEST(SameBits, HoldInTimedSamplesToo) {
  const auto wrong = [](std::string_view same_bits_as) {
    const Variant bit{.name = "bit", .run = call<&CodedHeads::last_bit>, .same_bits_as = same_bits_as};
    Pair pair = coded_heads_pair;
    pair.optimized = variants({bit});
    pair::Session session{pair, {}};
    const std::vector<const Variant*> variants{&pair.baseline, &pair.optimized[0]};
    const std::vector<Outcome> outcomes(2);
    measure::Executor executor{session, {.start = Start::immediate, .cache = Cache::hot}};
    SampleWatch watch{session, variants, outcomes, 3};
    session.refill_variable(17);
    watch.inputs_drawn(17);
    for (std::size_t v = 0; v < 2; ++v) {
      measure::Capture capture = watch.plan(v);
      executor.execute(*variants[v], capture);
      measure::Sample sample;
      watch.inspect(v, capture, sample);
    }
    watch.resolve();
    return watch.of(1).wrong;
  };
  EXPECT_THAT(wrong(""), IsEmpty());
  EXPECT_THAT(wrong("honest"), ElementsAre(HasSubstr("the bits of y are not those of honest")));
}

}  // namespace
}  // namespace aisp::verify
