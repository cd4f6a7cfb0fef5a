// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/libraries/cutlass.hpp>

#include <memory>

namespace aisp {

// bf16 A[m][k] with two zeros at least in every four neighbours, B[n][k] and C, by sparse wgmma. A is compressed here, on
// `stream`; the problem's scale is left out. Otherwise as the plans of cutlass.hpp.
std::unique_ptr<CutlassPlan> plan_cutlass_sparse(const CutlassProblem& problem, cudaStream_t stream);

}  // namespace aisp
