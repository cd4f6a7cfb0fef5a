// SPDX-License-Identifier: Apache-2.0
#include "evidence/profile/profile_difference.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "evidence/json.hpp"

namespace aisp::evidence {
namespace {

// A variant whose kernels take `kernel_ms` of `span_ms`, one after the other.
Profile timeline(double span_ms, double kernel_ms, std::size_t launches) {
  Profile profile;
  profile.span_ms = span_ms;
  profile.kernel_ms = profile.busy_ms = kernel_ms;
  profile.idle_percent = 100 * (span_ms - kernel_ms) / span_ms;
  profile.launches = profile.launch_calls = launches;
  profile.kernels = {KernelProfile{.name = "k", .count = launches, .registers = 32, .occupancy_percent = 100}};
  return profile;
}

TEST(ProfileDifference, ShowsWhatChanged) {
  EXPECT_EQ(profile_difference(timeline(1.0, 0.39, 40), timeline(0.4, 0.388, 1)), "launches 40 -> 1, idle 61 % -> 3 %");
  EXPECT_EQ(profile_difference(timeline(3, 3, 3), timeline(1, 1, 1)), "launches 3 -> 1, kernel time 3.00 ms -> 1.00 ms");
  Profile graph = timeline(1.0, 0.39, 40);
  graph.launch_calls = 1;
  EXPECT_EQ(profile_difference(timeline(1.0, 0.39, 40), graph), "launch calls of the host 40 -> 1");
}

TEST(ProfileDifference, ShowsCopies) {
  Profile before = timeline(10, 5, 1), after = timeline(10, 5, 1);
  before.copies = {{.direction = "pageable host to device", .count = 1, .bytes = 8.0 * (1 << 20)}};
  after.copies = {{.direction = "pinned host to device", .count = 2, .bytes = 1.0 * (1 << 20)}};
  before.copy_ms = 5;
  after.copy_ms = 1;
  after.overlap_percent = 80;
  EXPECT_EQ(profile_difference(before, after),
            "bytes copied 8 MiB -> 1 MiB, copies 1 -> 2, copy time 5.00 ms -> 1.00 ms, copy time under kernels 0 % -> 80 %");
}

TEST(ProfileDifference, ShowsTheHostAndTheLongestKernel) {
  Profile before = timeline(1, 1, 4), after = timeline(1, 1, 4);
  before.synchronizations = {{"stream", 4, 0.5}, {stream_wait, 9, 0}};
  after.synchronizations = {{"device", 1, 0.1}, {stream_wait, 2, 0}};
  before.allocations = 20;
  before.kernels[0].occupancy_percent = 25;
  before.kernels[0].registers = 128;
  EXPECT_EQ(profile_difference(before, after),
            "waits of the host 4 -> 1, allocations 20 -> 0, occupancy 25 % -> 100 %, registers 128 -> 32");
}

TEST(ProfileDifference, NothingChanged) {
  EXPECT_EQ(profile_difference(timeline(1, 1, 1), timeline(1.01, 1.01, 1)),
            "the same launches, copies and idle time, and kernel time within 5 %");
}

TEST(ProfileDifference, HostPairsSayTheirCpuTime) {
  Profile before, after;
  before.host = HostProfile{.wall_ms = 100, .user_ms = 90, .system_ms = 10, .voluntary_switches = 3, .minor_faults = 5000};
  after.host = HostProfile{.wall_ms = 10, .user_ms = 9, .system_ms = 1, .voluntary_switches = 1, .minor_faults = 4};
  EXPECT_EQ(
      profile_difference(before, after),
      "user CPU time 90.0 ms -> 9.00 ms, system CPU time 10.0 ms -> 1.00 ms, context switches 3 -> 1, page faults 5000 -> 4");
}

PairResult pair_with(const Profile& before, const Profile& after) {
  PairResult pair;
  pair.variants.resize(3);
  pair.variants[0] = {.name = "slow", .role = VariantRole::baseline, .profile = before};
  pair.variants[1] = {.name = "other", .profile = before};
  pair.variants[2] = {.name = "fast", .profile = after};
  pair.variants[2].speedup = Speedup{2, 1.9, 2.1, Verdict::faster};
  pair.lesson = pair.best = "fast";
  return pair;
}

TEST(ProfileSentence, ComparesTheBaselineWithTheLesson) {
  PairResult pair = pair_with(timeline(3, 3, 3), timeline(1, 1, 1));
  pair.variants.push_back({.name = "faster", .speedup = Speedup{3, 2.9, 3.1, Verdict::faster}, .profile = timeline(0.5, 0.5, 1)});
  pair.best = "faster";
  EXPECT_EQ(profile_sentence(pair), "launches 3 -> 1, kernel time 3.00 ms -> 1.00 ms");
  pair.variants[2].speedup.reset();
  EXPECT_EQ(profile_sentence(pair), "launches 3 -> 1, kernel time 3.00 ms -> 500 us");
}

TEST(ProfileSentence, ComparesTheBaselineWithTheBest) {
  EXPECT_EQ(profile_sentence(pair_with(timeline(3, 3, 3), timeline(1, 1, 1))), "launches 3 -> 1, kernel time 3.00 ms -> 1.00 ms");
}

TEST(ProfileSentence, IsSilentOfIdleTimeThatTheRecorderMade) {
  PairResult pair = pair_with(timeline(1.0, 0.39, 40), timeline(0.4, 0.388, 1));
  pair.variants[0].timing = Timing{.summary = {.median = 0.95}};
  pair.variants[2].timing = Timing{.summary = {.median = 0.39}};
  EXPECT_EQ(profile_sentence(pair), "launches 40 -> 1, idle 61 % -> 3 %");
  pair.variants[0].timing->summary.median = 0.5;
  EXPECT_EQ(profile_sentence(pair), "launches 40 -> 1");
}

TEST(ProfileSentence, SaysWhyThereIsNone) {
  PairResult pair;
  EXPECT_EQ(profile_sentence(pair), "");
  pair.lost = {{LostKind::other, "something else"}, {LostKind::profile, "no profile: CUPTI was not found"}};
  EXPECT_EQ(profile_sentence(pair), "no profile: CUPTI was not found");
}

TEST(ProfileJson, SurvivesTheTripThroughAFile) {
  PairResult pair = pair_with(timeline(3, 2, 3), timeline(1, 1, 1));
  pair.variants[0].profile->kernels[0].grid = {4, 2, 1};
  pair.variants[0].profile->copies = {{"pinned host to device", 2, 1e6, 0.5, 2e9}};
  pair.variants[2].profile->host = HostProfile{.wall_ms = 7, .major_faults = 3};
  pair.variants[2].profile->trace = "ch07_transpose/profiles/fast.trace.json";
  const nlohmann::json json = pair;
  const auto copy = json.get<PairResult>();
  EXPECT_EQ(nlohmann::json(copy), json);
  EXPECT_EQ(copy.variants[0].profile->kernels[0].grid, (std::vector<int>{4, 2, 1}));
  EXPECT_EQ(copy.variants[2].profile->host->major_faults, 3u);
  EXPECT_FALSE(copy.variants[0].profile->host);
}

}  // namespace
}  // namespace aisp::evidence
