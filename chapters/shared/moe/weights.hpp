// SPDX-License-Identifier: Apache-2.0
// Weights of experts with SwiGLU, as inputs of a pair, so that activations keep unit size.
#pragma once
#include <cuda_bf16.h>
#include <aisp/setup.hpp>

#include <cmath>
#include <cstddef>

namespace aisp::moe {

struct ExpertWeights {
  // [expert][2 ffn][hidden], gate and up interleaved in groups of eight rows; [expert][hidden][ffn].
  Input<__nv_bfloat16> gate_up, down;

  ExpertWeights(Setup& setup, std::size_t experts, std::size_t hidden, std::size_t ffn, int gpu)
      : gate_up{setup.input<__nv_bfloat16>(experts * 2 * ffn * hidden, normal(0, deviation(hidden)),
                                           {.name = "weights of gate and up", .device = gpu})},
        down{setup.input<__nv_bfloat16>(experts * hidden * ffn, normal(0, deviation(ffn)),
                                        {.name = "weights of down", .device = gpu})} {}
  std::size_t bytes() const { return gate_up.bytes() + down.bytes(); }

 private:
  static float deviation(std::size_t inputs) { return 1 / std::sqrt(static_cast<float>(inputs)); }
};

}  // namespace aisp::moe
