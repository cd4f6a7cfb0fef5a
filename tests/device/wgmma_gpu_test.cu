// SPDX-License-Identifier: Apache-2.0
// The wrappers of wgmma, TMA with its swizzle, and stmatrix agree with one another: products of small matrices, exact in fp32.
#include <aisp/device/matrix.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/device/wgmma_products.cuh>
#include <aisp/tensor_map.hpp>

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "gpu_test.hpp"

namespace aisp {
namespace {

using bf16 = __nv_bfloat16;
using device::Major;
constexpr int m = 64, k = 64;

struct Shared {
  alignas(1024) unsigned char a[m * 128], b[256 * 128];
  std::uint64_t loaded;
};

// Thread t's part of D where it belongs.
template <int n>
__device__ void write(const float (&d)[n / 2], float* out) {
  const int t = threadIdx.x, row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
  for (int j = 0; j < n / 8; ++j)
    for (int i = 0; i < 4; ++i) out[(row + i / 2 * 8) * n + j * 8 + column + i % 2] = d[4 * j + i];
}

// Boxes of 64 x 64 (128 bytes wide) side by side; along K for A and B[n][k], along N for B[k][n].
__device__ void load(Shared& shared, const CUtensorMap* a, const CUtensorMap* b, int b_boxes, int box_bytes, bool b_is_mn,
                     int bytes) {
  if (threadIdx.x == 0) {
    device::barrier_init(&shared.loaded, 1);
    device::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    device::barrier_arrive_expect(&shared.loaded, bytes);
    device::tensor_load_2d(shared.a, a, 0, 0, &shared.loaded);
    for (int i = 0; i < b_boxes; ++i)
      device::tensor_load_2d(shared.b + i * box_bytes, b, b_is_mn ? i * 64 : 0, b_is_mn ? 0 : i * 64, &shared.loaded);
  }
  device::barrier_wait(&shared.loaded, 0);
}

// The source of A: shared memory, along K or along M, or registers.
enum class A { along_k, along_m, registers };

template <int n, Major b_major, A a_from>
__global__ void product(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* out) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  load(shared, &a, &b, n / 64, 64 * 128, b_major == Major::mn, (m + n) * 128);
  constexpr Major a_major = a_from == A::along_m ? Major::mn : Major::k;
  const std::uint64_t left = a_major == Major::k ? device::operand(shared.a) : device::operand(shared.a, 1024, 64 * 128);
  const std::uint64_t right = b_major == Major::k ? device::operand(shared.b) : device::operand(shared.b, 1024, 64 * 128);
  const int t = threadIdx.x, row = t / 32 * 16 + t % 16, chunk = t % 32 / 16;
  float d[n / 2];
  unsigned fragments[4][4];
  if constexpr (a_from == A::registers)
    for (int step = 0; step < 4; ++step)
      device::load_matrices(fragments[step],
                            device::shared_address(shared.a) + row * 128 + ((step * 2 + chunk) ^ (row % 8)) * 16);
  device::wgmma_touch(d);
  device::wgmma_fence();
#pragma unroll
  for (int step = 0; step < k / 16; ++step) {
    const std::uint64_t b_step = device::advance(right, step * (b_major == Major::k ? 32 : 2048));
    if constexpr (a_from == A::registers) {
      device::wgmma<device::Operands::bf16, b_major>(d, fragments[step], b_step, step > 0);
    } else {
      const std::uint64_t a_step = device::advance(left, step * (a_major == Major::k ? 32 : 2048));
      device::wgmma<device::Operands::bf16, a_major, b_major>(d, a_step, b_step, step > 0);
    }
  }
  device::wgmma_commit();
  device::wgmma_wait<0>();
  device::wgmma_touch(d);
  write<n>(d, out);
}

template <int n>
__global__ void product_e4m3(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* out) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  load(shared, &a, &b, n / 64, 64 * 128, false, (m + n) * 128);
  float d[n / 2];
  device::wgmma_touch(d);
  device::wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const std::uint64_t left = device::advance(device::operand(shared.a), step * 32);
    const std::uint64_t right = device::advance(device::operand(shared.b), step * 32);
    device::wgmma<device::Operands::e4m3>(d, left, right, step > 0);
  }
  device::wgmma_commit();
  device::wgmma_wait<0>();
  device::wgmma_touch(d);
  write<n>(d, out);
}

// A warp stores a 16 x 16 tile, rows of 32 bytes.
__global__ void store_tile(bf16* out) {
  __shared__ __align__(16) bf16 tile[16 * 16];
  const int l = threadIdx.x;
  const auto word = [&](int row, int column) {
    return device::narrow_bf16(static_cast<float>(row * 16 + column), static_cast<float>(row * 16 + column + 1));
  };
  const int row = l / 4, column = l % 4 * 2;
  device::store_matrices(device::shared_address(tile + l % 16 * 16 + l / 16 * 8), word(row, column), word(row + 8, column),
                         word(row, column + 8), word(row + 8, column + 8));
  __syncwarp();
  for (int i = l; i < 256; i += 32) out[i] = tile[i];
}

// Small integers: every sum is exact, in any order, and in 14 bits, too.
float value(int i) { return static_cast<float>((i * 7 + i / 13) % 5 - 2); }

class Wgmma : public GpuTest<9, 9> {
 protected:
  template <class T>
  static void compare(const std::vector<T>& a, const std::vector<T>& b, const std::vector<float>& d, int n, int depth,
                      bool b_is_kn, bool a_is_km = false) {
    for (int row = 0; row < m; ++row)
      for (int column = 0; column < n; ++column) {
        float sum = 0;
        for (int i = 0; i < depth; ++i)
          sum += static_cast<float>(a[a_is_km ? i * m + row : row * depth + i]) *
                 static_cast<float>(b[b_is_kn ? i * n + column : column * depth + i]);
        ASSERT_EQ(d[row * n + column], sum) << "row " << row << ", column " << column;
      }
  }

  template <int n, Major b_major, A a_from = A::along_k>
  static void check_bf16() {
    std::vector<bf16> a(m * k), b(n * k);
    for (int i = 0; i < m * k; ++i) a[i] = value(i);
    for (int i = 0; i < n * k; ++i) b[i] = value(i * 3 + 1);
    const OnGpu<bf16> a_gpu{a}, b_gpu{b};
    const OnGpu<float> d{std::vector<float>(m * n, -1)};
    const bool kn = b_major == Major::mn;
    const CUtensorMap a_map = matrix_map_bf16(a_gpu.get(), m, k, 64, 64);
    const CUtensorMap b_map = kn ? matrix_map_bf16(b_gpu.get(), k, n, 64, 64) : matrix_map_bf16(b_gpu.get(), n, k, 64, 64);
    const auto kernel = product<n, b_major, a_from>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
    kernel<<<1, 128, sizeof(Shared)>>>(a_map, b_map, d.get());
    check(cudaDeviceSynchronize());
    compare(a, b, d.host(), n, k, kn, a_from == A::along_m);
  }

  template <int n>
  static void check_e4m3() {
    constexpr int depth = 128;
    std::vector<__nv_fp8_e4m3> a(m * depth), b(n * depth);
    for (int i = 0; i < m * depth; ++i) a[i] = __nv_fp8_e4m3{value(i)};
    for (int i = 0; i < n * depth; ++i) b[i] = __nv_fp8_e4m3{value(i * 3 + 1)};
    const OnGpu<__nv_fp8_e4m3> a_gpu{a}, b_gpu{b};
    const OnGpu<float> d{std::vector<float>(m * n, -1)};
    const CUtensorMap a_map = matrix_map(CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, a_gpu.get(), m, depth, 64, 128);
    const CUtensorMap b_map = matrix_map(CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, b_gpu.get(), n, depth, 64, 128);
    check(cudaFuncSetAttribute(product_e4m3<n>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
    product_e4m3<n><<<1, 128, sizeof(Shared)>>>(a_map, b_map, d.get());
    check(cudaDeviceSynchronize());
    compare(a, b, d.host(), n, depth, false);
  }
};

TEST_F(Wgmma, MultipliesOperandsThatLieAlongK) {
  check_bf16<64, Major::k>();
  check_bf16<128, Major::k>();
  check_bf16<192, Major::k>();
  check_bf16<256, Major::k>();
}

TEST_F(Wgmma, MultipliesARowMajorB) {
  check_bf16<64, Major::mn>();
  check_bf16<128, Major::mn>();
  check_bf16<192, Major::mn>();
  check_bf16<256, Major::mn>();
}

TEST_F(Wgmma, MultipliesAnAThatLiesAlongM) {
  check_bf16<64, Major::k, A::along_m>();
  check_bf16<128, Major::mn, A::along_m>();
  check_bf16<192, Major::mn, A::along_m>();
  check_bf16<256, Major::mn, A::along_m>();
}

TEST_F(Wgmma, TakesAFromRegisters) {
  check_bf16<64, Major::k, A::registers>();
  check_bf16<64, Major::mn, A::registers>();
  check_bf16<128, Major::k, A::registers>();
  check_bf16<128, Major::mn, A::registers>();
  check_bf16<256, Major::k, A::registers>();
  check_bf16<256, Major::mn, A::registers>();
}

TEST_F(Wgmma, MultipliesE4m3) {
  check_e4m3<128>();
  check_e4m3<192>();
}

TEST_F(Wgmma, FragmentsAreStoredByRows) {
  const OnGpu<bf16> out{std::vector<bf16>(256)};
  store_tile<<<1, 32>>>(out.get());
  check(cudaDeviceSynchronize());
  const std::vector<bf16> tile = out.host();
  for (int i = 0; i < 256; ++i) ASSERT_EQ(static_cast<float>(tile[i]), static_cast<float>(i));
}

}  // namespace
}  // namespace aisp
