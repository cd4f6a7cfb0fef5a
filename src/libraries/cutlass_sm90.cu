// SPDX-License-Identifier: Apache-2.0
// CUTLASS's kernels for Hopper, in one file: most of what the compiler does is read the headers, and here it reads them once.
#include <cutlass/detail/blockwise_scale_layout.hpp>
#include <cutlass/transform/device/transform_universal_adapter.hpp>
#include <cutlass/transform/kernel/sparse_gemm_compressor.hpp>

#include "base/device_memory.hpp"
#include "libraries/cutlass_plan.cuh"

namespace aisp::libraries {
namespace {

// e4m3 with scales for 1 x 128 of A and 128 x 128 of B, in the tile, cluster and schedule that serving frameworks choose: both
// warpgroups on tiles of 128 x 128, two blocks along N.
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

// As CUTLASS's example 62, in bf16: two warpgroups share tiles of 128 x 256, and two blocks along M their part of B.
class SparsePlan final : public CutlassPlan {
  using Element = tl::bfloat16_t;
  using RowMajor = tl::layout::RowMajor;
  using Tile = cute::Shape<cute::_128, cute::_256, cute::_64>;
  using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
  using Extents = cute::Shape<int, int, int, int>;
  using Arch = tl::arch::Sm90;
  using Class = tl::arch::OpClassSparseTensorOp;
  static constexpr int alignment = 8;

  using Epilogue =
      typename tl::epilogue::collective::CollectiveBuilder<Arch, Class, Tile, Cluster, tl::epilogue::collective::EpilogueTileAuto,
                                                           float, float, void, RowMajor, alignment, Element, RowMajor, alignment,
                                                           tl::epilogue::TmaWarpSpecializedCooperative>::CollectiveOp;
  using Mainloop = typename tl::gemm::collective::CollectiveBuilder<
      Arch, Class, Element, RowMajor, alignment, Element, tl::layout::ColumnMajor, alignment, float, Tile, Cluster,
      tl::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      tl::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;
  using Kernel = tl::gemm::kernel::GemmUniversal<Extents, Mainloop, Epilogue, tl::gemm::PersistentScheduler>;
  using Gemm = tl::gemm::device::GemmUniversalAdapter<Kernel>;
  using Sparse = typename Mainloop::SparseConfig;
  using Utility = tl::transform::kernel::StructuredSparseCompressorUtility<Extents, Element, RowMajor, Sparse>;
  using Compressor = tl::transform::device::TransformUniversalAdapter<
      tl::transform::kernel::StructuredSparseCompressor<Extents, Element, RowMajor, Sparse, Arch>>;
  using StrideA = tl::gemm::TagToStrideA_t<RowMajor>;

 public:
  SparsePlan(const CutlassProblem& problem, cudaStream_t stream) {
    const Extents extents{problem.m, problem.n, problem.k, 1};
    const auto stride = packed<StrideA>(problem.k);
    const Utility utility{extents, stride};
    a_ = std::make_unique<base::DeviceMemory>(utility.get_compressed_tensor_A_bytes());
    metadata_ = std::make_unique<base::DeviceMemory>(utility.get_tensor_E_bytes());
    tl::KernelHardwareInfo hardware;
    aisp::check(cudaGetDevice(&hardware.device_id));
    aisp::check(cudaDeviceGetAttribute(&hardware.sm_count, cudaDevAttrMultiProcessorCount, hardware.device_id));
    compress({extents, {problem.a, stride, a_->as<void>(), metadata_->as<void>()}, hardware}, stream);

    using MetadataElement = typename Mainloop::ElementE;
    typename Gemm::Arguments arguments{
        tl::gemm::GemmUniversalMode::kGemm,
        extents,
        {a_->as<Element>(), Sparse::fill_layoutA(extents), static_cast<const Element*>(problem.b),
         packed<typename Kernel::StrideB>(problem.k), metadata_->as<MetadataElement>(), Sparse::fill_layoutE(extents)},
        {{}, nullptr, {}, static_cast<Element*>(problem.c), packed<typename Kernel::StrideD>(problem.n)},
        hardware};
    arguments.epilogue.thread.alpha = 1;
    arguments.epilogue.thread.beta = 0;
    arguments.scheduler.max_swizzle_size = 8;
    check(Gemm::can_implement(arguments), "compute this product");
    workspace_ = std::make_unique<base::DeviceMemory>(Gemm::get_workspace_size(arguments));
    check(gemm_.initialize(arguments, workspace_->as<void>(), stream), "prepare this product");
  }

  void run(cudaStream_t stream) override { check(gemm_.run(stream), "start this product"); }

 private:
  static void compress(const typename Compressor::Arguments& arguments, cudaStream_t stream) {
    const base::DeviceMemory workspace{Compressor::get_workspace_size(arguments)};
    Compressor compressor;
    check(compressor.can_implement(arguments), "compress this matrix");
    check(compressor.initialize(arguments, workspace.as<void>(), stream), "prepare a compression");
    check(compressor.run(stream), "compress this matrix");
    aisp::check(cudaStreamSynchronize(stream));
  }

  std::unique_ptr<base::DeviceMemory> a_, metadata_, workspace_;
  Gemm gemm_;
};

}  // namespace

// Two warpgroups take turns with tiles of 128 x 128, and two blocks along M share their part of B by multicast. Tiles are walked
// in bands of eight clusters: at four shapes 2 to 4 % faster than both warpgroups on one tile of 128 x 256.
std::unique_ptr<CutlassPlan> bf16_plan(const CutlassProblem& problem) {
  using cute::_1, cute::_2, cute::_64, cute::_128;
  using Chosen = Plan<tl::bfloat16_t, tl::layout::RowMajor, cute::Shape<_128, _128, _64>, cute::Shape<_2, _1, _1>,
                      tl::gemm::KernelTmaWarpSpecializedPingpong, tl::epilogue::TmaWarpSpecialized>;
  return std::make_unique<Chosen>(problem, 8);
}

// The same in bands of four clusters: at four shapes 4 to 15 % faster than both on one tile of 128 x 256.
std::unique_ptr<CutlassPlan> fp8_plan(const CutlassProblem& problem) {
  using cute::_1, cute::_2, cute::_128;
  using Chosen = Plan<tl::float_e4m3_t, tl::layout::ColumnMajor, cute::Shape<_128, _128, _128>, cute::Shape<_2, _1, _1>,
                      tl::gemm::KernelTmaWarpSpecializedPingpongFP8FastAccum, tl::epilogue::TmaWarpSpecialized>;
  return std::make_unique<Chosen>(problem, 4);
}

std::unique_ptr<CutlassPlan> block_scaled_plan(const CutlassProblem& problem, const float* a_scales, const float* b_scales) {
  return std::make_unique<BlockScaledPlan>(problem, a_scales, b_scales);
}

std::unique_ptr<CutlassPlan> sparse_plan(const CutlassProblem& problem, cudaStream_t stream) {
  return std::make_unique<SparsePlan>(problem, stream);
}

}  // namespace aisp::libraries
