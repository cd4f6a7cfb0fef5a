// SPDX-License-Identifier: Apache-2.0
// The staircase of a real GPU has the steps that every GPU has.
#include <gtest/gtest.h>

#include <algorithm>

#include "machine/machine.hpp"
#include "peak/obtain.hpp"
#include "places.hpp"

namespace aisp::peak {
namespace {

TEST(LevelsOfAGpu, RiseFromRegistersToMemory) {
  const machine::Machine machine = machine::probe(60, aisp_path());
  if (machine.gpus.empty()) GTEST_SKIP() << machine.cuda_error;
  const machine::Gpu& gpu = machine.gpus.front();
  const PeakRecord record = ask({.gpus = {gpu.uuid}, .subject = Subject::levels, .limit_s = 240, .executable = aisp_path()});
  ASSERT_TRUE(record.levels) << record.partial;
  const MemoryLevels& levels = *record.levels;
  ASSERT_TRUE(levels.registers && levels.shared);
  EXPECT_NEAR(levels.registers->cycles, 4, 3);
  EXPECT_NEAR(levels.shared->cycles, 28, 14);
  const LevelsFound found = found_in(levels, stated_sizes(gpu));
  const auto level = [&](const char* name) { return std::ranges::find(found.memory, name, &MemoryLevel::name); };
  ASSERT_NE(level("L1"), found.memory.end());
  ASSERT_NE(level("HBM"), found.memory.end());
  ASSERT_GE(found.memory.size(), 3u) << "L2 lies between";
  EXPECT_NEAR(level("L1")->cycles, 36, 15);
  const MemoryLevel& l2 = found.memory[1];
  EXPECT_GT(l2.ns, 2 * level("L1")->ns);
  EXPECT_GT(level("HBM")->ns, 1.4 * l2.ns);
  EXPECT_GT(level("L1")->bytes_s, 1.5 * l2.bytes_s);
  EXPECT_GT(l2.bytes_s, level("HBM")->bytes_s);
  EXPECT_FALSE(found.translation.empty());
}

}  // namespace
}  // namespace aisp::peak
