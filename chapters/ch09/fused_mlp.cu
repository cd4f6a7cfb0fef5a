// SPDX-License-Identifier: Apache-2.0
// A neural field: six layers of 64 neurons with ReLU, for millions of samples. Layer by layer every activation goes to memory and
// comes back, at 32 FLOP for a byte. All weights together fit into shared memory, and the sums of one layer lie in a warp's
// registers as the operand of the next must lie: chained on chip, a sample is read once and written once, and at 192 FLOP for a
// byte the tensor cores are the limit.
#include <cuda_bf16.h>
#include <aisp/device/fence.cuh>
#include <aisp/device/matrix.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/device/wgmma_products.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>
#include <aisp/tensor_map.hpp>

#include <algorithm>
#include <array>
#include <vector>

namespace aisp::ch09 {
namespace {

using bf16 = __nv_bfloat16;

constexpr int width = 64, row_bytes = width * 2, layer_bytes = width * row_bytes;
constexpr int threads = 256;

// The order of the neurons in shared memory and registers, the same in all layers, so that it changes no result: the four pairs
// that a thread holds of its row in neighbouring fragments are eight neighbours in memory, one load or store of 16 bytes.
__device__ constexpr int column_of(int place) { return place / 32 * 32 + place % 8 / 2 * 8 + place % 32 / 8 * 2 + place % 2; }

// All weights to shared memory, a row of 128 bytes for each input neuron; within a row the 16-byte chunk c lies at c ^ row % 8,
// as ldmatrix reads it without conflicts and wgmma expects it.
template <bool reordered>
__device__ void load_weights(const bf16* w, unsigned char* to, int layers) {
  for (int i = threadIdx.x; i < layers * width * width / 2; i += blockDim.x) {
    const int row = i / (width / 2), word = i % (width / 2);
    const int from_row = reordered ? row / width * width + column_of(row % width) : row;
    const int from_column = reordered ? column_of(2 * word) : 2 * word;
    *reinterpret_cast<unsigned*>(to + row * row_bytes + (word / 4 ^ row % 8) * 16 + word % 4 * 4) =
        *reinterpret_cast<const unsigned*>(w + from_row * width + from_column);
  }
}

// Two sums as bf16 in one word, the first in the lower half, and zero where they are negative.
__device__ __forceinline__ unsigned narrow_relu(float low, float high) {
  unsigned both;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// 16 rows of a warp as the left operand: fragment s holds the neurons from 16 s on, words 0 and 1 those of the rows lane / 4 and
// lane / 4 + 8, words 2 and 3 the same eight neurons further on. Rows that are not there are zero and are not stored.
using Rows = unsigned[4][4];

__device__ __forceinline__ void load_rows(Rows& a, const bf16* x, int first, int samples) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int row = first + half * 8 + lane / 4;
      uint4 v{};
      if (row < samples) v = *reinterpret_cast<const uint4*>(x + row * width + part * 32 + lane % 4 * 8);
      a[2 * part][half] = v.x, a[2 * part][half + 2] = v.y, a[2 * part + 1][half] = v.z, a[2 * part + 1][half + 2] = v.w;
    }
}
__device__ __forceinline__ void store_rows(const Rows& a, bf16* y, int first, int samples) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int row = first + half * 8 + lane / 4;
      if (row < samples)
        *reinterpret_cast<uint4*>(y + row * width + part * 32 + lane % 4 * 8) =
            make_uint4(a[2 * part][half], a[2 * part][half + 2], a[2 * part + 1][half], a[2 * part + 1][half + 2]);
    }
}

// A warp has 32 rows, so that a fragment of weights that it reads from shared memory serves two products.
__global__ __launch_bounds__(threads, 2) void fused_mma_kernel(const bf16* x, const bf16* w, bf16* y, int samples, int layers) {
  constexpr int rows = 32;
  extern __shared__ __align__(1024) unsigned char memory[];
  load_weights<true>(w, memory, layers);
  __syncthreads();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Lane l addresses row l % 16 of a fragment, chunk l / 16. The chunk of other columns differs in bits that XOR can flip.
  const std::uint32_t w_lane = device::shared_address(memory) + lane % 16 * row_bytes + (lane / 16 ^ lane % 8) * 16;
  const int apart = static_cast<int>(gridDim.x) * (threads / 32) * rows;
  for (int first = (static_cast<int>(blockIdx.x) * (threads / 32) + warp) * rows; first < samples; first += apart) {
    Rows a[2];
#pragma unroll
    for (int m = 0; m < 2; ++m) load_rows(a[m], x, first + m * 16, samples);
    std::uint32_t at = w_lane;
#pragma unroll 1
    for (int layer = 0; layer < layers; ++layer, at += layer_bytes) {
      float sums[2][8][4] = {};
#pragma unroll
      for (int s = 0; s < 4; ++s)
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          unsigned b[4];
          device::load_matrices_transposed(b, (at ^ n * 32) + s * 16 * row_bytes);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            device::mma_bf16(sums[m][2 * n], a[m][s], b[0], b[1]);
            device::mma_bf16(sums[m][2 * n + 1], a[m][s], b[2], b[3]);
          }
        }
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int s = 0; s < 4; ++s)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            a[m][s][i] = narrow_relu(sums[m][2 * s + i / 2][i % 2 * 2], sums[m][2 * s + i / 2][i % 2 * 2 + 1]);
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) store_rows(a[m], y, first + m * 16, samples);
  }
}

// A warpgroup's 64 rows through all layers: the left operand stays in registers, wgmma reads the weights from shared memory.
__device__ __forceinline__ void chain_wgmma(Rows& a, const unsigned char* weights, int layers) {
  const std::uint64_t w = device::operand(weights, 8 * row_bytes, layer_bytes);
#pragma unroll 1
  for (int layer = 0; layer < layers; ++layer) {
    float sums[width / 2];
    device::wgmma_touch(sums);
    device::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s)
      device::wgmma<device::Operands::bf16, device::Major::mn>(
          sums, a[s], device::advance(w, layer * layer_bytes + s * 16 * row_bytes), s > 0);
    device::wgmma_commit();
    device::wgmma_wait<0>();
    device::wgmma_touch(sums);
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) a[s][i] = narrow_relu(sums[8 * s + 2 * i], sums[8 * s + 2 * i + 1]);
  }
}

// The warpgroups of an SM take turns by themselves: while one narrows its sums, another one's products run.
__global__ __launch_bounds__(threads, 3) void fused_wgmma_kernel(const bf16* x, const bf16* w, bf16* y, int samples, int layers) {
  extern __shared__ __align__(1024) unsigned char memory[];
  load_weights<true>(w, memory, layers);
  device::fence_proxy_async_shared();
  __syncthreads();
  // A warp's 16 rows; all four of a warpgroup begin and end together.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int apart = static_cast<int>(gridDim.x) * threads / 2;
  for (int tile = (static_cast<int>(blockIdx.x) * 2 + warp / 4) * 64; tile < samples; tile += apart) {
    Rows a;
    load_rows(a, x, tile + warp % 4 * 16, samples);
    chain_wgmma(a, memory, layers);
    store_rows(a, y, tile + warp % 4 * 16, samples);
  }
}

constexpr int stages = 4, tile_bytes = 64 * row_bytes, box_bytes = 16 * row_bytes;  // of the ring; of what a warp stores
constexpr int consumer_warps = threads / 32;

// A warp more brings the tiles, which the two warpgroups take in turn. Neurons are in memory's order here: TMA writes the
// swizzled rows that ldmatrix wants, and takes them back from stmatrix.
__global__ __launch_bounds__(threads + 32, 2) void fused_wgmma_tma_kernel(const __grid_constant__ CUtensorMap x,
                                                                          const __grid_constant__ CUtensorMap y, const bf16* w,
                                                                          int tiles, int layers) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ std::uint64_t full[stages], empty[stages];
  unsigned char* const ring = memory + layers * layer_bytes;
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&x, &y}) device::prefetch_tensor_map(map);
    for (int slot = 0; slot < stages; ++slot) {
      device::barrier_init(&full[slot], 1);
      device::barrier_init(&empty[slot], 4);  // the warps of the warpgroup that has read it
    }
    device::fence_barrier_init();
  }
  load_weights<false>(w, memory, layers);
  device::fence_proxy_async_shared();
  __syncthreads();

  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), lane = threadIdx.x % 32;
  const int first = static_cast<int>(blockIdx.x), apart = static_cast<int>(gridDim.x);
  if (warp == consumer_warps) {
    if (lane != 0) return;
    for (int k = 0, tile = first; tile < tiles; ++k, tile += apart) {
      const int slot = k % stages;
      device::barrier_wait(&empty[slot], (k / stages & 1) ^ 1);
      device::barrier_arrive_expect(&full[slot], tile_bytes);
      device::tensor_load_2d(ring + slot * tile_bytes, &x, 0, tile * 64, &full[slot]);
    }
    return;
  }
  unsigned char* const box = ring + stages * tile_bytes + warp * box_bytes;
  const std::uint32_t swizzled = (lane / 16 ^ lane % 8) * 16, row = lane % 16 * row_bytes;
  for (int k = warp / 4, tile = first + k * apart; tile < tiles; k += 2, tile += 2 * apart) {
    const int slot = k % stages;
    Rows a;
    device::barrier_wait(&full[slot], k / stages & 1);
    const std::uint32_t from = device::shared_address(ring + slot * tile_bytes + warp % 4 * box_bytes) + row;
#pragma unroll
    for (int s = 0; s < 4; ++s) device::load_matrices(a[s], from + (swizzled ^ s * 32));
    device::fence_block();  // the arrival does not wait for ldmatrix
    __syncwarp();
    if (lane == 0) device::barrier_arrive(&empty[slot]);

    chain_wgmma(a, memory, layers);

    if (lane == 0) device::wait_stores_read<0>();  // of the tile before
    __syncwarp();
    const std::uint32_t to = device::shared_address(box) + row;
#pragma unroll
    for (int s = 0; s < 4; ++s) device::store_matrices(to + (swizzled ^ s * 32), a[s][0], a[s][1], a[s][2], a[s][3]);
    device::fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) {
      device::tensor_store_2d(&y, 0, tile * 64 + warp % 4 * 16, box);
      device::commit_stores();
    }
  }
  if (lane == 0) device::wait_stores_read<0>();  // they still read this block's shared memory
}

class FusedMlp final : public Workload {
 public:
  explicit FusedMlp(Setup& setup)
      : samples_{setup.size("samples")},
        layers_{setup.size("layers")},
        x_{setup.input<bf16>(samples_ * width, normal(0, 1), {.name = "x"})},
        // The weights' variance, 2 / 64, restores the energy that ReLU takes from a layer.
        w_{setup.input<bf16>(layers_ * width * width, normal(0, 0.1768f), {.name = "weights"})},
        between_{setup.scratch<bf16>(samples_ * width, {.name = "activations"}),
                 setup.scratch<bf16>(samples_ * width, {.name = "other activations"})},
        y_{setup.output<bf16>(samples_ * width, {.name = "y"})},
        lt_{setup, {.m = samples_, .n = width, .k = width, .epilogue = CUBLASLT_EPILOGUE_RELU}},
        reproducible_{setup.reproducible()} {}

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(y_.size()) * width * static_cast<double>(layers_),
            .math = Math::bf16,
            .bytes = static_cast<double>(x_.bytes() + w_.bytes() + y_.bytes())};
  }
  void compute_reference(Launch&) override {
    weights_.resize(w_.size());
    for (std::size_t i = 0; i < weights_.size(); ++i) weights_[i] = w_.host(i);
  }
  // Activations between the layers are bf16, as they are in memory.
  double expected(std::size_t index) const override {
    std::array<double, width> now{}, next{};
    for (std::size_t i = 0; i < width; ++i) now[i] = x_.host(index / width * width + i);
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      next = {};
      for (std::size_t k = 0; k < width; ++k)
        for (std::size_t n = 0; n < width; ++n) next[n] += now[k] * weights_[(layer * width + k) * width + n];
      for (std::size_t n = 0; n < width; ++n) {
        next[n] = std::max(next[n], 0.0);
        now[n] = static_cast<double>(__bfloat162float(__float2bfloat16_rn(static_cast<float>(next[n]))));
      }
    }
    return next[index % width];
  }

  void tune(Launch& launch) {
    if (!reproducible_) lt_.tune(launch, x_, w_, between_[0]);
  }
  void layer_by_layer(Launch& launch) {
    for_each_layer([&](const bf16* from, const bf16* w, bf16* to) { lt_.run_tuned(launch, from, w, to); });
  }
  void fused_mma(Launch& launch) { run(launch, fused_mma_kernel, x_, w_, y_, layers_); }
  void one_layer_per_launch(Launch& launch) {
    for_each_layer([&](const bf16* from, const bf16* w, bf16* to) { run(launch, fused_mma_kernel, from, w, to, 1); });
  }
  void fused_wgmma(Launch& launch) { run(launch, fused_wgmma_kernel, x_, w_, y_, layers_); }
  void describe_tensors(Launch&) {
    x_map_ = matrix_map_bf16(x_, samples_, width, 64, width);
    y_map_ = matrix_map_bf16(y_, samples_, width, 16, width);
  }
  void fused_wgmma_tma(Launch& launch) {
    const std::size_t bytes = layers_ * layer_bytes + stages * tile_bytes + consumer_warps * box_bytes;
    launch(fused_wgmma_tma_kernel, {resident(fused_wgmma_tma_kernel, threads + 32, bytes), threads + 32, bytes}, x_map_, y_map_,
           w_, (samples_ + 63) / 64, layers_);
  }

 private:
  // As many blocks as fit: each reads all weights, and then walks over the samples.
  template <class Kernel>
  static unsigned resident(Kernel* kernel, int block, std::size_t shared_bytes) {
    int blocks = 0;
    allow_shared_memory(kernel, shared_bytes);
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, block, shared_bytes));
    return multiprocessors() * static_cast<unsigned>(std::max(blocks, 1));
  }
  template <class Kernel>
  void run(Launch& launch, Kernel* kernel, const bf16* from, const bf16* w, bf16* to, std::size_t layers) const {
    const std::size_t bytes = layers * layer_bytes;
    launch(kernel, {resident(kernel, threads, bytes), threads, bytes}, from, w, to, samples_, layers);
  }
  template <class Layer>
  void for_each_layer(const Layer& layer) const {
    const bf16* from = x_;
    for (std::size_t i = 0; i < layers_; ++i) {
      bf16* const to = i + 1 == layers_ ? y_.get() : between_[i % 2].get();
      layer(from, w_ + i * width * width, to);
      from = to;
    }
  }

  std::size_t samples_, layers_;
  Input<bf16> x_, w_;
  std::array<Scratch<bf16>, 2> between_;
  Output<bf16> y_;
  LibraryMatmul lt_;
  CUtensorMap x_map_{}, y_map_{};
  bool reproducible_;
  std::vector<double> weights_;
};

constexpr KernelLimits no_spills{.local_bytes = 0};
constexpr Needs hopper{.min_sm = 90, .max_sm = 90};

}  // namespace

extern constinit const Pair fused_mlp{
    .teaches = "layers that are narrow enough to be chained on chip turn a network that waits for memory into one that computes",
    .lesson = "fused_mma",
    .make = make<FusedMlp>,
    .baseline = {.name = "layer_by_layer",
                 .run = call<&FusedMlp::layer_by_layer>,
                 .prepare = call<&FusedMlp::tune>,
                 .needs = {.libraries = {Library::cublaslt}}},
    .optimized = variants({{.name = "fused_mma", .run = call<&FusedMlp::fused_mma>, .kernels = no_spills},
                           {.name = "fused_wgmma", .run = call<&FusedMlp::fused_wgmma>, .needs = hopper, .kernels = no_spills},
                           {.name = "fused_wgmma_tma",
                            .run = call<&FusedMlp::fused_wgmma_tma>,
                            .prepare = call<&FusedMlp::describe_tensors>,
                            .needs = hopper,
                            .kernels = no_spills}}),
    // The fused kernel for a layer at a time: what is another kernel than the library's, and what is the chain.
    .controls = variants({{.name = "one_layer_per_launch",
                           .run = call<&FusedMlp::one_layer_per_launch>,
                           .same_bits_as = "fused_mma",
                           .kernels = no_spills}}),
    .bound = Bound::compute,
    // A rounding to bf16 in each of six layers: the root of six times 1.6e-3 is 4e-3, of twelve 5.5e-3. A single element hangs on
    // one that is rounded the other way in a layer before: of millions of samples the largest is six times as long as the root
    // mean square, its largest activation 4.5 times that, and the largest weight 0.74: times half a step, 2^-8, that is 0.08.
    .tolerance = within(6e-3, 0.1),
    .sizes = sizes(
        {{.name = "samples", .full = 4194304, .most = 1 << 24}, {.name = "layers", .full = 6, .most = 12, .scales = false}}),
    .sweep = cases({{"layers_1", "layers=1"},
                    {"layers_2", "layers=2"},
                    {"layers_4", "layers=4"},
                    {"layers_6", "layers=6"},
                    {"layers_12", "layers=12"}}),
    .edges = cases({{"one_sample", "samples=1"}, {"odd_samples", "samples=10007"}, {"one_layer", "samples=4099,layers=1"}}),
};

}  // namespace aisp::ch09
