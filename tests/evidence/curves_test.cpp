// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "evidence/recorded/recorded.hpp"

namespace aisp::evidence {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;

using SizeMap = std::map<std::string, std::uint64_t>;

std::vector<Curve> curves(const std::vector<SizeMap>& sizes) {
  std::vector<SweptPoint> points;
  for (std::size_t i = 0; i < sizes.size(); ++i) points.push_back({"case_" + std::to_string(i), sizes[i], {}});
  return curves_of(points);
}

TEST(Curves, PointsThatDifferInOneSizeAreOneInItsOrder) {
  const auto found = curves({{{"m", 4096}, {"n", 7}}, {{"m", 1024}, {"n", 7}}, {{"m", 2048}, {"n", 7}}});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].size, "m");
  EXPECT_THAT(found[0].points, ElementsAre(1, 2, 0));
  EXPECT_TRUE(found[0].geometric);
  EXPECT_THAT(found[0].fixed, IsEmpty());
  EXPECT_THAT(found[0].along, IsEmpty());
}

TEST(Curves, TwoSizesMakeAFamilyOverTheOneWithMoreValues) {
  std::vector<SizeMap> grid;
  for (const std::uint64_t a : {32, 36, 40, 44})
    for (const std::uint64_t z : {1, 2}) grid.push_back({{"a", a}, {"z", z}});
  const auto found = curves(grid);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].size, "a");
  EXPECT_FALSE(found[0].geometric) << "steps of 4";
  EXPECT_EQ(found[0].fixed, (SizeMap{{"z", 1}}));
  EXPECT_EQ(found[1].fixed, (SizeMap{{"z", 2}}));
  EXPECT_THAT(found[1].points, ElementsAre(1, 3, 5, 7));
}

TEST(Curves, APointThatDiffersInMoreIsOnNone) {
  const auto found = curves({{{"m", 1}, {"n", 8}}, {{"m", 2}, {"n", 8}}, {{"m", 4}, {"n", 8}}, {{"m", 8}, {"n", 9}}});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0].points, ElementsAre(0, 1, 2)) << "no line leads to a point that has another n";
}

TEST(Curves, ShapesThatHaveNothingInCommonAreNone) {
  // Squares and projections: two of them happen to differ in n alone.
  EXPECT_THAT(curves({{{"m", 4096}, {"n", 4096}, {"k", 4096}},
                      {{"m", 8192}, {"n", 8192}, {"k", 8192}},
                      {{"m", 4096}, {"n", 14336}, {"k", 4096}},
                      {{"m", 4096}, {"n", 8192}, {"k", 28672}}}),
              IsEmpty());
  EXPECT_THAT(curves({{{"rows", 64}, {"columns", 128}}, {{"rows", 4096}, {"columns", 64}}, {{"rows", 512}, {"columns", 256}}}),
              IsEmpty());
  EXPECT_THAT(curves({}), IsEmpty());
  EXPECT_THAT(curves({{{"m", 1}}}), IsEmpty());
  EXPECT_THAT(curves({{{"m", 1}}, {{"m", 1}}}), IsEmpty());
}

TEST(Curves, SizesThatChangeTogetherAreACurveOverTheOneThatRises) {
  const auto found =
      curves({{{"batch", 16}, {"tokens", 1024}}, {{"batch", 8}, {"tokens", 2048}}, {{"batch", 4}, {"tokens", 4096}}});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].size, "tokens");
  EXPECT_THAT(found[0].along, ElementsAre("batch"));
  EXPECT_THAT(found[0].points, ElementsAre(0, 1, 2));
}

TEST(Curves, TheSamePointTwiceIsOnItOnce) {
  const auto found = curves({{{"m", 1}}, {{"m", 2}}, {{"m", 2}}, {{"m", 3}}});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0].points, ElementsAre(0, 1, 3));
  EXPECT_FALSE(found[0].geometric);
}

TEST(Curves, ZeroIsOnNoLogarithmicAxis) {
  const auto found = curves({{{"m", 0}}, {{"m", 1}}, {{"m", 10}}, {{"m", 100}}});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_FALSE(found[0].geometric);
}

PairResult result(const char* name, std::uint64_t m) {
  PairResult pair;
  pair.target = "ch10:gemm";
  pair.chapter = "ch10";
  pair.name = "gemm";
  pair.lesson = "tiled";
  pair.bound = Bound::compute;
  pair.device = Device::host;
  pair.sweep_case = name;
  pair.sizes = {{"m", m}};
  pair.sizes_set = true;
  for (const char* variant : {"plain", "tiled"}) {
    VariantResult& each = pair.variants.emplace_back();
    each.name = variant;
    each.role = pair.variants.size() == 1 ? VariantRole::baseline : VariantRole::optimized;
    each.timing.emplace().summary.median = 1.0 / static_cast<double>(pair.variants.size());
    each.cost = {.flops = 1e9, .bytes = 1e6, .math = "fp32", .bytes_of = ByteKind::host_memory};
    each.floor = Floor{.milliseconds = 0.25, .limiter = "memory"};
  }
  pair.variants[1].speedup = Speedup{2, 1.9, 2.1, Verdict::faster};
  return pair;
}

TEST(Sweeps, AreOneAPairAndHoldWhatPassed) {
  PairResult failed = result("m_4", 4);
  failed.status = Status::failed;
  PairResult plain = result("", 64);
  const std::vector<Sweep> sweeps = sweeps_of({result("m_2", 2), plain, failed});
  ASSERT_EQ(sweeps.size(), 1u);
  EXPECT_EQ(sweeps[0].lesson, "tiled");
  ASSERT_EQ(sweeps[0].points.size(), 2u);
  ASSERT_EQ(sweeps[0].points[0].variants.size(), 2u);
  EXPECT_EQ(sweeps[0].points[0].variants[1].speedup, 2);
  EXPECT_EQ(sweeps[0].points[0].variants[1].floor_ms, 0.25);
  EXPECT_THAT(sweeps[0].points[1].variants, IsEmpty());
}

}  // namespace
}  // namespace aisp::evidence
