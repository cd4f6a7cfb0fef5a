// SPDX-License-Identifier: Apache-2.0
// cp.async copies what it is told to, waits end when the copies have landed, and barriers count them.
#include <aisp/device/async_copy.cuh>

#include "gpu_test.hpp"

namespace aisp {
namespace {

constexpr unsigned threads = 32, poison = 0xABCDABCD;

// Each thread copies its own `bytes`, to where the thread 3 further on has its place.
template <int bytes, bool past_l1>
__global__ void copy(const unsigned* in, unsigned* out) {
  constexpr unsigned words = bytes / 4;
  __shared__ __align__(16) unsigned landed[threads * words];
  const unsigned t = threadIdx.x;
  unsigned* const to = landed + (t + 3) % threads * words;
  if constexpr (past_l1) device::copy_async_16(to, in + t * words);
  else device::copy_async<bytes>(to, in + t * words);
  device::commit_copies();
  device::wait_copies<0>();
  __syncthreads();
  for (unsigned i = 0; i < words; ++i) out[t * words + i] = landed[t * words + i];
}

// Odd threads copy zeros.
__global__ void copy_every_other(const unsigned* in, unsigned* out) {
  __shared__ __align__(16) unsigned landed[threads * 4];
  const unsigned t = threadIdx.x;
  for (unsigned i = 0; i < 4; ++i) landed[t * 4 + i] = poison;
  device::copy_async_16_or_zero(landed + t * 4, in + t * 4, t % 2 == 0);
  device::commit_copies();
  device::wait_copies<0>();
  for (unsigned i = 0; i < 4; ++i) out[t * 4 + i] = landed[t * 4 + i];
}

// Counts what has not landed when one group may still be under way, and when none may. Every thread looks at its own copies.
__global__ void wait_by_groups(const unsigned* in, unsigned* missing) {
  constexpr unsigned copies = 32;
  __shared__ __align__(16) unsigned landed[2][copies][threads * 4];
  const unsigned t = threadIdx.x;
  for (auto& group : landed)
    for (auto& words : group)
      for (unsigned i = 0; i < 4; ++i) words[t * 4 + i] = poison;
  const auto look = [&](unsigned group) {
    for (unsigned c = 0; c < copies; ++c)
      if (const unsigned last = t * 4 + 3, place = (group * copies + c) * threads * 4 + last;
          static_cast<volatile unsigned*>(landed[group][c])[last] != in[place])
        atomicAdd(&missing[group], 1u);
  };
  for (unsigned group = 0; group < 2; ++group) {
    for (unsigned c = 0; c < copies; ++c)
      device::copy_async_16(&landed[group][c][t * 4], in + (group * copies + c) * threads * 4 + t * 4);
    device::commit_copies();
  }
  device::wait_copies<1>();
  look(0);
  device::wait_copies<0>();
  look(1);
}

// One arrival for each thread's copies, and one more of thread 0: the phase cannot complete before.
__global__ void arrive_with_copies(const unsigned* in, unsigned* completed, unsigned* out) {
  __shared__ __align__(16) unsigned landed[threads * 4];
  __shared__ std::uint64_t barrier;
  const unsigned t = threadIdx.x;
  if (t == 0) device::barrier_init(&barrier, threads + 1);
  __syncthreads();
  device::copy_async_16(landed + t * 4, in + t * 4);
  device::arrive_when_copied(&barrier);
  __syncthreads();
  pause_us(50);
  completed[t] = device::barrier_try_wait(&barrier, 0);
  __syncthreads();
  if (t == 0) device::barrier_arrive(&barrier);
  completed[threads + t] = completes(&barrier, 0);
  const unsigned other = (t + 7) % threads;  // what another thread has copied
  for (unsigned i = 0; i < 4; ++i) out[other * 4 + i] = landed[other * 4 + i];
}

template <int bytes, bool past_l1 = false>
void check_copy() {
  constexpr unsigned words = bytes / 4;
  const OnGpu<unsigned> in{counted(threads * words)}, out{std::vector<unsigned>(threads * words, poison)};
  copy<bytes, past_l1><<<1, threads>>>(in.get(), out.get());
  check(cudaDeviceSynchronize());
  std::vector<unsigned> expected(threads * words);
  for (unsigned i = 0; i < expected.size(); ++i) expected[(i + 3 * words) % expected.size()] = i;
  EXPECT_EQ(out.host(), expected) << bytes << " bytes";
}

class AsyncCopy : public GpuTest<8> {};

TEST_F(AsyncCopy, CopiesAsManyBytesAsItSays) {
  check_copy<4>();
  check_copy<8>();
  check_copy<16>();
  check_copy<16, true>();
}

TEST_F(AsyncCopy, CopiesZerosForWhatIsNotValid) {
  const OnGpu<unsigned> in{counted(threads * 4, 1)}, out{std::vector<unsigned>(threads * 4, 9)};
  copy_every_other<<<1, threads>>>(in.get(), out.get());
  check(cudaDeviceSynchronize());
  std::vector<unsigned> expected = counted(threads * 4, 1);
  for (unsigned i = 0; i < expected.size(); ++i)
    if (i / 4 % 2 == 1) expected[i] = 0;
  EXPECT_EQ(out.host(), expected);
}

TEST_F(AsyncCopy, WaitsForAllButTheYoungestGroups) {
  const OnGpu<unsigned> in{counted(2 * 32 * threads * 4, 1)}, missing{std::vector<unsigned>{0, 0}};
  wait_by_groups<<<1, threads>>>(in.get(), missing.get());
  check(cudaDeviceSynchronize());
  EXPECT_EQ(missing.host(), (std::vector<unsigned>{0, 0}));
}

TEST_F(AsyncCopy, BarriersCountCopiesThatHaveLanded) {
  const OnGpu<unsigned> in{counted(threads * 4)}, completed{std::vector<unsigned>(2 * threads, 9)};
  const OnGpu<unsigned> out{std::vector<unsigned>(threads * 4, poison)};
  arrive_with_copies<<<1, threads>>>(in.get(), completed.get(), out.get());
  check(cudaDeviceSynchronize());
  std::vector<unsigned> expected(2 * threads, 0);
  std::fill(expected.begin() + threads, expected.end(), 1);
  EXPECT_EQ(completed.host(), expected);
  EXPECT_EQ(out.host(), counted(threads * 4));
}

}  // namespace
}  // namespace aisp
