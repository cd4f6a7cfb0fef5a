// SPDX-License-Identifier: Apache-2.0
#include "peak/table.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

namespace aisp::peak {
namespace {

using testing::ElementsAre;

machine::Gpu gpu_named(const std::string& name) {
  machine::Gpu gpu;
  gpu.name = name;
  gpu.sm = 90;
  return gpu;
}

PeakRecord made_up() {
  PeakRecord record{.key = {.of = "GPU-1", .model = "NVIDIA H200", .driver = "580.159", .power_limit_w = 700},
                    .measured_utc = "2026-11-21T10:00:00Z"};
  // In another order than the table's.
  record.figures = {{.id = "graph_node", .value = 0.7e-6, .how = "graph of 100 empty kernels"},
                    {.id = "bf16", .value = 790e12, .how = "cuBLASLt 8192^3", .sustained = Sustained{650e12, 2, 1455, 680, 0x4}},
                    {.id = "hbm_copy", .value = 4.25e12, .how = "cudaMemcpyAsync"},
                    {.id = "fp8", .why_not = "no cuBLASLt"}};
  return record;
}

nlohmann::json json_of(const PeakRecord& record, const machine::Gpu& gpu) {
  nlohmann::json json = record_json(record);
  add_references(json, &gpu);
  return json;
}

TEST(Table, FiguresStandBesideTheMakersAndTheRecorded) {
  const machine::Gpu gpu = gpu_named("NVIDIA H200");
  EXPECT_THAT(table_rows(made_up(), &gpu),
              ElementsAre(ElementsAre("", "burst", "of the data sheet", "of the recorded", "sustained", "by"),
                          ElementsAre("HBM copy", "4.25 TB/s", "89 % of 4.80 TB/s", "100 % of 4.25 TB/s", "-", "cudaMemcpyAsync"),
                          ElementsAre("BF16", "790 TFLOP/s", "80 % of 990 TFLOP/s", "100 % of 790 TFLOP/s",
                                      "650 TFLOP/s, 1455 MHz, 680 W, software power cap", "cuBLASLt 8192^3"),
                          ElementsAre("kernel after kernel in a graph", "700 ns", "-", "102 % of 685 ns", "-",
                                      "graph of 100 empty kernels")));
}

TEST(Table, ColumnsThatSayNothingAreLeftOut) {
  PeakRecord record = made_up();
  for (Figure& figure : record.figures) figure.sustained.reset();
  const machine::Gpu gpu = gpu_named("unheard of");
  EXPECT_THAT(table_rows(record, &gpu).front(), ElementsAre("", "measured", "of the data sheet", "by"));
  EXPECT_THAT(table_rows(record, nullptr).front(), ElementsAre("", "measured", "by"));
}

TEST(Table, DoubtOfADataSheetIsMarkedAndExplained) {
  const machine::Gpu b200 = gpu_named("NVIDIA B200"), h200 = gpu_named("NVIDIA H200");
  PeakRecord record = made_up();
  record.figures.push_back({.id = "hbm_read", .value = 7e12, .how = "a kernel"});
  const auto rows = table_rows(record, &b200);
  EXPECT_EQ(rows[1][2], "91 % of 7.70 TB/s?");
  EXPECT_THAT(rows[3], testing::Contains("35 % of 2.25 PFLOP/s")) << "which nothing contradicts";
  EXPECT_THAT(doubtful(record, &b200), ElementsAre("HBM read, HBM copy: 8 TB/s is quoted as well"));
  EXPECT_TRUE(doubtful(record, &h200).empty());
  EXPECT_TRUE(doubtful(record, nullptr).empty());
  EXPECT_EQ(json_of(record, b200)["figures"][0]["vendor"]["doubt"], "8 TB/s is quoted as well");
  EXPECT_EQ(json_of(record, h200)["figures"][0]["vendor"]["doubt"], "");
}

TEST(Table, HeadingAndWhatIsMissing) {
  PeakRecord record = made_up();
  EXPECT_EQ(heading(record), "NVIDIA H200, driver 580.159, 700 W; measured 2026-11-21T10:00:00Z");
  record.quick = true;
  EXPECT_EQ(heading(record), "NVIDIA H200, driver 580.159, 700 W; measured 2026-11-21T10:00:00Z (quick)");
  EXPECT_THAT(missing(record), ElementsAre("FP8: no cuBLASLt"));
}

TEST(Json, ReferencesHaveTheirSource) {
  const machine::Gpu gpu = gpu_named("NVIDIA H200");
  const nlohmann::json json = json_of(made_up(), gpu);
  const nlohmann::json& copy = json["figures"][0];
  EXPECT_EQ(copy["id"], "hbm_copy");
  EXPECT_EQ(copy["vendor"]["value"], 4.8e12);
  EXPECT_NEAR(copy["vendor"]["percent"].get<double>(), 88.5, 0.1);
  EXPECT_EQ(copy["recorded"]["source"], "recorded on an H200");
  EXPECT_TRUE(json["figures"][2]["vendor"]["percent"].is_null()) << "fp8 was not measured";
}

}  // namespace
}  // namespace aisp::peak
