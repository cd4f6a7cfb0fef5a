// SPDX-License-Identifier: Apache-2.0
#include "report/sweep.hpp"

#include <gmock/gmock.h>

#include "sample_suite.hpp"

namespace aisp::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

evidence::PairResult gemm(const char* name, double ms) {
  evidence::PairResult pair = sample::passed_pair();
  pair.target = "ch10:gemm";
  pair.sweep_case = name;
  pair.sizes = {{"m", 4096}, {"n", 256}};
  pair.sizes_set = true;
  pair.lesson = pair.best = "tiled";
  pair.variants = {sample::variant("plain", evidence::VariantRole::baseline, 4 * ms),
                   sample::variant("tiled", evidence::VariantRole::optimized, ms),
                   sample::variant("cublas", evidence::VariantRole::library, 1.1 * ms)};
  for (evidence::VariantResult& variant : pair.variants) variant.cost = {.flops = 1e12, .bytes = 1e9, .math = "bf16"};
  pair.variants[1].speedup = evidence::Speedup{4, 3.9, 4.1, evidence::Verdict::faster};
  return pair;
}

TEST(Sweep, HasARowForEachCaseAndVariant) {
  evidence::PairResult failed = gemm("huge", 1);
  failed.status = evidence::Status::failed;
  failed.reason = "out of memory";
  failed.variants.clear();
  const std::vector<SweepTable> tables = sweep_tables({gemm("small", 1), sample::passed_pair(), gemm("wide", 2), failed});
  ASSERT_EQ(tables.size(), 1u);
  const Rows& rows = tables[0].rows;
  ASSERT_EQ(rows.size(), 8u);
  EXPECT_THAT(rows[0], ElementsAre("case", "sizes", "variant", "median", "rate", "speedup", "of cublas"));
  EXPECT_THAT(rows[2], ElementsAre("small", "m=4096, n=256", "tiled (lesson, best)", "1.00 ms", "1.00 PFLOP/s",
                                   "4.00x [3.90, 4.10]", "1.10x"));
  EXPECT_THAT(rows[3], ElementsAre("small", "m=4096, n=256", "cublas (library)", "1.10 ms", "909 TFLOP/s", "-", "-"));
  EXPECT_THAT(rows[5][4], "500 TFLOP/s");
  EXPECT_THAT(rows[7], ElementsAre("huge", "m=4096, n=256", "failed: out of memory", "", "", "", ""));
}

TEST(Sweep, IsNothingInOtherRuns) {
  EXPECT_TRUE(sweep_tables(sample::suite().pairs).empty());
  EXPECT_EQ(sweep_markdown(sample::suite()), "");
  EXPECT_THAT(sweep_markdown({.pairs = {gemm("small", 1)}}), HasSubstr("## Sweep of ch10:gemm"));
}

}  // namespace
}  // namespace aisp::report
