// SPDX-License-Identifier: Apache-2.0
#include "suite/task.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "machine/gpu_lock.hpp"
#include "suite/made_up_machine.hpp"
#include "suite/selection.hpp"

namespace aisp::suite {
namespace {

using testing::ElementsAre;

constexpr Pair gpu_task_pair{.teaches = "", .make = nullptr, .baseline = {"a"}, .optimized = variants({{"b"}})};
constexpr Pair swept_pair{.teaches = "",
                          .make = nullptr,
                          .baseline = {"a"},
                          .optimized = variants({{"b"}}),
                          .sizes = sizes({{.name = "n", .full = 64}}),
                          .sweep = cases({{"small", "n=1"}, {"large", "n=99"}})};
constexpr pair::Entry plain_entry{"ch01", "plain", "", &gpu_task_pair}, swept{"ch01", "swept", "", &swept_pair};

class TaskTest : public testing::Test {
 protected:
  TaskTest() { setenv("AISP_LOCK_DIRECTORY", folder_.path().c_str(), 1); }
  ~TaskTest() override { unsetenv("AISP_LOCK_DIRECTORY"); }

  Task task(std::vector<const pair::Entry*> selected, Configuration configuration = {}) {
    return make_task(std::move(selected), std::move(configuration), machine_with({{"H200", 90}, {"H200", 90}, {"H200", 90}}),
                     {"aisp", "run"});
  }
  static bool taken(const std::string& uuid) try {
    machine::lock_gpu(uuid, "a test");
    return false;
  } catch (const base::Error& error) {
    return error.status() == base::Exit::unfit;
  }

  base::ScratchDirectory folder_;
};

TEST_F(TaskTest, EachCaseOfASweepHasAPlaceOfItsOwn) {
  const auto labels = [](const Task& task) {
    std::vector<std::string> result;
    for (const Placement& placement : task.placements) {
      EXPECT_EQ(placement.index, result.size());
      result.push_back(placement.label());
    }
    return result;
  };
  EXPECT_THAT(labels(task({&swept, &plain_entry})), ElementsAre("ch01:swept", "ch01:plain"));
  Configuration configuration;
  configuration.sweep = true;
  EXPECT_THAT(labels(task({&swept}, configuration)), ElementsAre("ch01:swept small", "ch01:swept large"));
}

TEST_F(TaskTest, EachCombinationOfSizesHasAPlaceOfItsOwn) {
  Configuration configuration;
  configuration.sizes = {{"n", {64, 128}}, {"fixed", {7}}};
  const auto points = points_of(swept, configuration);
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[1].name, "n_128");
  EXPECT_EQ(points[1].sizes, (pair::SizeMap{{"fixed", 7}, {"n", 128}}));
  EXPECT_EQ(request_for(swept, configuration, points[1]).sizes, points[1].sizes);
  EXPECT_EQ(request_for(swept, configuration, points[1]).sweep_case, "n_128");
  configuration.sizes = {{"fixed", {7}}};
  ASSERT_EQ(points_of(swept, configuration).size(), 1u);
  EXPECT_EQ(points_of(swept, configuration)[0].name, "");
}

TEST_F(TaskTest, CasesAndSizesTogetherMakeAGrid) {
  Configuration configuration;
  configuration.sweep = true;
  configuration.sizes = {{"k", {1, 2}}};
  std::vector<std::string> names;
  for (const Point& point : points_of(swept, configuration)) names.push_back(point.name);
  EXPECT_THAT(names, ElementsAre("small_k_1", "small_k_2", "large_k_1", "large_k_2"));
  EXPECT_EQ(points_of(swept, configuration)[3].sizes, (pair::SizeMap{{"k", 2}, {"n", 99}}));
}

TEST_F(TaskTest, LocksWhatItMayRunOnAndNothingElse) {
  Configuration configuration;
  configuration.gpus = {"2", "0"};
  const Task chosen = task({&plain_entry}, configuration);
  EXPECT_THAT(chosen.gpus, ElementsAre(2, 0));
  EXPECT_THAT(gpus_in_use(chosen), ElementsAre(0, 2));
  {
    const std::vector<base::FileLock> locks = lock_gpus(chosen);
    EXPECT_EQ(locks.size(), 2u);
    EXPECT_TRUE(taken("GPU-1111"));
    EXPECT_FALSE(taken("GPU-2222"));
    EXPECT_TRUE(taken("GPU-3333"));
    EXPECT_THROW(lock_gpus(chosen), base::Error);
  }
  EXPECT_FALSE(taken("GPU-1111"));
}

TEST_F(TaskTest, GpusThatAreNotThereEndItBeforeAnythingRuns) {
  Configuration configuration;
  configuration.gpus = {"7"};
  EXPECT_THROW(task({&plain_entry}, configuration), base::Error);
}

}  // namespace
}  // namespace aisp::suite
