// SPDX-License-Identifier: Apache-2.0
// Outputs of few values, and outputs of which few values are rounded the other way.
#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <set>

#include "verify/verifier.hpp"

namespace aisp::verify {
namespace {

using testing::Gt;
using testing::HasSubstr;

constexpr std::uint64_t seeds = 24;

// One dot product: a sum that comes near zero in a few draws of a hundred.
class OneSum final : public Workload {
 public:
  static constexpr std::size_t size = 1024;
  explicit OneSum(Setup& setup) : x_{setup.input<float>(size, normal(0, 1))}, y_{setup.output<float>(1, {.name = "y"})} {}
  Cost cost() const override { return {.host_bytes = 4.0 * size}; }
  double expected(std::size_t) const override { return sum(); }
  // As rounding does, by a thousandth of what such a sum usually is.
  void rounded(Launch&) { y_[0] = static_cast<float>(sum() + 1e-3 * std::sqrt(size)); }
  void exact(Launch&) { y_[0] = static_cast<float>(sum()); }
  void restless(Launch&) {
    sign_ = -sign_;
    y_[0] = static_cast<float>(sum() + sign_ * 0.1 * std::sqrt(size));
  }
  void forgets_the_last(Launch&) { y_[0] = static_cast<float>(sum() + 0.3 * std::sqrt(size)); }

 private:
  double sum() const {
    double sum = 0;
    for (std::size_t i = 0; i < size; ++i) sum += static_cast<double>(x_.get()[i]);
    return sum;
  }
  double sign_ = 1;
  Input<float> x_;
  Output<float> y_;
};

constexpr Pair sum_pair{.teaches = "test",
                        .make = make<OneSum>,
                        .baseline = {.name = "exact", .run = call<&OneSum::exact>},
                        .optimized = variants({{.name = "rounded", .run = call<&OneSum::rounded>},
                                               {.name = "forgets_the_last", .run = call<&OneSum::forgets_the_last>},
                                               {.name = "restless", .run = call<&OneSum::restless>}}),
                        .device = Device::host,
                        .tolerance = within(1e-2)};
constexpr const Variant* rounded = sum_pair.optimized.begin();
constexpr const Variant* forgets = sum_pair.optimized.begin() + 1;

template <class Verify>
std::uint64_t failures_of(const Pair& pair, const Variant* variant, const Verify& verify) {
  std::uint64_t failures = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    pair::Session session{pair, {}};
    const std::vector<Outcome> outcomes =
        verify(session, std::vector<const Variant*>{&pair.baseline, variant}, Options{.seed = seed, .reference_threads = 1});
    EXPECT_TRUE(outcomes.front().passed());
    failures += !outcomes.back().passed();
  }
  return failures;
}
const auto once = [](pair::Session& session, const std::vector<const Variant*>& variants, const Options& options) {
  return verify(session, variants, options);
};

TEST(Edges, ASumNearZeroAccusesNobody) {
  EXPECT_THAT(failures_of(sum_pair, rounded, once), Gt(0)) << "then drawing again is not needed";
  EXPECT_EQ(failures_of(sum_pair, rounded, verify_edge), 0);
}

TEST(Edges, AWrongSumIsFoundInEveryDraw) { EXPECT_EQ(failures_of(sum_pair, forgets, verify_edge), seeds); }

TEST(Edges, TwoRunsOnTheSameInputsDoNotDifferByChance) {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    pair::Session session{sum_pair, {}};
    const std::vector<const Variant*> variants{&sum_pair.baseline, sum_pair.optimized.begin() + 2};
    const Outcome outcome = verify(session, variants, {.seed = seed, .reference_threads = 1}).back();
    EXPECT_FALSE(outcome.passed() || outcome.may_be_chance()) << seed;
  }
}

// Codes: one value in two hundred is rounded the other way and then off by an eighth of itself. What is looked at, and by whom
// the reference is asked, is remembered: a variant that knows it can be wrong elsewhere.
class Codes final : public Workload {
 public:
  static constexpr std::size_t size = 4104;
  static inline std::set<std::size_t> looked_at;
  explicit Codes(Setup& setup) : x_{setup.input<float>(size, uniform(1, 2))}, y_{setup.output<float>(size, {.name = "y"})} {}
  Cost cost() const override { return {.host_bytes = 8.0 * size}; }
  double expected(std::size_t i) const override {
    looked_at.insert(i);
    return static_cast<double>(x_.host(i));
  }
  double expected_quantized(std::string_view, int, std::size_t i) const override { return static_cast<double>(quantized(i)); }
  void baseline(Launch&) {
    for (std::size_t i = 0; i < size; ++i) y_[i] = x_[i];
  }
  void few_the_other_way(Launch&) {
    for (std::size_t i = 0; i < size; ++i) y_[i] = quantized(i);
  }
  void rough_where_nobody_looks(Launch&) {
    for (std::size_t i = 0; i < size; ++i) y_[i] = looked_at.contains(i) ? quantized(i) : 1.125f * x_[i];
  }

 private:
  float quantized(std::size_t i) const {
    const float x = x_.get()[i];
    return random_bits(std::bit_cast<std::uint32_t>(x), i) % 200 == 0 ? 1.125f * x : x;
  }
  Input<float> x_;
  Output<float> y_;
};

constexpr Pair codes_pair{
    .teaches = "test",
    .make = make<Codes>,
    .baseline = {.name = "baseline", .run = call<&Codes::baseline>},
    .optimized = variants(
        {{.name = "few_the_other_way", .run = call<&Codes::few_the_other_way>, .changes_precision = true},
         {.name = "rough_where_nobody_looks", .run = call<&Codes::rough_where_nobody_looks>, .changes_precision = true}}),
    .device = Device::host,
    .tolerance = within(1e-3),
    .reference_samples = 2048};

TEST(OfAll, FewElementsThatAreRoundedTheOtherWayMayBeMoreThanSamplesMet) {
  EXPECT_EQ(failures_of(codes_pair, codes_pair.optimized.begin(), once), 0);
}

TEST(OfAll, ElementsThatNobodyLooksAtAreComparedWithTheBaseline) {
  const std::vector<const Variant*> variants{&codes_pair.baseline, codes_pair.optimized.begin() + 1};
  Codes::looked_at.clear();
  std::vector<Outcome> outcomes;
  for (int run = 0; run < 2; ++run) {  // the same seed: the second time it knows the places
    pair::Session session{codes_pair, {}};
    outcomes = verify(session, variants, {.seed = 5, .reference_threads = 1});
  }
  ASSERT_EQ(outcomes.back().problems.size(), 1u);
  EXPECT_THAT(outcomes.back().problems.front().message, HasSubstr("where samples of both allow"));
}

}  // namespace
}  // namespace aisp::verify
