// SPDX-License-Identifier: Apache-2.0
#include "pair/faults.hpp"

#include <gmock/gmock.h>

#include <limits>
#include <string_view>
#include <vector>

#include "pair/all_variants.hpp"
#include "pair/registry.hpp"

namespace aisp::pair {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Nothing final : public Workload {
 public:
  explicit Nothing(Setup&) {}
  Cost cost() const override { return {}; }
  void run(Launch&) {}
};
constexpr Method nothing = call<&Nothing::run>;

constexpr Pair good{.teaches = "nothing at all",
                    .lesson = "vectorized",
                    .make = make<Nothing>,
                    .baseline = {"plain", nothing},
                    .optimized = variants({{"vectorized", nothing}, {"in_2_steps", nothing}}),
                    .tolerance = within(5e-2),
                    .sizes = sizes({{.name = "n", .full = 256, .multiple = 64}}),
                    .sweep = cases({{"small", "n=64"}, {"large", "n=1024"}})};

template <class Change>
std::vector<std::string> faults_with(Change change, std::string_view source = "chapters/ch07/thing.cu") {
  Pair pair = good;
  change(pair);
  return faults({"ch07", "thing", source, &pair});
}

TEST(Faults, NoneOfAGoodPair) {
  EXPECT_THAT(faults_with([](Pair&) {}), IsEmpty());
  EXPECT_THAT(faults_with([](Pair& p) { p.device = Device::host; }, "chapters/ch07/thing.cpp"), IsEmpty());
}

TEST(Faults, RanksAreOfThePairAndInOrder) {
  EXPECT_THAT(faults_with([](Pair& p) { p.needs.ranks = {2, 8}; }), IsEmpty());
  EXPECT_THAT(faults_with([](Pair& p) { p.needs.ranks = {3, 2}; }), ElementsAre(HasSubstr("3 to 2 ranks")));
  EXPECT_THAT(faults_with([](Pair& p) { p.needs.ranks = {0, 2}; }), ElementsAre(HasSubstr("0 to 2 ranks")));
  EXPECT_THAT(faults_with([](Pair& p) { p.needs.ranks = {2, 1 << 20}; }), ElementsAre(HasSubstr("ranks")));
  EXPECT_THAT(faults_with([](Pair& p) { p.needs = {.gpus = 2, .ranks = {2, 2}}; }), ElementsAre(HasSubstr("a rank has one")));
  EXPECT_THAT(faults_with([](Pair& p) { p.baseline.needs.ranks = {2, 2}; }), ElementsAre(HasSubstr("only a pair has them")));
}

// One pair of the fixtures has every fault that can be seen from outside; tests/end_to_end/runs/test_faults.py looks at it.
TEST(Faults, NoneOfAnyPairThatIsBuilt) {
  for (const Entry& entry : registry()) {
    if (entry.name == "declared_wrongly") continue;
    EXPECT_THAT(faults(entry), IsEmpty()) << entry.source;
  }
  for (const SelftestEntry& each : selftest_registry()) EXPECT_THAT(faults(each.entry), IsEmpty()) << each.entry.source;
}

TEST(Faults, NamesOfThePairItself) {
  const Pair pair = good;
  const std::string longest(128, 'a'), longer(129, 'a');
  for (const std::string& bad : std::vector<std::string>{"", "A", "a b", "a:b", "<script>", "../../x", "1a", longer}) {
    EXPECT_THAT(faults({"ch07", bad, "chapters/ch07/thing.cu", &pair}), ElementsAre(HasSubstr("its name is '"))) << bad;
    EXPECT_THAT(faults({bad, "thing", "chapters/ch07/thing.cu", &pair}), ElementsAre(HasSubstr("its group is '"))) << bad;
  }
  EXPECT_THAT(faults({"ch07", longest, "chapters/ch07/thing.cu", &pair}), IsEmpty());
}

TEST(Faults, Names) {
  EXPECT_THAT(faults_with([](Pair& p) { p.baseline.name = "vectorized"; }),
              ElementsAre(HasSubstr("two of its variants are called 'vectorized'")));
  EXPECT_THAT(faults_with([](Pair& p) {
                p.libraries = variants({{"plain", nothing}});
              }),
              ElementsAre(HasSubstr("two of its variants are called 'plain'")));
  for (const char* bad : {"", "Threads V2", "2d", "_x", "a-b"})
    EXPECT_THAT(faults_with([&](Pair& p) { p.baseline.name = bad; }), ElementsAre(HasSubstr("'" + std::string{bad} + "'")));
}

TEST(Faults, Sentence) {
  EXPECT_THAT(faults_with([](Pair& p) { p.teaches = ""; }), ElementsAre(HasSubstr(".teaches is empty")));
  EXPECT_THAT(faults_with([](Pair& p) { p.teaches = "a lesson."; }), ElementsAre(HasSubstr("full stop")));
}

TEST(Faults, Lesson) {
  EXPECT_THAT(faults_with([](Pair& p) { p.lesson = ""; }), ElementsAre(HasSubstr(".lesson is empty; it names the one of the 2")));
  EXPECT_THAT(faults_with([](Pair& p) { p.lesson = "plain"; }), ElementsAre(HasSubstr(".lesson is 'plain', which is none of")));
  EXPECT_THAT(faults_with([](Pair& p) {
                p.optimized = variants({{"vectorized", nothing}});
                p.lesson = "";
              }),
              IsEmpty());
}

TEST(Faults, NotRun) {
  EXPECT_THAT(faults_with([](Pair& p) { p.optimized.items_[p.lesson == p.optimized[0].name ? 1 : 0].not_run = true; }),
              IsEmpty());
  EXPECT_THAT(faults_with([](Pair& p) { p.optimized.items_[p.lesson == p.optimized[0].name ? 0 : 1].not_run = true; }),
              ElementsAre(HasSubstr("is .not_run; that is for optimized variants other than the lesson")));
  EXPECT_THAT(faults_with([](Pair& p) { p.baseline.not_run = true; }), ElementsAre(HasSubstr("'plain' is .not_run")));
}

TEST(Faults, GainsOverWhatIsNoStepBefore) {
  const auto with = [](std::size_t step, std::string_view over) {
    return faults_with([&](Pair& p) { p.optimized.items_[step].gains_over = over; });
  };
  EXPECT_THAT(with(1, "plain"), IsEmpty());
  EXPECT_THAT(with(1, "vectorized"), IsEmpty());
  for (const auto& [step, over] : {std::pair{0, "vectorized"}, {0, "in_2_steps"}, {1, "in_2_steps"}, {1, "gone"}})
    EXPECT_THAT(with(static_cast<std::size_t>(step), over), ElementsAre(HasSubstr("neither the baseline nor a step before it")));
  EXPECT_THAT(faults_with([](Pair& p) { p.libraries = variants({{.name = "library", .run = nothing, .gains_over = "plain"}}); }),
              ElementsAre(HasSubstr("'library' has .gains_over, but is no step")));
}

TEST(Faults, OnlyAControlMayComputeNothing) {
  const Variant nothing_valid{.name = "half", .run = nothing, .outputs = no_outputs};
  EXPECT_THAT(faults_with([&](Pair& p) { p.controls = variants({nothing_valid}); }), IsEmpty());
  EXPECT_THAT(faults_with([&](Pair& p) { p.libraries = variants({nothing_valid}); }),
              ElementsAre(HasSubstr("'half' writes none of the outputs; only a control may")));
}

TEST(Faults, WhatIsMissing) {
  EXPECT_THAT(faults_with([](Pair& p) { p.make = nullptr; }), ElementsAre(HasSubstr(".make is missing")));
  EXPECT_THAT(faults_with([](Pair& p) { p.baseline.run = nullptr; }), ElementsAre(HasSubstr("'plain' has no .run")));
  EXPECT_THAT(faults_with([](Pair& p) { p.optimized.items_[1].run = nullptr; }),
              ElementsAre(HasSubstr("'in_2_steps' has no .run")));
  EXPECT_THAT(faults_with([](Pair& p) { p.optimized.items_[1].outputs = 0; }),
              ElementsAre(HasSubstr("'in_2_steps' writes none")));
  EXPECT_THAT(faults_with([](Pair& p) { p.reference_samples = 0; }), ElementsAre(HasSubstr("nothing would be compared")));
}

TEST(Faults, CasesThatTheSizesCannotTake) {
  const auto with_case = [](const char* text) { return faults_with([&](Pair& p) { p.sweep.items_[1].sizes = text; }); };
  EXPECT_THAT(with_case("m=64"), ElementsAre(HasSubstr("case 'large' of its sweep: there is no size 'm'; its sizes are n")));
  EXPECT_THAT(with_case("n=65"), ElementsAre(HasSubstr("n 65 is not a multiple of 64; 64 is the nearest")));
  EXPECT_THAT(with_case("n=0"), ElementsAre(HasSubstr("not from 64")));
  EXPECT_THAT(with_case("n:64"), ElementsAre(HasSubstr("'n:64' must be NAME=N")));
  EXPECT_THAT(faults_with([](Pair& p) { p.sweep.items_[1].name = "small"; }), ElementsAre(HasSubstr("are called 'small'")));
}

TEST(Faults, EdgesThatTheSizesCannotTake) {
  const auto with_edges = [](const Cases& edges) { return faults_with([&](Pair& p) { p.edges = edges; }); };
  EXPECT_THAT(with_edges(cases({{"one", "n=64"}, {"two", "n=128"}})), IsEmpty());
  EXPECT_THAT(with_edges(cases({{"empty", "n=0"}})), ElementsAre(HasSubstr("edge 'empty' of its edges: n 0 is not from 64")));
  EXPECT_THAT(with_edges(cases({{"one", "n=64"}, {"one", "n=128"}})),
              ElementsAre(HasSubstr("two of its edges are called 'one'")));
  EXPECT_THAT(faults_with([](Pair& p) {
                p.sizes = sizes({{.name = "n", .full = 256, .multiple = 64, .least = 0}});
                p.edges = cases({{"empty", "n=0"}});
              }),
              IsEmpty());
}

TEST(Faults, SameBitsAsWhatIsNotThere) {
  const auto with = [](std::size_t step, std::string_view as) {
    return faults_with([&](Pair& p) { p.optimized.items_[step].same_bits_as = as; });
  };
  EXPECT_THAT(with(1, "plain"), IsEmpty());
  EXPECT_THAT(with(1, "vectorized"), IsEmpty());
  for (const auto& [step, as] : {std::pair{0, "vectorized"}, {0, "in_2_steps"}, {1, "gone"}})
    EXPECT_THAT(with(static_cast<std::size_t>(step), as), ElementsAre(HasSubstr("which is no variant declared before it")));
  EXPECT_THAT(faults_with([](Pair& p) {
                p.optimized.items_[0].deterministic = false;
                p.optimized.items_[1].same_bits_as = "vectorized";
              }),
              ElementsAre(HasSubstr("other bits in every run")));
  EXPECT_THAT(faults_with([](Pair& p) {
                p.controls = variants({{.name = "half", .run = nothing, .same_bits_as = "plain", .outputs = no_outputs}});
              }),
              ElementsAre(HasSubstr("one of them writes no outputs")));
}

TEST(Faults, TheFastestOfWhatIsNotThere) {
  const auto with = [](std::string_view member) {
    return faults_with([&](Pair& p) { p.optimized.items_[0].best_of[2] = member; });
  };
  EXPECT_THAT(with("plain"), IsEmpty());
  for (const std::string_view member : {"vectorized", "gone"})
    EXPECT_THAT(with(member), ElementsAre(HasSubstr("in its .best_of, which is no other variant")));
}

TEST(SetOfABest, IsWhatItNamesAndWhatItTunes) {
  Pair pair{.teaches = "", .make = nullptr, .baseline = {"plain"}, .optimized = variants({{"step"}, {"chosen"}})};
  pair.libraries = variants({{"library"}, {"library_tuned"}});
  const auto names = [&](const Variant& best) {
    std::vector<std::string_view> found;
    for (const Variant* member : members_of_set(pair, best)) found.push_back(member->name);
    return found;
  };
  EXPECT_THAT(names(pair.optimized[1]), IsEmpty());
  EXPECT_THAT(names(pair.libraries[1]), ElementsAre("library"));
  pair.optimized.items_[1].best_of[0] = "step";
  pair.optimized.items_[1].best_of[1] = "plain";
  EXPECT_THAT(names(pair.optimized[1]), ElementsAre("plain", "step"));
  pair.libraries.items_[1].best_of[0] = "step";
  EXPECT_THAT(names(pair.libraries[1]), ElementsAre("step", "library"));
}

TEST(Faults, LimitsOfKernels) {
  const auto with = [](KernelLimits limits) { return faults_with([&](Pair& p) { p.baseline.kernels = limits; }); };
  EXPECT_THAT(with({.registers = 64, .local_bytes = 0}), IsEmpty());
  EXPECT_THAT(with({.registers = -1}), ElementsAre(HasSubstr(".kernels of 'plain'")));
  EXPECT_THAT(with({.local_bytes = 0, .local_at_least = 1}), ElementsAre(HasSubstr("more local memory than it allows")));
}

TEST(Faults, DeviceAndExtension) {
  EXPECT_THAT(faults_with([](Pair&) {}, "chapters/ch07/thing.cpp"), ElementsAre(HasSubstr(".device = Device::host")));
  EXPECT_THAT(faults_with([](Pair& p) { p.device = Device::host; }), ElementsAre(HasSubstr("a .cu file")));
}

TEST(Faults, LimitsThatLimitNothing) {
  const auto limited = [](Tolerance tolerance) { return faults_with([&](Pair& p) { p.tolerance = tolerance; }); };
  EXPECT_THAT(limited(within(0.5)), ElementsAre(HasSubstr("relative L2 to 0.5"), HasSubstr("single elements to 2.5")));
  EXPECT_THAT(limited(within(1e-3, 1e9)), ElementsAre(HasSubstr("single elements to 1e+09")));
  EXPECT_THAT(limited(within(0)), ElementsAre(HasSubstr("use `exact`"), HasSubstr("use `exact`")));
  EXPECT_THAT(limited(within(std::numeric_limits<double>::quiet_NaN(), 1e-3)), ElementsAre(HasSubstr("relative L2 to nan")));
  EXPECT_THAT(limited(within_steps(1, 0.01)), IsEmpty());
  EXPECT_THAT(limited(within_steps(0, 0.01)), ElementsAre(HasSubstr("allows 0 steps")));
  EXPECT_THAT(limited(within_steps(5, 0.01)), ElementsAre(HasSubstr("allows 5 steps")));
  EXPECT_THAT(limited(within_steps(1, 0)), ElementsAre(HasSubstr("a share of 0 of the elements")));
  EXPECT_THAT(faults_with([](Pair& p) {
                p.tolerance = per_output({exact, within(0.5)});
              }),
              ElementsAre(HasSubstr("relative L2 to 0.5"), HasSubstr("single elements")));
  EXPECT_THAT(limited(reduction_of(0)), ElementsAre(HasSubstr("a sum of 0 terms")));
  EXPECT_THAT(faults_with([](Pair& p) { p.optimized.items_[0].tolerance = within(0.06, 0.1); }),
              ElementsAre(HasSubstr(".tolerance of 'vectorized'")));
}

TEST(Faults, AmountsThatCannotBe) {
  EXPECT_THAT(faults_with([](Pair& p) { p.overrides.warmup_seconds = -1; }), ElementsAre(HasSubstr("a limit of -1 s")));
  EXPECT_THAT(faults_with([](Pair& p) { p.overrides.measurement_seconds = std::numeric_limits<double>::quiet_NaN(); }),
              ElementsAre(HasSubstr("a limit of nan s")));
  EXPECT_THAT(faults_with([](Pair& p) { p.overrides.iterations = -1; }), ElementsAre(HasSubstr("negative number of rounds")));
  EXPECT_THAT(faults_with([](Pair& p) { p.needs.gpus = 0; }), ElementsAre(HasSubstr(".needs asks for")));
  EXPECT_THAT(faults_with([](Pair& p) { p.optimized.items_[0].needs.cpus = -2; }),
              ElementsAre(HasSubstr(".needs of 'vectorized'")));
}

}  // namespace
}  // namespace aisp::pair
