// SPDX-License-Identifier: Apache-2.0
// The interface of libaisp_cutlass.so, which aisp opens at run time (src/machine/library/cutlass.cpp): one function that returns
// a table of functions. No exception and no object of the standard library crosses it, because each side has copies of its own.
#pragma once
#include <aisp/libraries/cutlass.hpp>

#include <cstddef>

namespace aisp::libraries {

// Counted up with every change of what follows or of CutlassProblem.
inline constexpr int cutlass_interface = 1;

enum class CutlassProduct : int { bf16, multistage, sm100, fp8, block_scaled, sparse };

struct CutlassRequest {
  CutlassProduct product;
  CutlassProblem problem;
  const float* a_scales = nullptr;  // of block_scaled
  const float* b_scales = nullptr;
  cudaStream_t stream = nullptr;  // on which sparse compresses
};

// How a call ended: 0, a cudaError_t, or one of these; the reason is then in `text`.
inline constexpr int cutlass_unsupported = -1, cutlass_failed = -2;
struct CutlassTrouble {
  char text[512];
};

struct CutlassTable {
  int interface;        // first, so that every version can read it
  const char* version;  // of CUTLASS: "4.2.0"
  int (*plan)(const CutlassRequest* request, CutlassPlan** plan, CutlassTrouble* trouble);
  int (*run)(CutlassPlan* plan, cudaStream_t stream, CutlassTrouble* trouble);
  void (*destroy)(CutlassPlan* plan);
};

using GetCutlassTable = const CutlassTable*();
inline constexpr const char* get_cutlass_table = "aisp_cutlass_table";

}  // namespace aisp::libraries
