// SPDX-License-Identifier: Apache-2.0
#include "profile/recording.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

namespace aisp::profile {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::SizeIs;

Recording sample() {
  Recording recording;
  recording.host_begin_ns = 1000000;
  recording.host_end_ns = 1090000;
  Activity call{.kind = Activity::Kind::call,
                .start_ns = 1010000,
                .end_ns = 1015000,
                .name = "cudaLaunchKernel",
                .correlation = 7,
                .thread = 42};
  Activity inner{.kind = Activity::Kind::call,
                 .start_ns = 1011000,
                 .end_ns = 1014000,
                 .name = "cuLaunchKernel",
                 .correlation = 8,
                 .thread = 42};
  Activity harness{.kind = Activity::Kind::call, .start_ns = 900000, .end_ns = 910000, .name = "cudaEventRecord", .thread = 42};
  Activity kernel{.kind = Activity::Kind::kernel,
                  .start_ns = 1020000,
                  .end_ns = 1050500,
                  .stream = 13,
                  .name = "_Z5tiledPf",
                  .correlation = 8};
  kernel.shape = {.grid = {4, 2, 1}, .block = {256, 1, 1}, .registers = 40};
  Activity beside{.kind = Activity::Kind::kernel,
                  .start_ns = 1030000,
                  .end_ns = 1040000,
                  .stream = 13,
                  .name = "_Z5tiledPf",
                  .correlation = 9};
  Activity copy{.kind = Activity::Kind::memcpy,
                .start_ns = 1060000,
                .end_ns = 1070000,
                .stream = 14,
                .name = "pinned host to device",
                .bytes = 1000,
                .correlation = 10};
  Activity memory{.kind = Activity::Kind::memory, .start_ns = 1005000, .end_ns = 1005000, .bytes = 4096};
  recording.activities = {harness, call, inner, memory, kernel, beside, copy};
  recording.ranges = {{"upload", 1002000, 1055000, 0}, {"first_token", 1056000, 1056000, 0}};
  return recording;
}

TEST(Trace, SaysHowLongTheExecutionTookUnrecorded) {
  const Recording recording = sample();
  EXPECT_EQ(json::parse(chrome_trace(recording, {"ch07:transpose", "padded", 0, 0.166})).at("otherData").at("span_us"), 166);
  EXPECT_FALSE(json::parse(chrome_trace(recording, {"ch07:transpose", "padded", 0})).at("otherData").contains("span_us"));
}

json events_of(const Recording& recording) {
  const json trace = json::parse(chrome_trace(recording, {"ch07:transpose", "padded", 65536}));
  EXPECT_EQ(trace.at("otherData").at("variant"), "padded");
  return trace.at("traceEvents");
}

std::vector<json> of_phase(const json& events, const char* phase) {
  std::vector<json> found;
  for (const json& event : events)
    if (event.at("ph") == phase) found.push_back(event);
  return found;
}

json slice(const json& events, const std::string& name) {
  for (const json& event : of_phase(events, "X")) {
    if (event.at("name") == name) return event;
  }
  ADD_FAILURE() << "no slice " << name;
  return {};
}

TEST(Trace, EveryEventHasWhatViewersNeedInOrder) {
  double last = 0;
  for (const json& event : events_of(sample())) {
    for (const char* field : {"ph", "name", "pid", "tid"}) EXPECT_TRUE(event.contains(field)) << event;
    if (event["ph"] == "M") continue;
    EXPECT_GE(event.at("ts").get<double>(), last) << event;
    last = event["ts"];
    if (event["ph"] == "X") {
      EXPECT_GT(event.at("dur").get<double>(), 0) << event;
    }
  }
  EXPECT_DOUBLE_EQ(last, 70) << "microseconds since the variant began, when the last work ended";
}

TEST(Trace, SlicesOfATrackNestOrFollowEachOther) {
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> tracks;
  for (const json& event : of_phase(events_of(sample()), "X"))
    tracks[{event["pid"], event["tid"]}].emplace_back(event["ts"], event["ts"].get<double>() + event["dur"].get<double>());
  EXPECT_THAT(tracks, SizeIs(5)) << "ranges, calls, two lanes of one stream, another stream";
  for (const auto& [track, slices] : tracks)
    for (const auto& [begin, end] : slices)
      for (const auto& [other_begin, other_end] : slices) {
        const bool crosses = begin < other_begin && other_begin < end && end < other_end;
        EXPECT_FALSE(crosses) << track.first << " " << track.second;
      }
}

TEST(Trace, KernelsSayWhatTheyTakeInMicroseconds) {
  const json kernel = slice(events_of(sample()), "tiled");
  EXPECT_DOUBLE_EQ(kernel.at("ts"), 20);
  EXPECT_DOUBLE_EQ(kernel.at("dur"), 30.5);
  EXPECT_EQ(kernel.at("args").at("grid"), json({4, 2, 1}));
  EXPECT_EQ(kernel.at("args").at("registers"), 40);
  const json copy = slice(events_of(sample()), "copy, pinned host to device");
  EXPECT_DOUBLE_EQ(copy.at("args").at("bytes_per_second"), 1e8);
}

TEST(Trace, ShowsOuterCallsRangesAndMarks) {
  const json events = events_of(sample());
  EXPECT_THAT(of_phase(events, "X"), SizeIs(6)) << events;
  EXPECT_DOUBLE_EQ(slice(events, "cudaLaunchKernel").at("dur"), 5);
  EXPECT_DOUBLE_EQ(slice(events, "upload").at("dur"), 53);
  ASSERT_THAT(of_phase(events, "i"), SizeIs(1));
  EXPECT_EQ(of_phase(events, "i")[0].at("name"), "first_token");
}

TEST(Trace, ArrowsLeadFromTheShownCallToTheWork) {
  const json events = events_of(sample());
  const auto from = of_phase(events, "s"), to = of_phase(events, "f");
  ASSERT_THAT(from, SizeIs(1));
  ASSERT_THAT(to, SizeIs(1));
  EXPECT_EQ(from[0].at("id"), to[0].at("id"));
  EXPECT_DOUBLE_EQ(from[0].at("ts"), 10);
  EXPECT_DOUBLE_EQ(to[0].at("ts"), 20);
}

TEST(Trace, MemoryIsACounterThatStartsWithWhatThereWas) {
  const auto counters = of_phase(events_of(sample()), "C");
  ASSERT_THAT(counters, SizeIs(3));
  EXPECT_DOUBLE_EQ(counters[0].at("args").at("bytes"), 65536);
  EXPECT_DOUBLE_EQ(counters[1].at("args").at("bytes"), 65536 + 4096);
}

TEST(Trace, TracksAreNamed) {
  std::vector<std::string> names;
  for (const json& event : of_phase(events_of(sample()), "M"))
    if (event["args"].contains("name")) names.push_back(event["args"]["name"]);
  for (const char* name : {"host", "GPU 0", "ranges", "stream 13", "stream 14", "CUDA calls, thread 1"})
    EXPECT_THAT(names, Contains(name));
}

}  // namespace
}  // namespace aisp::profile
