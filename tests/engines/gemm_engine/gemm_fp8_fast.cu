// SPDX-License-Identifier: Apache-2.0
// A product of e4m3 whose sums never leave the tensor cores, which keep about 14 bits of them: by cuBLASLt with fast accumulation
// and by the engine's InTensorCores loop. At twice the rate of bf16 a tile's loads and its stores have half the time.
#include <aisp/pair.hpp>

#include "fp8_product.hpp"

namespace aisp::gemm_engine {
namespace {

using Store = gemm::TmaStore<>;
template <int tile_m, int tile_n, int cluster>
using Cooperative = Tile<e4m3, gemm::InTensorCores, Store, tile_m, tile_n, 2, false, cluster>;
template <int tile_m, int tile_n, int cluster>
using Pingpong = Tile<e4m3, gemm::InTensorCores, Store, tile_m, tile_n, 2, true, cluster>;

class GemmFp8Fast final : public Fp8Product {
 public:
  explicit GemmFp8Fast(Setup& setup) : Fp8Product{setup, true} {
    add_scaled<Cooperative<128, 256, 2>, Store>();
    add_scaled<Cooperative<128, 256, 1>, Store>();
    add_scaled<Cooperative<256, 128, 1>, Store>();
    add_scaled<Cooperative<256, 128, 2>, Store>();
    add_scaled<Cooperative<128, 192, 2>, Store>();
    add_scaled<Pingpong<128, 128, 1>, Store>();
    add_scaled<Pingpong<128, 128, 2>, Store>();
    add_scaled<Pingpong<128, 160, 1>, Store>();
    add_scaled<Pingpong<128, 160, 2>, Store>();
    add_scaled<Pingpong<128, 176, 1>, Store>();
    add_scaled<Pingpong<128, 176, 2>, Store>();
    add_scaled<Pingpong<64, 256, 1>, Store>();
    add_scaled<Pingpong<64, 256, 2>, Store>();
  }
};

}  // namespace

extern constinit const Pair gemm_fp8_fast{
    .teaches = "the GEMM engine beside cuBLASLt in e4m3 with fast accumulation",
    .lesson = "engine_tuned",
    .make = make<GemmFp8Fast>,
    .baseline = library_default,
    .optimized = engine_variants,
    .libraries = library_tuned,
    .bound = Bound::compute,
    // Sums of up to 28672 products lose more bits than those of a few thousand: cuBLASLt's, 5e-3.
    .tolerance = within(8e-3),
    .needs = {.min_sm = 90, .max_sm = 90},
    .sizes = fp8_sizes,
    .sweep = fp8_cases,
    .edges = fp8_edges,
    .reference_samples = 512,
};

}  // namespace aisp::gemm_engine
