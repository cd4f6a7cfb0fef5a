// SPDX-License-Identifier: Apache-2.0
#include "peak/record.hpp"

#include <gmock/gmock.h>

#include <fstream>
#include <regex>

#include "base/system/files.hpp"
#include "base/system/places.hpp"

namespace aisp::peak {
namespace {

using testing::HasSubstr;

PeakRecord sample() {
  PeakRecord record{.key = {.of = "GPU-1", .model = "NVIDIA H200", .driver = "580.159", .power_limit_w = 700},
                    .measured_utc = "2026-11-21T10:00:00Z"};
  record.figures = {
      {.id = "hbm_copy", .value = 4.25e12, .how = "cudaMemcpyAsync", .sustained = Sustained{4.2e12, 2, 1980, 450, 4}},
      {.id = "fp8", .why_not = "this GPU has no FP8"}};
  return record;
}

class PeakCache : public testing::Test {
 protected:
  void write(const std::string& text) {
    const std::filesystem::path file = cache_file(folder_.path(), sample().key);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream{file} << text;
  }
  std::string text() { return base::read_file(cache_file(folder_.path(), sample().key)); }
  void expect_unusable(const std::string& why) {
    const auto cached = load(folder_.path(), sample().key);
    EXPECT_FALSE(cached.record);
    EXPECT_THAT(cached.warning, HasSubstr(cache_file(folder_.path(), sample().key).string()));
    EXPECT_THAT(cached.warning, HasSubstr(why));
    EXPECT_EQ(cached.warning.find('\n'), std::string::npos);
  }

  base::ScratchDirectory folder_;
};

TEST_F(PeakCache, HoldsFilesThatCleanKnows) {
  const std::regex ours{base::cached_files};
  Key host = sample().key;
  host.of = key_of_host;
  for (const Subject subject : {Subject::figures, Subject::levels, Subject::fabric})
    for (const auto& file : {cache_file("/cache", host, subject), cache_file("/cache", sample().key, subject)})
      EXPECT_TRUE(std::regex_match(file.lexically_relative("/cache").string(), ours)) << file;
}

TEST_F(PeakCache, GivesBackWhatWasStored) {
  store(folder_.path(), sample());
  const auto cached = load(folder_.path(), sample().key);
  ASSERT_TRUE(cached.record) << cached.warning;
  EXPECT_EQ(cached.record->measured_utc, "2026-11-21T10:00:00Z");
  ASSERT_NE(cached.record->find("hbm_copy"), nullptr);
  EXPECT_EQ(cached.record->find("hbm_copy")->value, 4.25e12);
  EXPECT_EQ(cached.record->find("hbm_copy")->sustained->sm_clock_mhz, 1980);
  EXPECT_EQ(cached.record->find("fp8"), nullptr) << "it was not measured";
  EXPECT_EQ(cached.record->figures.at(1).why_not, "this GPU has no FP8");
}

TEST_F(PeakCache, NothingOfAnotherGpuDriverOrPowerLimit) {
  store(folder_.path(), sample());
  Key gpu = sample().key, driver = gpu, limit = gpu;
  gpu.of = "GPU-2";
  driver.driver = "590.1";
  limit.power_limit_w = 500;
  for (const Key& other : {gpu, driver, limit}) {
    const auto cached = load(folder_.path(), other);
    EXPECT_FALSE(cached.record);
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
  EXPECT_TRUE(load(folder_.path(), sample().key).record);
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator{folder_.path() / "peak"}) ++files;
  EXPECT_EQ(files, 1u);
}

// As files in caches and of --links --json have it.
TEST_F(PeakCache, ReadsTheFilesOfEachSubject) {
  constexpr const char* of_levels = R"({"key":{"of":"GPU-1","model":"NVIDIA H200","driver":"580.159","power_limit_w":700.0,
    "cpus":0},"measured_utc":"2026-11-21T10:00:00Z","schema_version":1,"page_bytes":2097152.0,
    "lines":[{"bytes":16384.0,"latency_ns":18.0,"latency_cycles":33.0,"bytes_s":1e13}],"pages":[],
    "shared":{"bytes":233472.0,"latency_ns":13.0,"latency_cycles":23.0,"bytes_s":3e13}})";
  const Key key = sample().key;
  base::write_atomically(cache_file(folder_.path(), key, Subject::levels), of_levels);
  const Cached levels = load(folder_.path(), key, Subject::levels);
  ASSERT_TRUE(levels.record) << levels.warning;
  EXPECT_EQ(levels.record->levels->lines.at(0).ns, 18);
  EXPECT_EQ(levels.record->levels->shared->cycles, 23);
  constexpr const char* of_links = R"({"key":{"of":"GPU-1","model":"NVIDIA H200","driver":"580.159","power_limit_w":700.0,
    "cpus":0},"measured_utc":"2026-11-21T10:00:00Z","schema_version":1,"nccl":"2.28.3","missing":[],
    "gpus":[{"ordinal":0,"uuid":"GPU-1","name":"NVIDIA H200","figures":[
      {"id":"hbm_read","value":4.6e12,"how":"16 bytes a thread","why_not":"","unit":"B/s"}]}],
    "pairs":[{"from_gpu":0,"to_gpu":1,"path":"NV18","direct":true,"bytes_s":3.9e11,"both_bytes_s":7e11,"latency_s":7e-7}],
    "times":[{"operation":"all_gather","bytes":1024.0,"time_s":1e-5,"wrong":0,"algorithm_bytes_s":1e8,"bus_bytes_s":5e7}]})";
  base::write_atomically(cache_file(folder_.path(), key, Subject::fabric), of_links);
  const Cached links = load(folder_.path(), key, Subject::fabric);
  ASSERT_TRUE(links.record) << links.warning;
  EXPECT_EQ(links.record->fabric->gpus.at(0).find("hbm_read")->value, 4.6e12);
  EXPECT_EQ(links.record->fabric->times.at(0).operation, Collective::all_gather);
}

TEST_F(PeakCache, NoFolderNoRecord) {
  EXPECT_FALSE(load({}, sample().key).record);
  EXPECT_ANY_THROW(store({}, sample()));
}

}  // namespace
}  // namespace aisp::peak
