// SPDX-License-Identifier: Apache-2.0
// Functions that the .cu files of this folder define: plans as those of <aisp/libraries/cutlass.hpp>. Each throws Unsupported for
// a product that CUTLASS cannot compute, and CudaError.
#pragma once
#include <aisp/libraries/cutlass.hpp>

namespace aisp::libraries {

std::unique_ptr<CutlassPlan> bf16_plan(const CutlassProblem& problem);
std::unique_ptr<CutlassPlan> multistage_plan(const CutlassProblem& problem);
std::unique_ptr<CutlassPlan> sm100_plan(const CutlassProblem& problem);
std::unique_ptr<CutlassPlan> fp8_plan(const CutlassProblem& problem);
std::unique_ptr<CutlassPlan> block_scaled_plan(const CutlassProblem& problem, const float* a_scales, const float* b_scales);
std::unique_ptr<CutlassPlan> sparse_plan(const CutlassProblem& problem, cudaStream_t stream);

}  // namespace aisp::libraries
