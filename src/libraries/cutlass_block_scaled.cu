// SPDX-License-Identifier: Apache-2.0
// e4m3 with scales for 1 x 128 of A and 128 x 128 of B, in the tile, cluster and schedule that serving frameworks choose: both
// warpgroups on tiles of 128 x 128, two blocks along N.
#include <cutlass/detail/blockwise_scale_layout.hpp>

#include "libraries/cutlass_plan.cuh"

namespace aisp {
namespace libraries {
namespace {

class BlockScaledPlan final : public CutlassPlan {
  using Operand = tl::float_e4m3_t;
  using Result = tl::bfloat16_t;
  using Tile = cute::Shape<cute::_128, cute::_128, cute::_128>;
  using Cluster = cute::Shape<cute::_1, cute::_2, cute::_1>;
  // Scales of A are neighbours along M, those of B along K.
  using Scales = tl::detail::Sm90BlockwiseScaleConfig<1, 128, 128, cute::GMMA::Major::MN, cute::GMMA::Major::K>;
  using ScalesOfA = decltype(Scales::deduce_layoutSFA());
  using ScalesOfB = decltype(Scales::deduce_layoutSFB());
  static constexpr int operand_alignment = 16 / sizeof(Operand), result_alignment = 16 / sizeof(Result);

  using Epilogue = typename tl::epilogue::collective::CollectiveBuilder<
      tl::arch::Sm90, tl::arch::OpClassTensorOp, Tile, Cluster, tl::epilogue::collective::EpilogueTileAuto, float, float, void,
      tl::layout::RowMajor, result_alignment, Result, tl::layout::RowMajor, result_alignment,
      tl::epilogue::TmaWarpSpecializedCooperative>::CollectiveOp;
  using Mainloop = typename tl::gemm::collective::CollectiveBuilder<
      tl::arch::Sm90, tl::arch::OpClassTensorOp, Operand, cute::tuple<tl::layout::RowMajor, ScalesOfA>, operand_alignment,
      Operand, cute::tuple<tl::layout::ColumnMajor, ScalesOfB>, operand_alignment, float, Tile, Cluster,
      tl::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      tl::gemm::KernelTmaWarpSpecializedCooperativeFP8BlockScaledAccum>::CollectiveOp;
  using Kernel =
      tl::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue, tl::gemm::PersistentScheduler>;
  using Gemm = tl::gemm::device::GemmUniversalAdapter<Kernel>;

 public:
  BlockScaledPlan(const CutlassProblem& problem, const float* a_scales, const float* b_scales) {
    const int m = problem.m, n = problem.n, k = problem.k;
    const auto shape = cute::make_shape(m, n, k, 1);
    typename Gemm::Arguments arguments{tl::gemm::GemmUniversalMode::kGemm,
                                       {m, n, k, 1},
                                       {static_cast<const Operand*>(problem.a), packed<typename Kernel::StrideA>(k),
                                        static_cast<const Operand*>(problem.b), packed<typename Kernel::StrideB>(k), a_scales,
                                        Scales::tile_atom_to_shape_SFA(shape), b_scales, Scales::tile_atom_to_shape_SFB(shape)},
                                       {{}, nullptr, {}, static_cast<Result*>(problem.c), packed<typename Kernel::StrideD>(n)}};
    arguments.epilogue.thread.alpha = problem.scale;
    arguments.epilogue.thread.beta = 0;
    aisp::check(cudaGetDevice(&arguments.hw_info.device_id));
    aisp::check(cudaDeviceGetAttribute(&arguments.hw_info.sm_count, cudaDevAttrMultiProcessorCount, arguments.hw_info.device_id));
    check(Gemm::can_implement(arguments), "compute this product");
    if (Gemm::get_workspace_size(arguments) != 0)
      throw Unsupported{"CUTLASS asks for a workspace, which this kernel should not need"};
    check(gemm_.initialize(arguments), "prepare this product");
  }

  void run(cudaStream_t stream) override { check(gemm_.run(stream), "start this product"); }

 private:
  Gemm gemm_;
};

}  // namespace
}  // namespace libraries

std::unique_ptr<CutlassPlan> plan_cutlass_block_scaled(const CutlassProblem& problem, const float* a_scales,
                                                       const float* b_scales) {
  return std::make_unique<libraries::BlockScaledPlan>(problem, a_scales, b_scales);
}

}  // namespace aisp
