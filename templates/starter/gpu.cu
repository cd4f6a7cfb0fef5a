// SPDX-License-Identifier: Apache-2.0
// Say here what the pair is about: what its baseline waits for, and what the other variants do about that.
#include <aisp/pair.hpp>

namespace aisp::starter {
namespace {

constexpr int threads = 256;
constexpr std::size_t multiple = std::size_t{threads} * 4;  // so that no kernel needs a bounds check

__global__ void baseline_kernel(const float* in, float* out) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  out[i] = 2 * in[i];
}

__global__ void optimized_kernel(const float4* in, float4* out) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  const float4 x = in[i];
  out[i] = make_float4(2 * x.x, 2 * x.y, 2 * x.z, 2 * x.w);
}

class Work final : public Workload {
 public:
  explicit Work(Setup& setup)
      : count_{setup.size("count")}, in_{setup.input<float>(count_, uniform(-1, 1))}, out_{setup.output<float>(count_)} {}

  // The least that any variant must do: every input read once, every output written once.
  Cost cost() const override { return {.bytes = static_cast<double>(in_.bytes() + out_.bytes())}; }
  double expected(std::size_t i) const override { return 2 * in_.host(i); }

  void baseline(Launch& launch) { launch(baseline_kernel, {static_cast<unsigned>(count_ / threads), threads}, in_, out_); }
  void optimized(Launch& launch) {
    launch(optimized_kernel, {static_cast<unsigned>(count_ / multiple), threads}, reinterpret_cast<const float4*>(in_.get()),
           reinterpret_cast<float4*>(out_.get()));
  }

 private:
  std::size_t count_;
  Input<float> in_;
  Output<float> out_;
};

}  // namespace

extern constinit const Pair gpu{
    .teaches = "say here in one sentence what the pair shows",
    .make = make<Work>,
    .baseline = {.name = "scalar", .run = call<&Work::baseline>},
    .optimized = variants({{.name = "vectorized", .run = call<&Work::optimized>}}),
    .bound = Bound::memory,
    .tolerance = exact,
    // What --size count=... may set, and what --sweep measures.
    .sizes = sizes({{.name = "count", .full = 1 << 26, .multiple = multiple, .most = 1 << 30}}),
    .sweep = cases({{"mi_1", "count=1048576"}, {"mi_16", "count=16777216"}, {"mi_64", "count=67108864"}}),
};

}  // namespace aisp::starter
