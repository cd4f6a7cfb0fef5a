// SPDX-License-Identifier: Apache-2.0
// Four down-projections of a decoder, one launch each as layers follow one another: Y = X W in bf16 with 64 rows, K = 14336, N =
// 4096: 470 MB of weights. Its 32 tiles of 64 x 128 use 32 SMs. Four blocks that share a tile and divide its K add their parts by
// a second kernel, or in L2 by reductions of TMA. In clusters no fp32 leaves the SMs: clusters of four would leave some SMs
// without a block, so two share a tile of half the width, and the next launch can load weights early.
#include <aisp/device/cluster.cuh>
#include <aisp/device/fence.cuh>
#include <aisp/libraries/cublas.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <array>

#include "gemm_epilogue.cuh"

namespace aisp::ch10 {
namespace {

using gemm::bf16;
constexpr int layers = 4, rows = 64;
constexpr int consumers = gemm::warpgroup_threads, threads = consumers + 32;

// Tiles of 64 x tile_n over 1 / split of K, through a ring of `stages`.
template <int tile_n_, int split_, int stages_>
struct Shape {
  static constexpr int tile_n = tile_n_, split = split_, stages = stages_;
  static constexpr int count = tile_n / 2, quads = count / 4;  // of a thread's sums
  static constexpr int part_quads = quads / split;             // what one block of a cluster adds up
  static constexpr unsigned tile_bytes = rows * tile_n * sizeof(float);
  using Ring = gemm::Ring<rows, tile_n, stages>;

  // In dynamic shared memory.
  struct Shared {
    Ring ring;
    float4 received[split - 1 + (split == 1)][part_quads][consumers];  // from the other blocks of a cluster
    std::uint64_t all_received;
    bool last;
  };
};

template <int count>
__device__ __forceinline__ float4 quad(const float (&sums)[count], int i) {
  return make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
}
__device__ __forceinline__ void add(float* sums, float4 v) { sums[0] += v.x, sums[1] += v.y, sums[2] += v.z, sums[3] += v.w; }

// Ways to pass a block's sums to the consumers. Partial tiles lie as the threads hold them, one quad of each thread after the
// other.

template <class S>
struct Store {
  bf16* y;
  int n;
  static constexpr bool in_cluster = false;
  __device__ void operator()(typename S::Shared&, float (&sums)[S::count]) const {
    gemm::store_sectors(sums, y, n, 0, blockIdx.x * S::tile_n);
  }
};

template <class S>
struct StorePartial {
  float4* partials;  // [split][tiles]
  static constexpr bool in_cluster = false;
  __device__ void operator()(typename S::Shared&, float (&sums)[S::count]) const {
    float4* const to = partials + (blockIdx.y * gridDim.x + blockIdx.x) * S::quads * consumers + threadIdx.x;
#pragma unroll
    for (int i = 0; i < S::quads; ++i) to[i * consumers] = quad(sums, i);
  }
};

// Each block adds its tile to one in L2 that begins as zeros; the last of them narrows it and leaves zeros.
template <class S>
struct AddInL2 {
  float4* totals;  // [tiles]
  unsigned* arrived;
  bf16* y;
  int n;
  static constexpr bool in_cluster = false;
  __device__ void operator()(typename S::Shared& shared, float (&sums)[S::count]) const {
    float4* const total = totals + blockIdx.x * S::quads * consumers;
    float4* const staged = reinterpret_cast<float4*>(&shared.ring);
    device::named_barrier_sync(1, consumers);  // no warp's products read the ring any more
#pragma unroll
    for (int i = 0; i < S::quads; ++i) staged[i * consumers + threadIdx.x] = quad(sums, i);
    device::fence_proxy_async_shared();
    device::named_barrier_sync(1, consumers);
    if (threadIdx.x == 0) {
      device::bulk_add_f32(reinterpret_cast<float*>(total), staged, S::tile_bytes);
      device::commit_stores();
      device::wait_stores<0>();
      device::fence_proxy_async();
      device::fence_gpu();
      shared.last = atomicAdd(arrived + blockIdx.x, 1) == S::split - 1;
      device::fence_gpu();
    }
    device::named_barrier_sync(1, consumers);
    if (!shared.last) return;
#pragma unroll
    for (int i = 0; i < S::quads; ++i) {
      const float4 v = __ldcg(total + i * consumers + threadIdx.x);
      sums[4 * i] = v.x, sums[4 * i + 1] = v.y, sums[4 * i + 2] = v.z, sums[4 * i + 3] = v.w;
      total[i * consumers + threadIdx.x] = make_float4(0, 0, 0, 0);
    }
    if (threadIdx.x == 0) arrived[blockIdx.x] = 0;
    gemm::store_sectors(sums, y, n, 0, blockIdx.x * S::tile_n);
  }
};

// Block r of the cluster adds up and writes the r-th part of the tile's columns. The others send it theirs; each store reports
// its bytes to a barrier of the receiver, which cannot end before.
template <class S>
struct SumInCluster {
  bf16* y;
  int n;
  static constexpr bool in_cluster = true;
  __device__ void operator()(typename S::Shared& shared, float (&sums)[S::count]) const {
    const unsigned rank = device::cluster_rank();
    float mine[4 * S::part_quads];
    device::cluster_wait();  // all blocks have started
#pragma unroll
    for (unsigned to = 0; to < S::split; ++to) {
      if (to == rank) {
#pragma unroll
        for (int i = 0; i < 4 * S::part_quads; ++i) mine[i] = sums[to * 4 * S::part_quads + i];
        continue;
      }
      const std::uint32_t barrier = device::remote_address(&shared.all_received, to);
      const std::uint32_t place = device::remote_address(&shared.received[(rank ^ to) - 1][0][threadIdx.x], to);
#pragma unroll
      for (int i = 0; i < S::part_quads; ++i)
        device::store_async_f32x4(place + i * consumers * sizeof(float4), quad(sums, to * S::part_quads + i), barrier);
    }
    device::barrier_wait_cluster(&shared.all_received, 0);
#pragma unroll
    for (int from = 0; from < S::split - 1; ++from)
#pragma unroll
      for (int i = 0; i < S::part_quads; ++i) add(mine + 4 * i, shared.received[from][i][threadIdx.x]);
    gemm::store_sectors(mine, y, n, 0, blockIdx.x * S::tile_n + rank * (S::tile_n / S::split));
  }
};

// By one thread. What fits is asked for at once, the weights first: they do not depend on the layer before, but x does.
template <class Ring>
__device__ __forceinline__ void load(Ring& ring, const CUtensorMap* x, const CUtensorMap* w, int left, int first_k, int end_k) {
  gemm::Cursor<Ring> at;
  const int ahead = min(first_k + Ring::stages * gemm::tile_k, end_k);
  for (int k = first_k, stage = 0; k < ahead; k += gemm::tile_k, ++stage) {
    device::barrier_arrive_expect(&ring.full[stage], Ring::stage_bytes);
    device::tensor_load_3d(ring.b[stage], w, 0, k, left / 64, &ring.full[stage]);
  }
  device::wait_for_previous_kernel();
  for (int k = first_k; k < ahead; k += gemm::tile_k, at.next())
    device::tensor_load_2d(ring.a[at.stage], x, k, 0, &ring.full[at.stage]);
  for (int k = ahead; k < end_k; k += gemm::tile_k) gemm::load_stage(ring, at, x, w, 0, left, k);
}

// Block (x, y): tile x, the y-th `part_k` of K. One thread loads, one warpgroup multiplies.
template <class S, template <class> class Finish>
__global__ __launch_bounds__(threads, 1) void tile_kernel(const __grid_constant__ CUtensorMap x,
                                                          const __grid_constant__ CUtensorMap w, int part_k, Finish<S> finish) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename S::Shared*>(memory);
  if (threadIdx.x == 0) {
    device::barrier_init(&shared.all_received, 1);
    shared.ring.init(1);
    if (Finish<S>::in_cluster) device::barrier_arrive_expect(&shared.all_received, (S::split - 1) * S::tile_bytes / S::split);
  }
  __syncthreads();
  if (Finish<S>::in_cluster) device::cluster_arrive();  // sums can be received
  device::let_dependents_start();

  if (threadIdx.x >= consumers) {
    const int first_k = static_cast<int>(blockIdx.y) * part_k;
    if (threadIdx.x == consumers) load(shared.ring, &x, &w, blockIdx.x * S::tile_n, first_k, first_k + part_k);
    if (Finish<S>::in_cluster) device::cluster_wait();
    return;
  }
  gemm::Cursor<typename S::Ring> at;
  float sums[S::count];
  gemm::multiply_tile(shared.ring, at, 0, part_k / gemm::tile_k, sums);
  device::wait_for_previous_kernel();
  finish(shared, sums);
}

// Block (x, y): the y-th part of tile x.
template <class S>
__global__ __launch_bounds__(consumers) void reduce_kernel(const float4* partials, bf16* y, int n) {
  const int tile_quads = S::quads * consumers;
  const float4* const from = partials + blockIdx.x * tile_quads + blockIdx.y * S::part_quads * consumers + threadIdx.x;
  float sums[4 * S::part_quads] = {};
#pragma unroll
  for (int s = 0; s < S::split; ++s)
#pragma unroll
    for (int i = 0; i < S::part_quads; ++i) add(sums + 4 * i, from[s * gridDim.x * tile_quads + i * consumers]);
  gemm::store_sectors(sums, y, n, 0, blockIdx.x * S::tile_n + blockIdx.y * (S::tile_n / S::split));
}

// Each fills the shared memory of an SM with what is on its way.
using Whole = Shape<128, 1, 8>;
using Quarters = Shape<128, 4, 8>;
// A tile this narrow takes a byte of x from L2 with each byte of weights: that bounds it, not the launches. Blocks that stay for
// all layers, two blocks an SM with half the ring each, wide tiles in clusters of four, and prefetches into L2 were all slower.
using Halves = Shape<64, 2, 12>;

class SplitKDsmem final : public Workload {
 public:
  explicit SplitKDsmem(Setup& setup)
      : n_{setup.scaled(4096, Whole::tile_n)},
        k_{setup.scaled(14336, gemm::tile_k * Quarters::split)},
        x_{setup.input<bf16>(layers * rows * k_, uniform(-1, 1), {.name = "x"})},
        w_{setup.input<bf16>(layers * k_ * n_, uniform(-1, 1), {.name = "w"})},
        y_{setup.output<bf16>(layers * rows * n_, {.name = "y"})},
        partials_{setup.scratch<float>(Quarters::split * rows * n_, {.name = "partial tiles"})},
        totals_{setup.scratch<float>(rows * n_, {.name = "totals"})},
        arrived_{setup.scratch<unsigned>(n_ / Quarters::tile_n, {.name = "arrivals"})},
        cublas_{setup},
        cublaslt_{setup, {.m = rows, .n = n_, .k = k_}} {
    for (std::size_t i = 0; i < layers; ++i) {
      x_maps_[i] = gemm::a_map(x(i), rows, k_, rows);
      w_maps_[i] = gemm::b_map(w(i), k_, n_, Whole::tile_n);
      narrow_maps_[i] = gemm::b_map(w(i), k_, n_, Halves::tile_n);
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

  void whole_k(Launch& launch) {
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
    .baseline = {.name = "whole_k", .run = call<&SplitKDsmem::whole_k>},
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
