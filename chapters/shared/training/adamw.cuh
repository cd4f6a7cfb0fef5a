// SPDX-License-Identifier: Apache-2.0
// AdamW on fp32 weights and moments, which also writes the weights in bf16 that the next step multiplies with.
#pragma once
#include <aisp/launch.hpp>

#include <cmath>
#include <cstddef>

#include "casts.cuh"

namespace aisp::training {

struct AdamW {
  float rate = 1e-3f, beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f, decay = 0.01f;
};
// One step of the training run; the first one is 1.
struct AdamWStep {
  AdamW of;
  float step_size, inverse_root2;

  AdamWStep(const AdamW& given, int step)
      : of{given},
        step_size{static_cast<float>(static_cast<double>(given.rate) / (1 - std::pow(static_cast<double>(given.beta1), step)))},
        inverse_root2{static_cast<float>(1 / std::sqrt(1 - std::pow(static_cast<double>(given.beta2), step)))} {}

  // T: float, or double for references.
  template <class T>
  __host__ __device__ void update(T& weight, T gradient, T& first, T& second) const {
    first = T{of.beta1} * first + (1 - T{of.beta1}) * gradient;
    second = T{of.beta2} * second + (1 - T{of.beta2}) * gradient * gradient;
    weight -= T{of.rate} * T{of.decay} * weight;
    weight -= T{step_size} * first / (sqrt(second) * T{inverse_root2} + T{of.epsilon});
  }
};

template <class Gradient>
__global__ __launch_bounds__(cast_threads) void adamw_kernel(WidePacket* __restrict__ weights,
                                                             const Gradient* __restrict__ gradients,
                                                             WidePacket* __restrict__ firsts, WidePacket* __restrict__ seconds,
                                                             Packet<__nv_bfloat16>* __restrict__ copies, unsigned packets,
                                                             AdamWStep step) {
  const unsigned i = blockIdx.x * cast_threads + threadIdx.x;
  if (i >= packets) return;
  WidePacket weight = weights[i], first = firsts[i], second = seconds[i];
  const Gradient gradient = gradients[i];
  Packet<__nv_bfloat16> copy;
#pragma unroll
  for (unsigned k = 0; k < cast_packet; ++k) {
    step.update(weight[k], static_cast<float>(gradient[k]), first[k], second[k]);
    copy[k] = __float2bfloat16_rn(weight[k]);
  }
  weights[i] = weight;
  firsts[i] = first;
  seconds[i] = second;
  copies[i] = copy;
}

struct AdamWState {
  float *weights, *firsts, *seconds;
  __nv_bfloat16* copies;
  std::size_t count;  // a multiple of 8
};
// `gradients` in bf16 or fp32.
template <class Gradient>
void update(Launch& launch, const AdamWState& state, const Gradient* gradients, const AdamWStep& step) {
  using Packets = std::conditional_t<sizeof(Gradient) == sizeof(float), WidePacket, Packet<Gradient>>;
  const auto wide = [](float* of) { return reinterpret_cast<WidePacket*>(of); };
  launch(adamw_kernel<Packets>, {cast_blocks(state.count), cast_threads}, wide(state.weights),
         reinterpret_cast<const Packets*>(gradients), wide(state.firsts), wide(state.seconds),
         reinterpret_cast<Packet<__nv_bfloat16>*>(state.copies), cast_packets(state.count), step);
}

}  // namespace aisp::training
