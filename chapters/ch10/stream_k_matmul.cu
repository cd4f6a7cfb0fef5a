// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16, 1536 x 3072 with K = 8192 (a down-projection of Llama-3.2-3B): 144 tiles of 128 x 256 for 132 SMs. Whole tiles
// take two waves, and the second leaves 120 SMs idle (0.162 ms). Stream-K deals out steps along K instead: each SM gets 1/132 of
// all 18,432, and leaves its part of a tile that it began in the middle of in L2 for another (0.104 ms). Dividing only the tiles
// of the second wave, and those first, hides the adding behind whole tiles (0.101). Yet 128 tiles of 192 x 192 fill one wave to
// 97 %, with nothing to add (0.095, as cuBLAS): look for such a tile first.
#include "gemm_workload.hpp"
#include "square_gemm.cuh"
#include "stream_k_gemm.cuh"
#include "stream_k_hybrid.cuh"

#include <algorithm>

namespace aisp::ch10 {
namespace {

class StreamKMatmul final : public GemmWorkload {
 public:
  explicit StreamKMatmul(Setup& setup)
      : GemmWorkload{setup, 1536, 3072, 8192},
        steps_{static_cast<int>(k_ / wgmma_gemm::tile_k)},
        partials_{setup.scratch<float>(std::size_t{blocks_} * Tile::tile_m * Tile::tile_n, {.name = "partial tiles"})},
        flags_{setup.scratch<unsigned>(4 * std::size_t{blocks_}, {.name = "flags"})},
        a_map_{wgmma_gemm::a_map(a_, m_, k_, Tile::tile_m)},
        a_square_{wgmma_gemm::a_map(a_, m_, k_, square_gemm::Ring::tile_m)},
        b_map_{wgmma_gemm::b_map(b_, k_, n_, Tile::tile_n)},
        b_half_{wgmma_gemm::b_map(b_, k_, n_, Tile::tile_n / 2)},
        b_square_{wgmma_gemm::b_map(b_, k_, n_, square_gemm::Ring::tile_n)},
        c_map_{persistent_gemm::c_map(c_, m_, n_)} {}

  // Once: the kernels leave all flags as they found them.
  void clear_flags(Launch& launch) { check(cudaMemsetAsync(flags_, 0, flags_.bytes(), launch.stream)); }

  void count_clusters(Launch& launch) {
    clear_flags(launch);
    clusters_ = resident_clusters(aisp::ch10::stream_k_hybrid::hybrid_kernel, hybrid_grid(1));
    if (clusters_ == 0) throw Unsupported("no room for a cluster of two blocks with 224 KiB of shared memory each");
    clusters_ = std::min(clusters_, static_cast<int>(blocks_ / multicast_gemm::ranks));
  }

  void data_parallel(Launch& launch) { multiply(launch, true); }
  void stream_k(Launch& launch) { multiply(launch, false); }

  void stream_k_hybrid(Launch& launch) {
    using namespace aisp::ch10::stream_k_hybrid;
    const persistent_gemm::TileOrder order{m_, n_, pair_m, Ring::tile_n, 2};  // bands: the divided pairs share panels
    const int streamed = order.count() % clusters_;
    const Plan plan{order, streamed, std::min(clusters_ / std::max(streamed, 1), steps_), steps_, static_cast<int>(n_)};
    launch(hybrid_kernel, hybrid_grid(clusters_), a_map_, b_half_, c_map_, c_.get(), plan, exchange());
  }

  void square_tiles(Launch& launch) {
    using namespace square_gemm;
    const int rows = static_cast<int>((m_ + Ring::tile_m - 1) / Ring::tile_m),
              columns = static_cast<int>((n_ + Ring::tile_n - 1) / Ring::tile_n);
    const unsigned blocks = std::min(blocks_, static_cast<unsigned>(rows * columns));
    launch(square_kernel, {blocks, threads, shared_bytes}, a_square_, b_square_, c_map_, steps_, columns, rows * columns);
  }

 private:
  using Tile = stream_k_gemm::Ring;

  stream_k_gemm::Exchange exchange() const { return {reinterpret_cast<float4*>(partials_.get()), flags_}; }

  // Clusters wait for one another, so that all of them must be there at the same time.
  static Grid hybrid_grid(int clusters) {
    using namespace aisp::ch10::stream_k_hybrid;
    return {static_cast<unsigned>(clusters) * ranks, threads, shared_bytes, ranks, true};
  }

  void multiply(Launch& launch, bool whole) {
    using namespace stream_k_gemm;
    const int columns = static_cast<int>(n_ / Ring::tile_n), tiles = static_cast<int>(m_ / Ring::tile_m) * columns;
    const unsigned blocks = std::min(blocks_, static_cast<unsigned>(whole ? tiles : tiles * steps_));
    // Cooperative: a block waits for others' parts of its tiles, so all of them must run at once.
    const Grid grid{.blocks = blocks, .threads = threads, .shared_bytes = shared_bytes, .cooperative = !whole};
    launch(stream_kernel, grid, a_map_, b_map_, c_map_, Plan{tiles, columns, steps_, whole}, exchange());
  }

  int steps_;
  unsigned blocks_ = multiprocessors();
  int clusters_ = 0;
  Scratch<float> partials_;
  Scratch<unsigned> flags_;
  CUtensorMap a_map_, a_square_, b_map_, b_half_, b_square_, c_map_;
};

}  // namespace

extern constinit const Pair stream_k_matmul{
    .teaches = "when the last wave is nearly empty, deal out steps along K instead of tiles, or find a tile that divides evenly",
    .lesson = "stream_k",
    .make = make<StreamKMatmul>,
    .baseline = {.name = "data_parallel", .run = call<&StreamKMatmul::data_parallel>},
    .optimized =
        variants({{.name = "stream_k", .run = call<&StreamKMatmul::stream_k>, .prepare = call<&StreamKMatmul::clear_flags>},
                  {.name = "stream_k_hybrid",
                   .run = call<&StreamKMatmul::stream_k_hybrid>,
                   .prepare = call<&StreamKMatmul::count_clusters>,
                   .needs = {.dsmem = true}},
                  {.name = "square_tiles", .run = call<&StreamKMatmul::square_tiles>, .gains_over = "data_parallel"}}),
    .libraries = cublas_library,
    .bound = Bound::compute,
    .needs = {.min_sm = 90, .max_sm = 90},
};

}  // namespace aisp::ch10
