// SPDX-License-Identifier: Apache-2.0
#include "machine/gpu_specs.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.hpp"
#include "machine/ceilings.hpp"
#include "machine/fake_root.hpp"

namespace aisp::machine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> keys(const std::vector<std::string>& words) {
  std::vector<std::string> found;
  for (const GpuSpec* spec : select_specs(words)) found.emplace_back(spec->key);
  return found;
}

TEST(Specs, EveryValueHasASourceAndIsPlausible) {
  std::set<std::string_view> seen;
  for (const GpuSpec* spec : all_specs()) {
    EXPECT_TRUE(seen.insert(spec->key).second) << spec->key << " is there twice";
    for (const Fact* fact : {&spec->memory_bytes, &spec->memory_bytes_s, &spec->link_bytes_s, &spec->tdp_w})
      EXPECT_TRUE(fact->known()) << spec->key;
    for (const Fact& fact : spec->flops_s) EXPECT_EQ(fact.known(), fact.value > 0) << spec->key;
    for (const Fact* fact : {&spec->sms, &spec->l2_bytes}) EXPECT_EQ(fact->known(), fact->value > 0) << spec->key;
    for (const NumberType rate : {NumberType::fp32, NumberType::bf16, NumberType::fp16})
      EXPECT_TRUE(spec->rate(rate).known()) << spec->key;
    // Dense rates: a mistaken sparse one would be twice its neighbours.
    const double bf16 = spec->rate(NumberType::bf16).value;
    EXPECT_EQ(spec->rate(NumberType::fp16).value, bf16) << spec->key;
    if (spec->rate(NumberType::fp8).known()) {
      EXPECT_NEAR(spec->rate(NumberType::fp8).value / bf16, 2, 0.03) << spec->key;
    }
    if (spec->rate(NumberType::tf32).known()) {
      EXPECT_NEAR(bf16 / spec->rate(NumberType::tf32).value, 2, 0.03) << spec->key;
    }
    EXPECT_LE(spec->memory_bytes_s.value, spec->memory_limit_bytes_s) << spec->key;
    EXPECT_LT(spec->memory_limit_bytes_s, spec->memory_bytes_s.value * 1.11) << spec->key;
  }
  EXPECT_EQ(seen.size(), 14);
}

TEST(Specs, EverySourceHasATitleAndAPlace) {
  for (const GpuSpec* spec : all_specs())
    for (const Fact& fact : spec->flops_s) {
      if (!fact.known()) continue;
      EXPECT_FALSE(fact.source->title.empty()) << spec->key;
      EXPECT_THAT(std::string{fact.source->url}, HasSubstr("https://")) << spec->key;
    }
  EXPECT_EQ(citation(find_spec("h200").rate(NumberType::bf16)), "NVIDIA H200 datasheet (half of the rate with sparsity)");
  EXPECT_EQ(citation(find_spec("h200").memory_bytes), "NVIDIA H200 datasheet");
  EXPECT_EQ(citation(find_spec("l40s").sms), "NVIDIA L40S datasheet (one for each ray tracing core)");
}

TEST(Specs, ChipsForGraphicsHaveSlowFp64) {
  for (const char* key : {"a10g", "rtx-4090", "l40s"}) {
    const GpuSpec& spec = find_spec(key);
    EXPECT_DOUBLE_EQ(spec.rate(NumberType::fp64).value * 64, spec.rate(NumberType::fp32).value) << key;
    EXPECT_THAT(citation(spec.rate(NumberType::fp64)), HasSubstr("whitepaper (1/64 of the fp32 rate)")) << key;
  }
}

TEST(Specs, AreFoundByTheNameThatDriversReport) {
  EXPECT_EQ(find_spec("NVIDIA H100 80GB HBM3").key, "h100-sxm");
  EXPECT_EQ(find_spec("nvidia geforce rtx 4090").key, "rtx-4090");
  for (const char* other : {"NVIDIA H200 NVL", "NVIDIA L4", "NVIDIA", ""}) EXPECT_THROW(find_spec(other), base::Error) << other;
}

TEST(Specs, CachesOfAllDiesAreAddedUp) { EXPECT_EQ(find_spec("mi300x").l2_bytes.value, 32 << 20); }

// GPU and figure, as "b300 memory" or "b300 fp4".
std::set<std::string> doubtful() {
  std::set<std::string> found;
  for (const GpuSpec* spec : all_specs()) {
    std::vector<std::pair<std::string, Fact>> facts{{"memory", spec->memory_bytes},
                                                    {"bandwidth", spec->memory_bytes_s},
                                                    {"link", spec->link_bytes_s},
                                                    {"power", spec->tdp_w},
                                                    {"sms", spec->sms},
                                                    {"l2", spec->l2_bytes}};
    for (std::size_t i = 0; i < rate_kinds; ++i)
      facts.emplace_back(name_of(static_cast<NumberType>(i)), spec->rate(static_cast<NumberType>(i)));
    for (const auto& [name, fact] : facts)
      if (fact.doubtful()) found.insert(std::string{spec->key} + " " + name);
  }
  return found;
}

TEST(Specs, FiguresThatDocumentsDisputeOrNobodyReadAreDoubtful) {
  EXPECT_THAT(doubtful(),
              testing::UnorderedElementsAre(
                  "a10g sms", "a10g l2", "gb200 sms", "b200 memory", "b200 sms", "l40s l2", "b200 bandwidth", "b300 bandwidth",
                  "b300 memory", "b300 fp64", "b300 fp64_tensor", "b300 int8", "b300 fp4", "gb10 fp32", "gb10 fp16", "gb10 bf16",
                  "gb10 fp8", "gb10 sms", "gb10 l2", "gb300 memory", "gb300 bandwidth", "gb300 link", "gb300 power", "gb300 fp32",
                  "gb300 tf32", "gb300 fp16", "gb300 bf16", "gb300 fp8", "gb300 int8", "gb300 fp4"));
  EXPECT_THAT(std::string{find_spec("b300").rate(NumberType::fp4).doubt}, HasSubstr("14000"));
  EXPECT_EQ(find_spec("gb10").rate(NumberType::bf16).doubt, "no document states it");
  EXPECT_THAT(std::string{find_spec("gb300").memory_bytes.doubt}, HasSubstr("others who quote"));
}

TEST(Specs, DoubtsAreThoseOfTheFiguresThatAreUsed) {
  const GpuSpec& b300 = find_spec("b300");
  const std::vector<Doubt> doubts =
      doubts_of(b300, {&b300.rate(NumberType::fp64), &b300.rate(NumberType::fp64_tensor), &b300.memory_bytes_s, &b300.tdp_w});
  EXPECT_THAT(lines_of(doubts), ElementsAre("bandwidth_bytes_s: 8 TB/s is quoted as well",
                                            "fp64_flop_s, fp64_tensor_flop_s: the data sheet is quoted with 1.2 to 1.3 TFLOP/s"));
  EXPECT_TRUE(doubts_of(b300, {&b300.rate(NumberType::bf16)}).empty());
  EXPECT_TRUE(lines_of({}).empty());
}

TEST(Specs, AreSelectedByKeyAndFamily) {
  EXPECT_THAT(keys({"H200", "b200"}), ElementsAre("h200", "b200"));
  EXPECT_THAT(keys({"h100"}), ElementsAre("h100-sxm", "h100-pcie"));
  EXPECT_THAT(keys({"h100-pcie", "h100"}), ElementsAre("h100-pcie", "h100-sxm"));
  EXPECT_THAT(keys({"RTX 4090"}), ElementsAre("rtx-4090"));
  EXPECT_EQ(keys({}).size(), 14);
  EXPECT_EQ(find_spec("a100").key, "a100-80gb");
  EXPECT_EQ(find_spec("h100").key, "h100-sxm");
}

TEST(Specs, UnknownNamesGetTheNearest) {
  try {
    find_spec("h20");
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.status(), base::Exit::usage);
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("unknown GPU 'h20'"), HasSubstr("h200")));
  }
  EXPECT_THROW(find_spec(""), base::Error);
}

TEST(Specs, OfWhatTheDriverReports) {
  EXPECT_EQ(spec_of_reported("NVIDIA H100 80GB HBM3")->key, "h100-sxm");
  EXPECT_EQ(spec_of_reported("NVIDIA GB200")->key, "gb200");
  EXPECT_EQ(spec_of_reported("NVIDIA GB300")->key, "gb300");
  EXPECT_EQ(spec_of_reported("NVIDIA A100-PCIE-40GB")->key, "");
  EXPECT_EQ(spec_of_reported("NVIDIA X900"), nullptr);
}

TEST(Specs, UnitsAndCacheOfTheH200AreThoseThatItReports) {
  const Gpu gpu = h200();
  EXPECT_EQ(find_spec("h200").sms.value, gpu.sm_count);
  EXPECT_EQ(find_spec("h200").l2_bytes.value, gpu.l2_bytes);
}

TEST(Specs, LieBelowTheTheoreticalPeaks) {
  // The tests know the H200's clock and units: no sheet may promise what is called impossible.
  const Peaks peaks = theoretical_peaks(h200());
  const GpuSpec& spec = find_spec("h200");
  for (std::size_t i = 0; i < math_kinds; ++i) {
    for (std::size_t rate = 0; rate < rate_kinds; ++rate)
      if (name_of(static_cast<NumberType>(rate)) == name_of(static_cast<Math>(i))) {
        EXPECT_LE(spec.flops_s[rate].value, peaks.flops_s[i] * 1.02) << name_of(static_cast<Math>(i));
      }
  }
  EXPECT_EQ(theoretical_peaks(other_gpu("NVIDIA A10G", 86)).peer_bytes_s,
            theoretical_peaks(other_gpu("NVIDIA A10G", 86)).pcie_bytes_s);
}

}  // namespace
}  // namespace aisp::machine
