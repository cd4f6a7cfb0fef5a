// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16. A plain kernel on tensor cores copies a tile, waits for it, multiplies, and waits again; how its fragments lie
// is the compiler's business. What a template library adds is a recipe: several tiles under way by cp.async, swizzled so that
// ldmatrix reads without bank conflicts, fragments of the next step loaded while this one multiplies. Here it is by hand, with
// one tile of 128 x 128 x 32 and warps of 64 x 64 throughout, beside CUTLASS's own. (Why tensor cores: ch10, tensor_core_matmul.)
#include <cuda_bf16.h>
#include <mma.h>
#include <aisp/device/async_copy.cuh>
#include <aisp/device/matrix.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/libraries/cutlass.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <memory>

namespace aisp::ch09 {
namespace {

using bf16 = __nv_bfloat16;
constexpr int tile = 128, tile_k = 32, threads = 128;

namespace padded {

namespace wmma = nvcuda::wmma;

// Rows are longer by 16 bytes, so that the eight rows of a fragment lie in different banks.
struct Stage {
  bf16 a[tile][tile_k + 8], b[tile_k][tile + 8];
};
using Patch = float[16][20];
using Sums = wmma::fragment<wmma::accumulator, 16, 16, 16, float>[4][4];
constexpr int stages = 4;
constexpr int shared_bytes = stages * static_cast<int>(sizeof(Stage));
static_assert(sizeof(Stage) % 32 == 0 && sizeof(Patch) * (threads / 32) <= sizeof(Stage));

// Deals the 16-byte chunks of the next tile out to the threads of the block: copy(to, from).
template <class Copy>
__device__ __forceinline__ void copy_tile(Stage& to, const bf16* a, const bf16* b, int n, int k, const Copy& copy) {
  const int t = threadIdx.x;
#pragma unroll
  for (int i = 0; i < tile; i += 32) copy(&to.a[i + t / 4][t % 4 * 8], a + static_cast<std::size_t>(i + t / 4) * k + t % 4 * 8);
#pragma unroll
  for (int i = 0; i < tile_k; i += 8)
    copy(&to.b[i + t / 16][t % 16 * 8], b + static_cast<std::size_t>(i + t / 16) * n + t % 16 * 8);
}

__device__ __forceinline__ void multiply(const Stage& stage, Sums& sums) {
  const int warp = threadIdx.x / 32, warp_row = warp / 2 * 64, warp_column = warp % 2 * 64;
#pragma unroll
  for (int i = 0; i < tile_k; i += 16) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> x[4];
    wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::row_major> y[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) wmma::load_matrix_sync(x[m], &stage.a[warp_row + m * 16][i], tile_k + 8);
#pragma unroll
    for (int l = 0; l < 4; ++l) wmma::load_matrix_sync(y[l], &stage.b[i][warp_column + l * 16], tile + 8);
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int l = 0; l < 4; ++l) wmma::mma_sync(sums[m][l], x[m], y[l], sums[m][l]);
  }
}

// The layout of a fragment is not documented: only through memory do its elements get names.
__device__ __forceinline__ void store(const Sums& sums, Patch& patch, bf16* c, int n, std::size_t top, std::size_t left) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int m = 0; m < 4; ++m)
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      wmma::store_matrix_sync(&patch[0][0], sums[m][l], 20, wmma::mem_row_major);
      __syncwarp();
      const float* v = &patch[lane / 2][lane % 2 * 8];
      *reinterpret_cast<uint4*>(c + (top + warp / 2 * 64 + m * 16 + lane / 2) * n + left + warp % 2 * 64 + l * 16 +
                                lane % 2 * 8) = make_uint4(device::narrow_bf16(v[0], v[1]), device::narrow_bf16(v[2], v[3]),
                                                           device::narrow_bf16(v[4], v[5]), device::narrow_bf16(v[6], v[7]));
      __syncwarp();
    }
}

__device__ __forceinline__ void clear(Sums& sums) {
  for (auto& row : sums)
    for (auto& sum : row) wmma::fill_fragment(sum, 0.0f);
}

}  // namespace padded

__global__ __launch_bounds__(threads, 2) void wmma_kernel(const bf16* a, const bf16* b, bf16* c, int n, int k) {
  __shared__ __align__(128) padded::Stage stage;
  const std::size_t top = blockIdx.y * tile, left = blockIdx.x * tile;
  padded::Sums sums;
  padded::clear(sums);
  for (int first = 0; first < k; first += tile_k) {
    padded::copy_tile(stage, a + top * k + first, b + static_cast<std::size_t>(first) * n + left, n, k,
                      [](bf16* to, const bf16* from) { *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from); });
    __syncthreads();
    padded::multiply(stage, sums);
    __syncthreads();
  }
  padded::store(sums, reinterpret_cast<padded::Patch*>(&stage)[threadIdx.x / 32], c, n, top, left);
}

__global__ __launch_bounds__(threads, 2) void async_stages_kernel(const bf16* a, const bf16* b, bf16* c, int n, int k) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto* const ring = reinterpret_cast<padded::Stage*>(memory);
  const std::size_t top = blockIdx.y * tile, left = blockIdx.x * tile;
  const int tiles = k / tile_k;
  const auto copy = [&](int number) {
    if (number < tiles)
      padded::copy_tile(ring[number % padded::stages], a + top * k + number * tile_k,
                        b + static_cast<std::size_t>(number) * tile_k * n + left, n, k,
                        [](bf16* to, const bf16* from) { device::copy_async_16(to, from); });
    device::commit_copies();  // also where there was nothing left to copy: waiting counts groups
  };
  padded::Sums sums;
  padded::clear(sums);
  for (int number = 0; number < padded::stages - 1; ++number) copy(number);
  for (int number = 0; number < tiles; ++number) {
    device::wait_copies<padded::stages - 2>();
    __syncthreads();  // this tile has come, and all are done with the one before it
    copy(number + padded::stages - 1);
    padded::multiply(ring[number % padded::stages], sums);
  }
  __syncthreads();
  padded::store(sums, reinterpret_cast<padded::Patch*>(memory)[threadIdx.x / 32], c, n, top, left);
}

constexpr int a_pitch = tile_k * 2, b_pitch = tile * 2;  // bytes
constexpr int a_bytes = tile * a_pitch, stage_bytes = a_bytes + tile_k * b_pitch;
constexpr int steps = tile_k / 16, most_stages = 5;
// At least the tile of C, which leaves through the same memory.
constexpr int shared_bytes(int stages) { return std::max(stages * stage_bytes, tile * tile * 2); }

// Without padding: 16-byte chunk c of a row of A, which is half as long as all banks together, lies at c ^ row / 2 % 4, and that
// of a row of B at c ^ row % 8. ldmatrix reads the same chunk of eight rows, cp.async writes neighbouring chunks, and both meet
// eight different groups of banks.
template <int stages>
__global__ __launch_bounds__(threads, 2) void multistage_kernel(const bf16* a, const bf16* b, bf16* c, int n, int k) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int t = threadIdx.x, lane = t % 32, warp_m = t / 64, warp_n = t / 32 % 2;
  const std::size_t top = blockIdx.y * tile, left = blockIdx.x * tile;

  const int a_row = t / 4, b_row = t / 16;  // and every 32nd (A) or 8th (B) after that
  const bf16* from_a = a + (top + a_row) * k + t % 4 * 8;
  const bf16* from_b = b + static_cast<std::size_t>(b_row) * n + left + t % 16 * 8;
  unsigned char* const to_a = memory + a_row * a_pitch + (t % 4 ^ a_row / 2 % 4) * 16;
  unsigned char* const to_b = memory + a_bytes + b_row * b_pitch + (t % 16 ^ b_row % 8) * 16;
  const auto copy_tile = [&](int slot) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      device::copy_async_16(to_a + slot * stage_bytes + i * 32 * a_pitch, from_a + static_cast<std::size_t>(i * 32) * k);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      device::copy_async_16(to_b + slot * stage_bytes + i * 8 * b_pitch, from_b + static_cast<std::size_t>(i * 8) * n);
    from_a += tile_k;
    from_b += static_cast<std::size_t>(tile_k) * n;
  };

  // Lane l addresses row l % 16 of a fragment, chunk l / 16. The chunk of another step or column differs in bits that XOR can
  // flip.
  const std::uint32_t base = device::shared_address(memory);
  const std::uint32_t a_lane = base + (warp_m * 64 + lane % 16) * a_pitch + (lane / 16 ^ lane / 2 % 4) * 16;
  const std::uint32_t b_lane = base + a_bytes + lane % 16 * b_pitch + warp_n * 128 + (lane / 16 ^ lane % 8) * 16;
  unsigned x[2][4][4], y[2][4][4];  // fragments of this step and of the next
  const auto load_fragments = [&](int set, int slot, int step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) device::load_matrices(x[set][i], (a_lane ^ step * 32) + slot * stage_bytes + i * 16 * a_pitch);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      device::load_matrices_transposed(y[set][i], (b_lane ^ i * 32) + slot * stage_bytes + step * 16 * b_pitch);
  };
  float sums[4][8][4] = {};
  const auto multiply = [&](int set) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) device::mma_bf16(sums[i][j], x[set][i], y[set][j / 2][j % 2 * 2], y[set][j / 2][j % 2 * 2 + 1]);
  };

  const int tiles = k / tile_k;
  if constexpr (stages == 1) {
    for (int number = 0; number < tiles; ++number) {
      copy_tile(0);
      device::commit_copies();
      device::wait_copies<0>();
      __syncthreads();
      load_fragments(0, 0, 0);
#pragma unroll
      for (int step = 0; step < steps; ++step) {
        if (step + 1 < steps) load_fragments((step + 1) % 2, 0, step + 1);
        multiply(step % 2);
      }
      __syncthreads();
    }
  } else {
    for (int slot = 0; slot < stages - 1; ++slot) {
      if (slot < tiles) copy_tile(slot);
      device::commit_copies();
    }
    device::wait_copies<stages - 2>();
    __syncthreads();
    load_fragments(0, 0, 0);
    int reading = 0, writing = stages - 1;
    for (int to_copy = tiles - (stages - 1); to_copy > -(stages - 1); --to_copy) {
#pragma unroll
      for (int step = 0; step < steps; ++step) {
        if (step == 0 && to_copy > 0) copy_tile(writing);
        if (step == steps - 1) {    // the last fragments of this tile are in registers: on to the next
          device::commit_copies();  // also where there was nothing left to copy: waiting counts groups
          device::wait_copies<stages - 2>();
          __syncthreads();
          writing = reading;
          reading = (reading + 1) % stages;
        }
        load_fragments((step + 1) % 2, reading, (step + 1) % steps);  // after the last tile: unused
        multiply(step % 2);
      }
    }
  }

  // Through shared memory, so that warps write whole rows of 256 bytes.
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j)
      *reinterpret_cast<unsigned*>(memory + (warp_m * 64 + i * 8 + lane / 4) * b_pitch + ((warp_n * 8 + j) ^ lane / 4) * 16 +
                                   lane % 4 * 4) = device::narrow_bf16(sums[i / 2][j][i % 2 * 2], sums[i / 2][j][i % 2 * 2 + 1]);
  __syncthreads();
#pragma unroll
  for (int row = b_row; row < tile; row += 8)
    *reinterpret_cast<uint4*>(c + (top + row) * n + left + t % 16 * 8) =
        *reinterpret_cast<const uint4*>(memory + row * b_pitch + (t % 16 ^ row % 8) * 16);
}

class CutlassGemm final : public Workload {
 public:
  explicit CutlassGemm(Setup& setup)
      : m_{setup.size("m")},
        n_{setup.size("n")},
        k_{setup.size("k")},
        stages_{setup.size("stages")},
        a_{setup.input<bf16>(m_ * k_, uniform(-1, 1), {.name = "a"})},
        b_{setup.input<bf16>(k_ * n_, uniform(-1, 1), {.name = "b"})},
        c_{setup.output<bf16>(m_ * n_, {.name = "c"})},
        cublaslt_{setup, {.m = m_, .n = n_, .k = k_}} {}

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(c_.size()) * static_cast<double>(k_),
            .math = Math::bf16,
            .bytes = static_cast<double>(a_.bytes() + b_.bytes() + c_.bytes())};
  }
  double expected(std::size_t i) const override {
    double sum = 0;
    for (std::size_t k = 0; k < k_; ++k) sum += a_.host(i / n_ * k_ + k) * b_.host(k * n_ + i % n_);
    return sum;
  }

  void wmma(Launch& launch) { launch(wmma_kernel, {tiles(), threads}, a_, b_, c_, n_, k_); }
  void async_stages(Launch& launch) { launch(async_stages_kernel, {tiles(), threads, padded::shared_bytes}, a_, b_, c_, n_, k_); }
  void multistage_mma(Launch& launch) { multiply<4>(launch, shared_bytes(4)); }
  void swizzle_one_stage(Launch& launch) { multiply<1>(launch, shared_bytes(1)); }
  // With so much shared memory that an SM has room for one block: more stages then change nothing but the depth.
  void chosen_stages(Launch& launch) {
    const int half = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2;
    switch (stages_) {
      case 1: return multiply<1>(launch, std::max(half, shared_bytes(1)));
      case 2: return multiply<2>(launch, std::max(half, shared_bytes(2)));
      case 3: return multiply<3>(launch, std::max(half, shared_bytes(3)));
      case 4: return multiply<4>(launch, std::max(half, shared_bytes(4)));
      default: return multiply<most_stages>(launch, std::max(half, shared_bytes(most_stages)));
    }
  }

  void plan_sm90(Launch&) { plan(sm90_, plan_cutlass_bf16); }
  void cutlass_sm90(Launch& launch) { sm90_->run(launch.stream); }
  void plan_sm100(Launch&) { plan(sm100_, plan_cutlass_sm100); }
  void cutlass_sm100(Launch& launch) { sm100_->run(launch.stream); }
  void plan_multistage(Launch&) { plan(multistage_, plan_cutlass_multistage); }
  void cutlass_multistage(Launch& launch) { multistage_->run(launch.stream); }
  void tune(Launch& launch) { cublaslt_.tune(launch, a_, b_, c_); }
  void cublaslt_tuned(Launch& launch) { cublaslt_.run_tuned(launch, a_, b_, c_); }

 private:
  dim3 tiles() const { return {static_cast<unsigned>(n_ / tile), static_cast<unsigned>(m_ / tile)}; }
  template <int stages>
  void multiply(Launch& launch, int bytes) const {
    launch(multistage_kernel<stages>, {tiles(), threads, static_cast<std::size_t>(bytes)}, a_, b_, c_, n_, k_);
  }
  template <class Make>
  void plan(std::unique_ptr<CutlassPlan>& made, const Make& make_plan) const {
    if (!made) made = make_plan({static_cast<int>(m_), static_cast<int>(n_), static_cast<int>(k_), a_.get(), b_.get(), c_.get()});
  }

  std::size_t m_, n_, k_, stages_;
  Input<bf16> a_, b_;
  Output<bf16> c_;
  LibraryMatmul cublaslt_;
  std::unique_ptr<CutlassPlan> sm90_, sm100_, multistage_;
};

constexpr KernelLimits no_spills{.local_bytes = 0};
constexpr Needs by_cutlass{.min_sm = 90, .max_sm = 90, .libraries = {Library::cutlass}};

}  // namespace

extern constinit const Pair cutlass_gemm{
    .teaches = "what a template library adds to plain WMMA: tiles under way in stages, swizzled shared memory, ldmatrix",
    .lesson = "multistage_mma",
    .make = make<CutlassGemm>,
    .baseline = {.name = "wmma", .run = call<&CutlassGemm::wmma>},
    .optimized =
        variants({{.name = "async_stages", .run = call<&CutlassGemm::async_stages>, .same_bits_as = "wmma", .kernels = no_spills},
                  {.name = "multistage_mma", .run = call<&CutlassGemm::multistage_mma>, .kernels = no_spills},
                  {.name = "cutlass_sm90",
                   .run = call<&CutlassGemm::cutlass_sm90>,
                   .prepare = call<&CutlassGemm::plan_sm90>,
                   .needs = by_cutlass},
                  {.name = "cutlass_sm100",
                   .run = call<&CutlassGemm::cutlass_sm100>,
                   .prepare = call<&CutlassGemm::plan_sm100>,
                   .needs = {.min_sm = 100, .max_sm = 100, .tcgen05 = true, .libraries = {Library::cutlass}},
                   .not_run = true}}),
    // Swizzle and ldmatrix without stages: which of the two carries the gain. And as many stages as the size says, with one block
    // on an SM.
    .controls = variants({{.name = "swizzle_one_stage",
                           .run = call<&CutlassGemm::swizzle_one_stage>,
                           .same_bits_as = "multistage_mma",
                           .kernels = no_spills},
                          {.name = "chosen_stages",
                           .run = call<&CutlassGemm::chosen_stages>,
                           .same_bits_as = "multistage_mma",
                           .kernels = no_spills}}),
    .libraries = variants({{.name = "cutlass_multistage",
                            .run = call<&CutlassGemm::cutlass_multistage>,
                            .prepare = call<&CutlassGemm::plan_multistage>,
                            .needs = by_cutlass},
                           {.name = "cublaslt_tuned",
                            .run = call<&CutlassGemm::cublaslt_tuned>,
                            .prepare = call<&CutlassGemm::tune>,
                            .needs = {.libraries = {Library::cublaslt}}}}),
    .bound = Bound::compute,
    // One rounding to bf16 is 1.6e-3; the tensor cores' sums of 4096 products add less.
    .tolerance = within(4e-3),
    .sizes = sizes({{.name = "m", .full = 4096, .multiple = tile},
                    {.name = "n", .full = 4096, .multiple = tile},
                    {.name = "k", .full = 4096, .multiple = tile_k},
                    {.name = "stages", .full = 4, .most = most_stages, .scales = false}}),
    .sweep = cases({{"stages_1", "stages=1"},
                    {"stages_2", "stages=2"},
                    {"stages_3", "stages=3"},
                    {"stages_4", "stages=4"},
                    {"stages_5", "stages=5"}}),
    .edges = cases({{"one_tile", "m=128,n=128,k=32"},
                    {"fewer_tiles_than_stages", "m=256,n=128,k=64,stages=5"},
                    {"odd_tiles", "m=384,n=640,k=4000"}}),
};

}  // namespace aisp::ch09
