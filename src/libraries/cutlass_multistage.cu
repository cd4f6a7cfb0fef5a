// SPDX-License-Identifier: Apache-2.0
// CUTLASS's kernel for sm_80, on mma.sync: tiles of 128 x 128 x 32, warps of 64 x 64, four stages of cp.async.
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/gemm/device/gemm_universal.h>
#include <aisp/check.hpp>

#include <string>

#include "libraries/cutlass_kernels.hpp"

namespace aisp::libraries {
namespace {

namespace tl = ::cutlass;

void check_status(tl::Status status, const char* what) {
  if (status != tl::Status::kSuccess)
    throw Unsupported{std::string{"CUTLASS cannot "} + what + ": " + tl::cutlassGetStatusString(status)};
}

class MultistagePlan final : public CutlassPlan {
  using bf16 = tl::bfloat16_t;
  using Row = tl::layout::RowMajor;
  static constexpr int stages = 4, alignment = 8;
  using Epilogue = tl::epilogue::thread::LinearCombination<bf16, alignment, float, float>;
  using Gemm =
      tl::gemm::device::GemmUniversal<bf16, Row, bf16, Row, bf16, Row, float, tl::arch::OpClassTensorOp, tl::arch::Sm80,
                                      tl::gemm::GemmShape<128, 128, 32>, tl::gemm::GemmShape<64, 64, 32>,
                                      tl::gemm::GemmShape<16, 8, 16>, Epilogue,
                                      tl::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, stages, alignment, alignment>;

 public:
  explicit MultistagePlan(const CutlassProblem& p) {
    const typename Gemm::Arguments arguments{tl::gemm::GemmUniversalMode::kGemm,
                                             {p.m, p.n, p.k},
                                             1,
                                             {p.scale, 0.0f},
                                             p.a,
                                             p.b,
                                             p.c,
                                             p.c,
                                             0,
                                             0,
                                             0,
                                             0,
                                             p.k,
                                             p.n,
                                             p.n,
                                             p.n};
    check_status(Gemm::can_implement(arguments), "compute this product");
    if (Gemm::get_workspace_size(arguments) != 0)
      throw Unsupported{"CUTLASS asks for a workspace, which this kernel should not need"};
    check_status(gemm_.initialize(arguments), "prepare this product");
  }

  void run(cudaStream_t stream) override { check_status(gemm_.run(stream), "start this product"); }

 private:
  Gemm gemm_;
};

}  // namespace

std::unique_ptr<CutlassPlan> multistage_plan(const CutlassProblem& problem) { return std::make_unique<MultistagePlan>(problem); }

}  // namespace aisp::libraries
