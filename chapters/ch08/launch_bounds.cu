// SPDX-License-Identifier: Apache-2.0
// Two million small symmetric systems are solved by Cholesky's method, one a thread, matrices in registers. __launch_bounds__
// says how many threads a block may have, and so how many registers each may get: 65536 / 1024 = 64 where a helper says 1024 for
// all kernels, although blocks of 256 are launched. The matrix does not fit in 64 registers, and what is spilled moves through
// memory. With the true bound nothing is. Matrices are stored element by element, [element][system].
#include <aisp/libraries/fastest.hpp>
#include <aisp/pair.hpp>

#include <array>
#include <cmath>
#include <optional>

#include "residency.hpp"

namespace aisp::ch08 {
namespace {

constexpr int threads = 256, customary_bound = 1024;

__host__ __device__ constexpr int packed(int row, int column) { return row * (row + 1) / 2 + column; }

// L L^T = A, L y = b, L^T x = y. The order is added to the diagonal, which makes any matrix of values within [-1, 1] definite.
template <int order>
__device__ __forceinline__ void solve(const float* a, const float* b, float* x, std::size_t systems) {
  const std::size_t system = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  float l[packed(order, 0)], y[order];
#pragma unroll
  for (int i = 0; i < packed(order, 0); ++i) l[i] = a[i * systems + system];
#pragma unroll
  for (int i = 0; i < order; ++i) y[i] = b[i * systems + system];
#pragma unroll
  for (int j = 0; j < order; ++j) {
    float pivot = l[packed(j, j)] + order;
#pragma unroll
    for (int k = 0; k < j; ++k) pivot = fmaf(-l[packed(j, k)], l[packed(j, k)], pivot);
    const float inverse = rsqrtf(pivot);
#pragma unroll
    for (int i = j + 1; i < order; ++i) {
      float sum = l[packed(i, j)];
#pragma unroll
      for (int k = 0; k < j; ++k) sum = fmaf(-l[packed(i, k)], l[packed(j, k)], sum);
      l[packed(i, j)] = sum * inverse;
    }
    l[packed(j, j)] = inverse;  // only the inverse is needed
    float sum = y[j];
#pragma unroll
    for (int k = 0; k < j; ++k) sum = fmaf(-l[packed(j, k)], y[k], sum);
    y[j] = sum * inverse;
  }
#pragma unroll
  for (int j = order - 1; j >= 0; --j) {
    float sum = y[j];
#pragma unroll
    for (int k = j + 1; k < order; ++k) sum = fmaf(-l[packed(k, j)], y[k], sum);
    y[j] = sum * l[packed(j, j)];
    x[j * systems + system] = y[j];
  }
}

// The same code under other promises: at most so many threads a block, and at least so many blocks an SM.
template <int order, int most_threads, int least_blocks>
__global__ __launch_bounds__(most_threads, least_blocks) void bounded_kernel(const float* a, const float* b, float* x,
                                                                             std::size_t systems) {
  solve<order>(a, b, x, systems);
}
template <int order>
__global__ void unbounded_kernel(const float* a, const float* b, float* x, std::size_t systems) {
  solve<order>(a, b, x, systems);
}

using Kernel = void (*)(const float*, const float*, float*, std::size_t);
struct Choice {
  Kernel kernel;
  int threads;
};
struct Kernels {
  Kernel bound_1024, bound_256, unbounded;
  std::array<Choice, 4> swept;
};
template <int order>
Kernels kernels_of() {
  return {bounded_kernel<order, customary_bound, 1>,
          bounded_kernel<order, threads, 1>,
          unbounded_kernel<order>,
          {{{bounded_kernel<order, threads, 1>, threads},
            {bounded_kernel<order, threads, 2>, threads},
            {bounded_kernel<order, 128, 3>, 128},
            {bounded_kernel<order, 128, 4>, 128}}}};
}
Kernels kernels_for(std::size_t order) {
  switch (order) {
    case 8: return kernels_of<8>();
    case 12: return kernels_of<12>();
    case 14: return kernels_of<14>();
    case 16: return kernels_of<16>();
    default: throw Unsupported{"kernels are compiled for systems of order 8, 12, 14 and 16"};
  }
}

class LaunchBounds final : public Workload {
 public:
  explicit LaunchBounds(Setup& setup)
      : order_{setup.size("order")},
        kernels_{kernels_for(order_)},
        systems_{setup.scaled(std::size_t{2} << 20, threads)},
        a_{setup.input<float>(static_cast<std::size_t>(packed(static_cast<int>(order_), 0)) * systems_, uniform(-1, 1),
                              {.name = "matrices"})},
        b_{setup.input<float>(order_ * systems_, uniform(-1, 1), {.name = "right sides"})},
        x_{setup.output<float>(order_ * systems_, {.name = "solutions"})} {}

  // A third of the order's cube for the factor, and twice its square for the two triangles.
  Cost cost() const override {
    const auto n = static_cast<double>(order_);
    return {.flops = static_cast<double>(systems_) * (n * n * n / 3 + 2 * n * n),
            .bytes = static_cast<double>(a_.bytes() + b_.bytes() + x_.bytes())};
  }
  double expected(std::size_t index) const override {
    const std::size_t system = index % systems_;
    std::array<std::array<double, 16>, 16> l{};
    std::array<double, 16> y{};
    for (std::size_t i = 0; i < order_; ++i)
      for (std::size_t j = 0; j <= i; ++j) {
        double sum = a_.host((i * (i + 1) / 2 + j) * systems_ + system) + (i == j ? static_cast<double>(order_) : 0);
        for (std::size_t k = 0; k < j; ++k) sum -= l[i][k] * l[j][k];
        l[i][j] = i == j ? std::sqrt(sum) : sum / l[j][j];
      }
    for (std::size_t i = 0; i < order_; ++i) {
      y[i] = b_.host(i * systems_ + system);
      for (std::size_t k = 0; k < i; ++k) y[i] -= l[i][k] * y[k];
      y[i] /= l[i][i];
    }
    for (std::size_t i = order_; i-- > 0;) {
      for (std::size_t k = i + 1; k < order_; ++k) y[i] -= l[k][i] * y[k];
      y[i] /= l[i][i];
    }
    return y[index / systems_];
  }
  void metrics(std::string_view, Metrics& metrics) override { launched_.report(metrics); }

  void bounds_1024(Launch& launch) { run(launch, {kernels_.bound_1024, threads}); }
  void bounds_256(Launch& launch) { run(launch, {kernels_.bound_256, threads}); }
  void no_bounds(Launch& launch) { run(launch, {kernels_.unbounded, threads}); }

  void choose(Launch& launch) {
    if (!chosen_) chosen_ = fastest(launch.stream, kernels_.swept.size(), [&](std::size_t i) { run(launch, kernels_.swept[i]); });
  }
  void bounds_swept(Launch& launch) { run(launch, kernels_.swept.at(chosen_.value())); }

 private:
  void run(Launch& launch, const Choice& choice) {
    const auto blocks = static_cast<unsigned>(systems_) / static_cast<unsigned>(choice.threads);
    launched_.launch(launch, choice.kernel, {blocks, static_cast<unsigned>(choice.threads)}, a_, b_, x_, systems_);
  }

  std::size_t order_;
  Kernels kernels_;
  std::size_t systems_;
  Input<float> a_, b_;
  Output<float> x_;
  std::optional<std::size_t> chosen_;
  Residency launched_;
};

}  // namespace

extern constinit const Pair launch_bounds{
    .teaches =
        "a bound of 1024 threads caps a kernel at 64 registers, and what does not fit is spilled: state the block that is "
        "launched",
    .lesson = "bounds_256",
    .make = make<LaunchBounds>,
    .baseline = {.name = "bounds_1024", .run = call<&LaunchBounds::bounds_1024>},
    .optimized = variants({{.name = "bounds_256", .run = call<&LaunchBounds::bounds_256>},
                           {.name = "bounds_swept",
                            .run = call<&LaunchBounds::bounds_swept>,
                            .prepare = call<&LaunchBounds::choose>,
                            .best_of = {"bounds_256"}}}),
    .controls = variants({{.name = "no_bounds", .run = call<&LaunchBounds::no_bounds>}}),
    .bound = Bound::memory,
    // Diagonals between 11 and 13 and others below 1: the systems are well conditioned, and rsqrtf is off by two units at most.
    .tolerance = within(2e-6),
    .sizes = sizes({{.name = "order", .full = 12, .multiple = 2, .most = 16, .scales = false}}),
    .sweep = cases({{"order_8", "order=8"}, {"order_12", "order=12"}, {"order_14", "order=14"}, {"order_16", "order=16"}}),
    .edges = cases({{"order_2", "order=2"}, {"order_6", "order=6"}}),
};

}  // namespace aisp::ch08
