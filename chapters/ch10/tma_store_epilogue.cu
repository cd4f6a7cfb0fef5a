// SPDX-License-Identifier: Apache-2.0
// The up-projection of DeepSeek-V3's latent attention: 4,096 tokens, K = 512, 32,768 outputs each, bf16. K is so short that a
// tile of 128 x 256 ends after eight stages, and storing it weighs. A thread of a warpgroup holds pairs of neighbours: stored
// directly an instruction touches eight rows with 16 bytes each, half a sector, 64 times a thread. stmatrix brings the pairs
// together in shared memory, whose rows leave 256 bytes at a time; and TMA takes them from there by itself, while the warp
// multiplies again.
#include "gemm_workload.hpp"
#include "persistent_gemm.cuh"

namespace aisp::ch10 {
namespace {

using namespace persistent_gemm;
constexpr int band = 8, buffers = 2;  // boxes of staging a warp
using Ring = wgmma_gemm::Ring<tile_m, 256, 4>;

// The ring, and 4 KiB of staging for each of the eight consumer warps.
struct Memory {
  Ring ring;
  alignas(1024) unsigned char staging[8][buffers * box_bytes];
};

// A warp's 16 rows of 256 columns through its staging, half of the columns at a time: one instruction stores two rows of 256
// bytes.
__device__ __forceinline__ void store_coalesced(const float (&sums)[128], unsigned char* staging, bf16* c, std::size_t n,
                                                std::size_t row, std::size_t column) {
  const unsigned lane = device::lane_index(), box = lane % 16 / 8, chunk = lane % 8;
  bf16* const to = c + (row + lane / 16) * n + column + lane % 16 * 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    __syncwarp();
    stage_box(sums, half * 64, device::shared_address(staging));
    stage_box(sums, half * 64 + 32, device::shared_address(staging + box_bytes));
    __syncwarp();
#pragma unroll
    for (unsigned i = 0; i < box_rows; i += 2) {
      const unsigned from = i + lane / 16;
      *reinterpret_cast<uint4*>(to + i * n + half * 128) =
          *reinterpret_cast<const uint4*>(staging + box * box_bytes + from * 128 + (chunk ^ from % 8) * 16);
    }
  }
}

template <bool by_tma>
__global__ __launch_bounds__(threads, 1) void staged_kernel(const __grid_constant__ CUtensorMap a,
                                                            const __grid_constant__ CUtensorMap b,
                                                            const __grid_constant__ CUtensorMap c_boxes, bf16* c, int n, int k,
                                                            TileOrder order) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Memory& shared = *reinterpret_cast<Memory*>(memory);
  Ring& ring = shared.ring;
  if (threadIdx.x == 0) ring.init(2);
  __syncthreads();

  Cursor<Ring> at;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), warpgroup = warp / 4, tiles = order.count();
  if (warpgroup == 2) {
    device::give_up_registers<producer_registers>();
    if (threadIdx.x % warpgroup_threads != 0) return;
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
      const auto [row, column] = order[tile];
      for (int depth = 0; depth < k; depth += tile_k)
        wgmma_gemm::load_stage(ring, at, &a, &b, row * tile_m, column * Ring::tile_n, depth);
    }
    return;
  }
  device::take_registers<consumer_registers>();
  float sums[Ring::tile_n / 2];
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    wgmma_gemm::multiply_tile(ring, at, warpgroup * 64, k / tile_k, sums);
    const auto [row, column] = order[tile];
    const int top = row * tile_m + warp * box_rows, left = column * Ring::tile_n;
    if constexpr (by_tma) store_by_tma<buffers>(sums, shared.staging[warp], &c_boxes, top, left);
    else store_coalesced(sums, shared.staging[warp], c, n, top, left);
  }
  if (by_tma && device::lane_index() == 0) device::wait_stores_read<0>();  // TMA still reads this block's shared memory
}

class TmaStoreEpilogue final : public GemmWorkload {
 public:
  explicit TmaStoreEpilogue(Setup& setup)
      : GemmWorkload{setup, 4096, 32768, 512},
        a_map_{wgmma_gemm::a_map(a_, m_, k_, Ring::tile_m)},
        b_map_{wgmma_gemm::b_map(b_, k_, n_, Ring::tile_n)},
        c_map_{c_map(c_, m_, n_)} {
    constexpr auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
    check(cudaFuncSetAttribute(direct_store_kernel<Ring>, limit, sizeof(Ring)));
    check(cudaFuncSetAttribute(staged_kernel<false>, limit, sizeof(Memory)));
    check(cudaFuncSetAttribute(staged_kernel<true>, limit, sizeof(Memory)));
  }

  void direct_stores(Launch& launch) {
    direct_store_kernel<Ring><<<blocks_, threads, sizeof(Ring), launch.stream>>>(a_map_, b_map_, c_, static_cast<int>(n_),
                                                                                 static_cast<int>(k_), order_);
    check(cudaGetLastError());
  }
  void stmatrix_coalesced(Launch& launch) { staged<false>(launch); }
  void tma_store(Launch& launch) { staged<true>(launch); }

 private:
  template <bool by_tma>
  void staged(Launch& launch) {
    staged_kernel<by_tma><<<blocks_, threads, sizeof(Memory), launch.stream>>>(a_map_, b_map_, c_map_, c_, static_cast<int>(n_),
                                                                               static_cast<int>(k_), order_);
    check(cudaGetLastError());
  }

  CUtensorMap a_map_, b_map_, c_map_;
  TileOrder order_{m_, n_, Ring::tile_m, Ring::tile_n, band};
  unsigned blocks_ = std::min(static_cast<unsigned>(order_.count()), multiprocessors());
};

}  // namespace

extern constinit const Pair tma_store_epilogue{
    .teaches =
        "sums leave registers in 16-byte pieces; staged in swizzled shared memory they leave in full lines, and by TMA without "
        "the warps",
    .make = make<TmaStoreEpilogue>,
    .baseline = {.name = "direct_stores", .run = call<&TmaStoreEpilogue::direct_stores>},
    .optimized = variants({{.name = "stmatrix_coalesced", .run = call<&TmaStoreEpilogue::stmatrix_coalesced>},
                           {.name = "tma_store", .run = call<&TmaStoreEpilogue::tma_store>}}),
    .peers = cublas_peer,
    .bound = Bound::compute,
    // One rounding of the output to bf16 is 1.6e-3; the sums are fp32 everywhere.
    .tolerance = within(4e-3),
    .needs = {.min_sm = 90, .max_sm = 90},
};

}  // namespace aisp::ch10
