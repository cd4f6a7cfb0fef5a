// SPDX-License-Identifier: Apache-2.0
// Bulk copies move plain bytes to where they are told, and waits for stores end when they should.
#include <aisp/device/cluster.cuh>
#include <aisp/device/fence.cuh>
#include <aisp/device/tma.cuh>

#include "gpu_test.hpp"

namespace aisp {
namespace {

constexpr unsigned poison = 0xABCDABCD;
constexpr unsigned blocks = 4;  // of a cluster

// By one thread.
__device__ void expect(std::uint64_t* barrier, unsigned bytes) {
  device::barrier_init(barrier, 1);
  device::fence_barrier_init();
  device::barrier_arrive_expect(barrier, bytes);
}

// Writes to global memory, fetches that by the asynchronous proxy, and stores it elsewhere.
__global__ void load_and_store(unsigned* in, unsigned* out) {
  __shared__ __align__(16) unsigned words[32];
  __shared__ std::uint64_t barrier;
  expect(&barrier, 64);
  for (unsigned i = 0; i < 16; ++i) in[i] = 500 + i;
  device::fence_proxy_async();
  device::bulk_load(words + 4, in, 64, &barrier);
  if (!completes(&barrier, 0)) return;
  device::bulk_store(out + 8, words + 4, 64);
  device::commit_stores();
  device::wait_stores<0>();
}

constexpr unsigned large_words = 1 << 14, large_bytes = large_words * 4, group_words = large_words / 2, large_threads = 256;

__device__ void fill_large(unsigned* words) {
  for (unsigned i = threadIdx.x; i < large_words; i += large_threads) words[i] = i;
  device::fence_proxy_async_shared();
  __syncthreads();
}

// Reads what it has stored as soon as the wait says that it is written.
__global__ void read_back(unsigned* out, unsigned* wrong) {
  extern __shared__ __align__(128) unsigned words[];
  fill_large(words);
  if (threadIdx.x != 0) return;
  device::bulk_store(out, words, large_bytes);
  device::commit_stores();
  device::wait_stores<0>();
  for (unsigned i = large_words; i > large_words - 64; --i) *wrong += static_cast<volatile unsigned*>(out)[i - 1] != i - 1;
}

// Stores in two groups, and overwrites the shared memory of those that the wait says have been read: with `pending` groups that
// may still be under way, the first alone, or both.
template <int pending>
__global__ void overwrite(unsigned* out) {
  extern __shared__ __align__(128) unsigned words[];
  fill_large(words);
  if (threadIdx.x == 0) {
    for (unsigned group = 0; group < 2; ++group) {
      device::bulk_store(out + group * group_words, words + group * group_words, large_bytes / 2);
      device::commit_stores();
    }
    device::wait_stores_read<pending>();
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < (2 - pending) * group_words; i += large_threads) words[i] = poison;
  if (threadIdx.x == 0) device::wait_stores<0>();
}

// Every block adds.
__global__ void add_to_sums(float* sums, unsigned count) {
  __shared__ __align__(16) float addends[64];
  for (unsigned i = 0; i < count; ++i) addends[i] = static_cast<float>((blockIdx.x + 1) * i);
  device::fence_proxy_async_shared();
  device::bulk_add_f32(sums, addends, count * 4);
  device::commit_stores();
  device::wait_stores<0>();
}

__global__ void send_to_next_block(unsigned* out) {
  __shared__ __align__(16) unsigned sent[16], received[32];
  __shared__ std::uint64_t barrier;
  const unsigned rank = device::cluster_rank(), next = (rank + 1) % blocks;
  expect(&barrier, sizeof(sent));
  for (unsigned i = 0; i < 16; ++i) sent[i] = rank * 100 + i;
  device::fence_proxy_async_shared();
  device::cluster_sync();
  device::bulk_copy_to_block(device::remote_address(received + 8, next), sent, sizeof(sent),
                             device::remote_address(&barrier, next));
  if (completes(&barrier, 0)) device::barrier_wait_cluster(&barrier, 0);
  for (unsigned i = 0; i < 16; ++i) out[rank * 16 + i] = received[8 + i];
  device::cluster_sync();
}

using BulkCopy = GpuTest<9>;

TEST_F(BulkCopy, LoadsAndStoresBytes) {
  const OnGpu<unsigned> in{counted(16)}, out{std::vector<unsigned>(32, poison)};
  load_and_store<<<1, 1>>>(in.get(), out.get());
  check(cudaDeviceSynchronize());
  std::vector<unsigned> expected(32, poison);
  for (unsigned i = 0; i < 16; ++i) expected[8 + i] = 500 + i;
  EXPECT_EQ(out.host(), expected);
}

TEST_F(BulkCopy, StoresAreWrittenWhenTheWaitEnds) {
  const OnGpu<unsigned> out{std::vector<unsigned>(large_words, poison)}, wrong{std::vector<unsigned>{0}};
  check(cudaFuncSetAttribute(read_back, cudaFuncAttributeMaxDynamicSharedMemorySize, large_bytes));
  read_back<<<1, large_threads, large_bytes>>>(out.get(), wrong.get());
  check(cudaDeviceSynchronize());
  EXPECT_EQ(wrong.host()[0], 0u);
}

TEST_F(BulkCopy, SharedMemoryIsFreeWhenTheWaitForReadingEnds) {
  for (const auto kernel : {overwrite<0>, overwrite<1>}) {
    const OnGpu<unsigned> out{std::vector<unsigned>(large_words, poison)};
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, large_bytes));
    kernel<<<1, large_threads, large_bytes>>>(out.get());
    check(cudaDeviceSynchronize());
    EXPECT_EQ(out.host(), counted(large_words));
  }
}

TEST_F(BulkCopy, AddsToWhatIsThere) {
  constexpr unsigned count = 64;
  std::vector<float> expected(count + 4, 5);
  const OnGpu<float> sums{expected};
  for (unsigned i = 0; i < count; ++i) expected[i] += static_cast<float>((1 + 2 + 3 + 4) * i);
  add_to_sums<<<4, 1>>>(sums.get(), count);
  check(cudaDeviceSynchronize());
  EXPECT_EQ(sums.host(), expected);
}

TEST_F(BulkCopy, CopiesToTheBlockThatIsNamed) {
  const OnGpu<unsigned> out{std::vector<unsigned>(blocks * 16, poison)};
  launch_cluster(send_to_next_block, blocks, 1, out.get());
  std::vector<unsigned> expected;
  for (unsigned rank = 0; rank < blocks; ++rank)
    for (unsigned i = 0; i < 16; ++i) expected.push_back((rank + 3) % blocks * 100 + i);
  EXPECT_EQ(out.host(), expected);
}

}  // namespace
}  // namespace aisp
