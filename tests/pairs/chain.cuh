// SPDX-License-Identifier: Apache-2.0
// Chains of dependent steps on the GPU: one wave of blocks, so that the time is the chain's length.
#pragma once
#include "chain.hpp"

#include <aisp/pair.hpp>

#include <cuda_runtime.h>

namespace aisp::fixtures {

inline constexpr unsigned chain_threads = 128;

__device__ inline std::uint32_t walk(std::uint32_t x, unsigned steps) {
#pragma unroll 1
  for (unsigned i = 0; i < steps; ++i) x = one_step.multiplier * x + one_step.increment;
  return x;
}

// A template, so that every pair has a kernel of its own.
template <unsigned steps>
__global__ void __launch_bounds__(chain_threads) chain_kernel(const std::uint32_t* in, std::uint32_t* out, unsigned wasted) {
  const unsigned i = blockIdx.x * chain_threads + threadIdx.x;
  const std::uint32_t result = walk(in[i], steps);
  out[i] = result;
  // Never true, which the compiler cannot know.
  if (wasted > 0 && walk(result, wasted) == result && wasted > ~0U / 2) out[i] = 0;
}

template <unsigned steps>
class GpuChain : public Workload {
 public:
  static constexpr Device device = Device::gpu;

  explicit GpuChain(Setup& setup)
      : in_{setup.input<std::uint32_t>(count, integers(0, 0xFFFFFFFF))}, out_{setup.output<std::uint32_t>(count)} {}

  Cost cost() const override { return {.bytes = 2.0 * count * sizeof(std::uint32_t)}; }
  double expected(std::size_t index) const override { return steps_at_once(steps)(in_.host(index)); }

  void walked(Launch& launch) { start(launch, 0); }
  void again(Launch& launch) { start(launch, wasted_); }

 private:
  static constexpr unsigned blocks = 64;
  static constexpr unsigned count = blocks * chain_threads;

  void start(Launch& launch, unsigned wasted) {
    chain_kernel<steps><<<blocks, chain_threads, 0, launch.stream>>>(in_, out_, wasted);
  }

  unsigned wasted_ = planted_steps(steps);
  Input<std::uint32_t> in_;
  Output<std::uint32_t> out_;
};

}  // namespace aisp::fixtures
