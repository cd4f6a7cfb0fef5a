// SPDX-License-Identifier: Apache-2.0
// The up-projection of DeepSeek-V3's latent attention, bf16: 4,096 tokens, K = 512, 32,768 outputs each. K is so short that a
// tile of 128 x 256 ends after eight stages, and storing it weighs. Straight from registers an instruction touches eight rows
// with 16 bytes each, half a sector (0.34 ms: L2 79 % busy, tensor cores 43 %). stmatrix brings a row's pieces together in
// swizzled shared memory, and whole lines leave (0.22 ms). TMA takes them from there by itself, while the warp multiplies again
// (0.21 ms, as cuBLAS; tensor cores 75 %).
#include "gemm_workload.hpp"
#include "persistent_gemm.cuh"

namespace aisp::ch10 {
namespace {

using namespace persistent_gemm;
constexpr int band = 8;
using Ring = wgmma_gemm::Ring<tile_m, 256, 4>;

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

class TmaStoreEpilogue final : public GemmWorkload {
 public:
  explicit TmaStoreEpilogue(Setup& setup)
      : GemmWorkload{setup, 4096, 32768, 512},
        a_map_{wgmma_gemm::a_map(a_, m_, k_, Ring::tile_m)},
        b_map_{wgmma_gemm::b_map(b_, k_, n_, Ring::tile_n)},
        c_map_{c_map(c_, m_, n_)} {}

  void direct_stores(Launch& launch) { multiply<DirectStore>(launch); }
  void stmatrix_coalesced(Launch& launch) { multiply<CoalescedStore>(launch); }
  void tma_store(Launch& launch) { multiply<TmaStore<2>>(launch); }

 private:
  template <class Store>
  void multiply(Launch& launch) {
    launch(persistent_kernel<Ring, Store>, {blocks_, threads, shared_bytes<Ring, Store>}, a_map_, b_map_, c_map_, c_, n_, k_,
           order_);
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
    .baseline = {.name = "direct_stores", .run = call<&TmaStoreEpilogue::direct_stores>},
    .optimized = variants({{.name = "stmatrix_coalesced", .run = call<&TmaStoreEpilogue::stmatrix_coalesced>},
                           {.name = "tma_store", .run = call<&TmaStoreEpilogue::tma_store>}}),
    .libraries = cublas_library,
    .bound = Bound::compute,
    .needs = {.min_sm = 90, .max_sm = 90},
};

}  // namespace aisp::ch10
