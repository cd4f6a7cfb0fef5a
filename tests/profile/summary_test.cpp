// SPDX-License-Identifier: Apache-2.0
#include "profile/recording.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace aisp::profile {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr SmLimits hopper{
    .sm_count = 132, .warps = 64, .blocks = 32, .registers = 65536, .shared_bytes = 233472, .reserved_bytes_per_block = 1024};

Activity work(Activity::Kind kind, std::uint64_t start_us, std::uint64_t end_us, const char* name, std::uint64_t bytes = 0) {
  Activity activity{.kind = kind, .start_ns = start_us * 1000, .end_ns = end_us * 1000, .name = name, .bytes = bytes};
  if (kind == Activity::Kind::kernel) activity.shape = {.grid = {264, 1, 1}, .block = {256, 1, 1}, .registers = 32};
  return activity;
}
Activity kernel(std::uint64_t start_us, std::uint64_t end_us,
                const char* name = "_ZN4aisp4ch0712_GLOBAL__N_15tiledIfLi64EEEvPKT_PS2_") {
  return work(Activity::Kind::kernel, start_us, end_us, name);
}
Activity copy(std::uint64_t start_us, std::uint64_t end_us, std::uint64_t bytes,
              const char* direction = "pinned host to device") {
  return work(Activity::Kind::memcpy, start_us, end_us, direction, bytes);
}
Activity call(std::uint64_t start_us, std::uint64_t end_us, const char* name, std::uint32_t thread = 1) {
  Activity activity = work(Activity::Kind::call, start_us, end_us, name);
  activity.thread = thread;
  return activity;
}

std::vector<Activity> between_markers(std::vector<Activity> activities, std::uint64_t begin_us, std::uint64_t end_us) {
  activities.insert(activities.begin(), kernel(begin_us - 1, begin_us, "_Z17aisp_sample_beginv"));
  activities.push_back(kernel(end_us, end_us + 1, "_Z15aisp_sample_endv"));
  activities.front().own = activities.back().own = true;
  return activities;
}

evidence::Profile of_device(std::vector<Activity> activities) {
  return summarize(framed(std::move(activities), true), {}, {{0, hopper}});
}

TEST(Summary, GapsAreWhatNothingCovers) {
  const evidence::Profile profile = of_device({kernel(100, 110), kernel(105, 120), kernel(150, 160), copy(170, 180, 1)});
  EXPECT_DOUBLE_EQ(profile.span_ms, 0.080);
  EXPECT_DOUBLE_EQ(profile.busy_ms, 0.040);
  EXPECT_DOUBLE_EQ(profile.idle_percent, 50);
  EXPECT_EQ(profile.gaps, 2u);
  EXPECT_DOUBLE_EQ(profile.longest_gap_ms, 0.030);
  EXPECT_EQ(profile.launches, 3u);
  EXPECT_DOUBLE_EQ(profile.kernel_ms, 0.030);
}

TEST(Summary, TheFrameCountsWhereTheHostWasPartOfTheSample) {
  const std::vector<Activity> activities = between_markers({kernel(140, 150)}, 100, 200);
  const evidence::Profile immediate = summarize(framed(activities, false), {}, {});
  EXPECT_DOUBLE_EQ(immediate.span_ms, 0.100);
  EXPECT_DOUBLE_EQ(immediate.idle_percent, 90);
  EXPECT_EQ(immediate.gaps, 2u);
  EXPECT_EQ(immediate.launches, 1u) << "the markers are not the pair's";
  const evidence::Profile released = summarize(framed(activities, true), {}, {});
  EXPECT_DOUBLE_EQ(released.span_ms, 0.010);
  EXPECT_DOUBLE_EQ(released.idle_percent, 0);
}

TEST(Summary, KernelsAreGroupedByWhatTheyTake) {
  Activity wide = kernel(300, 400);
  wide.shape.block = {1024, 1, 1};
  wide.shape.registers = 64;
  Activity other_grid = kernel(500, 530);
  other_grid.shape.grid = {528, 1, 1};
  const evidence::Profile profile = of_device({kernel(100, 110), wide, other_grid});
  ASSERT_EQ(profile.kernels.size(), 2u);
  const evidence::KernelProfile& longest = profile.kernels[0];
  EXPECT_EQ(longest.name, "tiled<float, 64>");
  EXPECT_THAT(longest.block, ElementsAre(1024, 1, 1));
  EXPECT_THAT(longest.cluster, IsEmpty());
  EXPECT_DOUBLE_EQ(longest.total_ms, 0.1);
  EXPECT_NEAR(longest.share_percent, 100.0 * 100 / 140, 1e-9);
  EXPECT_DOUBLE_EQ(longest.occupancy_percent.value(), 50);
  EXPECT_EQ(longest.occupancy_limit, "registers");
  const evidence::KernelProfile& twice = profile.kernels[1];
  EXPECT_EQ(twice.count, 2u);
  EXPECT_EQ(twice.grids, 2u);
  EXPECT_THAT(twice.grid, ElementsAre(528, 1, 1)) << "of the longest launch";
  EXPECT_DOUBLE_EQ(twice.mean_ms, 0.020);
  EXPECT_DOUBLE_EQ(twice.occupancy_percent.value(), 100);
  EXPECT_DOUBLE_EQ(twice.waves.value(), 528.0 / (8 * 132));
}

TEST(Summary, AnUnknownGpuHasNoOccupancy) {
  const evidence::Profile profile = summarize(framed({kernel(1, 2)}, true), {}, {});
  EXPECT_FALSE(profile.kernels.at(0).occupancy_percent);
  EXPECT_FALSE(profile.kernels.at(0).waves);
}

TEST(Summary, CopiesByDirectionAndWhatKernelsHide) {
  const evidence::Profile profile = of_device(
      {copy(100, 200, 1000000), copy(150, 250, 500000), copy(300, 350, 4, "device to pageable host"), kernel(190, 310)});
  ASSERT_EQ(profile.copies.size(), 2u);
  EXPECT_EQ(profile.copies[0].direction, "pinned host to device");
  EXPECT_EQ(profile.copies[0].count, 2u);
  EXPECT_DOUBLE_EQ(profile.copies[0].bytes, 1.5e6);
  EXPECT_DOUBLE_EQ(profile.copies[0].total_ms, 0.150) << "side by side, so the time counts once";
  EXPECT_NEAR(profile.copies[0].bytes_per_second, 1e10, 1);
  EXPECT_DOUBLE_EQ(profile.copy_ms, 0.200);
  EXPECT_DOUBLE_EQ(profile.overlap_percent, 35);
}

TEST(Summary, HostSideCountsTheVariantsOwnOuterCallsOnly) {
  Recording host;
  host.host_begin_ns = 100000;
  host.host_end_ns = 200000;
  Activity wait = work(Activity::Kind::wait, 160, 190, "stream");
  Activity allocated = work(Activity::Kind::memory, 110, 110, "", 4096), freed = work(Activity::Kind::memory, 150, 150, "", 4096);
  freed.freed = true;
  host.activities = {call(50, 60, "cudaLaunchKernel"),  // the harness's own
                     call(110, 120, "cudaLaunchKernel"),
                     call(112, 118, "cuLaunchKernel"),
                     call(125, 126, "cuKernelGetName"),
                     call(112, 115, "cudaGraphLaunch", 2),
                     call(130, 140, "cudaLaunchHostFunc"),
                     call(160, 190, "cudaStreamSynchronize"),
                     wait,
                     allocated,
                     freed,
                     allocated};
  const evidence::Profile profile = summarize({}, host, {});
  EXPECT_DOUBLE_EQ(profile.host_ms, 0.1);
  EXPECT_EQ(profile.launch_calls, 2u);
  EXPECT_DOUBLE_EQ(profile.launch_ms, 0.013);
  ASSERT_EQ(profile.calls.size(), 4u);
  EXPECT_EQ(profile.calls[0].name, "cudaStreamSynchronize");
  ASSERT_EQ(profile.synchronizations.size(), 1u);
  EXPECT_THAT(profile.synchronizations[0].total_ms, DoubleNear(0.030, 1e-9));
  EXPECT_EQ(profile.allocations, 2u);
  EXPECT_DOUBLE_EQ(profile.peak_allocated_bytes, 4096);
}

TEST(Summary, WhatTheRecorderAddsIsNoIdleTime) {
  evidence::Profile profile = of_device({kernel(100, 130), copy(150, 160, 1), kernel(260, 300)});
  shorten_to_timed(profile, 0.120);
  EXPECT_DOUBLE_EQ(profile.span_ms, 0.120) << "recorded over 0.2";
  EXPECT_DOUBLE_EQ(profile.busy_ms, 0.080);
  EXPECT_NEAR(profile.idle_percent, 100.0 / 3, 1e-9);
  EXPECT_EQ(profile.gaps, 2u);
  EXPECT_DOUBLE_EQ(profile.longest_gap_ms, 0.040) << "no longer than all of them";
}

TEST(Summary, RecordedWorkIsNotLongerThanTheTimedExecution) {
  evidence::Profile profile = of_device({kernel(100, 180), kernel(190, 270)});
  shorten_to_timed(profile, 0.150);
  EXPECT_DOUBLE_EQ(profile.busy_ms, 0.150);
  EXPECT_DOUBLE_EQ(profile.kernel_ms, 0.150);
  EXPECT_DOUBLE_EQ(profile.idle_percent, 0);
  EXPECT_EQ(profile.gaps, 0u);
}

TEST(Summary, ARecordingThatTookNoLongerStays) {
  evidence::Profile profile = of_device({kernel(100, 140), kernel(160, 200)});
  for (const double timed_ms : {0.0, 0.1, 0.5}) {
    shorten_to_timed(profile, timed_ms);
    EXPECT_DOUBLE_EQ(profile.span_ms, 0.100);
    EXPECT_DOUBLE_EQ(profile.idle_percent, 20);
    EXPECT_EQ(profile.gaps, 1u);
  }
}

TEST(Summary, NothingIsNothing) {
  const evidence::Profile profile = of_device({});
  EXPECT_EQ(profile.launches, 0u);
  EXPECT_DOUBLE_EQ(profile.span_ms, 0);
  EXPECT_DOUBLE_EQ(profile.idle_percent, 0);
}

}  // namespace
}  // namespace aisp::profile
