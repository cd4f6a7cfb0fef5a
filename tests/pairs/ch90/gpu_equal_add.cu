// SPDX-License-Identifier: Apache-2.0
// The same kernel twice, and one as short as kernels are: an addition of 64 Ki floats.
#include <aisp/pair.hpp>

#include <cuda_runtime.h>

namespace aisp::ch90 {
namespace {

constexpr unsigned count = 1u << 16, threads = 256;

__global__ void __launch_bounds__(threads) add_kernel(const float* a, const float* b, float* sums) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  sums[i] = a[i] + b[i];
}

class Add final : public Workload {
 public:
  explicit Add(Setup& setup)
      : a_{setup.input<float>(count, uniform(-1, 1))},
        b_{setup.input<float>(count, uniform(-1, 1))},
        sums_{setup.output<float>(count)} {}

  Cost cost() const override { return {.flops = count, .bytes = 3.0 * count * sizeof(float)}; }
  double expected(std::size_t index) const override { return static_cast<double>(a_.host(index)) + b_.host(index); }

  void added(Launch& launch) { launch(add_kernel, {count / threads, threads}, a_.get(), b_.get(), sums_.get()); }
  void again(Launch& launch) { added(launch); }

 private:
  Input<float> a_, b_;
  Output<float> sums_;
};

}  // namespace

extern constinit const Pair gpu_equal_add{
    .teaches = "the same kernel twice, as short as a kernel can be",
    .make = make<Add>,
    .baseline = {"added", call<&Add::added>},
    .optimized = variants({{"again", call<&Add::again>}}),
    .bound = Bound::memory,
};

}  // namespace aisp::ch90
