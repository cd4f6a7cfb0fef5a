// SPDX-License-Identifier: Apache-2.0
#include "machine/host.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "machine/fake_root.hpp"

namespace aisp::machine {
namespace {

using testing::ElementsAre;

TEST(CpuCachesTest, CountsInstances) {
  FakeRoot root;  // two sockets of two cores with two threads each
  root.file("sys/devices/system/cpu/online", "0-7\n");
  for (int cpu = 0; cpu < 8; ++cpu) {
    const std::string folder = "sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache";
    const int core = cpu % 4;
    root.file(folder + "/index0/level", "1").file(folder + "/index0/type", "Data").file(folder + "/index0/size", "48K");
    root.file(folder + "/index0/shared_cpu_list", std::to_string(core) + "," + std::to_string(core + 4));
    root.file(folder + "/index3/level", "3").file(folder + "/index3/type", "Unified").file(folder + "/index3/size", "32M");
    root.file(folder + "/index3/shared_cpu_list", core < 2 ? "0-1,4-5" : "2-3,6-7");
  }
  const std::vector<CpuCache> caches = read_cpu_caches(root.path());
  ASSERT_EQ(caches.size(), 2u);
  EXPECT_EQ(caches[0].level, 1);
  EXPECT_EQ(caches[0].bytes, 48u << 10);
  EXPECT_THAT(caches[0].shared_by, ElementsAre("0,4", "1,5", "2,6", "3,7"));
  EXPECT_EQ(caches[1].bytes, 32u << 20);
  EXPECT_THAT(caches[1].shared_by, ElementsAre("0-1,4-5", "2-3,6-7"));
  EXPECT_EQ(last_level_cache_bytes(root.path()), 64u << 20) << "one in each socket";
}

TEST(CpuCachesTest, KnowsNothingWhereNothingIsTold) {
  const FakeRoot root;
  EXPECT_THAT(read_cpu_caches(root.path()), testing::IsEmpty());
  EXPECT_EQ(last_level_cache_bytes(root.path()), 0u);
}

}  // namespace
}  // namespace aisp::machine
