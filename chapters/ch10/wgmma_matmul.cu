// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16, 4096 x 4096 x 4096. mma.sync takes its operands from registers: every fragment is loaded by ldmatrix and holds
// a register, and one instruction of one warp does 16 x 8 x 16. Hopper's tensor cores take more than that path can carry. wgmma
// is issued by four warps at once, reads both operands from shared memory, where a descriptor says, and runs asynchronously: one
// instruction does 64 x 256 x 16. Tile, stages and the cp.async of all threads stay; it copies two tiles ahead instead of three,
// since a tile is read while the next is multiplied, and sums leave in sectors, without shared memory.
#include <aisp/device/async_copy.cuh>

#include "blackwell_gemm.cuh"
#include "gemm_epilogue.cuh"
#include "gemm_workload.hpp"

namespace aisp::ch10 {
namespace {

using gemm::bf16;
constexpr int threads = 256, tile_m = 128, tile_n = 256, tile_k = 64, stages = 4;
constexpr int a_bytes = tile_m * tile_k * 2, stage_bytes = a_bytes + tile_k * tile_n * 2, shared_bytes = stages * stage_bytes;

// Rows of A are 128 bytes, rows of B 512.
constexpr int a_pitch = tile_k * 2, b_pitch = tile_n * 2;

// The kernel of tensor_core_matmul. 64 x 64 outputs a warp: the largest warp tile whose sums fit in registers, because an element
// that was read from shared memory is used 64 times there. Within a row, the 16-byte chunk c lies at c ^ (row % 8): ldmatrix
// reads the same chunk of eight rows, cp.async writes eight chunks of one row, and both meet eight different groups of banks.
__global__ __launch_bounds__(threads, 1) void mma_sync_kernel(const bf16* a, const bf16* b, bf16* c, int n) {
  extern __shared__ __align__(1024) unsigned char memory[];
  constexpr int steps = tile_k / 16;
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

// A: 128 rows of 64 k. B: four columns of boxes, 64 rows (k) of 64 n each. All rows are 128 bytes, swizzled as wgmma reads them.
constexpr int row_bytes = 128, box_bytes = tile_k * row_bytes;

// 64 x 256 outputs a warpgroup: its rows of A meet all columns of B in one instruction.
__global__ __launch_bounds__(threads, 1) void wgmma_kernel(const bf16* a, const bf16* b, bf16* c, int n) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int t = threadIdx.x, warpgroup = t / 128;
  const std::size_t top = blockIdx.y * tile_m, left = blockIdx.x * tile_n;

  const int a_row = t / 8, b_row = t / 32, box = t % 32 / 8, chunk = t % 8;
  const bf16* from_a = a + (top + a_row) * n + chunk * 8;
  const bf16* from_b = b + static_cast<std::size_t>(b_row) * n + left + t % 32 * 8;
  unsigned char* const to_a = memory + a_row * row_bytes + (chunk ^ a_row % 8) * 16;
  unsigned char* const to_b = memory + a_bytes + box * box_bytes + b_row * row_bytes + (chunk ^ b_row % 8) * 16;
  const auto copy_tile = [&](int slot) {
#pragma unroll
    for (int i = 0; i < tile_m / 32; ++i)
      device::copy_async_16(to_a + slot * stage_bytes + i * 32 * row_bytes, from_a + static_cast<std::size_t>(i * 32) * n);
#pragma unroll
    for (int i = 0; i < tile_k / 8; ++i)
      device::copy_async_16(to_b + slot * stage_bytes + i * 8 * row_bytes, from_b + static_cast<std::size_t>(i * 8) * n);
    from_a += tile_k;
    from_b += static_cast<std::size_t>(tile_k) * n;
  };

  // Two products may be under way, of this tile and of the one before; the slots of the two after it are filled meanwhile.
  constexpr int ahead = stages - 2;
  for (int tile = 0; tile < ahead; ++tile) {
    copy_tile(tile);
    device::commit_copies();
  }
  const std::uint64_t a_first = device::operand(memory + warpgroup * 64 * row_bytes);
  const std::uint64_t b_first = device::operand(memory + a_bytes, 1024, box_bytes);
  float sums[tile_n / 2];
  const int tiles = n / tile_k;
  for (int tile = 0; tile < tiles; ++tile) {
    const int slot = tile % stages;
    device::wait_copies<ahead - 1>();
    device::fence_proxy_async_shared();
    __syncthreads();  // this tile has come, and both warpgroups are done with the one two before it
    if (tile + ahead < tiles) copy_tile((tile + ahead) % stages);
    device::commit_copies();  // also where there was nothing left to copy: waiting counts groups
    device::wgmma_touch(sums);
    device::wgmma_fence();
#pragma unroll
    for (int step = 0; step < tile_k / 16; ++step)
      device::wgmma<device::Operands::bf16, device::Major::k, device::Major::mn>(
          sums, device::advance(a_first, slot * stage_bytes + step * 32),
          device::advance(b_first, slot * stage_bytes + step * 16 * row_bytes), tile > 0 || step > 0);
    device::wgmma_commit();
    device::wgmma_wait<1>();
  }
  device::wgmma_wait<0>();
  device::wgmma_touch(sums);
  gemm::store_sectors(sums, c, static_cast<std::size_t>(n), top + warpgroup * 64, left);
}

class WgmmaMatmul final : public GemmWorkload {
 public:
  explicit WgmmaMatmul(Setup& setup) : GemmWorkload{setup, 4096, 4096, 4096} {}

  void mma_sync(Launch& launch) { launch(mma_sync_kernel, {tiles(tile_m, tile_n), threads, shared_bytes}, a_, b_, c_, n_); }
  void wgmma(Launch& launch) { launch(wgmma_kernel, {tiles(tile_m, tile_n), threads, shared_bytes}, a_, b_, c_, n_); }
  // Not run: sums in tensor memory instead of registers, products started by one thread, a block for each tile.
  void tcgen05_1sm(Launch& launch) { blackwell_.run(launch, 1, ~0u); }

 private:
  blackwell_gemm::Gemm<blackwell_gemm::Plan<device::TensorKind::bf16>> blackwell_{a_, b_, c_, m_, n_, k_};
};

}  // namespace

extern constinit const Pair wgmma_matmul{
    .teaches = "full tensor rate needs wgmma: four warps, operands read straight from shared memory, asynchronous issue",
    .lesson = "wgmma",
    .make = make<WgmmaMatmul>,
    .baseline = {.name = "mma_sync", .run = call<&WgmmaMatmul::mma_sync>},
    .optimized = variants(
        {{.name = "wgmma", .run = call<&WgmmaMatmul::wgmma>, .needs = {.min_sm = 90, .max_sm = 90}},
         {.name = "tcgen05_1sm", .run = call<&WgmmaMatmul::tcgen05_1sm>, .needs = blackwell_gemm::needs, .not_run = true}}),
    .libraries = cublas_library,
    .bound = Bound::compute,
};

}  // namespace aisp::ch10
