// SPDX-License-Identifier: Apache-2.0
#include "peak/levels/levels.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/system/files.hpp"
#include "peak/record.hpp"

namespace aisp::peak {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

MemoryLevels levels_of_h200() {
  MemoryLevels levels{.page_bytes = 2 << 20};
  for (const std::size_t bytes : chase_sizes(16384, std::size_t{1} << 30, 8, 16384)) {
    const double ns = bytes <= (208 << 10) ? 18 : bytes <= (48 << 20) ? 130 : 420;
    levels.lines.push_back({.bytes = static_cast<double>(bytes), .ns = ns, .cycles = ns * 1.8, .bytes_s = 1e14 / ns});
  }
  for (const std::size_t bytes : chase_sizes(8 << 20, std::size_t{1} << 35, 8, 2 << 20))
    levels.pages.push_back({.bytes = static_cast<double>(bytes), .ns = bytes <= (std::size_t{1} << 33) ? 150.0 : 700.0});
  levels.registers = ChasePoint{262144, 2.2, 4, 1e14};
  levels.shared = ChasePoint{233472, 13, 23, 3e13};
  levels.l2 = TwoKinds{200, 280, 0.5};
  return levels;
}

PeakRecord record_of_h200() {
  return {.key = {.of = "GPU-1", .model = "NVIDIA H200", .driver = "580", .power_limit_w = 700, .cpus = 0},
          .measured_utc = "2026-11-22T10:00:00Z",
          .levels = levels_of_h200()};
}

const std::vector<Stated> stated = {{"L1", 262144, "guide"}, {"L2", 62914560, "sheet"}};

TEST(Levels, ComeBackFromJson) {
  const nlohmann::json json = record_json(record_of_h200());
  const PeakRecord record = read_record(nlohmann::json::parse(json.dump()), Subject::levels);
  EXPECT_EQ(record.key, record_of_h200().key);
  EXPECT_EQ(record.measured_utc, "2026-11-22T10:00:00Z");
  const MemoryLevels& copy = *record.levels;
  ASSERT_EQ(copy.lines.size(), levels_of_h200().lines.size());
  EXPECT_EQ(copy.lines[5].cycles, levels_of_h200().lines[5].cycles);
  EXPECT_EQ(copy.pages.size(), levels_of_h200().pages.size());
  EXPECT_EQ(copy.shared->ns, 13);
  EXPECT_EQ(copy.l2->far, 280);
  nlohmann::json wrong = json;
  wrong["lines"][3]["latency_ns"] = -1;
  EXPECT_THROW(read_record(wrong, Subject::levels), base::Error);
  wrong = json;
  std::swap(wrong["lines"][3], wrong["lines"][4]);
  EXPECT_THROW(read_record(wrong, Subject::levels), base::Error);
  EXPECT_THROW(read_record(json, Subject::figures), base::Error);
}

TEST(Levels, AreKeptForTheSameMachineAlone) {
  const base::ScratchDirectory folder;
  const std::filesystem::path cache = folder.path();
  const Key key = record_of_h200().key;
  store(cache, record_of_h200());
  ASSERT_TRUE(load(cache, key, Subject::levels).record);
  EXPECT_FALSE(load(cache, key, Subject::figures).record) << "levels are no ceilings";
  Key other = key;
  other.driver = "590";
  EXPECT_FALSE(load(cache, other, Subject::levels).record);
  base::write_atomically(cache_file(cache, key, Subject::levels), "{");
  EXPECT_FALSE(load(cache, key, Subject::levels).record);
  EXPECT_FALSE(load({}, key, Subject::levels).record);
}

TEST(Levels, AreATableWithWhatIsStated) {
  const auto rows = level_rows(levels_of_h200(), found_in(levels_of_h200(), stated));
  EXPECT_THAT(rows[0], ElementsAre("level", "holds", "stated", "latency", "cycles", "bandwidth"));
  EXPECT_THAT(rows[1], ElementsAre("registers", "256 KiB an SM", "-", "2.20 ns", "4.00", "100 TB/s"));
  EXPECT_THAT(rows[3][0], "L1");
  EXPECT_THAT(rows[3][1], HasSubstr("208 KiB (not "));
  EXPECT_THAT(rows[3][2], "256 KiB (guide)");
  EXPECT_THAT(rows[4][0], "L2");
  EXPECT_THAT(rows[5], ElementsAre("  L2, near half", "50 % of its lines", "-", "-", "200", "-"));
  EXPECT_THAT(rows[7][0], "HBM");
  EXPECT_THAT(rows[8][0], "TLB reach 1");
  EXPECT_THAT(rows[8][1], HasSubstr("8 GiB (not "));
  EXPECT_THAT(rows[9][0], "beyond the TLBs");
  EXPECT_THAT(level_notes(levels_of_h200(), found_in(levels_of_h200(), stated)), IsEmpty());
}

TEST(Levels, DoubtOfAStatedSizeIsMarkedAndExplained) {
  machine::Gpu gpu;
  gpu.name = "NVIDIA GB10";
  const std::vector<Stated> of_sheet = stated_sizes(gpu);
  ASSERT_EQ(of_sheet.back().name, "L2");
  EXPECT_THAT(of_sheet.back().doubt, HasSubstr("others who quote"));
  std::vector<Stated> doubted = stated;
  doubted.back().doubt = "nobody read it";
  const LevelsFound found = found_in(levels_of_h200(), doubted);
  EXPECT_THAT(level_rows(levels_of_h200(), found)[4][2], "60 MiB? (sheet)");
  EXPECT_THAT(level_notes(levels_of_h200(), found), ElementsAre("doubtful data sheet (?): L2: nobody read it"));
  nlohmann::json json;
  add_levels(json, found);
  EXPECT_EQ(json["levels"][1]["doubt"], "nobody read it");
  EXPECT_EQ(json["levels"][0]["doubt"], "");
}

TEST(Levels, WithoutAStepOfAStatedSizeSaySo) {
  MemoryLevels flat = levels_of_h200();
  for (ChasePoint& point : flat.lines) point.ns = 100;
  for (ChasePoint& point : flat.pages) point.ns = 100;
  EXPECT_THAT(level_notes(flat, found_in(flat, stated)),
              ElementsAre(HasSubstr("L1: no step near the 256 KiB"), HasSubstr("L2: no step"), HasSubstr("TLB: no step up to")));
}

TEST(Levels, OfAHostHaveNoColumnsOfAGpu) {
  MemoryLevels host = levels_of_h200();
  host.registers.reset();
  host.shared.reset();
  host.l2.reset();
  for (ChasePoint& point : host.lines) point.cycles = point.bytes_s = 0;
  const auto rows = level_rows(host, found_in(host, stated));
  EXPECT_THAT(rows[0], ElementsAre("level", "holds", "stated", "latency"));
  EXPECT_THAT(rows, Contains(Contains("DRAM")));
}

TEST(Levels, InJsonHaveTheStepsBesideThePoints) {
  nlohmann::json json = record_json(record_of_h200());
  add_levels(json, found_in(levels_of_h200(), stated));
  ASSERT_EQ(json["levels"].size(), 3u);
  EXPECT_EQ(json["levels"][1]["name"], "L2");
  EXPECT_EQ(json["levels"][1]["stated_bytes"], 62914560);
  EXPECT_TRUE(json["levels"][2]["stated_bytes"].is_null());
  EXPECT_EQ(json["translation"].size(), 2u);
}

}  // namespace
}  // namespace aisp::peak
