// SPDX-License-Identifier: Apache-2.0
// A decoder block over a prompt in float64 on the GPU, without any rounding between its operations.
#pragma once
#include <algorithm>
#include <vector>

#include "decoder/model.hpp"
#include "decoder/reference.cuh"

namespace aisp::ch20 {

struct ExactBlock {
  const decoder::Shape& s;
  std::size_t tokens;
  const decoder::bf16 *in, *from_before, *norms, *qkv, *o, *gate_up, *down;
  const int* positions;
};
struct ExactRows {
  std::vector<double> residual, results, projected;  // projected: queries and keys turned
};

inline ExactRows exact_block(cudaStream_t stream, Cublas& cublas, const ExactBlock& of) {
  using namespace decoder::reference;
  const decoder::Shape& s = of.s;
  const auto blocks = static_cast<unsigned>(of.tokens);
  const auto elements = [&](int columns) { return of.tokens * static_cast<std::size_t>(columns); };
  const std::size_t largest =
      static_cast<std::size_t>(s.hidden) * static_cast<std::size_t>(std::max({2 * s.ffn, s.qkv_columns(), s.q_columns()}));
  const decoder::reference::Memory x{elements(s.hidden)}, normed{elements(s.hidden)}, delta{elements(s.hidden)},
      qkv{elements(s.qkv_columns())}, attended{elements(s.q_columns())}, gate_up{elements(2 * s.ffn)}, active{elements(s.ffn)},
      weights{largest}, scores{elements(s.heads) * of.tokens};
  cublas.use(stream);
  static const auto gemm = Cublas::function<decltype(cublasDgemm_v2)>("cublasDgemm_v2");
  const auto widen = [&](const decoder::bf16* values, double* to, std::size_t count) {
    launch_kernel(stream, widen_kernel, {4096, threads}, values, to, count);
  };
  const auto multiply = [&](const decoder::bf16* matrix, int outputs, int depth, const double* from, double* to) {
    const double one = 1, zero = 0;
    widen(matrix, weights, static_cast<std::size_t>(outputs) * static_cast<std::size_t>(depth));
    check(gemm(cublas.handle(), CUBLAS_OP_T, CUBLAS_OP_N, outputs, static_cast<int>(of.tokens), depth, &one, weights, depth, from,
               depth, &zero, to, outputs));
  };
  widen(of.in, x, elements(s.hidden));
  widen(of.from_before, delta, elements(s.hidden));
  launch_kernel(stream, norm_kernel, {blocks, threads}, x, delta, normed, of.norms, s.hidden);
  multiply(of.qkv, s.qkv_columns(), s.hidden, normed, qkv);
  launch_kernel(stream, rotate_kernel, {blocks, threads}, qkv, of.positions, s.qkv_columns(), s.q_columns() + s.kv_columns(),
                s.head_size, decoder::rope_base);
  launch_kernel(stream, attend_kernel, {dim3{blocks, static_cast<unsigned>(s.heads)}, threads}, qkv, of.positions, attended,
                scores, of.tokens, s.qkv_columns(), s.heads, s.kv_heads, s.head_size);
  multiply(of.o, s.hidden, s.q_columns(), attended, delta);
  launch_kernel(stream, norm_kernel, {blocks, threads}, x, delta, normed, of.norms + s.hidden, s.hidden);
  multiply(of.gate_up, 2 * s.ffn, s.hidden, normed, gate_up);
  launch_kernel(stream, swiglu_kernel, {blocks, threads}, gate_up, active, s.ffn);
  multiply(of.down, s.hidden, s.ffn, active, delta);
  const auto kept = [&](const double* from, std::size_t count) {
    std::vector<double> to(count);
    check(cudaMemcpyAsync(to.data(), from, count * sizeof(double), cudaMemcpyDeviceToHost, stream));
    return to;
  };
  ExactRows rows{kept(x, elements(s.hidden)), kept(delta, elements(s.hidden)), kept(qkv, elements(s.qkv_columns()))};
  check(cudaStreamSynchronize(stream));
  return rows;
}

}  // namespace aisp::ch20
