// SPDX-License-Identifier: Apache-2.0
// Registers move between warpgroups, and named barriers hold the threads that wait, and those alone.
#include <aisp/device/warpgroup.cuh>

#include "gpu_test.hpp"

namespace aisp {
namespace {

constexpr int warpgroup = 128, block = 3 * warpgroup;

// All registers of the SM are given out at the start, 168 a thread. Two warpgroups can take 232 only when the third, which comes
// late, has given up all but 40 of its own.
__global__ __launch_bounds__(block, 1) void move_registers(std::uint64_t* given_up, std::uint64_t* taken) {
  if (threadIdx.x / warpgroup == 2) {
    pause_us(500);
    if (threadIdx.x % warpgroup == 0) *given_up = now_ns();
    device::give_up_registers<40>();
  } else {
    device::take_registers<232>();
    if (threadIdx.x % warpgroup == 0) taken[threadIdx.x / warpgroup] = now_ns();
  }
}

// Barrier 1: warp 0 comes late and does not wait, warp 1 waits. Barrier 2: the other way round. Warp 2 takes no part.
__global__ void meet_at_named_barriers(unsigned* seen) {
  __shared__ volatile unsigned first, second;
  const unsigned warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    first = 0;
    second = 0;
  }
  __syncthreads();
  if (warp == 0) {
    pause_us(100);
    first = 7;
    device::named_barrier_arrive(1, 64);
    device::named_barrier_sync(2, 64);
    seen[threadIdx.x] = second;
  }
  if (warp == 1) {
    device::named_barrier_sync(1, 64);
    seen[threadIdx.x] = first;
    pause_us(100);
    second = 8;
    device::named_barrier_arrive(2, 64);
  }
}

class Registers : public GpuTest<9, 9> {};
class NamedBarrier : public GpuTest<8> {};

TEST_F(Registers, AreTakenWhenTheyHaveBeenGivenUp) {
  const OnGpu<std::uint64_t> given_up{std::vector<std::uint64_t>{0}}, taken{std::vector<std::uint64_t>{0, 0}};
  move_registers<<<1, block>>>(given_up.get(), taken.get());
  check(cudaDeviceSynchronize());
  const std::uint64_t given = given_up.host()[0];
  EXPECT_GT(given, 0u);
  for (const std::uint64_t time : taken.host()) EXPECT_GE(time, given);
}

TEST_F(NamedBarrier, HoldsWhoSyncsUntilAllHaveArrived) {
  const OnGpu<unsigned> seen{std::vector<unsigned>(96, 9)};
  meet_at_named_barriers<<<1, 96>>>(seen.get());
  check(cudaDeviceSynchronize());
  std::vector<unsigned> expected(96, 9);
  for (unsigned i = 0; i < 64; ++i) expected[i] = i < 32 ? 8 : 7;
  EXPECT_EQ(seen.host(), expected);
}

}  // namespace
}  // namespace aisp
