// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16 with fp32 sums. On CUDA cores every product is an instruction of its own and the FMA units are the limit,
// however well the kernel is tiled. One mma.sync of a warp does 2048 multiply-adds; the limit moves to feeding it: fragments come
// from shared memory by ldmatrix without bank conflicts, tiles come from L2 by cp.async several stages ahead. (Hopper's full rate
// needs wgmma: wgmma_matmul.)
#include <cuda_bf16.h>
#include <mma.h>
#include <aisp/device/async_copy.cuh>
#include <aisp/device/matrix.cuh>
#include <aisp/device_attribute.hpp>

#include "gemm_workload.hpp"

namespace aisp::ch10 {
namespace {

using bf16 = __nv_bfloat16;
constexpr int threads = 256;

// bf16 is the upper half of fp32.
__device__ void widen(uint4 packed, float (&values)[8]) {
  const unsigned words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000);
  }
}

// 128 x 128 outputs a block, 8 x 8 a thread; the next tiles wait in registers while the present ones are multiplied.
__global__ __launch_bounds__(threads, 2) void cuda_core_kernel(const bf16* a, const bf16* b, bf16* c, int n) {
  constexpr int tile = 128, tile_k = 16;
  __shared__ __align__(16) float tile_a[2][tile_k][tile + 4], tile_b[2][tile_k][tile];  // A transposed
  const int t = threadIdx.x, tx = t % 16 * 4, ty = t / 16 * 4;
  const int a_row = t / 2, a_k = t % 2 * 8, b_k = t / 16, b_column = t % 16 * 8;
  const std::size_t top = blockIdx.y * tile, left = blockIdx.x * tile;
  const bf16* from_a = a + (top + a_row) * n + a_k;
  const bf16* from_b = b + static_cast<std::size_t>(b_k) * n + left + b_column;
  uint4 next_a, next_b;
  const auto fetch = [&] {
    next_a = *reinterpret_cast<const uint4*>(from_a);
    next_b = *reinterpret_cast<const uint4*>(from_b);
    from_a += tile_k;
    from_b += static_cast<std::size_t>(tile_k) * n;
  };
  const auto stage = [&](int slot) {
    float v[8];
    widen(next_a, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) tile_a[slot][a_k + i][a_row] = v[i];
    widen(next_b, v);
    auto* to = reinterpret_cast<float4*>(&tile_b[slot][b_k][b_column]);
    to[0] = make_float4(v[0], v[1], v[2], v[3]);
    to[1] = make_float4(v[4], v[5], v[6], v[7]);
  };
  fetch();
  stage(0);
  __syncthreads();
  float sums[8][8] = {};
  for (int k = 0, slot = 0; k < n; k += tile_k, slot ^= 1) {
    const bool more = k + tile_k < n;
    if (more) fetch();
#pragma unroll
    for (int i = 0; i < tile_k; ++i) {
      float4 x[2], y[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        y[half] = *reinterpret_cast<const float4*>(&tile_a[slot][i][ty + half * 64]);
        x[half] = *reinterpret_cast<const float4*>(&tile_b[slot][i][tx + half * 64]);
      }
      const float column[8] = {x[0].x, x[0].y, x[0].z, x[0].w, x[1].x, x[1].y, x[1].z, x[1].w};
      const float row[8] = {y[0].x, y[0].y, y[0].z, y[0].w, y[1].x, y[1].y, y[1].z, y[1].w};
#pragma unroll
      for (int m = 0; m < 8; ++m)
#pragma unroll
        for (int l = 0; l < 8; ++l) sums[m][l] = fmaf(row[m], column[l], sums[m][l]);
    }
    if (more) stage(slot ^ 1);
    __syncthreads();
  }
#pragma unroll
  for (int m = 0; m < 8; ++m)
#pragma unroll
    for (int half = 0; half < 8; half += 4)
      *reinterpret_cast<uint2*>(c + (top + ty + m % 4 + m / 4 * 64) * n + left + tx + half * 16) = make_uint2(
          device::narrow_bf16(sums[m][half], sums[m][half + 1]), device::narrow_bf16(sums[m][half + 2], sums[m][half + 3]));
}

// The same tiling of the block, but a warp multiplies fragments of 16 x 16 x 16: 64 x 32 outputs each. Rows are padded by 16
// bytes, so that eight rows of a fragment lie in different banks.
__global__ __launch_bounds__(threads, 2) void wmma_kernel(const bf16* a, const bf16* b, bf16* c, int n) {
  namespace wmma = nvcuda::wmma;
  constexpr int tile = 128, tile_k = 32;
  __shared__ __align__(32) bf16 tile_a[2][tile][tile_k + 8], tile_b[2][tile_k][tile + 8];
  __shared__ __align__(32) float patches[threads / 32][16][20];
  const int t = threadIdx.x, lane = t % 32, warp = t / 32, warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;
  const int a_row = t / 4, a_k = t % 4 * 8, b_k = t / 16, b_column = t % 16 * 8;
  const std::size_t top = blockIdx.y * tile, left = blockIdx.x * tile;
  uint4 next_a[2], next_b[2];
  const auto fetch = [&](int k) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      next_a[i] = *reinterpret_cast<const uint4*>(a + (top + a_row + i * 64) * n + k + a_k);
      next_b[i] = *reinterpret_cast<const uint4*>(b + static_cast<std::size_t>(k + b_k + i * 16) * n + left + b_column);
    }
  };
  const auto stage = [&](int slot) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      *reinterpret_cast<uint4*>(&tile_a[slot][a_row + i * 64][a_k]) = next_a[i];
      *reinterpret_cast<uint4*>(&tile_b[slot][b_k + i * 16][b_column]) = next_b[i];
    }
  };
  fetch(0);
  stage(0);
  __syncthreads();
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[4][2];
  for (auto& row : sums)
    for (auto& sum : row) wmma::fill_fragment(sum, 0.0f);
  for (int k = 0, slot = 0; k < n; k += tile_k, slot ^= 1) {
    const bool more = k + tile_k < n;
    if (more) fetch(k + tile_k);
#pragma unroll
    for (int i = 0; i < tile_k; i += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> x[4];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::row_major> y[2];
#pragma unroll
      for (int m = 0; m < 4; ++m) wmma::load_matrix_sync(x[m], &tile_a[slot][warp_row + m * 16][i], tile_k + 8);
#pragma unroll
      for (int l = 0; l < 2; ++l) wmma::load_matrix_sync(y[l], &tile_b[slot][i][warp_column + l * 16], tile + 8);
#pragma unroll
      for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int l = 0; l < 2; ++l) wmma::mma_sync(sums[m][l], x[m], y[l], sums[m][l]);
    }
    if (more) stage(slot ^ 1);
    __syncthreads();
  }
  // The layout of a fragment is not documented: only through memory do its elements get names.
  auto& patch = patches[warp];
#pragma unroll
  for (int m = 0; m < 4; ++m)
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      wmma::store_matrix_sync(&patch[0][0], sums[m][l], 20, wmma::mem_row_major);
      __syncwarp();
      const float* v = &patch[lane / 2][lane % 2 * 8];
      *reinterpret_cast<uint4*>(c + (top + warp_row + m * 16 + lane / 2) * n + left + warp_column + l * 16 + lane % 2 * 8) =
          make_uint4(device::narrow_bf16(v[0], v[1]), device::narrow_bf16(v[2], v[3]), device::narrow_bf16(v[4], v[5]),
                     device::narrow_bf16(v[6], v[7]));
      __syncwarp();
    }
}

namespace mma_sync {

constexpr int tile_m = 128, tile_n = 256, tile_k = 64, steps = tile_k / 16;
constexpr int a_pitch = tile_k * 2, b_pitch = tile_n * 2;  // bytes
constexpr int a_bytes = tile_m * a_pitch, stage_bytes = a_bytes + tile_k * b_pitch;
constexpr int most_stages = 4;
constexpr int shared_bytes(int stages) { return stages * stage_bytes; }

// 128 x 256 outputs a block, 64 x 64 a warp: the largest warp tile whose sums fit in registers, because an element that was read
// from shared memory is used 64 times there. Within a row, the 16-byte chunk c lies at c ^ (row % 8): ldmatrix reads the same
// chunk of eight rows, cp.async writes eight chunks of one row, and both meet eight different groups of banks.
template <int stages>
__global__ __launch_bounds__(threads, 1) void ring_kernel(const bf16* a, const bf16* b, bf16* c, int n) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int t = threadIdx.x, lane = t % 32, warp = t / 32, warp_m = warp / 4, warp_n = warp % 4;
  const std::size_t top = blockIdx.y * tile_m, left = blockIdx.x * tile_n;

  const int a_row = t / 8, b_row = t / 32;  // and every 32nd (A) or 8th (B) after that
  const bf16* from_a = a + (top + a_row) * n + t % 8 * 8;
  const bf16* from_b = b + static_cast<std::size_t>(b_row) * n + left + t % 32 * 8;
  unsigned char* const to_a = memory + a_row * a_pitch + (t % 8 ^ a_row % 8) * 16;
  unsigned char* const to_b = memory + a_bytes + b_row * b_pitch + (t % 32 ^ b_row % 8) * 16;
  const auto copy_quarter = [&](int slot, int quarter) {
    device::copy_async_16(to_a + slot * stage_bytes + quarter * 32 * a_pitch,
                          from_a + static_cast<std::size_t>(quarter * 32) * n);
#pragma unroll
    for (int i = 2 * quarter; i < 2 * quarter + 2; ++i)
      device::copy_async_16(to_b + slot * stage_bytes + i * 8 * b_pitch, from_b + static_cast<std::size_t>(i * 8) * n);
  };
  const auto finish_tile = [&] {  // also where there was nothing left to copy: waiting counts groups
    device::commit_copies();
    from_a += tile_k;
    from_b += static_cast<std::size_t>(tile_k) * n;
  };

  // Lane l addresses row l % 16 of a fragment, chunk l / 16. The chunk of another step or column differs in bits that XOR can
  // flip.
  const int swizzled = (lane / 16 ^ lane % 8) * 16;
  const std::uint32_t a_lane = device::shared_address(memory) + (warp_m * 64 + lane % 16) * a_pitch + swizzled;
  const std::uint32_t b_lane = device::shared_address(memory) + a_bytes + lane % 16 * b_pitch + warp_n * 128 + swizzled;
  unsigned x[2][4][4], y[2][4][4];  // fragments of this step and of the next
  const auto load_fragments = [&](int set, int slot, int step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) device::load_matrices(x[set][i], (a_lane ^ step * 32) + slot * stage_bytes + i * 16 * a_pitch);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      device::load_matrices_transposed(y[set][i], (b_lane ^ i * 32) + slot * stage_bytes + step * 16 * b_pitch);
  };

  for (int slot = 0; slot < stages - 1; ++slot) {
    for (int quarter = 0; quarter < 4; ++quarter) copy_quarter(slot, quarter);
    finish_tile();
  }
  device::wait_copies<stages - 2>();
  __syncthreads();
  load_fragments(0, 0, 0);
  float sums[4][8][4] = {};
  int reading = 0, writing = stages - 1;
  for (int to_copy = n / tile_k - (stages - 1); to_copy > -(stages - 1); --to_copy) {
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      if (to_copy > 0) copy_quarter(writing, step);
      if (step == steps - 1) {  // the last fragments of this tile are in registers: on to the next
        finish_tile();
        device::wait_copies<stages - 2>();
        __syncthreads();
        writing = reading;
        reading = (reading + 1) % stages;
      }
      load_fragments((step + 1) % 2, reading, (step + 1) % steps);  // after the last tile: unused
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j)
          device::mma_bf16(sums[i][j], x[step % 2][i], y[step % 2][j / 2][j % 2 * 2], y[step % 2][j / 2][j % 2 * 2 + 1]);
    }
  }

  // Through shared memory, so that warps write whole rows of 512 bytes.
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j)
      *reinterpret_cast<unsigned*>(memory + (warp_m * 64 + i * 8 + lane / 4) * b_pitch + ((warp_n * 8 + j) ^ lane / 4) * 16 +
                                   lane % 4 * 4) = device::narrow_bf16(sums[i / 2][j][i % 2 * 2], sums[i / 2][j][i % 2 * 2 + 1]);
  __syncthreads();
#pragma unroll
  for (int row = b_row; row < tile_m; row += 8)
    *reinterpret_cast<uint4*>(c + (top + row) * n + left + t % 32 * 8) =
        *reinterpret_cast<const uint4*>(memory + row * b_pitch + (t % 32 ^ row % 8) * 16);
}

}  // namespace mma_sync

class TensorCoreMatmul final : public GemmWorkload {
 public:
  explicit TensorCoreMatmul(Setup& setup) : GemmWorkload{setup, 4096, 4096, 4096} {}

  void cuda_cores(Launch& launch) { launch(cuda_core_kernel, {tiles(128, 128), threads}, a_, b_, c_, n_); }
  void wmma(Launch& launch) { launch(wmma_kernel, {tiles(128, 128), threads}, a_, b_, c_, n_); }
  void mma_sync_ring(Launch& launch) { multiply<mma_sync::most_stages>(launch); }

 private:
  // Four stages on an H100; an A100 has room for three, GPUs with 99 KiB a block for two.
  template <int stages>
  void multiply(Launch& launch) {
    using namespace mma_sync;
    if constexpr (stages > 2)
      if (shared_bytes(stages) > device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) return multiply<stages - 1>(launch);
    launch(ring_kernel<stages>, {tiles(tile_m, tile_n), threads, shared_bytes(stages)}, a_, b_, c_, n_);
  }
};

}  // namespace

extern constinit const Pair tensor_core_matmul{
    .teaches = "tensor cores, not tuning, give a matrix product its next order of magnitude: one instruction, thousands of FMAs",
    .lesson = "mma_sync",
    .make = make<TensorCoreMatmul>,
    .baseline = {.name = "cuda_cores", .run = call<&TensorCoreMatmul::cuda_cores>},
    .optimized = variants({{.name = "wmma", .run = call<&TensorCoreMatmul::wmma>},
                           {.name = "mma_sync", .run = call<&TensorCoreMatmul::mma_sync_ring>}}),
    .libraries = cublas_library,
    .bound = Bound::compute,
};

}  // namespace aisp::ch10
