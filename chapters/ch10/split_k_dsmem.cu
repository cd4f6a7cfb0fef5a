// SPDX-License-Identifier: Apache-2.0
// Four down-projections of a decoder, one launch each as layers follow one another: Y = X W in bf16 with 64 rows, K = 14336, N =
// 4096: 470 MB of weights. Its 32 tiles of 64 x 128 use 32 SMs (2.6 TB/s, 0.183 ms). Four blocks that share a tile's depth add
// their parts by a second kernel (0.146 ms) or in L2 by reductions of TMA (0.140; cuBLAS 0.141). In clusters no fp32 leaves the
// SMs: of four blocks only 30 clusters fit, so two share a tile of half the width (0.132), and the next launch can load weights
// early (0.123, 83 to 85 % of the ceiling).
#include "split_k_gemm.cuh"

#include <aisp/libraries/cublas.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>
#include <array>

namespace aisp::ch10 {
namespace {

using namespace split_k_gemm;

// Each fills the shared memory of an SM with what is on its way.
using Whole = Shape<128, 1, 8>;
using Quarters = Shape<128, 4, 8>;
// The loads alone, in one launch and with nothing to add, take 0.113 of 0.123 ms: a tile this narrow takes a byte of x from L2
// with each byte of weights, 0.94 GB in all, which at the 9.1 TB/s of L2 are 0.103. The launches do not hold it up: blocks that
// stay for all layers and wait for a counter instead take 0.125, with 12 or 13 stages. Two blocks an SM with half the ring each,
// so that one layer's end meets the next one's loads, take 0.132; clusters of four with wide tiles, small enough for two blocks
// an SM, 0.135. TMA prefetches into L2 ahead of the ring make it 0.15.
using Halves = Shape<64, 2, 12>;

class SplitKDsmem final : public Workload {
 public:
  explicit SplitKDsmem(Setup& setup)
      : n_{setup.scaled(4096, Whole::tile_n)},
        k_{setup.scaled(14336, wgmma_gemm::tile_k * Quarters::split)},
        x_{setup.input<bf16>(layers * rows * k_, uniform(-1, 1), {.name = "x"})},
        w_{setup.input<bf16>(layers * k_ * n_, uniform(-1, 1), {.name = "w"})},
        y_{setup.output<bf16>(layers * rows * n_, {.name = "y"})},
        partials_{setup.scratch<float>(Quarters::split * rows * n_, {.name = "partial tiles"})},
        totals_{setup.scratch<float>(rows * n_, {.name = "totals"})},
        arrived_{setup.scratch<unsigned>(n_ / Quarters::tile_n, {.name = "arrivals"})},
        cublas_{setup},
        cublaslt_{setup, {.m = rows, .n = n_, .k = k_}} {
    for (std::size_t i = 0; i < layers; ++i) {
      x_maps_[i] = wgmma_gemm::a_map(x(i), rows, k_, rows);
      w_maps_[i] = wgmma_gemm::b_map(w(i), k_, n_, Whole::tile_n);
      narrow_maps_[i] = wgmma_gemm::b_map(w(i), k_, n_, Halves::tile_n);
    }
  }

  Cost cost() const override {
    return {.flops = 2.0 * layers * rows * static_cast<double>(n_) * static_cast<double>(k_),
            .math = Math::bf16,
            .bytes = static_cast<double>(x_.bytes() + w_.bytes() + y_.bytes())};
  }
  double expected(std::size_t index) const override {
    const std::size_t row = index / n_, column = index % n_, layer = row / rows;
    double sum = 0;
    for (std::size_t k = 0; k < k_; ++k) sum += x_.host(row * k_ + k) * w_.host((layer * k_ + k) * n_ + column);
    return sum;
  }

  void whole_depth(Launch& launch) {
    for (std::size_t i = 0; i < layers; ++i) multiply(launch, i, Store<Whole>{y(i), static_cast<int>(n_)});
  }
  void split_k_workspace(Launch& launch) {
    auto* const partials = reinterpret_cast<float4*>(partials_.get());
    const dim3 blocks{static_cast<unsigned>(n_ / Quarters::tile_n), Quarters::split};
    for (std::size_t i = 0; i < layers; ++i) {
      multiply(launch, i, StorePartial<Quarters>{partials});
      launch(reduce_kernel<Quarters>, {blocks, consumers}, partials, y(i), n_);
    }
  }
  // Once: each run leaves the totals and the counters as it found them.
  void clear_totals(Launch& launch) {
    check(cudaMemsetAsync(totals_, 0, totals_.bytes(), launch.stream));
    check(cudaMemsetAsync(arrived_, 0, arrived_.bytes(), launch.stream));
  }
  void split_k_tma_reduce(Launch& launch) {
    auto* const totals = reinterpret_cast<float4*>(totals_.get());
    for (std::size_t i = 0; i < layers; ++i) multiply(launch, i, AddInL2<Quarters>{totals, arrived_, y(i), static_cast<int>(n_)});
  }
  void split_k_dsmem(Launch& launch) { in_clusters(launch, false); }
  // A block may start when all blocks of the launch before have, and there is room; it waits for that launch's end before it
  // reads x or writes y.
  void split_k_dsmem_overlapped(Launch& launch) { in_clusters(launch, true); }

  void cublas(Launch& launch) {
    for (std::size_t i = 0; i < layers; ++i) cublas_->gemm(launch.stream, rows, n_, k_, x(i), w(i), y(i), CUDA_R_16BF);
  }
  void tune_cublaslt(Launch& launch) { cublaslt_.tune(launch, x(0), w(0), y(0)); }
  void cublaslt_tuned(Launch& launch) {
    for (std::size_t i = 0; i < layers; ++i) cublaslt_.run_tuned(launch, x(i), w(i), y(i));
  }

 private:
  const bf16* x(std::size_t layer) const { return x_ + layer * rows * k_; }
  const bf16* w(std::size_t layer) const { return w_ + layer * k_ * n_; }
  bf16* y(std::size_t layer) const { return y_ + layer * rows * n_; }

  void in_clusters(Launch& launch, bool overlapped) {
    for (std::size_t i = 0; i < layers; ++i) multiply(launch, i, SumInCluster<Halves>{y(i), static_cast<int>(n_)}, overlapped);
  }

  template <class S, template <class> class Finish>
  void multiply(Launch& launch, std::size_t layer, Finish<S> finish, bool overlapped = false) {
    const Grid grid{.blocks = {static_cast<unsigned>(n_ / S::tile_n), S::split},
                    .threads = threads,
                    .shared_bytes = sizeof(typename S::Shared),
                    .cluster = {1, Finish<S>::in_cluster ? S::split : 1},
                    .overlapping = overlapped};
    launch(tile_kernel<S, Finish>, grid, x_maps_[layer], S::tile_n == Halves::tile_n ? narrow_maps_[layer] : w_maps_[layer],
           k_ / S::split, finish);
  }

  std::size_t n_, k_;
  Input<bf16> x_, w_;
  Output<bf16> y_;
  Scratch<float> partials_, totals_;
  Scratch<unsigned> arrived_;
  std::array<CUtensorMap, layers> x_maps_{}, w_maps_{}, narrow_maps_{};
  Opened<Cublas> cublas_;
  LibraryMatmul cublaslt_;
};

}  // namespace

extern constinit const Pair split_k_dsmem{
    .teaches = "a skinny GEMM has too few tiles; splitting K fills the SMs, and a cluster adds up without an fp32 workspace",
    .lesson = "split_k_dsmem",
    .make = make<SplitKDsmem>,
    .baseline = {.name = "whole_depth", .run = call<&SplitKDsmem::whole_depth>},
    .optimized = variants(
        {{.name = "split_k_workspace", .run = call<&SplitKDsmem::split_k_workspace>},
         {.name = "split_k_tma_reduce",
          .run = call<&SplitKDsmem::split_k_tma_reduce>,
          .prepare = call<&SplitKDsmem::clear_totals>,
          .deterministic = false},
         {.name = "split_k_dsmem",
          .run = call<&SplitKDsmem::split_k_dsmem>,
          .needs = {.dsmem = true},
          .gains_over = "split_k_workspace"},
         {.name = "split_k_dsmem_overlapped", .run = call<&SplitKDsmem::split_k_dsmem_overlapped>, .needs = {.dsmem = true}}}),
    .libraries = variants({{.name = "cublas", .run = call<&SplitKDsmem::cublas>, .needs = {.libraries = {Library::cublas}}},
                           {.name = "cublaslt_tuned",
                            .run = call<&SplitKDsmem::cublaslt_tuned>,
                            .prepare = call<&SplitKDsmem::tune_cublaslt>,
                            .needs = {.libraries = {Library::cublaslt}}}}),
    .bound = Bound::memory,
    .needs = {.min_sm = 90, .max_sm = 90},
};

}  // namespace aisp::ch10
