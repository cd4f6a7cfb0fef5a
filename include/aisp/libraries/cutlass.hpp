// SPDX-License-Identifier: Apache-2.0
// CUTLASS: templates, compiled into libaisp_cutlass.so (src/libraries), because they take as long as many pairs; it is opened at
// run time. This header includes nothing of CUTLASS. A variant that uses it says `.needs = {.min_sm = 90, .max_sm = 90,
// .libraries = {Library::cutlass}}`.
#pragma once
#include <cuda_runtime_api.h>

#include <memory>
#include <string_view>

namespace aisp {

// C[m][n] = scale * A B, all packed, pointers aligned to 16 bytes; m, n and k are multiples of 16. Sums and scale are fp32.
struct CutlassProblem {
  int m = 0, n = 0, k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  float scale = 1;
};

// One product, planned once with its pointers: run() only launches it.
class CutlassPlan {
 public:
  virtual ~CutlassPlan() = default;
  virtual void run(cudaStream_t stream) = 0;
};

// bf16 A[m][k], B[k][n] and C: by wgmma; by the kernel for sm_80, which runs on later GPUs as well; by tcgen05 (sm_100, not run).
// All throw Unsupported where libaisp_cutlass.so is absent, of another interface or without their architecture.
std::unique_ptr<CutlassPlan> plan_cutlass_bf16(const CutlassProblem& problem);
std::unique_ptr<CutlassPlan> plan_cutlass_multistage(const CutlassProblem& problem);
std::unique_ptr<CutlassPlan> plan_cutlass_sm100(const CutlassProblem& problem);
// e4m3 A[m][k] and B[n][k], bf16 C; sums never leave the tensor cores ("fast accumulation").
std::unique_ptr<CutlassPlan> plan_cutlass_fp8(const CutlassProblem& problem);
// The same operands with scales on the device, a_scales[k / 128][m] and b_scales[n / 128][k / 128], and sums in fp32 registers.
std::unique_ptr<CutlassPlan> plan_cutlass_block_scaled(const CutlassProblem& problem, const float* a_scales,
                                                       const float* b_scales);

// Returns the version of CUTLASS that libaisp_cutlass.so was made of, "4.2.0"; throws Unsupported as the plans do.
std::string_view cutlass_version();

// Advice for when it is missing.
inline constexpr std::string_view get_cutlass =
    "./setup.sh --cutlass builds it, or set AISP_LIBRARY_PATH to the folder that holds it";

}  // namespace aisp
