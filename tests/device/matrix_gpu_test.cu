// SPDX-License-Identifier: Apache-2.0
// Fragments are what the comments of matrix.cuh say, and ldmatrix makes such: products of small matrices, exact in fp32.
#include <aisp/device/matrix.cuh>

#include <cuda_bf16.h>

#include "gpu_test.hpp"

namespace aisp {
namespace {

using bf16 = __nv_bfloat16;
constexpr int size = 16;  // all matrices are 16 x 16 and row-major

enum class Fragments { by_hand, by_ldmatrix };

__device__ unsigned word(const bf16* low, const bf16* high) {
  return device::narrow_bf16(__bfloat162float(*low), __bfloat162float(*high));
}

__device__ void fill_by_hand(unsigned (&x)[4], unsigned (&y)[4], const bf16* a, const bf16* b) {
  const int lane = threadIdx.x, row = lane / 4, column = lane % 4 * 2;
  for (int i = 0; i < 4; ++i) {
    const bf16* of_a = a + (row + i % 2 * 8) * size + column + i / 2 * 8;
    const bf16* of_b = b + (column + i % 2 * 8) * size + row + i / 2 * 8;
    x[i] = word(of_a, of_a + 1);
    y[i] = word(of_b, of_b + size);
  }
}

__device__ void fill_by_ldmatrix(unsigned (&x)[4], unsigned (&y)[4], const bf16* a, const bf16* b) {
  __shared__ __align__(16) bf16 left[size * size], right[size * size];
  const int lane = threadIdx.x;
  for (int i = lane; i < size * size; i += 32) {
    left[i] = a[i];
    right[i] = b[i];
  }
  __syncwarp();
  const int place = lane % 16 * size + lane / 16 * 8;
  device::load_matrices(x, device::shared_address(left + place));
  device::load_matrices_transposed(y, device::shared_address(right + place));
}

// sums += A B, by one warp.
template <Fragments fragments>
__global__ void product(const bf16* a, const bf16* b, float* sums) {
  unsigned x[4], y[4];
  if constexpr (fragments == Fragments::by_hand) fill_by_hand(x, y, a, b);
  else fill_by_ldmatrix(x, y, a, b);
  const int lane = threadIdx.x;
  for (int half = 0; half < 2; ++half) {
    const auto at = [&](int i) { return (lane / 4 + i / 2 * 8) * size + half * 8 + lane % 4 * 2 + i % 2; };
    float sum[4];
    for (int i = 0; i < 4; ++i) sum[i] = sums[at(i)];
    device::mma_bf16(sum, x, y[half * 2], y[half * 2 + 1]);
    for (int i = 0; i < 4; ++i) sums[at(i)] = sum[i];
  }
}

// Small integers: every sum is exact, in any order.
float value(int i) { return static_cast<float>((i * 7 + i / 13) % 5 - 2); }

template <Fragments fragments>
void check_product() {
  constexpr int elements = size * size;
  std::vector<bf16> a(elements), b(elements);
  std::vector<float> before(elements);
  for (int i = 0; i < elements; ++i) {
    a[i] = value(i);
    b[i] = value(i * 3 + 1);
    before[i] = static_cast<float>(i);
  }
  const OnGpu<bf16> a_gpu{a}, b_gpu{b};
  const OnGpu<float> sums{before};
  product<fragments><<<1, 32>>>(a_gpu.get(), b_gpu.get(), sums.get());
  check(cudaDeviceSynchronize());
  const std::vector<float> after = sums.host();
  for (int row = 0; row < size; ++row)
    for (int column = 0; column < size; ++column) {
      float sum = before[row * size + column];
      for (int k = 0; k < size; ++k) sum += static_cast<float>(a[row * size + k]) * static_cast<float>(b[k * size + column]);
      ASSERT_EQ(after[row * size + column], sum) << "row " << row << ", column " << column;
    }
}

using Matrix = GpuTest<8>;

TEST_F(Matrix, MultipliesFragmentsAsTheyAreDescribed) { check_product<Fragments::by_hand>(); }

TEST_F(Matrix, MultipliesWhatLdmatrixLoads) { check_product<Fragments::by_ldmatrix>(); }

}  // namespace
}  // namespace aisp
