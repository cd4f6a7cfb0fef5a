// SPDX-License-Identifier: Apache-2.0
// A product of e4m3 whose sums are added up in fp32 registers, by cuBLASLt without fast accumulation and by the engine's Promoted
// loop. A second set of sums takes registers, and adding takes turns with the tensor cores: that decides the tile.
#include <aisp/pair.hpp>

#include "fp8_product.hpp"

namespace aisp::gemm_engine {
namespace {

using Store = gemm::TmaStore<>;
template <int tile_m, int tile_n, int cluster>
using Cooperative = Tile<e4m3, gemm::Promoted, Store, tile_m, tile_n, 2, false, cluster>;
template <int tile_m, int tile_n, int cluster>
using Pingpong = Tile<e4m3, gemm::Promoted, Store, tile_m, tile_n, 2, true, cluster>;
using Tall = Tile<e4m3, gemm::Promoted, Store, 192, 128, 3, false, 1>;

class GemmFp8 final : public Fp8Product {
 public:
  explicit GemmFp8(Setup& setup) : Fp8Product{setup, false} {
    add_scaled<Cooperative<128, 192, 2>, Store>();
    add_scaled<Cooperative<128, 192, 1>, Store>();
    add_scaled<Cooperative<128, 256, 2>, Store>();
    add_scaled<Cooperative<256, 128, 1>, Store>();
    add_scaled<Cooperative<256, 128, 2>, Store>();
    add_scaled<Cooperative<128, 128, 2>, Store>();
    add_scaled<Cooperative<128, 160, 2>, Store>();
    add_scaled<Pingpong<128, 128, 1>, Store>();
    add_scaled<Pingpong<128, 128, 2>, Store>();
    add_scaled<Pingpong<64, 192, 2>, Store>();
    add_scaled<Tall, Store>();
  }
};

}  // namespace

extern constinit const Pair gemm_fp8{
    .teaches = "the GEMM engine beside cuBLASLt in e4m3, sums added up in fp32",
    .lesson = "engine_tuned",
    .make = make<GemmFp8>,
    .baseline = library_default,
    .optimized = engine_variants,
    .libraries = library_tuned,
    .bound = Bound::compute,
    .tolerance = rounded_to_bf16,
    .needs = {.min_sm = 90, .max_sm = 90},
    .sizes = fp8_sizes,
    .sweep = fp8_cases,
    .edges = fp8_edges,
    .reference_samples = 512,
};

}  // namespace aisp::gemm_engine
