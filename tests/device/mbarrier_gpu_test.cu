// SPDX-License-Identifier: Apache-2.0
// Phases complete when all arrivals and all bytes have come, and not before; arrivals reach the block they are meant for.
#include <aisp/device/cluster.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>

#include "gpu_test.hpp"

namespace aisp {
namespace {

constexpr unsigned blocks = 4;  // of a cluster

// By one thread: whether the phases of parity 0 and of parity 1 have completed.
struct Looks {
  unsigned* to;
  __device__ void at(std::uint64_t* barrier) {
    *to++ = device::barrier_try_wait(barrier, 0);
    *to++ = device::barrier_try_wait(barrier, 1);
  }
};

__global__ void arrive_twice_a_phase(unsigned* seen) {
  __shared__ std::uint64_t barrier;
  device::barrier_init(&barrier, 2);
  device::fence_barrier_init();
  Looks look{seen};
  look.at(&barrier);
  for (int phase = 0; phase < 2; ++phase) {
    device::barrier_arrive(&barrier);
    look.at(&barrier);
    device::barrier_arrive(&barrier);
    look.at(&barrier);
  }
}

__global__ void expect_bytes(const unsigned* in, unsigned* seen) {
  __shared__ __align__(16) unsigned landed[8];
  __shared__ std::uint64_t barrier;
  device::barrier_init(&barrier, 2);
  device::fence_barrier_init();
  device::barrier_expect(&barrier, 16);
  device::bulk_load(landed, in, 16, &barrier);
  device::barrier_arrive(&barrier);
  pause_us(50);  // the bytes come, and one arrival is missing
  seen[0] = device::barrier_try_wait(&barrier, 0);
  device::barrier_arrive_expect(&barrier, 16);
  seen[1] = device::barrier_try_wait(&barrier, 0);  // all arrivals, but 16 bytes are missing
  device::bulk_load(landed + 4, in + 4, 16, &barrier);
  seen[2] = completes(&barrier, 0);
  for (int i = 0; i < 8; ++i) seen[3 + i] = landed[i];
}

__global__ void reuse_memory(unsigned* seen) {
  __shared__ std::uint64_t barriers[2];
  for (std::uint64_t& barrier : barriers) device::barrier_init(&barrier, 1);
  device::fence_barrier_init();
  device::barrier_arrive(&barriers[0]);
  device::barrier_invalidate(&barriers[0]);
  *static_cast<volatile std::uint64_t*>(&barriers[0]) = 42;
  seen[0] = static_cast<unsigned>(*static_cast<volatile std::uint64_t*>(&barriers[0]));
  device::barrier_init(&barriers[0], 1);
  device::barrier_arrive(&barriers[1]);
  Looks look{seen + 1};
  look.at(&barriers[0]);
  look.at(&barriers[1]);
}

// Thread 0 comes late with its data; the others must wait for it.
__global__ void wait_for_late_thread(unsigned* seen) {
  __shared__ volatile unsigned data;
  __shared__ std::uint64_t barrier;
  if (threadIdx.x == 0) {
    data = 0;
    device::barrier_init(&barrier, 1);
    device::fence_barrier_init();
  }
  __syncthreads();
  device::barrier_wait(&barrier, 1);  // the phase before the first
  if (threadIdx.x == 0) {
    pause_us(100);
    data = 7;
    device::barrier_arrive(&barrier);
  }
  device::barrier_wait(&barrier, 0);
  seen[threadIdx.x] = data;
}

// Block d's barrier counts d + 1 arrivals, and gets one from each of the blocks 0 to d.
template <bool relaxed>
__global__ void arrive_in_other_blocks(unsigned* seen) {
  __shared__ std::uint64_t barrier;
  const unsigned rank = device::cluster_rank();
  device::barrier_init(&barrier, rank + 1);
  device::fence_barrier_init();
  device::cluster_sync();
  for (unsigned to = rank; to < blocks; ++to)
    if constexpr (relaxed) device::barrier_arrive_remote_relaxed(&barrier, to);
    else device::barrier_arrive_remote(&barrier, to);
  device::cluster_sync();
  Looks{seen + 2 * rank}.at(&barrier);
}

// Each block promises 16 bytes to the next, and sends them later.
__global__ void expect_in_next_block(unsigned* seen) {
  __shared__ __align__(16) float landed[4];
  __shared__ std::uint64_t barrier;
  const unsigned rank = device::cluster_rank(), next = (rank + 1) % blocks;
  device::barrier_init(&barrier, 1);
  device::fence_barrier_init();
  device::cluster_sync();
  device::barrier_arrive_expect_remote(&barrier, next, 16);
  device::cluster_sync();
  seen[3 * rank] = device::barrier_try_wait(&barrier, 0);
  device::cluster_sync();
  const float value = static_cast<float>(rank);
  device::store_async_f32x4(device::remote_address(landed, next), {value, value, value, value},
                            device::remote_address(&barrier, next));
  seen[3 * rank + 1] = completes(&barrier, 0);
  device::barrier_wait_cluster(&barrier, seen[3 * rank + 1] ? 0 : 1);
  seen[3 * rank + 2] = static_cast<unsigned>(landed[3]);
  device::cluster_sync();
}

// Data that a block writes to the next before its arrival is there when the wait ends.
__global__ void publish_to_next_block(unsigned* seen) {
  __shared__ volatile unsigned data;
  __shared__ std::uint64_t barrier;
  const unsigned rank = device::cluster_rank(), next = (rank + 1) % blocks;
  data = 99;
  device::barrier_init(&barrier, 1);
  device::fence_barrier_init();
  device::cluster_sync();
  pause_us(50 * (rank + 1));
  device::store_remote_u32(device::remote_address(const_cast<unsigned*>(&data), next), rank);
  device::barrier_arrive_remote(&barrier, next);
  device::barrier_wait_cluster(&barrier, 0);
  seen[rank] = data;
  device::cluster_sync();
}

using Mbarrier = GpuTest<9>;

TEST_F(Mbarrier, PhasesCompleteWithTheLastArrival) {
  const OnGpu<unsigned> seen{std::vector<unsigned>(10, 9)};
  arrive_twice_a_phase<<<1, 1>>>(seen.get());
  check(cudaDeviceSynchronize());
  EXPECT_EQ(seen.host(), (std::vector<unsigned>{0, 1, 0, 1, 1, 0, 1, 0, 0, 1}));
}

TEST_F(Mbarrier, BytesAreNoArrivalsAndHoldAPhaseOpen) {
  const OnGpu<unsigned> in{counted(8, 100)}, seen{std::vector<unsigned>(11, 9)};
  expect_bytes<<<1, 1>>>(in.get(), seen.get());
  check(cudaDeviceSynchronize());
  EXPECT_EQ(seen.host(), (std::vector<unsigned>{0, 0, 1, 100, 101, 102, 103, 104, 105, 106, 107}));
}

TEST_F(Mbarrier, InvalidatedMemoryIsFreeForAnythingElse) {
  const OnGpu<unsigned> seen{std::vector<unsigned>(5, 9)};
  reuse_memory<<<1, 1>>>(seen.get());
  check(cudaDeviceSynchronize());
  EXPECT_EQ(seen.host(), (std::vector<unsigned>{42, 0, 1, 1, 0}));
}

TEST_F(Mbarrier, WaitsForTheLastArrival) {
  const OnGpu<unsigned> seen{std::vector<unsigned>(128, 9)};
  wait_for_late_thread<<<1, 128>>>(seen.get());
  check(cudaDeviceSynchronize());
  EXPECT_EQ(seen.host(), std::vector<unsigned>(128, 7));
}

TEST_F(Mbarrier, ArrivalsReachTheBlockTheyName) {
  const std::vector<unsigned> first_phase_complete{1, 0, 1, 0, 1, 0, 1, 0};
  const OnGpu<unsigned> seen{std::vector<unsigned>(8, 9)}, seen_relaxed{std::vector<unsigned>(8, 9)};
  launch_cluster(arrive_in_other_blocks<false>, blocks, 1, seen.get());
  EXPECT_EQ(seen.host(), first_phase_complete);
  launch_cluster(arrive_in_other_blocks<true>, blocks, 1, seen_relaxed.get());
  EXPECT_EQ(seen_relaxed.host(), first_phase_complete);
}

TEST_F(Mbarrier, ABlockExpectsBytesInAnother) {
  const OnGpu<unsigned> seen{std::vector<unsigned>(12, 9)};
  launch_cluster(expect_in_next_block, blocks, 1, seen.get());
  EXPECT_EQ(seen.host(), (std::vector<unsigned>{0, 1, 3, 0, 1, 0, 0, 1, 1, 0, 1, 2}));
}

TEST_F(Mbarrier, AnArrivalPublishesToAnotherBlock) {
  const OnGpu<unsigned> seen{std::vector<unsigned>(4, 9)};
  launch_cluster(publish_to_next_block, blocks, 1, seen.get());
  EXPECT_EQ(seen.host(), (std::vector<unsigned>{3, 0, 1, 2}));
}

}  // namespace
}  // namespace aisp
