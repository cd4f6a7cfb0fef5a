// SPDX-License-Identifier: Apache-2.0
// Say here what the pair is about: what its baseline waits for, and what the library does about that.
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

namespace aisp::starter {
namespace {

constexpr int tile = 16;

__global__ void baseline_kernel(const float* a, const float* b, float* c, int n) {
  const int row = static_cast<int>(blockIdx.y) * tile + static_cast<int>(threadIdx.y);
  const int column = static_cast<int>(blockIdx.x) * tile + static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += a[std::size_t(row) * n + k] * b[std::size_t(k) * n + column];
  c[std::size_t(row) * n + column] = sum;
}

class Work final : public Workload {
 public:
  explicit Work(Setup& setup)
      : n_{setup.scaled(2048, tile)},
        a_{setup.input<float>(n_ * n_, uniform(-1, 1))},
        b_{setup.input<float>(n_ * n_, uniform(-1, 1))},
        c_{setup.output<float>(n_ * n_)},
        cublas_{setup} {}

  // The least that any variant must do: every input read once, every output written once, and the arithmetic.
  Cost cost() const override {
    const auto n = static_cast<double>(n_);
    return {.flops = 2 * n * n * n, .math = Math::fp32, .bytes = static_cast<double>(a_.bytes() + b_.bytes() + c_.bytes())};
  }
  double expected(std::size_t i) const override {
    double sum = 0;
    for (std::size_t k = 0; k < n_; ++k) sum += a_.host(i / n_ * n_ + k) * b_.host(k * n_ + i % n_);
    return sum;
  }

  void baseline(Launch& launch) {
    const auto blocks = static_cast<unsigned>(n_ / tile);
    launch(baseline_kernel, {dim3{blocks, blocks}, dim3{tile, tile}}, a_, b_, c_, static_cast<int>(n_));
  }
  void cublas(Launch& launch) {
    const auto n = static_cast<int>(n_);
    cublas_->gemm(launch.stream, n, n, n, a_, b_, c_, CUDA_R_32F);
  }

 private:
  std::size_t n_;
  Input<float> a_, b_;
  Output<float> c_;
  Opened<Cublas> cublas_;  // opened before the first run of a variant whose needs name the library
};

}  // namespace

extern constinit const Pair library{
    .teaches = "say here in one sentence what the pair shows",
    .make = make<Work>,
    .baseline = {.name = "a_thread_an_element", .run = call<&Work::baseline>},
    .optimized = variants({{.name = "cublas", .run = call<&Work::cublas>, .needs = {.libraries = {Library::cublas}}}}),
    .bound = Bound::compute,
    .tolerance = reduction_of(2048),
};

}  // namespace aisp::starter
