// SPDX-License-Identifier: Apache-2.0
#include "profile/tools.hpp"

#include <gmock/gmock.h>
#include <aisp/check.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "profile/range_profiler.hpp"
#include "sanitized.hpp"

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
  // The mean is over the kernels that have the metric only.
  EXPECT_DOUBLE_EQ(values.at("sm__warps_active.avg.pct_of_peak_sustained_active"), 12.5);
}

TEST(Metrics, NoCacheHitsMoreOftenThanItIsAsked) {
  const auto hits = [](double percent) { return counters_from({{"lts__t_sector_hit_rate.pct", percent}}).l2_hit_percent; };
  EXPECT_EQ(hits(50), 50);
  EXPECT_EQ(hits(101), 100) << "counted in different executions";
  EXPECT_EQ(hits(268), std::nullopt) << "a variant that hardly uses L2";
}

TEST(Metrics, BecomeFieldsInTheReadersUnits) {
  const evidence::Counters counters = counters_from({{"gpu__time_duration.sum", 146304},
                                                     {"dram__bytes_read.sum", 268457000},
                                                     {"sm__sass_thread_inst_executed_op_ffma_pred_on.sum", 100},
                                                     {"sm__sass_thread_inst_executed_op_fadd_pred_on.sum", 7},
                                                     {"sm__ops_path_tensor_src_bf16_dst_fp32.sum", 5000},
                                                     {"sm__ops_path_tensor_src_fp8.sum", 900},
                                                     {"smsp__warps_issue_stalled_barrier.sum", 300},
                                                     {"smsp__warps_issue_stalled_long_scoreboard.sum", 1400},
                                                     {"smsp__warps_issue_stalled_selected.sum", 260},
                                                     {"smsp__warps_issue_stalled_gmma.sum", 0},
                                                     {"smsp__warps_issue_stalled_membar.sum", 40}});
  EXPECT_DOUBLE_EQ(counters.duration_us.value(), 146.304);
  EXPECT_DOUBLE_EQ(counters.dram_read_bytes.value(), 268457000);
  EXPECT_FALSE(counters.dram_write_bytes);
  EXPECT_THAT(counters.flops, ElementsAre(std::pair<const std::string, double>{"fp32", 207},
                                          std::pair<const std::string, double>{"tensor bf16", 5000},
                                          std::pair<const std::string, double>{"tensor fp8", 900}));
  EXPECT_FALSE(counters.uncounted_instructions_percent);
}

TEST(Metrics, WarpTimeAddsUpToAHundredPercent) {
  const std::vector<evidence::Stall> stalls = counters_from({{"smsp__warps_issue_stalled_barrier.sum", 300},
                                                             {"smsp__warps_issue_stalled_long_scoreboard.sum", 1400},
                                                             {"smsp__warps_issue_stalled_selected.sum", 260},
                                                             {"smsp__warps_issue_stalled_gmma.sum", 0},
                                                             {"smsp__warps_issue_stalled_membar.sum", 40}})
                                                  .stalls;
  ASSERT_EQ(stalls.size(), 4u) << "what never happened is left out";
  EXPECT_EQ(stalls[0].reason, "long_scoreboard");
  EXPECT_DOUBLE_EQ(stalls[0].percent, 70);
  EXPECT_EQ(stalls[1].reason, "barrier");
  EXPECT_EQ(stalls[2].reason, "selected");
  EXPECT_DOUBLE_EQ(stalls[2].percent, 13);
  EXPECT_DOUBLE_EQ(stalls[0].percent + stalls[1].percent + stalls[2].percent + stalls[3].percent, 100);
}

TEST(Metrics, WhatGraphsHideIsNoCount) {
  const auto counted = [](double seen) {
    return counters_from({{"smsp__thread_inst_executed_pred_on.sum", 1000},
                          {"sm__sass_thread_inst_executed_pred_on.sum", seen},
                          {"sm__sass_thread_inst_executed_op_ffma_pred_on.sum", 100},
                          {"sm__ops_path_tensor_src_int8.sum", 64}});
  };
  const evidence::Counters half = counted(500), all = counted(996);
  EXPECT_DOUBLE_EQ(half.uncounted_instructions_percent.value(), 50);
  EXPECT_THAT(half.flops, ElementsAre(std::pair<const std::string, double>{"tensor int8", 64}));
  EXPECT_FALSE(all.uncounted_instructions_percent) << "passes differ a little";
  EXPECT_DOUBLE_EQ(all.flops.at("fp32"), 200);
}

// CUPTI's host part knows chips that are not there. It opens libraries in a way that the address sanitizer refuses.
std::vector<std::string> known_to(const std::string& chip, const std::vector<std::string>& names) {
  if (under_address_sanitizer) throw Unsupported{"CUPTI's host part does not run under the address sanitizer"};
  return known_metrics(chip, names);
}

TEST(Metrics, AChipGivesWhatItHasBehindNamesThatItDoesNotKnow) {
  std::vector<std::string> known;
  try {
    known = known_to("GH100", metric_names(MetricSet::full));
  } catch (const Unsupported& reason) {
    GTEST_SKIP() << reason.what();
  }
  EXPECT_THAT(known,
              testing::IsSupersetOf({"sm__sass_thread_inst_executed_op_ffma_pred_on.sum", "sm__ops_path_tensor_src_fp16.sum",
                                     "sm__ops_path_tensor_src_fp8.sum", "sm__ops_path_tensor_src_int8.sum",
                                     "smsp__warps_issue_stalled_barrier.sum", "smsp__warps_issue_stalled_wait.sum"}));
  EXPECT_THAT(known, testing::IsSupersetOf({"gpu__time_duration.sum", "sm__throughput.avg.pct_of_peak_sustained_elapsed",
                                            "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
                                            "dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_sector_hit_rate.pct",
                                            "sm__warps_active.avg.pct_of_peak_sustained_active",
                                            "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
                                            "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
                                            "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
                                            "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio"}))
      << "each figure of --profile full";
  EXPECT_THAT(known, testing::Not(testing::Contains("sm__ops_path_tensor_src_fp4_fp6_fp8_dst_fp16.sum")));
  EXPECT_THAT(known_metrics("GH100", {"no_such__metric.sum", "dram__bytes_read.sum"}), ElementsAre("dram__bytes_read.sum"));
}

TEST(Metrics, NoChipCountsHalfPrecisionTwice) {
  for (const char* chip : {"GA100", "AD102", "GH100", "GB100", "GB202"}) {
    std::vector<std::string> known;
    try {
      known = known_to(chip, metric_names(MetricSet::deep));
    } catch (const Unsupported& reason) {
      GTEST_SKIP() << reason.what();
    }
    const bool whole = std::ranges::count(known, "sm__ops_path_tensor_src_fp16.sum") > 0;
    const bool by_result = std::ranges::count(known, "sm__ops_path_tensor_src_fp16_dst_fp32.sum") > 0;
    EXPECT_NE(whole, by_result) << chip;
    EXPECT_THAT(known, Contains("sm__sass_thread_inst_executed_pred_on.sum")) << chip;
  }
}

TEST(Metrics, EveryFigureIsAskedForAndHasAFieldOfItsOwn) {
  std::map<std::string, double> values;
  for (const std::string& name : metric_names(MetricSet::full)) values[name] = 1.0 + static_cast<double>(values.size());
  const evidence::Counters c = counters_from(values);
  const std::vector<std::optional<double>> figures{c.duration_us,       c.sm_throughput_percent, c.memory_throughput_percent,
                                                   c.dram_read_bytes,   c.dram_write_bytes,      c.l2_hit_percent,
                                                   c.occupancy_percent, c.tensor_pipe_percent,   c.bank_conflicts,
                                                   c.sectors_per_load,  c.sectors_per_store};
  std::set<double> different;
  for (std::size_t i = 0; i < figures.size(); ++i) {
    ASSERT_TRUE(figures[i]) << i;
    different.insert(*figures[i]);
  }
  EXPECT_EQ(different.size(), figures.size()) << "two figures from one metric";
  EXPECT_EQ(c.stalls.size(), 19u);
  EXPECT_THAT(c.flops, testing::Contains(testing::Key("fp32")));
}

TEST(Metrics, NoFlopsAreNotTheSameAsUncountedOnes) {
  EXPECT_TRUE(counters_from({{"sm__sass_thread_inst_executed_op_ffma_pred_on.sum", 0}}).flops_counted);
  EXPECT_FALSE(counters_from({{"gpu__time_duration.sum", 1}}).flops_counted);
}

}  // namespace
}  // namespace aisp::profile
