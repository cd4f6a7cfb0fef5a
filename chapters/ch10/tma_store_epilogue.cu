// SPDX-License-Identifier: Apache-2.0
// The up-projection of DeepSeek-V3's latent attention, bf16: 4,096 tokens, K = 512, 32,768 outputs each. K is so short that a
// tile of 128 x 256 ends after eight stages, and storing it weighs. Straight from registers a thread stores 16 bytes at a time,
// and an instruction touches eight rows with 64 bytes each: whole sectors, half lines. stmatrix brings a row's pieces together in
// swizzled shared memory, and whole lines leave. TMA takes them from there by itself, while the warp multiplies again. The bytes
// are the same: what TMA saves is instructions, addresses and tests for tails, and little time where L2 takes half lines as well.
#include <aisp/device/fence.cuh>
#include <aisp/device/matrix.cuh>
#include <aisp/device_attribute.hpp>

#include <algorithm>

#include "gemm_epilogue.cuh"
#include "gemm_workload.hpp"

namespace aisp::ch10 {
namespace {

using namespace gemm;
constexpr int band = 8;
using Ring = gemm::Ring<tile_m, 256, 4>;

// The place of a warp's sums: the first row and column, in a matrix of n columns.
struct Target {
  bf16* c;
  int n, row, column;
  __device__ bf16* at(int down, int right) const { return c + static_cast<std::size_t>(row + down) * n + column + right; }
};

// Straight from registers, as on the rungs before: the four lanes that share a row exchange their pairs, and each stores 16
// bytes.
struct SectorStore {
  static constexpr unsigned staging_bytes = 0;
  static constexpr bool asynchronous = false;
  template <int count>
  static __device__ __forceinline__ void put(const float (&sums)[count], unsigned char*, const CUtensorMap&, const Target& to) {
    const int row_of_warpgroup = to.row - static_cast<int>(threadIdx.x) % warpgroup_threads / 32 * 16;
    store_sectors(sums, to.c, to.n, row_of_warpgroup, to.column);
  }
};

// Staging of one warp's sums: boxes of 16 rows of 64 columns, 128 bytes a row, swizzled as TMA has it, so that neither stmatrix
// nor what reads the rows meets a bank twice.
constexpr int box_rows = 16, box_columns = 64, box_bytes = box_rows * box_columns * 2;

// The warp's sums of 64 columns, beginning with sums[first], to `box`.
template <int count>
__device__ __forceinline__ void stage_box(const float (&sums)[count], int first, std::uint32_t box) {
  const unsigned lane = device::lane_index(), row = lane % 16;
  const std::uint32_t to = box + row * 128;
  const unsigned chunk = lane / 16 ^ row % 8;
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    const float* const s = sums + first + pair * 8;
    device::store_matrices(to + (chunk ^ static_cast<unsigned>(2 * pair)) * 16, device::narrow_bf16(s[0], s[1]),
                           device::narrow_bf16(s[2], s[3]), device::narrow_bf16(s[4], s[5]), device::narrow_bf16(s[6], s[7]));
  }
}

// A warp's 16 rows through its staging, 128 columns at a time: one instruction stores two rows of 256 bytes.
struct CoalescedStore {
  static constexpr unsigned staging_bytes = 2 * box_bytes;
  static constexpr bool asynchronous = false;
  template <int count>
  static __device__ __forceinline__ void put(const float (&sums)[count], unsigned char* staging, const CUtensorMap&,
                                             const Target& to) {
    const int lane = static_cast<int>(device::lane_index()), box = lane % 16 / 8, chunk = lane % 8;
    bf16* const c = to.at(lane / 16, lane % 16 * 8);
#pragma unroll
    for (int half = 0; half < count / 64; ++half) {
      __syncwarp();
      stage_box(sums, half * 64, device::shared_address(staging));
      stage_box(sums, half * 64 + 32, device::shared_address(staging + box_bytes));
      __syncwarp();
#pragma unroll
      for (int i = 0; i < box_rows; i += 2) {
        const int from = i + lane / 16;
        *reinterpret_cast<uint4*>(c + static_cast<std::size_t>(i) * to.n + half * 128) =
            *reinterpret_cast<const uint4*>(staging + box * box_bytes + from * 128 + (chunk ^ from % 8) * 16);
      }
    }
  }
};

// By TMA, box by box through `buffers` boxes of staging. A box is waited for when its place is needed again; that of the tile's
// last boxes is one tile later. A warp is on its own here: it fences and meets no other.
struct TmaStore {
  static constexpr int buffers = 2;
  static constexpr unsigned staging_bytes = buffers * box_bytes;
  static constexpr bool asynchronous = true;
  template <int count>
  static __device__ __forceinline__ void put(const float (&sums)[count], unsigned char* staging, const CUtensorMap& c_boxes,
                                             const Target& to) {
    static_assert(count / 32 % buffers == 0);  // so that a tile begins with the place that was filled first
    const bool leader = device::lane_index() == 0;
#pragma unroll
    for (int box = 0; box < count / 32; ++box) {
      unsigned char* const at = staging + box % buffers * box_bytes;
      if (leader) device::wait_stores_read<buffers - 1>();
      __syncwarp();
      stage_box(sums, box * 32, device::shared_address(at));
      device::fence_proxy_async_shared();
      __syncwarp();
      if (leader) {
        device::tensor_store_2d(&c_boxes, to.column + box * box_columns, to.row, at);
        device::commit_stores();
      }
    }
  }
};

// The kernel of persistent_matmul. Store::put takes a warp's 16 rows of sums to C, through staging after the ring.
template <class Store>
__global__ __launch_bounds__(threads, 1) void persistent_kernel(const __grid_constant__ CUtensorMap a,
                                                                const __grid_constant__ CUtensorMap b,
                                                                const __grid_constant__ CUtensorMap c_boxes, bf16* c, int n,
                                                                int k, TileOrder order) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Ring& ring = *reinterpret_cast<Ring*>(memory);
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&a, &b, &c_boxes}) device::prefetch_tensor_map(map);
    ring.init(2);
  }
  __syncthreads();

  Cursor<Ring> at;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), warpgroup = warp / 4, tiles = order.count();
  if (warpgroup == 2) {
    device::give_up_registers<producer_registers>();
    if (threadIdx.x % warpgroup_threads != 0) return;
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
      const auto [row, column] = order[tile];
      for (int first_k = 0; first_k < k; first_k += Ring::tile_k)
        gemm::load_stage(ring, at, &a, &b, row * Ring::tile_m, column * Ring::tile_n, first_k);
    }
    return;
  }
  device::take_registers<consumer_registers>();
  float sums[Ring::tile_n / 2];
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    gemm::multiply_tile(ring, at, warpgroup * 64, k / Ring::tile_k, sums);
    const auto [row, column] = order[tile];
    Store::put(sums, memory + sizeof(Ring) + warp * Store::staging_bytes, c_boxes,
               {c, n, row * Ring::tile_m + warp * 16, column * Ring::tile_n});
  }
  if constexpr (Store::asynchronous) device::wait_stores_read<0>();  // they still read this block's shared memory
}

class TmaStoreEpilogue final : public GemmWorkload {
 public:
  explicit TmaStoreEpilogue(Setup& setup)
      : GemmWorkload{setup, 4096, 32768, 512},
        a_map_{gemm::a_map(a_, m_, k_, Ring::tile_m)},
        b_map_{gemm::b_map(b_, k_, n_, Ring::tile_n)},
        c_map_{matrix_map_bf16(c_, m_, n_, box_rows, box_columns)} {}

  void sector_stores(Launch& launch) { multiply<SectorStore>(launch); }
  void stmatrix_coalesced(Launch& launch) { multiply<CoalescedStore>(launch); }
  void tma_store(Launch& launch) { multiply<TmaStore>(launch); }

 private:
  template <class Store>
  void multiply(Launch& launch) {
    launch(persistent_kernel<Store>, {blocks_, threads, sizeof(Ring) + 8 * Store::staging_bytes}, a_map_, b_map_, c_map_, c_, n_,
           k_, order_);
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
    .lesson = "tma_store",
    .make = make<TmaStoreEpilogue>,
    .baseline = {.name = "sector_stores", .run = call<&TmaStoreEpilogue::sector_stores>},
    // The same instructions in the same order: not a bit may differ.
    .optimized = variants(
        {{.name = "stmatrix_coalesced", .run = call<&TmaStoreEpilogue::stmatrix_coalesced>, .same_bits_as = "sector_stores"},
         {.name = "tma_store", .run = call<&TmaStoreEpilogue::tma_store>, .same_bits_as = "sector_stores"}}),
    .libraries = cublas_library,
    .bound = Bound::compute,
    .needs = {.min_sm = 90, .max_sm = 90},
};

}  // namespace aisp::ch10
