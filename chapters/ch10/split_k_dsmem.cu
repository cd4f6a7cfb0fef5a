// SPDX-License-Identifier: Apache-2.0
// Four down-projections of a decoder, one launch each as layers follow one another: Y = X W in bf16 with 64 rows, K = 14336, N =
// 4096: 470 MB of weights. A product has only 32 tiles of 64 x 128, yet 32 SMs with 192 KB on their way each already reach 2.6
// TB/s (0.165 to 0.185 ms; 0.113 is the floor), which leaves 1.5 to 1.64x to gain, and each launch takes 3 us to start and drain.
// Four blocks that share a tile's depth add their parts in global memory, with a second kernel (0.143 ms), in L2 by reductions
// of TMA (0.141, as cuBLAS), or in a cluster that writes no fp32; there the next launch can load weights early (0.134).
#include "split_k_gemm.cuh"

#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>
#include <array>
#include <memory>

namespace aisp::ch10 {
namespace {

using namespace split_k_gemm;

class SplitKDsmem final : public Workload {
 public:
  explicit SplitKDsmem(Setup& setup)
      : n_{setup.scaled(4096, tile_n)},
        k_{setup.scaled(14336, wgmma_gemm::tile_k * split)},
        x_{setup.input<bf16>(layers * rows * k_, uniform(-1, 1), {.name = "x"})},
        w_{setup.input<bf16>(layers * k_ * n_, uniform(-1, 1), {.name = "w"})},
        y_{setup.output<bf16>(layers * rows * n_, {.name = "y"})},
        partials_{setup.scratch<float>(split * rows * n_, {.name = "partial tiles"})},
        totals_{setup.scratch<float>(rows * n_, {.name = "totals"})},
        arrived_{setup.scratch<unsigned>(n_ / tile_n, {.name = "arrivals"})} {
    for (std::size_t i = 0; i < layers; ++i) {
      x_maps_[i] = wgmma_gemm::a_map(x_ + i * rows * k_, rows, k_, rows);
      w_maps_[i] = wgmma_gemm::b_map(w_ + i * k_ * n_, k_, n_, tile_n);
    }
    allow_shared<deep_stages, Store>();
    allow_shared<deep_stages, StorePartial>();
    allow_shared<deep_stages, AddInL2>();
    allow_shared<cluster_stages, SumInCluster>();
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
    for (std::size_t i = 0; i < layers; ++i) multiply<deep_stages>(launch, i, {}, Store{y(i), static_cast<int>(n_)});
  }
  void split_k_workspace(Launch& launch) {
    auto* const partials = reinterpret_cast<float4*>(partials_.get());
    for (std::size_t i = 0; i < layers; ++i) {
      multiply<deep_stages>(launch, i, {.split = split}, StorePartial{partials});
      reduce_kernel<<<dim3{tiles(), split}, consumers, 0, launch.stream>>>(partials, y(i), static_cast<int>(n_));
      check(cudaGetLastError());
    }
  }
  // Once: each run leaves the totals and the counters as it found them.
  void clear_totals(Launch& launch) {
    check(cudaMemsetAsync(totals_, 0, totals_.bytes(), launch.stream));
    check(cudaMemsetAsync(arrived_, 0, arrived_.bytes(), launch.stream));
  }
  void split_k_tma_reduce(Launch& launch) {
    auto* const totals = reinterpret_cast<float4*>(totals_.get());
    for (std::size_t i = 0; i < layers; ++i)
      multiply<deep_stages>(launch, i, {.split = split}, AddInL2{totals, arrived_, y(i), static_cast<int>(n_)});
  }
  void split_k_dsmem(Launch& launch) { in_clusters(launch, false); }
  // Each launch may begin when all blocks of the one before have; it waits for its end before it reads x or writes y.
  void split_k_dsmem_overlapped(Launch& launch) { in_clusters(launch, true); }

  void open_cublas(Launch&) {
    if (!cublas_) cublas_ = std::make_unique<Cublas>();
  }
  void cublas(Launch& launch) {
    for (std::size_t i = 0; i < layers; ++i)
      cublas_->gemm(launch.stream, rows, static_cast<int>(n_), static_cast<int>(k_), x_ + i * rows * k_, w_ + i * k_ * n_, y(i),
                    CUDA_R_16BF);
  }

 private:
  struct Shape {
    unsigned split = 1, cluster = 1;
    bool overlapped = false;
  };

  template <int stages, class Finish>
  static void allow_shared() {
    check(cudaFuncSetAttribute(tile_kernel<stages, Finish>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared<stages>)));
  }
  unsigned tiles() const { return static_cast<unsigned>(n_ / tile_n); }
  bf16* y(std::size_t layer) const { return y_ + layer * rows * n_; }

  void in_clusters(Launch& launch, bool overlapped) {
    const Shape shape{.split = split, .cluster = split, .overlapped = overlapped};
    for (std::size_t i = 0; i < layers; ++i) multiply<cluster_stages>(launch, i, shape, SumInCluster{y(i), static_cast<int>(n_)});
  }

  template <int stages, class Finish>
  void multiply(Launch& launch, std::size_t layer, Shape shape, Finish finish) {
    cudaLaunchAttribute attributes[] = {
        {.id = cudaLaunchAttributeClusterDimension, .val = {.clusterDim = {1, shape.cluster, 1}}},
        {.id = cudaLaunchAttributeProgrammaticStreamSerialization, .val = {.programmaticStreamSerializationAllowed = 1}}};
    const cudaLaunchConfig_t config{.gridDim = {tiles(), shape.split, 1},
                                    .blockDim = threads,
                                    .dynamicSmemBytes = sizeof(Shared<stages>),
                                    .stream = launch.stream,
                                    .attrs = attributes,
                                    .numAttrs = shape.overlapped ? 2u : 1u};
    check(cudaLaunchKernelEx(&config, tile_kernel<stages, Finish>, x_maps_[layer], w_maps_[layer],
                             static_cast<int>(k_ / shape.split), finish));
  }

  std::size_t n_, k_;
  Input<bf16> x_, w_;
  Output<bf16> y_;
  Scratch<float> partials_, totals_;
  Scratch<unsigned> arrived_;
  std::array<CUtensorMap, layers> x_maps_{}, w_maps_{};
  std::unique_ptr<Cublas> cublas_;
};

}  // namespace

extern constinit const Pair split_k_dsmem{
    .teaches = "a skinny GEMM has too few tiles; splitting K fills the SMs, and a cluster adds up without an fp32 workspace",
    .make = make<SplitKDsmem>,
    .baseline = {.name = "whole_depth", .run = call<&SplitKDsmem::whole_depth>},
    .optimized = variants(
        {{.name = "split_k_workspace", .run = call<&SplitKDsmem::split_k_workspace>},
         {.name = "split_k_tma_reduce",
          .run = call<&SplitKDsmem::split_k_tma_reduce>,
          .prepare = call<&SplitKDsmem::clear_totals>,
          .deterministic = false},
         {.name = "split_k_dsmem", .run = call<&SplitKDsmem::split_k_dsmem>, .needs = {.dsmem = true}},
         {.name = "split_k_dsmem_overlapped", .run = call<&SplitKDsmem::split_k_dsmem_overlapped>, .needs = {.dsmem = true}}}),
    .peers = variants({{.name = "cublas",
                        .run = call<&SplitKDsmem::cublas>,
                        .prepare = call<&SplitKDsmem::open_cublas>,
                        .needs = {.libraries = {Library::cublas}}}}),
    .bound = Bound::memory,
    // One rounding of the output to bf16 is 1.6e-3; the sums are fp32 everywhere.
    .tolerance = within(4e-3),
    .needs = {.min_sm = 90, .max_sm = 90},
};

}  // namespace aisp::ch10
