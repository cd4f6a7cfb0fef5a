// SPDX-License-Identifier: Apache-2.0
// The recorder tells kernels that the harness launched from others of the same name.
#include <gtest/gtest.h>
#include <aisp/check.hpp>

#include <algorithm>
#include <thread>

#include "base/own_launch.hpp"
#include "profile/activity.hpp"

namespace aisp::profile {
namespace {

__global__ void aisp_evict_named(int) {}

void launch(int blocks) {
  aisp_evict_named<<<blocks, 32>>>(0);
  check(cudaGetLastError());
}

TEST(OwnLaunchGpu, OnlyKernelsOfTheHarnessAreItsOwn) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
  if (const auto& reason = ActivityRecorder::unavailable()) GTEST_SKIP() << *reason;
  ActivityRecorder recorder;
  recorder.start();
  launch(1);
  {
    const base::OwnLaunch own;
    launch(2);
    std::thread{launch, 3}.join();
  }
  launch(4);
  check(cudaDeviceSynchronize());
  std::vector<Activity> activities = recorder.stop();
  EXPECT_TRUE(ActivityRecorder::tells_own());
  ASSERT_EQ(activities.size(), 4u);
  for (const Activity& activity : activities)
    EXPECT_EQ(activity.own, activity.shape.grid[0] == 2) << "the launch of " << activity.shape.grid[0] << " blocks";
}

}  // namespace
}  // namespace aisp::profile
