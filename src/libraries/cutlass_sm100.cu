// SPDX-License-Identifier: Apache-2.0
// For a GPU that nobody has had to run it on: two SMs share a tile of 256 x 128, whose sums lie in tensor memory (tcgen05); the
// rest is left to CUTLASS's builder.
#include "libraries/cutlass_plan.cuh"

namespace aisp::libraries {

std::unique_ptr<CutlassPlan> sm100_plan(const CutlassProblem& problem) {
  using cute::_1, cute::_2, cute::_64, cute::_128, cute::_256;
  using Chosen = Plan<tl::bfloat16_t, tl::layout::RowMajor, cute::Shape<_256, _128, _64>, cute::Shape<_2, _1, _1>,
                      tl::gemm::collective::KernelScheduleAuto, tl::epilogue::collective::EpilogueScheduleAuto, tl::arch::Sm100>;
  return std::make_unique<Chosen>(problem, 8);
}

}  // namespace aisp::libraries
