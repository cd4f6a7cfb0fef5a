// SPDX-License-Identifier: Apache-2.0
// In place of cutlass_sm100.cu where CUTLASS's headers were not found, or no code for sm_100a was asked for.
#include <aisp/check.hpp>
#include <aisp/libraries/cutlass.hpp>

namespace aisp {

std::unique_ptr<CutlassPlan> plan_cutlass_sm100(const CutlassProblem&) {
  throw Unsupported{
      "this executable was built without CUTLASS's kernels for sm_100a; build with its headers and with 100a in "
      "AISP_CUDA_ARCHITECTURES"};
}

}  // namespace aisp
