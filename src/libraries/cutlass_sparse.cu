// SPDX-License-Identifier: Apache-2.0
// As CUTLASS's example 62, in bf16: two warpgroups share tiles of 128 x 256, and two blocks along M their part of B.
#include <aisp/libraries/cutlass_sparse.hpp>
#include <cutlass/transform/device/transform_universal_adapter.hpp>
#include <cutlass/transform/kernel/sparse_gemm_compressor.hpp>

#include "base/device_memory.hpp"
#include "libraries/cutlass_plan.cuh"

namespace aisp {
namespace libraries {
namespace {

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
}  // namespace libraries

std::unique_ptr<CutlassPlan> plan_cutlass_sparse(const CutlassProblem& problem, cudaStream_t stream) {
  return std::make_unique<libraries::SparsePlan>(problem, stream);
}

}  // namespace aisp
