// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16, 4096 x 4096 x 4096, on wgmma. With cp.async each of 256 threads computes addresses, issues twelve 16-byte
// copies a stage, fences them for the tensor cores' proxy and meets the others at a __syncthreads: instructions and registers
// that do no arithmetic. TMA takes a description of the whole matrix once; then one thread asks for a swizzled box with one
// instruction, and an mbarrier counts its bytes. Tile, stages, epilogue and the order of the sums stay. A barrier for each stage
// also lets loads run three tiles ahead, where a __syncthreads for all of them allows two.
#include <aisp/device/async_copy.cuh>

#include "gemm_epilogue.cuh"
#include "gemm_workload.hpp"

namespace aisp::ch10 {
namespace {

using gemm::bf16, gemm::warpgroup_threads;
constexpr int threads = 256, tile_m = 128, tile_n = 256, tile_k = 64, stages = 4;
constexpr int a_bytes = tile_m * tile_k * 2, stage_bytes = a_bytes + tile_k * tile_n * 2, shared_bytes = stages * stage_bytes;

// A: 128 rows of 64 k. B: four columns of boxes, 64 rows (k) of 64 n each. All rows are 128 bytes, swizzled as wgmma reads them.
constexpr int row_bytes = 128, box_bytes = tile_k * row_bytes;

// The kernel of wgmma_matmul. 64 x 256 outputs a warpgroup: its rows of A meet all columns of B in one instruction.
__global__ __launch_bounds__(threads, 1) void cp_async_kernel(const bf16* a, const bf16* b, bf16* c, int n) {
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

using Ring = gemm::Ring<tile_m, tile_n, stages>;

// The same tile and stages. One group of products stays queued when a step ends; the stage that the one before it has read is
// filled again at once, for `stages` steps later, by one thread.
__global__ __launch_bounds__(threads) void tma_kernel(const __grid_constant__ CUtensorMap a,
                                                      const __grid_constant__ CUtensorMap b, bf16* c, int n, int k) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Ring& ring = *reinterpret_cast<Ring*>(memory);
  const int top = static_cast<int>(blockIdx.y) * tile_m, left = static_cast<int>(blockIdx.x) * tile_n;
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / warpgroup_threads, 0), steps = k / tile_k;
  if (threadIdx.x == 0) ring.init(2);
  __syncthreads();

  gemm::Cursor<Ring> filling, reading;
  int loaded = 0;
  const auto load_next = [&] {
    gemm::load_stage(ring, filling, &a, &b, top, left, loaded * tile_k);
    ++loaded;
  };
  if (threadIdx.x == 0)
    while (loaded < stages && loaded < steps) load_next();

  float sums[tile_n / 2];
  for (int step = 0; step < steps; ++step) {
    device::barrier_wait(&ring.full[reading.stage], reading.phase);
    device::wgmma_touch(sums);
    device::wgmma_fence();
    gemm::multiply_stage(ring, reading.stage, warpgroup * 64, sums, step > 0);
    device::wgmma_commit();
    device::wgmma_wait<1>();
    if (step >= 1) {
      const int done = (reading.stage + stages - 1) % stages;
      if (threadIdx.x % warpgroup_threads == 0) device::barrier_arrive(&ring.empty[done]);
      if (threadIdx.x == 0 && loaded < steps) load_next();
    }
    reading.next();
  }
  device::wgmma_wait<0>();
  device::wgmma_touch(sums);
  gemm::store_sectors(sums, c, n, top + warpgroup * 64, left);
}

class Tma2dPipeline final : public GemmWorkload {
 public:
  explicit Tma2dPipeline(Setup& setup)
      : GemmWorkload{setup, 4096, 4096, 4096}, a_map_{gemm::a_map(a_, m_, k_, tile_m)}, b_map_{gemm::b_map(b_, k_, n_, tile_n)} {}

  void cp_async(Launch& launch) { launch(cp_async_kernel, {tiles(tile_m, tile_n), threads, shared_bytes}, a_, b_, c_, n_); }
  void tma_2d(Launch& launch) { launch(tma_kernel, {tiles(tile_m, tile_n), threads, sizeof(Ring)}, a_map_, b_map_, c_, n_, k_); }

 private:
  CUtensorMap a_map_, b_map_;
};

}  // namespace

extern constinit const Pair tma_2d_pipeline{
    .teaches =
        "address arithmetic is work too: TMA copies a swizzled box for one instruction of one thread and signals an mbarrier",
    .lesson = "tma_2d",
    .make = make<Tma2dPipeline>,
    .baseline = {.name = "cp_async", .run = call<&Tma2dPipeline::cp_async>},
    // The same instructions in the same order: not a bit may differ.
    .optimized = variants({{.name = "tma_2d", .run = call<&Tma2dPipeline::tma_2d>, .same_bits_as = "cp_async"}}),
    .libraries = cublas_library,
    .bound = Bound::compute,
    .needs = {.min_sm = 90, .max_sm = 90},
};

}  // namespace aisp::ch10
