// SPDX-License-Identifier: Apache-2.0
#include "verify/verifier.hpp"
#include <cuda_fp16.h>

#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <limits>

namespace aisp::verify {
namespace {

// y = 2 x on the host, in honest and dishonest ways.
class CheckedDoubling final : public Workload {
 public:
  static constexpr std::size_t count = 10000;
  explicit CheckedDoubling(Setup& setup)
      : x_{setup.input<float>(count, uniform(-1, 1))},
        weights_{setup.input<float>(count, uniform(-1, 1), {.name = "weights", .constant = true})},
        y_{setup.output<float>(count, {.name = "y"})},
        packed_{setup.scratch<float>(count)} {}

  Cost cost() const override { return {.host_bytes = 8.0 * count}; }
  double expected(std::size_t i) const override {
    ++references_computed;
    return 2 * x_.host(i);
  }
  static inline std::atomic<std::size_t> references_computed;

  void honest(Launch&) {
    all([&](std::size_t i) { return 2 * x_[i]; });
  }
  void added(Launch&) {
    all([&](std::size_t i) { return x_[i] + x_[i]; });
  }
  void skips(Launch&) {
    for (std::size_t i = 0; i < count; ++i)
      if (i != 4321) y_[i] = 2 * x_[i];
  }
  void zeros(Launch&) {
    all([](std::size_t) { return 0.0f; });
  }
  void makes_nan(Launch&) {
    all([&](std::size_t i) { return i == 77 ? NAN : 2 * x_[i]; });
  }
  void one_wrong(Launch&) {
    all([&](std::size_t i) { return i == 7777 ? -y_old(i) : 2 * x_[i]; });
  }
  void rough(Launch&) {
    all([&](std::size_t i) { return static_cast<float>(static_cast<__half>(2 * x_[i])); });
  }
  void copies_input(Launch&) {
    all([&](std::size_t i) { return x_[i]; });
  }
  void spoils_input(Launch& launch) {
    honest(launch);
    const_cast<float*>(x_.get())[5] += 1;
  }
  void overruns(Launch& launch) {
    honest(launch);
    y_[count] = 1;
  }
  void nothing(Launch&) {}
  void precompute(Launch& launch) {
    honest(launch);
    for (std::size_t i = 0; i < count; ++i) packed_[i] = y_[i];
  }
  void replay(Launch&) {
    all([&](std::size_t i) { return packed_[i]; });
  }
  void remembers(Launch& launch) {
    if (kept_.empty()) {
      honest(launch);
      kept_.assign(y_.get(), y_.get() + count);
    }
    all([&](std::size_t i) { return kept_[i]; });
  }
  void leaks(Launch& launch) {
    honest(launch);
    leak(1 << 20);
  }
  void leaks_copy_of_output(Launch& launch) {
    honest(launch);
    leak(y_.bytes());
  }
  // As caches of the C library's threads do, which take up what other threads free until they are full.
  void fills_caches(Launch& launch) {
    honest(launch);
    if (++runs_ <= 12) leak(30 << 10);
  }
  void leaks_little(Launch& launch) {
    honest(launch);
    leak(30 << 10);
  }
  void varies(Launch&) {
    ++runs_;
    all([&](std::size_t i) { return std::nextafterf(2 * x_[i], runs_ % 2 == 0 ? 10.0f : 2 * x_[i]); });
  }
  void throws(Launch&) { throw std::runtime_error{"out of luck"}; }
  void unsupported(Launch&) { throw Unsupported{"this kernel has no such call"}; }

 private:
  template <class F>
  void all(F value) {
    for (std::size_t i = 0; i < count; ++i) y_[i] = value(i);
  }
  // Never freed, and not lost either: the leak sanitizer is not asked about this one.
  static void leak(std::size_t bytes) {
    static auto* const kept = new std::vector<void*>;
    kept->push_back(std::malloc(bytes));
    static_cast<volatile char*>(kept->back())[0] = 1;
  }
  float y_old(std::size_t i) const { return 2 * x_[i]; }

  Input<float> x_, weights_;
  Output<float> y_;
  Scratch<float> packed_;
  std::vector<float> kept_;
  int runs_ = 0;
};

constexpr Pair honest_pair{.teaches = "test",
                           .make = make<CheckedDoubling>,
                           .baseline = {.name = "honest", .run = call<&CheckedDoubling::honest>},
                           .optimized = variants({{.name = "added", .run = call<&CheckedDoubling::added>}}),
                           .device = Device::host};

// Verifies `variant` beside an honest baseline over two seeds and returns the names of the checks that failed.
std::vector<std::string> failed_checks(const Variant& variant, bool reproducible = false) {
  pair::Session session{honest_pair, {}};
  const std::vector<const Variant*> variants{&honest_pair.baseline, &variant};
  const auto first = verify(session, variants, {.seed = 1, .require_repeatable = reproducible});
  const auto second = verify(session, variants, {.seed = 2, .require_repeatable = reproducible}, &first);
  EXPECT_TRUE(first[0].passed() && second[0].passed()) << "the honest baseline failed";
  std::vector<std::string> checks;
  for (const auto* outcomes : {&first, &second})
    for (const auto& problem : (*outcomes)[1].problems) checks.push_back(problem.check);
  return checks;
}

testing::AssertionResult caught_by(const std::string& check, const Variant& variant, bool reproducible = false) {
  const auto checks = failed_checks(variant, reproducible);
  if (std::find(checks.begin(), checks.end(), check) != checks.end()) return testing::AssertionSuccess();
  auto failure = testing::AssertionFailure() << "not caught by " << check << "; caught by:";
  for (const auto& other : checks) failure << ' ' << other;
  return failure;
}

TEST(Verify, HonestVariantsPass) {
  EXPECT_TRUE(failed_checks(honest_pair.optimized[0]).empty());
  EXPECT_TRUE(failed_checks(honest_pair.baseline, true).empty());
}

TEST(Verify, RecordsAccuracyAndDigests) {
  pair::Session session{honest_pair, {}};
  const auto outcomes = verify(session, {&honest_pair.baseline, &honest_pair.optimized[0]}, {});
  EXPECT_EQ(outcomes[1].accuracy.samples, honest_pair.reference_samples);
  EXPECT_EQ(outcomes[1].accuracy.relative_l2, 0);
  EXPECT_GT(outcomes[1].accuracy.limit_relative_l2, 0);
  EXPECT_TRUE(outcomes[1].accuracy.bitwise_repeatable);
  EXPECT_EQ(outcomes[0].digests, outcomes[1].digests);
}

TEST(Verify, ReferencesAreComputedOnceForAllVariants) {
  pair::Session session{honest_pair, {}};
  CheckedDoubling::references_computed = 0;
  verify(session, {&honest_pair.baseline, &honest_pair.optimized[0], &honest_pair.baseline}, {.seed = 1});
  EXPECT_EQ(CheckedDoubling::references_computed, honest_pair.reference_samples);
}

TEST(Verify, SkippedElementsAreCaught) {
  EXPECT_TRUE(caught_by("written", {.name = "skips", .run = call<&CheckedDoubling::skips>}));
}
TEST(Verify, NoWorkAtAllIsCaught) {
  EXPECT_TRUE(caught_by("written", {.name = "nothing", .run = call<&CheckedDoubling::nothing>}));
}
TEST(Verify, ZerosAreCaught) { EXPECT_TRUE(caught_by("reference", {.name = "zeros", .run = call<&CheckedDoubling::zeros>})); }
// The reference has the NaN too: of a masked row, as users have them.
class NotFiniteDoubling final : public Workload {
 public:
  static constexpr std::size_t count = 1000;
  explicit NotFiniteDoubling(Setup& setup)
      : x_{setup.input<float>(count, uniform(-1, 1))}, y_{setup.output<float>(count, {.name = "y"})} {}
  Cost cost() const override { return {.host_bytes = 8.0 * count}; }
  double expected(std::size_t i) const override { return i == 300 ? NAN : 2 * x_.host(i); }
  void with_nan(Launch&) {
    for (std::size_t i = 0; i < count; ++i) y_[i] = i == 300 || i == 301 ? NAN : 2 * x_[i];
  }
  void alone(Launch&) {
    for (std::size_t i = 0; i < count; ++i) y_[i] = i == 7 ? INFINITY : 2 * x_[i];
  }

 private:
  Input<float> x_;
  Output<float> y_;
};

class SameInputs final : public Workload {
 public:
  static constexpr std::size_t count = 1000;
  explicit SameInputs(Setup& setup)
      : x_{setup.input<float>(count,
                              HostFill<float>{[](std::span<float> values, std::uint64_t) { std::ranges::fill(values, 3.0f); }})},
        y_{setup.output<float>(count, {.name = "y"})} {}
  Cost cost() const override { return {.host_bytes = 8.0 * count}; }
  double expected(std::size_t i) const override { return 2 * x_.host(i); }
  void doubled(Launch&) {
    for (std::size_t i = 0; i < count; ++i) y_[i] = 2 * x_[i];
  }

 private:
  Input<float> x_;
  Output<float> y_;
};

TEST(Verify, InputsThatIgnoreTheirSeedAreNotBlamedOnTheVariant) {
  static constexpr Pair pair{.teaches = "test",
                             .make = make<SameInputs>,
                             .baseline = {.name = "doubled", .run = call<&SameInputs::doubled>},
                             .optimized = variants({{.name = "again", .run = call<&SameInputs::doubled>}}),
                             .device = Device::host};
  pair::Session session{pair, {}};
  const auto first = verify(session, {&pair.baseline}, {.seed = 1});
  const auto second = verify(session, {&pair.baseline}, {.seed = 2}, &first);
  ASSERT_EQ(second[0].problems.size(), 1u);
  EXPECT_EQ(second[0].problems[0].message, "two seeds gave the same inputs, so the outputs did not change either");
  EXPECT_EQ(second[0].problems[0].advice, "draw the inputs from the seed");
}

TEST(Verify, NanIsReportedWithItsPlaceAndTheReference) {
  static constexpr Pair pair{.teaches = "test",
                             .make = make<NotFiniteDoubling>,
                             .baseline = {.name = "with_nan", .run = call<&NotFiniteDoubling::with_nan>},
                             .optimized = variants({{.name = "alone", .run = call<&NotFiniteDoubling::alone>}}),
                             .device = Device::host};
  pair::Session session{pair, {}};
  const auto outcomes = verify(session, {&pair.baseline, &pair.optimized[0]}, {});
  ASSERT_EQ(outcomes[0].problems.size(), 1u) << "both runs gave the same bits, so the second run has no problem of its own";
  EXPECT_EQ(
      outcomes[0].problems[0].message,
      "2 of 1000 elements of y are NaN or infinite, the first of them is element 300: NaN, and the reference is NaN there too");
  EXPECT_THAT(outcomes[0].problems[0].advice, testing::HasSubstr("must be finite"));
  ASSERT_EQ(outcomes[1].problems.size(), 1u);
  EXPECT_THAT(outcomes[1].problems[0].message, testing::MatchesRegex("1 of 1000 .* element 7: inf, expected -?[01][.0-9e-]*"));
  EXPECT_EQ(outcomes[1].problems[0].advice, "");
}

TEST(Verify, NanIsCaught) { EXPECT_TRUE(caught_by("finite", {.name = "nan", .run = call<&CheckedDoubling::makes_nan>})); }
TEST(Verify, OneWrongElementIsCaught) {
  EXPECT_TRUE(caught_by("baseline", {.name = "one", .run = call<&CheckedDoubling::one_wrong>}));
}
TEST(Verify, LowerPrecisionIsCaught) {
  EXPECT_TRUE(caught_by("reference", {.name = "rough", .run = call<&CheckedDoubling::rough>}));
}
TEST(Verify, CopiedInputIsCaught) {
  EXPECT_TRUE(caught_by("reference", {.name = "copy", .run = call<&CheckedDoubling::copies_input>}));
}
TEST(Verify, ModifiedInputIsCaught) {
  EXPECT_TRUE(caught_by("inputs_unchanged", {.name = "spoil", .run = call<&CheckedDoubling::spoils_input>}));
}
TEST(Verify, WriteBehindTheBufferIsCaught) {
  EXPECT_TRUE(caught_by("red_zones", {.name = "over", .run = call<&CheckedDoubling::overruns>}));
}
TEST(Verify, WorkMovedToPrepareIsCaught) {
  EXPECT_TRUE(caught_by(
      "reference", {.name = "replay", .run = call<&CheckedDoubling::replay>, .prepare = call<&CheckedDoubling::precompute>}));
}
TEST(Verify, RememberedOutputIsCaught) {
  EXPECT_TRUE(caught_by("depends_on_inputs", {.name = "remembers", .run = call<&CheckedDoubling::remembers>}));
}
// A library that could not be prepared the first time was left out of the second.
TEST(Verify, RememberedOutputIsCaughtBesideOneThatWasLeftOut) {
  const Variant remembers{.name = "remembers", .run = call<&CheckedDoubling::remembers>};
  pair::Session session{honest_pair, {}};
  const auto first = verify(session, {&honest_pair.baseline, &honest_pair.optimized[0], &remembers}, {.seed = 1});
  const auto second = verify(session, {&honest_pair.baseline, &remembers}, {.seed = 2}, &first);
  EXPECT_TRUE(std::ranges::any_of(second[1].problems, [](const auto& problem) { return problem.check == "depends_on_inputs"; }));
}
TEST(Verify, LeakIsCaught) { EXPECT_TRUE(caught_by("memory", {.name = "leaks", .run = call<&CheckedDoubling::leaks>})); }
TEST(Verify, ASmallLeakIsCaught) {
  EXPECT_TRUE(caught_by("memory", {.name = "little", .run = call<&CheckedDoubling::leaks_little>}));
}
TEST(Verify, CachesThatFillUpAreNoLeak) {
  EXPECT_TRUE(failed_checks({.name = "caches", .run = call<&CheckedDoubling::fills_caches>}).empty());
}
TEST(Verify, ALeakIsNamedByTheBufferOfItsSize) {
  const auto message_of = [](const Variant& variant) {
    pair::Session session{honest_pair, {}};
    const auto outcomes = verify(session, {&honest_pair.baseline, &variant}, {});
    for (const auto& problem : outcomes[1].problems)
      if (problem.check == "memory") return problem.message;
    return std::string{"not caught"};
  };
  EXPECT_THAT(message_of({.name = "copies", .run = call<&CheckedDoubling::leaks_copy_of_output>}),
              testing::AllOf(testing::HasSubstr("each run leaves"), testing::HasSubstr("as much as input 0 or weights or y ")));
  EXPECT_THAT(message_of({.name = "leaks", .run = call<&CheckedDoubling::leaks>}),
              testing::Not(testing::HasSubstr("as much as")));
}
TEST(Verify, ExceptionIsReported) { EXPECT_TRUE(caught_by("run", {.name = "throws", .run = call<&CheckedDoubling::throws>})); }
TEST(Verify, DifferentBitsFailOnlyWhenReproducible) {
  const Variant varies{.name = "varies", .run = call<&CheckedDoubling::varies>};
  EXPECT_TRUE(failed_checks(varies).empty());
  EXPECT_TRUE(caught_by("reproducible", varies, true));
}
TEST(Verify, DeclaredNondeterminismFailsWhenReproducible) {
  EXPECT_TRUE(
      caught_by("reproducible", {.name = "honest2", .run = call<&CheckedDoubling::honest>, .deterministic = false}, true));
}
TEST(Verify, UnsupportedSkipsTheVariant) {
  pair::Session session{honest_pair, {}};
  const Variant variant{.name = "unsupported", .run = call<&CheckedDoubling::unsupported>};
  const auto outcomes = verify(session, {&honest_pair.baseline, &variant}, {});
  EXPECT_EQ(outcomes[1].unsupported, "this kernel has no such call");
  EXPECT_TRUE(outcomes[1].problems.empty());
}

}  // namespace
}  // namespace aisp::verify
