// SPDX-License-Identifier: Apache-2.0
// In place of the other files of this folder where CUTLASS's headers were not found, or no code for sm_90a was asked for.
#include <aisp/check.hpp>
#include <aisp/libraries/cutlass.hpp>
#include <aisp/libraries/cutlass_sparse.hpp>

#include <string>

namespace aisp {
namespace {

[[noreturn]] void refuse() { throw Unsupported{"this executable was built without CUTLASS; " + std::string{get_cutlass}}; }

}  // namespace

std::unique_ptr<CutlassPlan> plan_cutlass_bf16(const CutlassProblem&) { refuse(); }
std::unique_ptr<CutlassPlan> plan_cutlass_multistage(const CutlassProblem&) { refuse(); }
std::unique_ptr<CutlassPlan> plan_cutlass_fp8(const CutlassProblem&) { refuse(); }
std::unique_ptr<CutlassPlan> plan_cutlass_block_scaled(const CutlassProblem&, const float*, const float*) { refuse(); }
std::unique_ptr<CutlassPlan> plan_cutlass_sparse(const CutlassProblem&, cudaStream_t) { refuse(); }
std::string_view cutlass_version() { return {}; }

}  // namespace aisp
