// SPDX-License-Identifier: Apache-2.0
// Our own formula against the toolkit's calculator, for the GPUs that it knows.
#include "profile/recording.hpp"

#include <cuda_occupancy.h>
#include <gtest/gtest.h>

#include <climits>

namespace aisp::profile {
namespace {

struct Gpu {
  int major, minor;
  int threads, blocks;
  std::size_t shared_bytes, shared_bytes_of_a_block;
};
constexpr Gpu gpus[] = {{8, 0, 2048, 32, 167936, 166912}, {8, 9, 1536, 24, 102400, 101376}, {9, 0, 2048, 32, 233472, 232448}};

cudaOccDeviceProp properties_of(const Gpu& gpu) {
  cudaOccDeviceProp properties{};
  properties.computeMajor = gpu.major;
  properties.computeMinor = gpu.minor;
  properties.maxThreadsPerBlock = 1024;
  properties.maxThreadsPerMultiprocessor = gpu.threads;
  properties.regsPerBlock = properties.regsPerMultiprocessor = 65536;
  properties.warpSize = 32;
  properties.sharedMemPerBlock = 49152;
  properties.sharedMemPerMultiprocessor = gpu.shared_bytes;
  properties.sharedMemPerBlockOptin = gpu.shared_bytes_of_a_block;
  properties.reservedSharedMemPerBlock = 1024;
  properties.numSms = 100;
  return properties;
}

int toolkit_blocks(const Gpu& gpu, const LaunchResources& launch) {
  const cudaOccDeviceProp properties = properties_of(gpu);
  cudaOccFuncAttributes attributes{};
  attributes.maxThreadsPerBlock = INT_MAX;
  attributes.numRegs = launch.registers_per_thread;
  attributes.sharedSizeBytes = launch.static_shared_bytes;
  attributes.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  attributes.maxDynamicSharedSizeBytes = launch.dynamic_shared_bytes;
  cudaOccDeviceState state{};
  state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
  cudaOccResult result{};
  EXPECT_EQ(cudaOccMaxActiveBlocksPerMultiprocessor(&result, &properties, &attributes, &state, launch.threads_per_block,
                                                    launch.dynamic_shared_bytes),
            CUDA_OCC_SUCCESS);
  return result.activeBlocksPerMultiprocessor;
}

TEST(OccupancyFormula, AgreesWithTheToolkit) {
  int compared = 0;
  for (const Gpu& gpu : gpus)
    for (const int threads : {1, 32, 33, 96, 128, 160, 256, 384, 512, 768, 1024})
      for (const int registers : {16, 24, 32, 33, 40, 56, 64, 72, 96, 128, 168, 255})
        for (const std::uint64_t dynamic : {0, 1, 1000, 16384, 49152, 65536, 98304})
          for (const std::uint64_t fixed : {0, 512, 4096}) {
            const LaunchResources launch{threads, registers, fixed, dynamic};
            const int expected = toolkit_blocks(gpu, launch);
            if (expected == 0) continue;  // such a kernel cannot be launched at all
            const SmLimits sm{100, gpu.threads / 32, gpu.blocks, 65536, gpu.shared_bytes, 1024};
            ASSERT_EQ(occupancy(launch, sm).blocks, expected)
                << gpu.major << "." << gpu.minor << ": " << threads << " threads, " << registers << " registers, " << fixed
                << " + " << dynamic << " bytes";
            ++compared;
          }
  EXPECT_GT(compared, 4000);
}

TEST(OccupancyFormula, SaysWhatRunsOut) {
  const SmLimits sm{132, 64, 32, 65536, 233472, 1024};
  EXPECT_EQ(occupancy({256, 32, 0, 0}, sm).limit, "warps");
  EXPECT_EQ(occupancy({32, 32, 0, 0}, sm).limit, "blocks");
  EXPECT_EQ(occupancy({256, 128, 0, 0}, sm).limit, "registers");
  EXPECT_EQ(occupancy({256, 32, 0, 100000}, sm).limit, "shared memory");
  EXPECT_DOUBLE_EQ(occupancy({256, 128, 0, 0}, sm).percent, 25);
}

}  // namespace
}  // namespace aisp::profile
