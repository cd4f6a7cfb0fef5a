// SPDX-License-Identifier: Apache-2.0
// Four down-projections of a decoder, one launch each as layers follow one another: Y = X W in bf16 with 64 rows, K = 14336, N =
// 4096. The 470 MB of weights bound it, but a product has only 32 tiles of 64 x 128: 100 of the 132 SMs ask for nothing. Four
// blocks that share a tile's depth keep 128 SMs streaming; what is left is to add their four partial tiles: in fp32 through global
// memory with a second kernel, by reductions of TMA in L2, or in a cluster, whose blocks send their sums to one another and
// write no fp32 at all.
#include "wgmma_gemm.cuh"

#include <aisp/device/cluster.cuh>
#include <aisp/device/fence.cuh>
#include <aisp/device/warpgroup.cuh>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <array>
#include <memory>

namespace aisp::ch10 {
namespace {

using bf16 = __nv_bfloat16;
constexpr int layers = 4, rows = 64, split = 4;
using Ring = wgmma_gemm::Ring<rows, 128, 8>;  // 192 KB on their way to each SM
constexpr int consumers = wgmma_gemm::warpgroup_threads, threads = consumers + 32;
constexpr int count = Ring::tile_n / 2, quads = count / 4;      // of a thread's sums
constexpr int part = count / split, part_quads = quads / split;  // what one block of a cluster adds up
constexpr unsigned tile_bytes = rows * Ring::tile_n * sizeof(float);

struct Shared {
  Ring ring;
  float4 received[split - 1][part_quads][consumers];
  std::uint64_t all_received;
  bool last;
};

__device__ __forceinline__ float4 quad(const float (&sums)[count], int i) {
  return make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
}
__device__ __forceinline__ void add(float* sums, float4 v) {
  sums[0] += v.x, sums[1] += v.y, sums[2] += v.z, sums[3] += v.w;
}

// What becomes of a block's sums. begin() is called by all threads before the first load, operator() by the consumers and end()
// by the others. Partial tiles lie as the threads hold them, one quad of each thread after the other.

struct Store {
  bf16* y;
  int n;
  __device__ void begin(Shared&) const {}
  __device__ void operator()(Shared&, float (&sums)[count]) const {
    wgmma_gemm::store_sums(sums, y, n, 0, blockIdx.x * Ring::tile_n);
  }
  __device__ void end() const {}
};

struct StorePartial {
  float4* partials;  // [split][tiles]
  __device__ void begin(Shared&) const {}
  __device__ void operator()(Shared&, float (&sums)[count]) const {
    float4* const to = partials + (blockIdx.y * gridDim.x + blockIdx.x) * quads * consumers + threadIdx.x;
#pragma unroll
    for (int i = 0; i < quads; ++i) to[i * consumers] = quad(sums, i);
  }
  __device__ void end() const {}
};

// Each block adds its tile to one in L2 that begins as zeros; the last of the four narrows it and leaves zeros.
struct AddInL2 {
  float4* totals;  // [tiles]
  unsigned* arrived;
  bf16* y;
  int n;
  __device__ void begin(Shared&) const {}
  __device__ void operator()(Shared& shared, float (&sums)[count]) const {
    float4* const staged = reinterpret_cast<float4*>(&shared.ring);
    float4* const total = totals + blockIdx.x * quads * consumers;
    device::named_barrier_sync(1, consumers);  // no warp's products read the ring any more
#pragma unroll
    for (int i = 0; i < quads; ++i) staged[i * consumers + threadIdx.x] = quad(sums, i);
    device::fence_proxy_async_shared();
    device::named_barrier_sync(1, consumers);
    if (threadIdx.x == 0) {
      device::bulk_add_f32(reinterpret_cast<float*>(total), staged, tile_bytes);
      device::commit_stores();
      device::wait_stores<0>();
      device::fence_proxy_async();
      device::fence_gpu();
      shared.last = atomicAdd(arrived + blockIdx.x, 1) == split - 1;
      device::fence_gpu();
    }
    device::named_barrier_sync(1, consumers);
    if (!shared.last) return;
#pragma unroll
    for (int i = 0; i < quads; ++i) {
      const float4 v = __ldcg(total + i * consumers + threadIdx.x);
      sums[4 * i] = v.x, sums[4 * i + 1] = v.y, sums[4 * i + 2] = v.z, sums[4 * i + 3] = v.w;
    }
#pragma unroll
    for (int i = 0; i < quads; ++i) total[i * consumers + threadIdx.x] = make_float4(0, 0, 0, 0);
    if (threadIdx.x == 0) arrived[blockIdx.x] = 0;
    wgmma_gemm::store_sums(sums, y, n, 0, blockIdx.x * Ring::tile_n);
  }
  __device__ void end() const {}
};

// Block r of the cluster adds up and writes the r-th 32 columns of the tile. The other three send it theirs without waiting: each
// store reports its bytes to a barrier of the receiver.
struct SumInCluster {
  bf16* y;
  int n;
  __device__ void begin(Shared& shared) const {
    if (threadIdx.x == 0) {
      device::barrier_init(&shared.all_received, 1);
      device::fence_barrier_init();
      device::barrier_arrive_expect(&shared.all_received, sizeof shared.received);
    }
    device::cluster_arrive();
  }
  __device__ void operator()(Shared& shared, float (&sums)[count]) const {
    const unsigned rank = device::cluster_rank();
    device::cluster_wait();  // the others' barriers are there
    float mine[part];
#pragma unroll
    for (unsigned to = 0; to < split; ++to) {
      if (to == rank) {
#pragma unroll
        for (int i = 0; i < part; ++i) mine[i] = sums[to * part + i];
        continue;
      }
      const std::uint32_t barrier = device::remote_address(&shared.all_received, to);
      const std::uint32_t place = device::remote_address(&shared.received[(rank ^ to) - 1][0][threadIdx.x], to);
#pragma unroll
      for (int i = 0; i < part_quads; ++i)
        device::store_async_f32x4(place + i * consumers * sizeof(float4), quad(sums, to * part_quads + i), barrier);
    }
    device::barrier_wait_cluster(&shared.all_received, 0);
#pragma unroll
    for (int from = 0; from < split - 1; ++from)
#pragma unroll
      for (int i = 0; i < part_quads; ++i) add(mine + 4 * i, shared.received[from][i][threadIdx.x]);
    wgmma_gemm::store_sums(mine, y, n, 0, blockIdx.x * Ring::tile_n + rank * (Ring::tile_n / split));
  }
  __device__ void end() const { device::cluster_wait(); }
};

// Block (x, y): tile x, the y-th `depth` of K. One thread loads, one warpgroup multiplies.
template <class Finish>
__global__ __launch_bounds__(threads, 1) void tile_kernel(const __grid_constant__ CUtensorMap x,
                                                          const __grid_constant__ CUtensorMap w, int depth, Finish finish) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) shared.ring.init(1);
  finish.begin(shared);
  __syncthreads();

  wgmma_gemm::Cursor<Ring> at;
  if (threadIdx.x >= consumers) {
    if (threadIdx.x == consumers)
      for (int k = 0; k < depth; k += wgmma_gemm::tile_k)
        wgmma_gemm::load_stage(shared.ring, at, &x, &w, 0, blockIdx.x * Ring::tile_n, blockIdx.y * depth + k);
    finish.end();
    return;
  }
  float sums[count];
  wgmma_gemm::multiply_tile(shared.ring, at, 0, depth / wgmma_gemm::tile_k, sums);
  finish(shared, sums);
}

// Block (x, y): the y-th quarter of tile x.
__global__ __launch_bounds__(consumers) void reduce_kernel(const float4* partials, bf16* y, int n) {
  const int tile_quads = quads * consumers;
  const float4* const from = partials + blockIdx.x * tile_quads + blockIdx.y * part_quads * consumers + threadIdx.x;
  float sums[part] = {};
#pragma unroll
  for (int s = 0; s < split; ++s)
#pragma unroll
    for (int i = 0; i < part_quads; ++i) add(sums + 4 * i, from[s * gridDim.x * tile_quads + i * consumers]);
  wgmma_gemm::store_sums(sums, y, n, 0, blockIdx.x * Ring::tile_n + blockIdx.y * (Ring::tile_n / split));
}

class SplitKDsmem final : public Workload {
 public:
  explicit SplitKDsmem(Setup& setup)
      : n_{setup.scaled(4096, Ring::tile_n)},
        k_{setup.scaled(14336, wgmma_gemm::tile_k * split)},
        x_{setup.input<bf16>(layers * rows * k_, uniform(-1, 1), {.name = "x"})},
        w_{setup.input<bf16>(layers * k_ * n_, uniform(-1, 1), {.name = "w"})},
        y_{setup.output<bf16>(layers * rows * n_, {.name = "y"})},
        partials_{setup.scratch<float>(split * rows * n_, {.name = "partial tiles"})},
        totals_{setup.scratch<float>(rows * n_, {.name = "totals"})},
        arrived_{setup.scratch<unsigned>(n_ / Ring::tile_n, {.name = "arrivals"})} {
    for (std::size_t i = 0; i < layers; ++i) {
      x_maps_[i] = wgmma_gemm::a_map(x_ + i * rows * k_, rows, k_, rows);
      w_maps_[i] = wgmma_gemm::b_map(w_ + i * k_ * n_, k_, n_, Ring::tile_n);
    }
    allow_shared<Store>();
    allow_shared<StorePartial>();
    allow_shared<AddInL2>();
    allow_shared<SumInCluster>();
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
    for (std::size_t i = 0; i < layers; ++i) multiply(launch, i, 1, 1, Store{y(i), static_cast<int>(n_)});
  }
  void split_k_workspace(Launch& launch) {
    auto* const partials = reinterpret_cast<float4*>(partials_.get());
    for (std::size_t i = 0; i < layers; ++i) {
      multiply(launch, i, split, 1, StorePartial{partials});
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
      multiply(launch, i, split, 1, AddInL2{totals, arrived_, y(i), static_cast<int>(n_)});
  }
  void split_k_dsmem(Launch& launch) {
    for (std::size_t i = 0; i < layers; ++i) multiply(launch, i, split, split, SumInCluster{y(i), static_cast<int>(n_)});
  }

  void open_cublas(Launch&) {
    if (!cublas_) cublas_ = std::make_unique<Cublas>();
  }
  void cublas(Launch& launch) {
    for (std::size_t i = 0; i < layers; ++i)
      cublas_->gemm(launch.stream, rows, static_cast<int>(n_), static_cast<int>(k_), x_ + i * rows * k_, w_ + i * k_ * n_, y(i),
                    CUDA_R_16BF);
  }

 private:
  template <class Finish>
  static void allow_shared() {
    check(cudaFuncSetAttribute(tile_kernel<Finish>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
  }
  unsigned tiles() const { return static_cast<unsigned>(n_ / Ring::tile_n); }
  bf16* y(std::size_t layer) const { return y_ + layer * rows * n_; }

  template <class Finish>
  void multiply(Launch& launch, std::size_t layer, unsigned blocks_per_tile, unsigned cluster, Finish finish) {
    cudaLaunchAttribute attribute{.id = cudaLaunchAttributeClusterDimension, .val = {.clusterDim = {1, cluster, 1}}};
    const cudaLaunchConfig_t config{.gridDim = {tiles(), blocks_per_tile, 1},
                                    .blockDim = threads,
                                    .dynamicSmemBytes = sizeof(Shared),
                                    .stream = launch.stream,
                                    .attrs = &attribute,
                                    .numAttrs = cluster > 1 ? 1u : 0u};
    check(cudaLaunchKernelEx(&config, tile_kernel<Finish>, x_maps_[layer], w_maps_[layer],
                             static_cast<int>(k_ / blocks_per_tile), finish));
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
    .optimized = variants({{.name = "split_k_workspace", .run = call<&SplitKDsmem::split_k_workspace>},
                           {.name = "split_k_tma_reduce",
                            .run = call<&SplitKDsmem::split_k_tma_reduce>,
                            .prepare = call<&SplitKDsmem::clear_totals>,
                            .deterministic = false},
                           {.name = "split_k_dsmem", .run = call<&SplitKDsmem::split_k_dsmem>, .needs = {.dsmem = true}}}),
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
