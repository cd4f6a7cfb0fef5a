// SPDX-License-Identifier: Apache-2.0
// A product by the kernel that CUTLASS's builder makes: operands by TMA, warp-specialized, one block per SM (or pair of blocks,
// on sm_100) that walks over its tiles. Only .cu files of this folder include it.
#pragma once
#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <aisp/check.hpp>
#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include <string>
#include <tuple>
#include <type_traits>

#include "libraries/cutlass_kernels.hpp"

namespace aisp::libraries {

namespace tl = ::cutlass;

inline void check(tl::Status status, const char* what) {
  if (status != tl::Status::kSuccess)
    throw Unsupported{std::string{"CUTLASS cannot "} + what + ": " + tl::cutlassGetStatusString(status)};
}

// CuTe's strides of one packed matrix: the contiguous direction is a constant, the other one is its leading dimension.
template <class Stride>
Stride packed(int leading_dimension) {
  Stride stride{};
  if constexpr (cute::is_static_v<cute::tuple_element_t<0, Stride>>) cute::get<1>(stride) = leading_dimension;
  else cute::get<0>(stride) = leading_dimension;
  return stride;
}

// bf16 C[m][n] = scale * A[m][k] B, with fp32 sums. Operand: the type of A and B. LayoutB: RowMajor for B[k][n], ColumnMajor for
// B[n][k].
template <class Operand, class LayoutB, class Tile, class Cluster, class Schedule, class EpilogueSchedule,
          class Arch = tl::arch::Sm90>
class Plan final : public CutlassPlan {
  using Result = tl::bfloat16_t;
  static constexpr int operand_alignment = 16 / sizeof(Operand), result_alignment = 16 / sizeof(Result);

  // No source matrix, so its type is void: its share of shared memory goes to the ring of operands.
  using Epilogue = typename tl::epilogue::collective::CollectiveBuilder<
      Arch, tl::arch::OpClassTensorOp, Tile, Cluster, tl::epilogue::collective::EpilogueTileAuto, float, float, void,
      tl::layout::RowMajor, result_alignment, Result, tl::layout::RowMajor, result_alignment, EpilogueSchedule>::CollectiveOp;
  using Mainloop = typename tl::gemm::collective::CollectiveBuilder<
      Arch, tl::arch::OpClassTensorOp, Operand, tl::layout::RowMajor, operand_alignment, Operand, LayoutB, operand_alignment,
      float, Tile, Cluster,
      tl::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      Schedule>::CollectiveOp;
  using Kernel =
      tl::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue, tl::gemm::PersistentScheduler>;
  using Gemm = tl::gemm::device::GemmUniversalAdapter<Kernel>;

 public:
  Plan(const CutlassProblem& problem, int swizzle) {
    const auto [m, n, k] = std::tuple{problem.m, problem.n, problem.k};
    const int row_of_b = std::is_same_v<LayoutB, tl::layout::RowMajor> ? n : k;
    typename Gemm::Arguments arguments{tl::gemm::GemmUniversalMode::kGemm,
                                       {m, n, k, 1},
                                       {static_cast<const Operand*>(problem.a), packed<typename Kernel::StrideA>(k),
                                        static_cast<const Operand*>(problem.b), packed<typename Kernel::StrideB>(row_of_b)},
                                       {{}, nullptr, {}, static_cast<Result*>(problem.c), packed<typename Kernel::StrideD>(n)}};
    arguments.epilogue.thread.alpha = problem.scale;
    arguments.epilogue.thread.beta = 0;
    aisp::check(cudaGetDevice(&arguments.hw_info.device_id));
    aisp::check(cudaDeviceGetAttribute(&arguments.hw_info.sm_count, cudaDevAttrMultiProcessorCount, arguments.hw_info.device_id));
    arguments.scheduler.max_swizzle_size = swizzle;
    check(Gemm::can_implement(arguments), "compute this product");
    if (Gemm::get_workspace_size(arguments) != 0)
      throw Unsupported{"CUTLASS asks for a workspace, which this kernel should not need"};
    check(gemm_.initialize(arguments), "prepare this product");
  }

  void run(cudaStream_t stream) override { check(gemm_.run(stream), "start this product"); }

 private:
  Gemm gemm_;
};

}  // namespace aisp::libraries
