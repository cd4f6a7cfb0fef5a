// SPDX-License-Identifier: Apache-2.0
// Blocks of a cluster know their rank, meet, and reach the shared memory of the block that they name.
#include <aisp/device/cluster.cuh>
#include <aisp/device/fence.cuh>
#include <aisp/device/mbarrier.cuh>

#include "gpu_test.hpp"

namespace aisp {
namespace {

constexpr unsigned blocks = 4, threads = 32;

__global__ void tell_place(unsigned* places) {
  places[2 * blockIdx.x] = device::cluster_rank();
  places[2 * blockIdx.x + 1] = device::cluster_size();
}

// A block's row of numbers, which tells whose it is and where in it one looks.
__device__ unsigned element(unsigned rank, unsigned i) { return rank * 100 + i; }

// Each thread reads its place in the shared memory of the block `distance` further on, in all ways there are.
__global__ void read_others(unsigned distance, unsigned* words, float* floats, float* by_four, unsigned* by_pointer) {
  __shared__ __align__(16) unsigned own_words[threads];
  __shared__ __align__(16) float own_floats[threads];
  const unsigned t = threadIdx.x, rank = device::cluster_rank(), other = (rank + distance) % blocks, out = rank * threads + t;
  own_words[t] = element(rank, t);
  own_floats[t] = static_cast<float>(element(rank, t));
  device::cluster_sync();
  words[out] = device::load_remote_u32(device::remote_address(&own_words[t], other));
  floats[out] = device::load_remote_f32(device::remote_address(&own_floats[t], other));
  by_pointer[out] = *device::remote_pointer(&own_words[t], other);
  if (t < threads / 4) {
    const float4 four = device::load_remote_f32x4(device::remote_address(&own_floats[4 * t], other));
    const float values[] = {four.x, four.y, four.z, four.w};
    for (unsigned i = 0; i < 4; ++i) by_four[rank * threads + 4 * t + i] = values[i];
  }
  device::cluster_sync();
}

__global__ void write_others(unsigned distance, unsigned* words, float* floats) {
  __shared__ unsigned own_words[threads];
  __shared__ float own_floats[threads];
  const unsigned t = threadIdx.x, rank = device::cluster_rank(), other = (rank + distance) % blocks;
  own_words[t] = 0;
  own_floats[t] = 0;
  device::cluster_sync();
  device::store_remote_u32(device::remote_address(&own_words[t], other), element(rank, t));
  device::store_remote_f32(device::remote_address(&own_floats[t], other), static_cast<float>(element(rank, t)));
  device::cluster_sync();
  words[rank * threads + t] = own_words[t];
  floats[rank * threads + t] = own_floats[t];
}

// The upper half by fours, the lower one by one; a barrier of the receiver counts the bytes.
__global__ void send_to_others(unsigned distance, unsigned* completed, float* floats) {
  __shared__ __align__(16) float landed[threads];
  __shared__ std::uint64_t barrier;
  const unsigned t = threadIdx.x, rank = device::cluster_rank(), other = (rank + distance) % blocks;
  if (t == 0) {
    device::barrier_init(&barrier, 1);
    device::fence_barrier_init();
    device::barrier_arrive_expect(&barrier, sizeof(landed));
  }
  device::cluster_sync();
  const std::uint32_t there = device::remote_address(&barrier, other);
  const auto value = [rank](unsigned i) { return static_cast<float>(element(rank, i)); };
  if (t < threads / 2) device::store_async_f32(device::remote_address(&landed[t], other), value(t), there);
  else if (t % 4 == 0)
    device::store_async_f32x4(device::remote_address(&landed[t], other), {value(t), value(t + 1), value(t + 2), value(t + 3)},
                              there);
  const bool complete = completes(&barrier, 0);
  if (complete) device::barrier_wait_cluster(&barrier, 0);
  completed[rank * threads + t] = complete;
  floats[rank * threads + t] = landed[t];
  device::cluster_sync();
}

// Block 0 comes late with what the others read behind the barrier.
template <bool relaxed>
__global__ void wait_for_late_block(unsigned* data, unsigned* seen) {
  const unsigned rank = device::cluster_rank();
  if (rank == 0) {
    pause_us(200);
    *static_cast<volatile unsigned*>(data) = 7;
  }
  if constexpr (relaxed) {
    device::fence_cluster();  // such an arrival publishes nothing by itself
    device::cluster_arrive_relaxed();
  } else {
    device::cluster_arrive();
  }
  device::cluster_wait();
  seen[rank] = *static_cast<volatile unsigned*>(data);
}

std::vector<unsigned> rows_of(unsigned first_distance) {
  std::vector<unsigned> all;
  for (unsigned rank = 0; rank < blocks; ++rank)
    for (unsigned i = 0; i < threads; ++i) all.push_back((rank + first_distance) % blocks * 100 + i);
  return all;
}
std::vector<float> as_floats(const std::vector<unsigned>& values) { return {values.begin(), values.end()}; }

class Cluster : public GpuTest<9> {
 protected:
  static OnGpu<unsigned> words() { return OnGpu<unsigned>{std::vector<unsigned>(blocks * threads, 9999)}; }
  static OnGpu<float> floats() { return OnGpu<float>{std::vector<float>(blocks * threads, -1)}; }
};

TEST_F(Cluster, BlocksKnowTheirPlace) {
  const OnGpu<unsigned> clustered{std::vector<unsigned>(8, 9)}, alone{std::vector<unsigned>(4, 9)};
  launch_cluster(tell_place, blocks, 1, clustered.get());
  EXPECT_EQ(clustered.host(), (std::vector<unsigned>{0, 4, 1, 4, 2, 4, 3, 4}));
  tell_place<<<2, 1>>>(alone.get());
  check(cudaDeviceSynchronize());
  EXPECT_EQ(alone.host(), (std::vector<unsigned>{0, 1, 0, 1}));
}

TEST_F(Cluster, ReadsTheBlockThatIsNamed) {
  for (unsigned distance = 0; distance < blocks; ++distance) {
    const auto by_word = words(), by_pointer = words();
    const auto by_float = floats(), by_four = floats();
    launch_cluster(read_others, blocks, threads, distance, by_word.get(), by_float.get(), by_four.get(), by_pointer.get());
    const std::vector<unsigned> expected = rows_of(distance);
    EXPECT_EQ(by_word.host(), expected) << distance;
    EXPECT_EQ(by_pointer.host(), expected) << distance;
    EXPECT_EQ(by_float.host(), as_floats(expected)) << distance;
    EXPECT_EQ(by_four.host(), as_floats(expected)) << distance;
  }
}

TEST_F(Cluster, WritesToTheBlockThatIsNamed) {
  for (unsigned distance = 0; distance < blocks; ++distance) {
    const auto by_word = words();
    const auto by_float = floats();
    launch_cluster(write_others, blocks, threads, distance, by_word.get(), by_float.get());
    const std::vector<unsigned> expected = rows_of(blocks - distance);
    EXPECT_EQ(by_word.host(), expected) << distance;
    EXPECT_EQ(by_float.host(), as_floats(expected)) << distance;
  }
}

TEST_F(Cluster, StoresReportTheirBytesToTheReceiver) {
  const auto completed = words();
  const auto received = floats();
  launch_cluster(send_to_others, blocks, threads, 1u, completed.get(), received.get());
  EXPECT_EQ(completed.host(), std::vector<unsigned>(blocks * threads, 1));
  EXPECT_EQ(received.host(), as_floats(rows_of(blocks - 1)));
}

TEST_F(Cluster, BarrierWaitsForTheLastBlock) {
  const OnGpu<unsigned> data{std::vector<unsigned>{0}}, seen{std::vector<unsigned>(4, 9)}, data_relaxed{std::vector<unsigned>{0}},
      seen_relaxed{std::vector<unsigned>(4, 9)};
  launch_cluster(wait_for_late_block<false>, blocks, 1, data.get(), seen.get());
  EXPECT_EQ(seen.host(), std::vector<unsigned>(4, 7));
  launch_cluster(wait_for_late_block<true>, blocks, 1, data_relaxed.get(), seen_relaxed.get());
  EXPECT_EQ(seen_relaxed.host(), std::vector<unsigned>(4, 7));
}

}  // namespace
}  // namespace aisp
