// SPDX-License-Identifier: Apache-2.0
// Writes before a release or a fence are seen after the matching acquire: by other warps, other blocks, the CPU and the next
// kernel. Rounds are many, and who waits gives up after a second instead of hanging.
#include <aisp/device/fence.cuh>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>

#include "gpu_test.hpp"

namespace aisp {
namespace {

constexpr unsigned rounds = 2000, words = 32;
constexpr unsigned given_up = ~0u;

enum class Order { acquire_release, fences };

// Two sides take turns: one writes words and raises its flag, the other reads them and answers.
struct Channel {
  unsigned flag, answer, data[words];
};

template <Order order>
__device__ void raise(unsigned* flag, unsigned value) {
  if constexpr (order == Order::acquire_release) {
    device::store_release_gpu(flag, value);
  } else {
    device::fence_gpu();
    *static_cast<volatile unsigned*>(flag) = value;
  }
}

template <class Load>
__device__ bool wait_for(unsigned value, const Load& load) {
  for (const std::uint64_t end = now_ns() + 1'000'000'000; now_ns() < end;)
    if (load() == value) return true;
  return false;
}

template <Order order>
__device__ bool wait_for_flag(unsigned* flag, unsigned value) {
  if constexpr (order == Order::acquire_release) return wait_for(value, [flag] { return device::load_acquire_gpu(flag); });
  const bool seen = wait_for(value, [flag] { return *static_cast<volatile unsigned*>(flag); });
  device::fence_gpu();
  return seen;
}

// Block 0 writes, block 1 counts the words that are not of the round.
template <Order order>
__global__ void talk_between_blocks(Channel* channel, unsigned* wrong) {
  volatile unsigned* const data = channel->data;
  for (unsigned round = 1; round <= rounds; ++round) {
    if (blockIdx.x == 0) {
      for (unsigned i = 0; i < words; ++i) data[i] = round + i;
      raise<order>(&channel->flag, round);
      if (!wait_for_flag<order>(&channel->answer, round)) return;
    } else {
      if (!wait_for_flag<order>(&channel->flag, round)) {
        *wrong = given_up;
        return;
      }
      for (unsigned i = 0; i < words; ++i) *wrong += data[i] != round + i;
      raise<order>(&channel->answer, round);
    }
  }
}

// The same between two warps of a block.
__global__ void talk_between_warps(unsigned* wrong) {
  __shared__ volatile Channel channel;
  if (threadIdx.x == 0) {
    channel.flag = 0;
    channel.answer = 0;
  }
  __syncthreads();
  if (threadIdx.x % 32 != 0) return;
  for (unsigned round = 1; round <= rounds; ++round) {
    volatile unsigned& own = threadIdx.x == 0 ? channel.flag : channel.answer;
    volatile unsigned& other = threadIdx.x == 0 ? channel.answer : channel.flag;
    if (threadIdx.x == 0) {
      for (unsigned i = 0; i < words; ++i) channel.data[i] = round + i;
      device::fence_block();
      own = round;
    }
    if (!wait_for(round, [&other] { return other; })) {
      *wrong = given_up;
      return;
    }
    device::fence_block();
    if (threadIdx.x == 0) continue;
    for (unsigned i = 0; i < words; ++i) *wrong += channel.data[i] != round + i;
    device::fence_block();
    own = round;
  }
}

// Answers what the CPU asks: its words, each increased by one.
template <Order order>
__global__ void answer_the_cpu(Channel* channel) {
  volatile unsigned* const data = channel->data;
  for (unsigned round = 1; round <= rounds; ++round) {
    const auto load = [channel] {
      if constexpr (order == Order::acquire_release) return device::load_acquire_system(&channel->flag);
      return *static_cast<volatile unsigned*>(&channel->flag);
    };
    if (!wait_for(round, load)) return;
    if constexpr (order == Order::fences) device::fence_system();
    for (unsigned i = 0; i < words; ++i) data[i] = data[i] + 1;
    if constexpr (order == Order::acquire_release) {
      device::store_release_system(&channel->answer, round);
    } else {
      device::fence_system();
      *static_cast<volatile unsigned*>(&channel->answer) = round;
    }
  }
}

// Every block writes its word and adds its number; block 0 reads all words when the sum is complete.
__global__ void count_arrivals(unsigned* data, unsigned* counter, unsigned* seen) {
  const unsigned block = blockIdx.x, blocks = gridDim.x;
  if (block == 0) {
    if (!wait_for(blocks * (blocks - 1) / 2, [counter] { return device::load_acquire_gpu(counter); })) return;
    for (unsigned i = 1; i < blocks; ++i) seen[i] = static_cast<volatile unsigned*>(data)[i];
    return;
  }
  pause_us(block);
  static_cast<volatile unsigned*>(data)[block] = block + 100;
  device::add_release_gpu(counter, block);
}

struct Times {
  std::uint64_t first_ended, second_started;
};

__global__ void first_kernel(unsigned* data, Times* times, bool early) {
  if (early) device::let_dependents_start();
  pause_us(3000);
  *static_cast<volatile unsigned*>(data) = 7;
  times->first_ended = now_ns();
}
__global__ void second_kernel(const unsigned* data, Times* times, unsigned* seen) {
  times->second_started = now_ns();
  device::wait_for_previous_kernel();
  *seen = *static_cast<const volatile unsigned*>(data);
}

class Fence : public GpuTest<9> {
 protected:
  template <Order order>
  static void expect_no_stale_word() {
    const OnGpu<Channel> channel{std::vector<Channel>(1)};
    const OnGpu<unsigned> wrong{std::vector<unsigned>{0}};
    talk_between_blocks<order><<<2, 1>>>(channel.get(), wrong.get());
    check(cudaDeviceSynchronize());
    EXPECT_EQ(wrong.host()[0], 0u);
  }

  template <Order order>
  static unsigned wrong_answers(Channel& channel) {
    answer_the_cpu<order><<<1, 1>>>(&channel);
    check(cudaGetLastError());
    const std::atomic_ref<unsigned> flag{channel.flag}, answer{channel.answer};
    unsigned wrong = 0;
    for (unsigned round = 1; round <= rounds; ++round) {
      for (unsigned i = 0; i < words; ++i) channel.data[i] = round * 3 + i;
      flag.store(round, std::memory_order_release);
      while (answer.load(std::memory_order_acquire) != round)
        if (cudaStreamQuery(nullptr) != cudaErrorNotReady && answer.load() != round) return given_up;  // the kernel has given up
      for (unsigned i = 0; i < words; ++i) wrong += channel.data[i] != round * 3 + i + 1;
    }
    check(cudaDeviceSynchronize());
    return wrong;
  }

  struct Freed {
    void operator()(Channel* channel) const { cudaFreeHost(channel); }
  };
  template <Order order>
  static void expect_right_answers() {
    Channel* memory = nullptr;
    check(cudaHostAlloc(&memory, sizeof(Channel), cudaHostAllocMapped));
    const std::unique_ptr<Channel, Freed> channel{memory};
    *channel = {};
    EXPECT_EQ(wrong_answers<order>(*channel), 0u);
  }

  // When the second kernel started, before or after the first had ended, and what it saw of the first.
  struct Overlap {
    bool overlapped;
    unsigned seen;
  };
  static Overlap run_in_sequence(bool early) {
    const OnGpu<unsigned> data{std::vector<unsigned>{0}}, seen{std::vector<unsigned>{0}};
    const OnGpu<Times> times{std::vector<Times>(1)};
    cudaLaunchAttribute overlapping{.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                                    .val = {.programmaticStreamSerializationAllowed = 1}};
    const cudaLaunchConfig_t config{.gridDim = 1, .blockDim = 1, .attrs = &overlapping, .numAttrs = 1};
    first_kernel<<<1, 1>>>(data.get(), times.get(), early);
    check(cudaLaunchKernelEx(&config, second_kernel, static_cast<const unsigned*>(data.get()), times.get(), seen.get()));
    check(cudaDeviceSynchronize());
    const Times at = times.host()[0];
    return {at.second_started < at.first_ended, seen.host()[0]};
  }
};

TEST_F(Fence, ReleaseAndAcquireOrderBlocks) { expect_no_stale_word<Order::acquire_release>(); }

TEST_F(Fence, FencesOrderBlocks) { expect_no_stale_word<Order::fences>(); }

TEST_F(Fence, FencesOrderWarps) {
  const OnGpu<unsigned> wrong{std::vector<unsigned>{0}};
  talk_between_warps<<<1, 64>>>(wrong.get());
  check(cudaDeviceSynchronize());
  EXPECT_EQ(wrong.host()[0], 0u);
}

TEST_F(Fence, ReleaseAndAcquireReachTheCpu) { expect_right_answers<Order::acquire_release>(); }

TEST_F(Fence, FencesReachTheCpu) { expect_right_answers<Order::fences>(); }

TEST_F(Fence, ArrivalsAddUpAndPublish) {
  const OnGpu<unsigned> data{std::vector<unsigned>(16)}, counter{std::vector<unsigned>{0}}, seen{std::vector<unsigned>(16, 100)};
  count_arrivals<<<16, 1>>>(data.get(), counter.get(), seen.get());
  check(cudaDeviceSynchronize());
  EXPECT_EQ(seen.host(), counted(16, 100));
}

TEST_F(Fence, DependentKernelsStartEarlyAndSeeWhatTheyWaitFor) {
  run_in_sequence(true);  // loads the kernels
  const Overlap early = run_in_sequence(true), in_turn = run_in_sequence(false);
  // A memory checker runs one kernel after the other.
  if (std::getenv("AISP_MEMORY_CHECKER") == nullptr) EXPECT_TRUE(early.overlapped);
  EXPECT_FALSE(in_turn.overlapped);
  EXPECT_EQ(early.seen, 7u);
  EXPECT_EQ(in_turn.seen, 7u);
}

}  // namespace
}  // namespace aisp
