// SPDX-License-Identifier: Apache-2.0
// The links of a real machine.
#include <gmock/gmock.h>

#include <cstdlib>
#include <numeric>

#include "machine/topology/topology.hpp"
#include "peak/obtain.hpp"
#include "places.hpp"

namespace aisp::peak {
namespace {

TEST(FabricOfAMachine, CopiesAndCollectivesArePlausibleAndRight) {
  const machine::Topology topology = machine::probe_topology(60, aisp_path());
  const std::size_t gpus = topology.machine.gpus.size();
  if (gpus < 2) GTEST_SKIP() << "it takes two GPUs";
  setenv("NCCL_NVLS_ENABLE", "0", 0);  // NVLink multicast is not allowed on every machine
  std::vector<int> ordinals(gpus);
  std::iota(ordinals.begin(), ordinals.end(), 0);
  const auto obtained = obtain_fabric(topology, ordinals, {.purpose = "a test", .executable = aisp_path()});
  ASSERT_TRUE(obtained.record) << obtained.why_not;
  const Fabric& fabric = *obtained.record->fabric;
  EXPECT_THAT(fabric.missing, testing::IsEmpty());
  ASSERT_EQ(fabric.pairs.size(), gpus * (gpus - 1));
  for (const FabricPair& pair : fabric.pairs) {
    EXPECT_GT(pair.bytes_s, 2e9);
    EXPECT_GT(pair.both_bytes_s, pair.bytes_s);
    EXPECT_LT(pair.both_bytes_s, 2.2 * pair.bytes_s);
    if (pair.direct) {
      EXPECT_NEAR(pair.latency_s, 1.5e-6, 1.3e-6);
    }
    EXPECT_NE(pair.path, "");
  }
  for (const FabricGpu& gpu : fabric.gpus) EXPECT_THAT(gpu.figures, testing::SizeIs(3));
  if (fabric.nccl.empty()) return;
  ASSERT_GE(fabric.times.size(), 4 * 8u);
  for (const CollectiveTime& time : fabric.times) {
    EXPECT_EQ(time.wrong, 0u) << name_of(time.operation) << " of " << time.bytes;
    EXPECT_LT(time.bus_bytes_s(gpus), 4e12);
  }
}

}  // namespace
}  // namespace aisp::peak
