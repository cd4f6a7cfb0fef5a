// SPDX-License-Identifier: Apache-2.0
// Tensors that the blocks read and write. All tensors are bf16 but for the gradients of norms and what is noted of rows.
#pragma once
#include <cuda_bf16.h>

#include <cstddef>

namespace aisp::training {

using bf16 = __nv_bfloat16;

struct MlpShape {
  std::size_t tokens, width, hidden;
};
struct MlpWeights {
  const bf16 *norm, *gate_up, *down;  // [width], [gates, ups][width], [width][hidden]
};
// Values that the forward pass computes on its way and the backward pass reads. Others are computed again.
struct MlpActivations {
  bf16* normed;        // [tokens][width]
  float* inverse_rms;  // [tokens]
  bf16* gate_up;       // [tokens][gates, ups]
  bf16* product;       // [tokens][hidden]
};
struct MlpGradients {
  float* norm;
  bf16 *gate_up, *down;
};
// Gradients of activations, which a block leaves to the next one to overwrite.
struct MlpWorkspace {
  bf16 *d_normed, *d_gate_up, *d_product;
};

struct AttentionShape {
  std::size_t sequences, tokens, heads, head_size;  // tokens: of a sequence

  std::size_t rows() const { return sequences * tokens; }
  std::size_t width() const { return heads * head_size; }
};
struct AttentionWeights {
  const bf16 *norm, *qkv, *out;  // [width], [Q, K, V][width], [width][width]
};
struct AttentionActivations {
  bf16* normed;        // [rows][width]
  float* inverse_rms;  // [rows]
  bf16* qkv;           // [rows][Q, K, V]
  bf16* attended;      // [rows][width]
  float* log_sums;     // [sequences][heads][tokens]
};
struct AttentionGradients {
  float* norm;
  bf16 *qkv, *out;
};
struct AttentionWorkspace {
  bf16 *d_normed, *d_qkv, *d_attended;
};

}  // namespace aisp::training
