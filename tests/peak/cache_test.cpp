// SPDX-License-Identifier: Apache-2.0
#include "peak/cache.hpp"

#include <gmock/gmock.h>

#include <fstream>
#include <regex>

#include "base/system/files.hpp"
#include "base/system/places.hpp"

namespace aisp::peak {
namespace {

using testing::HasSubstr;

Record sample() {
  Record record{.key = {.of = "GPU-1", .model = "NVIDIA H200", .driver = "580.159", .power_limit_w = 700},
                .measured_utc = "2026-11-21T10:00:00Z"};
  record.figures = {
      {.id = "hbm_copy", .value = 4.25e12, .how = "cudaMemcpyAsync", .sustained = Sustained{4.2e12, 2, 1980, 450, 4}},
      {.id = "fp8", .why_not = "this GPU has no FP8"}};
  return record;
}

class PeakCache : public testing::Test {
 protected:
  void write(const std::string& text) {
    const std::filesystem::path file = cache_file<Record>(folder_.path(), sample().key);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream{file} << text;
  }
  std::string text() { return base::read_file(cache_file<Record>(folder_.path(), sample().key)); }
  void expect_unusable(const std::string& why) {
    const auto cached = load<Record>(folder_.path(), sample().key);
    EXPECT_FALSE(cached.kept);
    EXPECT_THAT(cached.warning, HasSubstr(cache_file<Record>(folder_.path(), sample().key).string()));
    EXPECT_THAT(cached.warning, HasSubstr(why));
    EXPECT_EQ(cached.warning.find('\n'), std::string::npos);
  }

  base::ScratchDirectory folder_;
};

TEST_F(PeakCache, HoldsFilesThatCleanKnows) {
  const std::regex ours{base::cached_files};
  Key host = sample().key;
  host.of = key_of_host;
  for (const auto& file : {cache_file<Record>("/cache", host), cache_file<Levels>("/cache", host),
                           cache_file<Record>("/cache", sample().key), cache_file<Levels>("/cache", sample().key),
                           cache_file<Fabric>("/cache", sample().key)})
    EXPECT_TRUE(std::regex_match(file.lexically_relative("/cache").string(), ours)) << file;
}

TEST_F(PeakCache, GivesBackWhatWasStored) {
  store(folder_.path(), sample());
  const auto cached = load<Record>(folder_.path(), sample().key);
  ASSERT_TRUE(cached.kept) << cached.warning;
  EXPECT_EQ(cached.kept->measured_utc, "2026-11-21T10:00:00Z");
  ASSERT_NE(cached.kept->find("hbm_copy"), nullptr);
  EXPECT_EQ(cached.kept->find("hbm_copy")->value, 4.25e12);
  EXPECT_EQ(cached.kept->find("hbm_copy")->sustained->sm_clock_mhz, 1980);
  EXPECT_EQ(cached.kept->find("fp8"), nullptr) << "it was not measured";
  EXPECT_EQ(cached.kept->figures.at(1).why_not, "this GPU has no FP8");
}

TEST_F(PeakCache, NothingOfAnotherGpuDriverOrPowerLimit) {
  store(folder_.path(), sample());
  Key gpu = sample().key, driver = gpu, limit = gpu;
  gpu.of = "GPU-2";
  driver.driver = "590.1";
  limit.power_limit_w = 500;
  for (const Key& other : {gpu, driver, limit}) {
    const auto cached = load<Record>(folder_.path(), other);
    EXPECT_FALSE(cached.kept);
    EXPECT_EQ(cached.warning, "");
  }
}

TEST_F(PeakCache, ARecordOfAnotherMachineUnderThisNameIsNotUsed) {
  store(folder_.path(), sample());
  std::string changed = text();
  changed.replace(changed.find("580.159"), 7, "590.159");
  write(changed);
  expect_unusable("another machine");
}

TEST_F(PeakCache, BrokenFilesAreOneWarning) {
  store(folder_.path(), sample());
  const std::string good = text();
  for (const std::string& bad : {std::string{}, std::string{"\0\x01\xff", 3}, good.substr(0, good.size() / 2), std::string{"[1]"},
                                 std::string(100'000, '[')}) {
    write(bad);
    expect_unusable("not a record");
  }
  std::string negative = good;
  negative.replace(negative.find("4250000000000"), 1, "-4");
  write(negative);
  expect_unusable("value");
}

TEST_F(PeakCache, StoringReplacesABrokenFileAndLeavesNothingElse) {
  write("broken");
  store(folder_.path(), sample());
  EXPECT_TRUE(load<Record>(folder_.path(), sample().key).kept);
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator{folder_.path() / "peak"}) ++files;
  EXPECT_EQ(files, 1u);
}

TEST_F(PeakCache, NoFolderNoRecord) {
  EXPECT_FALSE(load<Record>({}, sample().key).kept);
  EXPECT_ANY_THROW(store({}, sample()));
}

}  // namespace
}  // namespace aisp::peak
