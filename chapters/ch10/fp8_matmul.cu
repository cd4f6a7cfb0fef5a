// SPDX-License-Identifier: Apache-2.0
// Y = s X W, 8192 x 8192 x 8192: e4m3 operands with one scale each, bf16 output. Widening both to bf16 first is exact and moves
// 402 MB, and then the tensor cores do half of what they can. Fed with e4m3, the same kernel (a stage is the same 48 KB, but 128
// deep instead of 64) needs half the stages and half the bytes. The tensor cores keep about 14 bits of its sums, whatever the
// registers could hold; adding them to fp32 registers after every 128 of K keeps the error that of 128 products.
#include "block_pair.cuh"
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

// Tiles of 256 x 256, of which each block of a pair computes 128 rows, in bands of 8 rows, each walked column by column: what
// runs at the same time is about square, and shares its operands in L2.
struct Tiles {
  struct Place {
    int left, top;
  };
  int rows, columns;
  __device__ int count() const { return rows * columns; }
  __device__ Place place(int tile, int rank) const {
    constexpr int band = 8;
    const int first_row = tile / (band * columns) * band, height = min(band, rows - first_row);
    const int in_band = tile - first_row * columns, row = first_row + in_band % height;
    return {in_band / height * Ring::tile_n, (row * static_cast<int>(block_pair::blocks) + rank) * Ring::tile_m};
  }
};

__device__ __forceinline__ std::uint64_t x_rows(Ring& ring, int stage, int first_row) {
  return device::operand(reinterpret_cast<unsigned char*>(ring.a[stage]) + first_row * row_bytes);
}
__device__ __forceinline__ std::uint64_t w_rows(Ring& ring, int stage, int first_row) {
  return device::operand(reinterpret_cast<unsigned char*>(ring.b[stage]) + first_row * row_bytes);
}

// How a warpgroup multiplies its 64 rows of a tile: sums in the tensor cores from the first step to the last.
template <class Element_>
struct InTensorCores {
  using Element = Element_;
  static __device__ __forceinline__ void multiply(Ring& ring, Cursor& at, int warpgroup, int steps, float (&sums)[count]) {
    block_pair::multiply(ring, at, steps, sums, [&](int stage, int step) {
      const std::uint64_t x = x_rows(ring, stage, warpgroup * 64), w = w_rows(ring, stage, 0);
#pragma unroll
      for (int i = 0; i < row_bytes; i += step_bytes) {
        const bool add = step > 0 || i > 0;
        if constexpr (sizeof(Element) == 1)
          device::wgmma_m64n256k32_e4m3(sums, device::advance(x, i), device::advance(w, i), add);
        else device::wgmma_m64n256k16(sums, device::advance(x, i), device::advance(w, i), add);
      }
    });
  }
};

// Each stage's sums are added to others in fp32. The tile's columns are taken in two halves, so that 128 + 64 registers of sums
// suffice; while a warpgroup adds, the other's products keep the tensor cores busy.
struct Promoted {
  using Element = e4m3;
  static __device__ __forceinline__ void multiply(Ring& ring, Cursor& at, int warpgroup, int steps, float (&sums)[count]) {
    const bool leader = threadIdx.x % warpgroup_threads == 0;
#pragma unroll
    for (float& sum : sums) sum = 0;
    for (int step = 0; step < steps; ++step) {
      device::barrier_wait(&ring.full[at.stage], at.phase);
      const std::uint64_t x = x_rows(ring, at.stage, warpgroup * 64);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint64_t w = w_rows(ring, at.stage, half * 128);
        float part[count / 2];
        device::wgmma_touch(part);
        device::wgmma_fence();
#pragma unroll
        for (int i = 0; i < row_bytes; i += step_bytes)
          device::wgmma_m64n128k32_e4m3(part, device::advance(x, i), device::advance(w, i), i > 0);
        device::wgmma_commit();
        device::wgmma_wait<0>();
        device::wgmma_touch(part);
        if (half == 1 && leader) block_pair::release_stage(ring, at.stage);
#pragma unroll
        for (int i = 0; i < count / 2; ++i) sums[half * (count / 2) + i] += part[i];
      }
      at.next();
    }
  }
};

// One block per SM, in pairs that share W. One thread loads, two warpgroups multiply 64 rows each; the ring runs on from tile to
// tile.
template <class How>
__global__ __launch_bounds__(threads, 1)
    __cluster_dims__(block_pair::blocks) void product_kernel(const __grid_constant__ CUtensorMap x,
                                                             const __grid_constant__ CUtensorMap w, bf16* y, int steps,
                                                             Tiles tiles, float scale) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Ring& ring = *reinterpret_cast<Ring*>(memory);
  if (threadIdx.x == 0) ring.init(consumers * block_pair::blocks);
  device::cluster_sync();

  Cursor at;
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
  const int rank = static_cast<int>(device::cluster_rank()), pairs = static_cast<int>(gridDim.x / block_pair::blocks);
  const int first_tile = static_cast<int>(blockIdx.x / block_pair::blocks);
  if (warpgroup == consumers) {
    device::give_up_registers<40>();
    if (threadIdx.x % warpgroup_threads == 0)
      for (int tile = first_tile; tile < tiles.count(); tile += pairs) {
        const auto [left, top] = tiles.place(tile, rank);
        for (int step = 0; step < steps; ++step) {
          constexpr int depth = row_bytes / sizeof(typename How::Element), half = Ring::tile_n / 2;
          block_pair::expect_stage(ring, at);
          device::tensor_load_2d(ring.a[at.stage], &x, step * depth, top, &ring.full[at.stage]);
          device::tensor_load_2d_multicast(reinterpret_cast<unsigned char*>(ring.b[at.stage]) + rank * half * row_bytes, &w,
                                           step * depth, left + rank * half, &ring.full[at.stage], block_pair::both);
          at.next();
        }
      }
  } else {
    device::take_registers<232>();
    float sums[count];
    for (int tile = first_tile; tile < tiles.count(); tile += pairs) {
      How::multiply(ring, at, warpgroup, steps, sums);
      const auto [left, top] = tiles.place(tile, rank);
#pragma unroll
      for (float& sum : sums) sum *= scale;
      wgmma_gemm::store_sums(sums, y, static_cast<std::size_t>(tiles.columns) * Ring::tile_n, top + warpgroup * 64, left);
    }
  }
  device::cluster_sync();  // nobody leaves while the other may still write to it
}

__device__ __forceinline__ unsigned widen(unsigned pair) {
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  const float2 values = __half22float2(halves);
  return device::narrow_bf16(values.x, values.y);
}

// e4m3 has fewer bits than bf16 in every respect, so nothing is rounded. Eight elements a thread at a time; blockIdx.y: which
// operand.
struct Widening {
  const uint2* from;
  uint4* to;
  std::size_t chunks;
};
__global__ __launch_bounds__(256) void widen_kernel(Widening x, Widening w) {
  const Widening operand = blockIdx.y == 0 ? x : w;
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
#pragma unroll 4
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < operand.chunks; i += stride) {
    const uint2 v = operand.from[i];
    operand.to[i] = make_uint4(widen(v.x & 0xFFFF), widen(v.x >> 16), widen(v.y & 0xFFFF), widen(v.y >> 16));
  }
}
Widening widening(const Input<e4m3>& from, const Scratch<bf16>& to) {
  return {reinterpret_cast<const uint2*>(from.get()), reinterpret_cast<uint4*>(to.get()), from.bytes() / sizeof(uint2)};
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
        w_map_{operand_map(w_.get(), n_, k_, Ring::tile_n / 2)},
        wide_x_map_{operand_map(wide_x_.get(), m_, k_, Ring::tile_m)},
        wide_w_map_{operand_map(wide_w_.get(), n_, k_, Ring::tile_n / 2)} {
    allow_shared<InTensorCores<bf16>>();
    allow_shared<InTensorCores<e4m3>>();
    allow_shared<Promoted>();
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
    widen_kernel<<<dim3{pairs_ * 8, 2}, 256, 0, launch.stream>>>(widening(x_, wide_x_), widening(w_, wide_w_));
    check(cudaGetLastError());
    multiply<InTensorCores<bf16>>(launch, wide_x_map_, wide_w_map_);
  }
  void fp8_fast_accumulate(Launch& launch) { multiply<InTensorCores<e4m3>>(launch, x_map_, w_map_); }
  void fp8_promoted(Launch& launch) { multiply<Promoted>(launch, x_map_, w_map_); }

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
    const Tiles tiles{static_cast<int>(m_ / (block_pair::blocks * Ring::tile_m)), static_cast<int>(n_ / Ring::tile_n)};
    const unsigned pairs = std::min(pairs_, static_cast<unsigned>(tiles.rows * tiles.columns));
    product_kernel<How><<<pairs * block_pair::blocks, threads, sizeof(Ring), launch.stream>>>(
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
  unsigned pairs_ = block_pair::pairs_on_gpu();
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
                           {.name = "fp8_promoted", .run = call<&Fp8Matmul::fp8_promoted>}}),
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
