// SPDX-License-Identifier: Apache-2.0
// Y = s X W, 8192 x 8192 x 8192: e4m3 operands with one scale each, bf16 output. Widening both to bf16 first is exact and moves
// 402 MB, and then the tensor cores do half of what they can (1.75 ms). Fed with e4m3 the same kernel, clusters with multicast as
// in cluster_multicast, moves half the bytes and multiplies at twice the rate (0.812 ms, 1.35 PFLOP/s, error 2.7e-3; cuBLASLt
// 0.826 ms). The tensor cores keep about 14 bits of its sums; adding them to fp32 registers after every 128 of K costs less than
// 1 % and leaves the rounding to bf16 alone (0.818 ms, error 1.7e-3, as cuBLASLt). In the ping-pong each warpgroup has tiles of
// its own, 128 x 128, and one multiplies while the other stores (0.803 ms; at 4096 x 4096 x 4096 94 us instead of 106).
#include "fp8_gemm.cuh"
#include "gemm_workload.hpp"
#include "tcgen05_gemm.cuh"

#include <aisp/libraries/cublaslt.hpp>
#include <aisp/libraries/cutlass.hpp>
#include <aisp/pair.hpp>

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <memory>

namespace aisp::ch10 {
namespace {

using namespace fp8_gemm;
using multicast_gemm::InTensorCores, multicast_gemm::Scaled;

class Fp8Matmul final : public Workload {
 public:
  explicit Fp8Matmul(Setup& setup)
      : m_{setup.size("m")},
        n_{setup.size("n")},
        k_{setup.size("k")},
        // Up to the type's largest value, 448, as scales made from the largest element leave it.
        x_{setup.input<e4m3>(m_ * k_, normal(0, 90), {.name = "x"})},
        w_{setup.input<e4m3>(n_ * k_, normal(0, 90), {.name = "w"})},
        y_{setup.output<bf16>(m_ * n_, {.name = "y"})},
        wide_x_{setup.scratch<bf16>(m_ * k_, {.name = "widened x"})},
        wide_w_{setup.scratch<bf16>(n_ * k_, {.name = "widened w"})},
        x_map_{operand_map(x_.get(), m_, k_, Ring::tile_m)},
        half_w_map_{operand_map(w_.get(), n_, k_, Ring::tile_n / 2)},
        narrow_half_w_map_{operand_map(w_.get(), n_, k_, PingpongRing::tile_n / 2)},
        wide_x_map_{operand_map(wide_x_.get(), m_, k_, WideRing::tile_m)},
        half_wide_w_map_{operand_map(wide_w_.get(), n_, k_, WideRing::tile_n / 2)},
        y_map_{multicast_gemm::c_map(y_, m_, n_)},
        cublaslt_promoted_{setup, problem(false)},
        cublaslt_fast_{setup, problem(true)} {}

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
    launch(widen_kernel, {multiprocessors() * 8, 256}, reinterpret_cast<const uint4*>(x_.get()),
           reinterpret_cast<uint4*>(wide_x_.get()), x_.bytes() / sizeof(uint4), reinterpret_cast<const uint4*>(w_.get()),
           reinterpret_cast<uint4*>(wide_w_.get()), w_.bytes() / sizeof(uint4));
    if (blackwell_wide_.usable()) return blackwell_wide_.run(launch, band, multiprocessors(), x_scale * w_scale);
    multiply<WideRing, WideStore, InTensorCores>(launch, wide_x_map_, half_wide_w_map_);
  }
  void fp8_fast_accumulate(Launch& launch) { multiply<Ring, Store, InTensorCores>(launch, x_map_, half_w_map_); }
  void fp8_promoted(Launch& launch) { multiply<Ring, Store, Promoted>(launch, x_map_, half_w_map_); }
  void fp8_pingpong(Launch& launch) {
    static_assert(PingpongRing::tile_m == Ring::tile_m);
    pingpong_gemm::launch_pingpong<PingpongRing, PingpongStore>(
        launch, {x_map_, narrow_half_w_map_, y_map_, y_, m_, n_, k_, pingpong_band}, Scaled{x_scale * w_scale});
  }
  // Not run yet: e4m3 operands by kind::f8f6f4, sums in tensor memory. Both this and the baseline are on tcgen05 there, since
  // wgmma is not.
  void tcgen05_fp8(Launch& launch) { blackwell_.run(launch, band, multiprocessors(), x_scale * w_scale); }

  void cublaslt_promoted(Launch& launch) { cublaslt_promoted_.run(launch, x_, w_, y_, x_scale * w_scale); }
  void tune_promoted(Launch& launch) { cublaslt_promoted_.tune(launch, x_, w_, y_); }
  void cublaslt_promoted_tuned(Launch& launch) { cublaslt_promoted_.run_tuned(launch, x_, w_, y_, x_scale * w_scale); }
  void cublaslt_fast(Launch& launch) { cublaslt_fast_.run(launch, x_, w_, y_, x_scale * w_scale); }
  void tune_fast(Launch& launch) { cublaslt_fast_.tune(launch, x_, w_, y_); }
  void cublaslt_fast_tuned(Launch& launch) { cublaslt_fast_.run_tuned(launch, x_, w_, y_, x_scale * w_scale); }
  void plan_cutlass(Launch&) {
    if (!cutlass_)
      cutlass_ = plan_cutlass_fp8(
          {static_cast<int>(m_), static_cast<int>(n_), static_cast<int>(k_), x_.get(), w_.get(), y_.get(), x_scale * w_scale});
  }
  void cutlass(Launch& launch) { cutlass_->run(launch.stream); }

 private:
  MatmulProblem problem(bool fast) const {
    return {.m = m_, .n = n_, .k = k_, .operands = CUDA_R_8F_E4M3, .b_is_transposed = true, .fast_accumulation = fast};
  }
  template <class R, class Store, class Products>
  void multiply(Launch& launch, const CUtensorMap& x, const CUtensorMap& half_w) {
    multicast_gemm::launch_multicast<R, Store, Products>(launch, {x, half_w, y_map_, y_, m_, n_, k_, band},
                                                         Scaled{x_scale * w_scale});
  }

  std::size_t m_, n_, k_;
  Input<e4m3> x_, w_;  // x[m][k], w[n][k]
  Output<bf16> y_;
  Scratch<bf16> wide_x_, wide_w_;
  CUtensorMap x_map_, half_w_map_, narrow_half_w_map_, wide_x_map_, half_wide_w_map_, y_map_;
  tcgen05_gemm::Gemm<tcgen05_gemm::KMajorPlan<device::TensorKind::bf16>> blackwell_wide_{
      wide_x_.get(), wide_w_.get(), y_, m_, n_, k_};
  tcgen05_gemm::Gemm<tcgen05_gemm::KMajorPlan<device::TensorKind::e4m3>> blackwell_{x_.get(), w_.get(), y_, m_, n_, k_};
  LibraryMatmul cublaslt_promoted_, cublaslt_fast_;
  std::unique_ptr<CutlassPlan> cutlass_;
};

// How many bits sums lose that never leave the tensor cores is reported beside the speedup.
template <Method run, Method prepare = nullptr>
constexpr Variant cublaslt(std::string_view name, bool fast) {
  return {.name = name,
          .run = run,
          .prepare = prepare,
          .needs = {.libraries = {Library::cublaslt}},
          .changes_precision = fast,
          .tolerance = fast ? fast_accumulation : rounded_to_bf16};
}

}  // namespace

extern constinit const Pair fp8_matmul{
    .teaches = "FP8 wgmma doubles the rate and halves the bytes, but takes K-major operands only and keeps 14 bits of its sums",
    .lesson = "fp8_fast_accumulate",
    .make = make<Fp8Matmul>,
    .baseline = {.name = "widen_to_bf16", .run = call<&Fp8Matmul::widen_to_bf16>},
    .optimized = variants({{.name = "fp8_fast_accumulate",
                            .run = call<&Fp8Matmul::fp8_fast_accumulate>,
                            .needs = {.max_sm = 90},
                            .changes_precision = true,
                            .tolerance = fast_accumulation},
                           {.name = "fp8_promoted", .run = call<&Fp8Matmul::fp8_promoted>, .needs = {.max_sm = 90}},
                           {.name = "fp8_pingpong",
                            .run = call<&Fp8Matmul::fp8_pingpong>,
                            .needs = {.max_sm = 90},
                            .changes_precision = true,
                            .tolerance = fast_accumulation,
                            .gains_over = "fp8_fast_accumulate"},
                           {.name = "tcgen05_fp8", .run = call<&Fp8Matmul::tcgen05_fp8>, .needs = tcgen05_gemm::needs}}),
    .libraries = variants(
        {cublaslt<call<&Fp8Matmul::cublaslt_promoted>>("cublaslt_promoted", false),
         cublaslt<call<&Fp8Matmul::cublaslt_promoted_tuned>, call<&Fp8Matmul::tune_promoted>>("cublaslt_promoted_tuned", false),
         cublaslt<call<&Fp8Matmul::cublaslt_fast>>("cublaslt_fast", true),
         cublaslt<call<&Fp8Matmul::cublaslt_fast_tuned>, call<&Fp8Matmul::tune_fast>>("cublaslt_fast_tuned", true),
         {.name = "cutlass",
          .run = call<&Fp8Matmul::cutlass>,
          .prepare = call<&Fp8Matmul::plan_cutlass>,
          .needs = {.min_sm = 90, .max_sm = 90, .libraries = {Library::cutlass}},
          .changes_precision = true,
          .tolerance = fast_accumulation}}),
    .bound = Bound::compute,
    .tolerance = rounded_to_bf16,
    .needs = {.min_sm = 90, .max_sm = tcgen05_gemm::last_sm},
    .sizes = gemm_sizes,
    .sweep = gemm_cases,
};

}  // namespace aisp::ch10
