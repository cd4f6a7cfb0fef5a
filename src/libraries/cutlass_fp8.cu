// SPDX-License-Identifier: Apache-2.0
// The widest tile whose fp32 sums two warpgroups hold; two blocks along M share their part of B by multicast. In src/libraries,
// the folder of what is compiled into the executable for include/aisp/libraries: below all others, it sees include/aisp alone.
#include "libraries/cutlass_plan.cuh"

namespace aisp {

std::unique_ptr<CutlassPlan> plan_cutlass_fp8(const CutlassProblem& problem) {
  using namespace libraries;
  using cute::_1, cute::_2, cute::_128, cute::_256;
  using Chosen = Plan<tl::float_e4m3_t, tl::layout::ColumnMajor, cute::Shape<_128, _256, _128>, cute::Shape<_2, _1, _1>,
                      tl::gemm::KernelTmaWarpSpecializedCooperativeFP8FastAccum, tl::epilogue::TmaWarpSpecializedCooperative>;
  return std::make_unique<Chosen>(problem, 1);
}

}  // namespace aisp
