// SPDX-License-Identifier: Apache-2.0
// Y = s X W, 8192 x 8192 x 8192: e4m3 operands with one scale each, bf16 output. Widening both to bf16 first is exact and moves
// 402 MB, and then the tensor cores do half of what they can. Fed with e4m3, the same kernel (a stage is the same 48 KB, but 128
// deep instead of 64) needs half the stages and half the bytes. The tensor cores keep about 14 bits of its sums, whatever the
// registers could hold; adding them to fp32 registers after every 128 of K keeps the error that of 128 products.
#include "wgmma_gemm.cuh"

#include <aisp/device/warpgroup.cuh>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <memory>

namespace aisp::ch10 {
namespace {

using bf16 = __nv_bfloat16;
using e4m3 = __nv_fp8_e4m3;
using wgmma_gemm::warpgroup_threads;
using Ring = wgmma_gemm::Ring<128, 256, 4>;  // in bytes: both operands lie along K in rows of 128
using Cursor = wgmma_gemm::Cursor<Ring>;
constexpr int row_bytes = 128, step_bytes = 32;  // of K: a stage's, one product's
constexpr int consumers = 2, threads = (consumers + 1) * warpgroup_threads, count = Ring::tile_n / 2;
// As static quantization leaves them: one number for each operand, known before.
constexpr float x_scale = 0.0137f, w_scale = 0.00071f;

template <class Element>
CUtensorMap operand_map(const Element* data, std::size_t rows, std::size_t k, unsigned tile_rows) {
  constexpr auto type = sizeof(Element) == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return matrix_map(type, sizeof(Element), data, rows, k, tile_rows, row_bytes / sizeof(Element));
}

// Tiles in bands of 16 rows, each walked column by column: what runs at the same time is about square, and shares its operands
// in L2.
struct Tiles {
  int rows, columns;
  __device__ int count() const { return rows * columns; }
  __device__ int2 operator[](int tile) const {  // x: column, y: row
    constexpr int band = 16;
    const int first_row = tile / (band * columns) * band, height = min(band, rows - first_row), in_band = tile - first_row * columns;
    return make_int2(in_band / height, first_row + in_band % height);
  }
};

__device__ __forceinline__ std::uint64_t x_rows(Ring& ring, int stage, int first_row) {
  return device::operand(reinterpret_cast<unsigned char*>(ring.a[stage]) + first_row * row_bytes);
}
__device__ __forceinline__ std::uint64_t w_rows(Ring& ring, int stage, int first_row) {
  return device::operand(reinterpret_cast<unsigned char*>(ring.b[stage]) + first_row * row_bytes);
}

// How a warpgroup multiplies its 64 rows of a tile: sums in the tensor cores from the first step to the last. One group of
// products is kept in flight.
template <class Element_>
struct InTensorCores {
  using Element = Element_;
  static __device__ __forceinline__ void multiply(Ring& ring, Cursor& at, int warpgroup, int steps, float (&sums)[count]) {
    const bool leader = threadIdx.x % warpgroup_threads == 0;
    int previous = -1;
    for (int step = 0; step < steps; ++step) {
      device::barrier_wait(&ring.full[at.stage], at.phase);
      const std::uint64_t x = x_rows(ring, at.stage, warpgroup * 64), w = w_rows(ring, at.stage, 0);
      device::wgmma_touch(sums);
      device::wgmma_fence();
#pragma unroll
      for (int i = 0; i < row_bytes; i += step_bytes) {
        const bool add = step > 0 || i > 0;
        if constexpr (sizeof(Element) == 1)
          device::wgmma_m64n256k32_e4m3(sums, device::advance(x, i), device::advance(w, i), add);
        else device::wgmma_m64n256k16(sums, device::advance(x, i), device::advance(w, i), add);
      }
      device::wgmma_commit();
      device::wgmma_wait<1>();
      if (leader && previous >= 0) device::barrier_arrive(&ring.empty[previous]);
      previous = at.stage;
      at.next();
    }
    device::wgmma_wait<0>();
    device::wgmma_touch(sums);
    if (leader) device::barrier_arrive(&ring.empty[previous]);
  }
};

// Each stage's sums are added to others in fp32. The tile's columns are taken in two halves, so that 128 + 64 registers of sums
// suffice; while a warpgroup adds, the other's products keep the tensor cores busy.
template <bool ordered>
struct Promoted {
  using Element = e4m3;
  static __device__ __forceinline__ void multiply(Ring& ring, Cursor& at, int warpgroup, int steps, float (&sums)[count]) {
    const bool leader = threadIdx.x % warpgroup_threads == 0;
#pragma unroll
    for (int i = 0; i < count; ++i) sums[i] = 0;
    for (int step = 0; step < steps; ++step) {
      device::barrier_wait(&ring.full[at.stage], at.phase);
      const std::uint64_t x = x_rows(ring, at.stage, warpgroup * 64);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint64_t w = w_rows(ring, at.stage, half * 128);
        float part[count / 2];
        if constexpr (ordered) device::named_barrier_sync(1 + warpgroup, 2 * warpgroup_threads);
        device::wgmma_touch(part);
        device::wgmma_fence();
#pragma unroll
        for (int i = 0; i < row_bytes; i += step_bytes)
          device::wgmma_m64n128k32_e4m3(part, device::advance(x, i), device::advance(w, i), i > 0);
        device::wgmma_commit();
        if constexpr (ordered) device::named_barrier_arrive(2 - warpgroup, 2 * warpgroup_threads);
        device::wgmma_wait<0>();
        device::wgmma_touch(part);
        if (half == 1 && leader) device::barrier_arrive(&ring.empty[at.stage]);
#pragma unroll
        for (int i = 0; i < count / 2; ++i) sums[half * (count / 2) + i] += part[i];
      }
      at.next();
    }
  }
};

// One block per SM. One thread loads, two warpgroups multiply 64 rows each; the ring runs on from tile to tile.
template <class How>
__global__ __launch_bounds__(threads, 1) void product_kernel(const __grid_constant__ CUtensorMap x,
                                                             const __grid_constant__ CUtensorMap w, bf16* y, int steps,
                                                             Tiles tiles, float scale) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Ring& ring = *reinterpret_cast<Ring*>(memory);
  if (threadIdx.x == 0) ring.init(consumers);
  __syncthreads();

  Cursor at;
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
  if (warpgroup == consumers) {
    device::give_up_registers<40>();
    if (threadIdx.x % warpgroup_threads != 0) return;
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles.count(); tile += static_cast<int>(gridDim.x)) {
      const int2 place = tiles[tile];
      for (int step = 0; step < steps; ++step) {
        constexpr int depth = row_bytes / sizeof(typename How::Element);
        device::barrier_wait(&ring.empty[at.stage], at.phase ^ 1);
        device::barrier_arrive_expect(&ring.full[at.stage], Ring::stage_bytes);
        device::tensor_load_2d(ring.a[at.stage], &x, step * depth, place.y * Ring::tile_m, &ring.full[at.stage]);
        device::tensor_load_2d(ring.b[at.stage], &w, step * depth, place.x * Ring::tile_n, &ring.full[at.stage]);
        at.next();
      }
    }
    return;
  }
  device::take_registers<232>();
  if (std::is_same_v<How, Promoted<true>> && warpgroup == 1) device::named_barrier_arrive(1, 2 * warpgroup_threads);
  float sums[count];
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles.count(); tile += static_cast<int>(gridDim.x)) {
    How::multiply(ring, at, warpgroup, steps, sums);
    const int2 place = tiles[tile];
#pragma unroll
    for (float& sum : sums) sum *= scale;
    wgmma_gemm::store_sums(sums, y, static_cast<std::size_t>(tiles.columns) * Ring::tile_n, place.y * Ring::tile_m + warpgroup * 64,
                           place.x * Ring::tile_n);
  }
  if (std::is_same_v<How, Promoted<true>> && warpgroup == 0) device::named_barrier_sync(1, 2 * warpgroup_threads);
}

__device__ __forceinline__ unsigned widen(unsigned pair) {
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  const float2 values = __half22float2(halves);
  return device::narrow_bf16(values.x, values.y);
}

// Both operands in one kernel; e4m3 has fewer bits than bf16 in every respect, so nothing is rounded. 16 elements a thread.
__global__ __launch_bounds__(256) void widen_kernel(const uint4* x, uint4* wide_x, std::size_t x_chunks, const uint4* w,
                                                    uint4* wide_w, std::size_t w_chunks) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < x_chunks + w_chunks;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const bool first = i < x_chunks;
    const std::size_t chunk = first ? i : i - x_chunks;
    const uint4 v = first ? x[chunk] : w[chunk];
    uint4* const to = (first ? wide_x : wide_w) + 2 * chunk;
    to[0] = make_uint4(widen(v.x & 0xFFFF), widen(v.x >> 16), widen(v.y & 0xFFFF), widen(v.y >> 16));
    to[1] = make_uint4(widen(v.z & 0xFFFF), widen(v.z >> 16), widen(v.w & 0xFFFF), widen(v.w >> 16));
  }
}

unsigned multiprocessors() {
  int device = 0, found = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device));
  return static_cast<unsigned>(found);
}

class Fp8Matmul final : public Workload {
 public:
  explicit Fp8Matmul(Setup& setup)
      : m_{setup.scaled(8192, 256)},
        n_{setup.scaled(8192, 256)},
        k_{setup.scaled(8192, 256)},
        // Up to the type's largest value, 448, as scales made from the largest element leave it.
        x_{setup.input<e4m3>(m_ * k_, normal(0, 90), {.name = "x"})},
        w_{setup.input<e4m3>(n_ * k_, normal(0, 90), {.name = "w"})},
        y_{setup.output<bf16>(m_ * n_, {.name = "y"})},
        wide_x_{setup.scratch<bf16>(m_ * k_, {.name = "widened x"})},
        wide_w_{setup.scratch<bf16>(n_ * k_, {.name = "widened w"})},
        x_map_{operand_map(x_.get(), m_, k_, Ring::tile_m)},
        w_map_{operand_map(w_.get(), n_, k_, Ring::tile_n)},
        wide_x_map_{operand_map(wide_x_.get(), m_, k_, Ring::tile_m)},
        wide_w_map_{operand_map(wide_w_.get(), n_, k_, Ring::tile_n)} {
    allow_shared<InTensorCores<bf16>>();
    allow_shared<InTensorCores<e4m3>>();
    allow_shared<Promoted<false>>();
    allow_shared<Promoted<true>>();
  }

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(m_) * static_cast<double>(n_) * static_cast<double>(k_),
            .math = Math::fp8,
            .bytes = static_cast<double>(x_.bytes() + w_.bytes() + y_.bytes())};
  }
  double expected(std::size_t index) const override {
    const std::size_t row = index / n_, column = index % n_;
    double sum = 0;
    for (std::size_t k = 0; k < k_; ++k) sum += x_.host(row * k_ + k) * w_.host(column * k_ + k);
    return sum * x_scale * w_scale;
  }

  void widen_to_bf16(Launch& launch) {
    widen_kernel<<<blocks_ * 8, 256, 0, launch.stream>>>(
        reinterpret_cast<const uint4*>(x_.get()), reinterpret_cast<uint4*>(wide_x_.get()), x_.bytes() / sizeof(uint4),
        reinterpret_cast<const uint4*>(w_.get()), reinterpret_cast<uint4*>(wide_w_.get()), w_.bytes() / sizeof(uint4));
    check(cudaGetLastError());
    multiply<InTensorCores<bf16>>(launch, wide_x_map_, wide_w_map_);
  }
  void fp8_fast_accumulate(Launch& launch) { multiply<InTensorCores<e4m3>>(launch, x_map_, w_map_); }
  void fp8_promoted(Launch& launch) { multiply<Promoted<false>>(launch, x_map_, w_map_); }
  void fp8_promoted_ordered(Launch& launch) { multiply<Promoted<true>>(launch, x_map_, w_map_); }

  void plan_cublaslt(Launch&) { plan(plan_, false); }
  void plan_cublaslt_fast(Launch&) { plan(fast_plan_, true); }
  void cublaslt(Launch& launch) { plan_->run(launch.stream, x_, w_, y_, x_scale * w_scale); }
  void cublaslt_fast(Launch& launch) { fast_plan_->run(launch.stream, x_, w_, y_, x_scale * w_scale); }

 private:
  template <class How>
  static void allow_shared() {
    check(cudaFuncSetAttribute(product_kernel<How>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Ring)));
  }
  template <class How>
  void multiply(Launch& launch, const CUtensorMap& x, const CUtensorMap& w) {
    const Tiles tiles{static_cast<int>(m_) / Ring::tile_m, static_cast<int>(n_) / Ring::tile_n};
    const unsigned blocks = std::min(blocks_, static_cast<unsigned>(tiles.rows * tiles.columns));
    product_kernel<How><<<blocks, threads, sizeof(Ring), launch.stream>>>(
        x, w, y_, static_cast<int>(k_ * sizeof(typename How::Element) / row_bytes), tiles, x_scale * w_scale);
    check(cudaGetLastError());
  }
  void plan(std::unique_ptr<MatmulPlan>& plan, bool fast) {
    if (!library_) library_ = std::make_unique<CublasLt>();
    if (!plan)
      plan = std::make_unique<MatmulPlan>(*library_, MatmulProblem{.m = static_cast<int>(m_),
                                                                   .n = static_cast<int>(n_),
                                                                   .k = static_cast<int>(k_),
                                                                   .operands = CUDA_R_8F_E4M3,
                                                                   .result = CUDA_R_16BF,
                                                                   .b_is_transposed = true,
                                                                   .fast_accumulation = fast});
  }

  std::size_t m_, n_, k_;
  Input<e4m3> x_, w_;  // x[m][k], w[n][k]
  Output<bf16> y_;
  Scratch<bf16> wide_x_, wide_w_;
  CUtensorMap x_map_, w_map_, wide_x_map_, wide_w_map_;
  unsigned blocks_ = multiprocessors();
  std::unique_ptr<CublasLt> library_;
  std::unique_ptr<MatmulPlan> plan_, fast_plan_;
};

// Sums that never leave the tensor cores lose bits at each of 256 additions; how many is reported beside the speedup.
constexpr Tolerance fast_accumulation = within(1e-2);

}  // namespace

extern constinit const Pair fp8_matmul{
    .teaches = "FP8 wgmma doubles the rate and halves the bytes, but takes K-major operands only and keeps 14 bits of its sums",
    .make = make<Fp8Matmul>,
    .baseline = {.name = "widen_to_bf16", .run = call<&Fp8Matmul::widen_to_bf16>},
    .optimized = variants({{.name = "fp8_fast_accumulate",
                            .run = call<&Fp8Matmul::fp8_fast_accumulate>,
                            .changes_precision = true,
                            .tolerance = fast_accumulation},
                           {.name = "fp8_promoted", .run = call<&Fp8Matmul::fp8_promoted>},
                           {.name = "fp8_promoted_ordered", .run = call<&Fp8Matmul::fp8_promoted_ordered>}}),
    .peers = variants({{.name = "cublaslt",
                        .run = call<&Fp8Matmul::cublaslt>,
                        .prepare = call<&Fp8Matmul::plan_cublaslt>,
                        .needs = {.libraries = {Library::cublaslt}}},
                       {.name = "cublaslt_fast",
                        .run = call<&Fp8Matmul::cublaslt_fast>,
                        .prepare = call<&Fp8Matmul::plan_cublaslt_fast>,
                        .needs = {.libraries = {Library::cublaslt}},
                        .changes_precision = true,
                        .tolerance = fast_accumulation}}),
    .bound = Bound::compute,
    // One rounding of the output to bf16 is 1.6e-3; sums of 128 products in 14 bits add less.
    .tolerance = within(4e-3),
    .needs = {.min_sm = 90, .max_sm = 90},
};

}  // namespace aisp::ch10
