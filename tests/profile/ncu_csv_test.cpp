// SPDX-License-Identifier: Apache-2.0
#include "profile/ncu_csv.hpp"

#include <gmock/gmock.h>

#include "profile/metrics.hpp"

namespace aisp::profile {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Key;
using testing::Not;

constexpr const char* two_kernels =
    "==PROF== Connected to process 2950 (/usr/bin/aisp)\n"
    "\"a program's own quoted words\"\n"
    "\"ID\",\"Kernel Name\",\"device__attribute_display_name\",\"dram__bytes_read.sum\",\"gpu__time_duration.sum\","
    "\"lts__t_sector_hit_rate.pct\",\"sm__warps_active.avg.pct_of_peak_sustained_active\"\n"
    "\"\",\"\",\"\",\"Mbyte\",\"us\",\"%\",\"%\"\n"
    "\"0\",\"copy(const float *, \"\"x\"\")\",\"NVIDIA H200\",\"1,268.451328\",\"30\",\"50\",\"n/a\"\n"
    "\"1\",\"add\",\"NVIDIA H200\",\"2\",\"10\",\"90\",\"12.5\"\n";

TEST(NcuCsv, ReadsUnitsThousandsAndQuotes) {
  const NcuReport report = parse_ncu_csv(two_kernels);
  ASSERT_THAT(report.kernels, ElementsAre("copy(const float *, \"x\")", "add"));
  EXPECT_DOUBLE_EQ(report.values[0].at("dram__bytes_read.sum"), 1268451328.0);
  EXPECT_DOUBLE_EQ(report.values[0].at("gpu__time_duration.sum"), 30000.0);
}

TEST(NcuCsv, LeavesOutWhatWasNotMeasured) {
  const NcuReport report = parse_ncu_csv(two_kernels);
  EXPECT_THAT(report.values[0], Not(Contains(Key("sm__warps_active.avg.pct_of_peak_sustained_active"))));
  EXPECT_THAT(report.values[1], Contains(Key("sm__warps_active.avg.pct_of_peak_sustained_active")));
  EXPECT_THAT(report.values[0], Not(Contains(Key("device__attribute_display_name"))));
}

TEST(NcuCsv, LeavesOutAUnitThatItDoesNotKnow) {
  const NcuReport report =
      parse_ncu_csv("\"ID\",\"Kernel Name\",\"dram__bytes_read.sum\"\n\"\",\"\",\"furlong\"\n\"0\",\"k\",\"5\"\n");
  ASSERT_THAT(report.kernels, ElementsAre("k"));
  EXPECT_THAT(report.values[0], IsEmpty());
}

TEST(NcuCsv, LeavesOutARowThatIsCutOff) {
  const std::string text{two_kernels};
  EXPECT_THAT(parse_ncu_csv(text.substr(0, text.size() - 4)).kernels, ElementsAre("copy(const float *, \"x\")"));
  EXPECT_THAT(parse_ncu_csv(text.substr(0, text.find("\"1\",\"add\"") + 12)).kernels, ElementsAre("copy(const float *, \"x\")"));
}

TEST(NcuCsv, FindsNoTableInRubbish) {
  for (const char* text :
       {"", "\n\n", "no kernels were profiled", "\"ID\"\n", "\"ID\",\"Kernel Name\"\n", "\"", "\"\"\"", "\xff\xfe\",\""})
    EXPECT_THAT(parse_ncu_csv(text).kernels, IsEmpty()) << text;
}

TEST(NcuCsv, CombinesKernelsByTheirDuration) {
  const auto values = combined(parse_ncu_csv(two_kernels));
  EXPECT_DOUBLE_EQ(values.at("gpu__time_duration.sum"), 40000.0);
  EXPECT_DOUBLE_EQ(values.at("dram__bytes_read.sum"), 1270451328.0);
  EXPECT_DOUBLE_EQ(values.at("lts__t_sector_hit_rate.pct"), (50.0 * 30 + 90.0 * 10) / 40);
  // Of the kernels that have it only.
  EXPECT_DOUBLE_EQ(values.at("sm__warps_active.avg.pct_of_peak_sustained_active"), 12.5);
}

TEST(Metrics, BecomeFieldsInTheReadersUnits) {
  const evidence::Counters counters = counters_from({{"gpu__time_duration.sum", 146304},
                                                     {"dram__bytes_read.sum", 268457000},
                                                     {"sm__sass_thread_inst_executed_op_ffma_pred_on.sum", 100},
                                                     {"sm__sass_thread_inst_executed_op_fadd_pred_on.sum", 7},
                                                     {"sm__ops_path_tensor_src_bf16_dst_fp32.sum", 5000},
                                                     {"smsp__warp_issue_stalled_barrier_per_warp_active.pct", 3},
                                                     {"smsp__warp_issue_stalled_long_scoreboard_per_warp_active.pct", 70},
                                                     {"smsp__warp_issue_stalled_wait_per_warp_active.pct", 4},
                                                     {"smsp__warp_issue_stalled_membar_per_warp_active.pct", 1}});
  EXPECT_DOUBLE_EQ(counters.duration_us.value(), 146.304);
  EXPECT_DOUBLE_EQ(counters.dram_read_bytes.value(), 268457000);
  EXPECT_FALSE(counters.dram_write_bytes);
  EXPECT_THAT(counters.flops, ElementsAre(std::pair<const std::string, double>{"fp32", 207},
                                          std::pair<const std::string, double>{"tensor bf16", 5000}));
  ASSERT_EQ(counters.stalls.size(), 3u);
  EXPECT_EQ(counters.stalls[0].reason, "long_scoreboard");
  EXPECT_EQ(counters.stalls[2].reason, "barrier");
}

TEST(Metrics, NoFlopsAreNotTheSameAsUncountedOnes) {
  EXPECT_TRUE(counters_from({{"sm__sass_thread_inst_executed_op_ffma_pred_on.sum", 0}}).flops_counted);
  EXPECT_FALSE(counters_from({{"gpu__time_duration.sum", 1}}).flops_counted);
}

}  // namespace
}  // namespace aisp::profile
