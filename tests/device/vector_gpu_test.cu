// SPDX-License-Identifier: Apache-2.0
// Loads and stores move all bytes of a value of 4, 8 or 16 bytes, and no others; reductions reach every thread.
#include <aisp/device/reduce.cuh>
#include <aisp/device/vector.cuh>

#include <algorithm>

#include "gpu_test.hpp"

namespace aisp {
namespace {

constexpr unsigned threads = 64, poison = 0xABCDABCD;
using device::Vector, device::Vector16;
static_assert(Vector16<float>::size() == 4 && Vector16<std::uint16_t>::size() == 8 && alignof(Vector<float, 2>) == 8);

enum class Load { read_only, once };

// Thread t moves vector t, except the last, behind which nothing may change.
template <class T, Load load>
__global__ void move(const T* in, T* out) {
  const unsigned t = threadIdx.x;
  device::prefetch_l2(in + t);
  if (t == threads - 1) return;
  if constexpr (load == Load::read_only) device::store_streaming(out + t, device::load_read_only(in + t));
  else device::store_streaming(out + t, device::load_once(in + t));
}

template <class T, Load load>
void check_move() {
  constexpr unsigned words = sizeof(T) / 4;
  const OnGpu<unsigned> in{counted(threads * words)}, out{std::vector<unsigned>(threads * words, poison)};
  move<T, load><<<1, threads>>>(reinterpret_cast<const T*>(in.get()), reinterpret_cast<T*>(out.get()));
  check(cudaDeviceSynchronize());
  std::vector<unsigned> expected = counted(threads * words);
  std::fill(expected.end() - words, expected.end(), poison);
  EXPECT_EQ(out.host(), expected) << sizeof(T) << " bytes";
}

struct Reduced {
  int sum, maximum, minimum, sum_of_eight, block_sum, block_maximum;
  bool operator==(const Reduced&) const = default;
};

__device__ __host__ int value(unsigned thread) { return static_cast<int>(thread * 37 % 101) - 50; }

__global__ void reduce(Reduced* results) {
  __shared__ int shared[device::largest_block_in_warps];
  const int mine = value(threadIdx.x);
  Reduced& result = results[threadIdx.x];
  result.sum = device::warp_sum(mine);
  result.maximum = device::warp_max(mine);
  result.minimum = device::warp_reduce(mine, device::Min{});
  result.sum_of_eight = device::warp_sum<8>(mine);
  result.block_sum = device::block_sum(mine, shared);
  result.block_maximum = device::block_max(mine, -1000, shared);
}

// Combines `width` threads from the first of the group that `thread` belongs to.
template <class Op>
int over(unsigned thread, unsigned width, const Op& op) {
  const unsigned first = thread / width * width;
  int result = value(first);
  for (unsigned i = first + 1; i < first + width; ++i) result = op(result, value(i));
  return result;
}

using Memory = GpuTest<8>;
using Reduce = GpuTest<8>;

TEST_F(Memory, MovesVectorsOfAllSizes) {
  check_move<unsigned, Load::read_only>();
  check_move<Vector<unsigned, 2>, Load::read_only>();
  check_move<Vector16<unsigned>, Load::read_only>();
  check_move<unsigned, Load::once>();
  check_move<Vector<unsigned, 2>, Load::once>();
  check_move<Vector16<unsigned>, Load::once>();
}

TEST_F(Reduce, EveryThreadGetsTheResultOfItsGroup) {
  constexpr unsigned block = 96;
  const OnGpu<Reduced> results{std::vector<Reduced>(block)};
  reduce<<<1, block>>>(results.get());
  check(cudaDeviceSynchronize());
  const auto add = [](int a, int b) { return a + b; };
  const auto larger = [](int a, int b) { return std::max(a, b); };
  const auto smaller = [](int a, int b) { return std::min(a, b); };
  const std::vector<Reduced> found = results.host();
  for (unsigned t = 0; t < block; ++t) {
    const Reduced expected{over(t, 32, add), over(t, 32, larger), over(t, 32, smaller),
                           over(t, 8, add),  over(t, block, add), over(t, block, larger)};
    ASSERT_TRUE(found[t] == expected) << "thread " << t;
  }
}

}  // namespace
}  // namespace aisp
