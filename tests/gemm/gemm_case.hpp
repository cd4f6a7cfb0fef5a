// SPDX-License-Identifier: Apache-2.0
// A product of small integers, which every type of operands and sums holds exactly, so that what a GEMM gives is right to the
// last bit or wrong; and its reference in float64.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <random>
#include <vector>

#include "device/gpu_test.hpp"
#include "device/on_gpu.hpp"
#include "gemm/gemm.hpp"

namespace aisp::gemm {

using HopperTest = GpuTest<9, 9>;

constexpr float untouched = 96;  // what C holds before, in any type

template <class T>
std::vector<T> integers(std::size_t count, unsigned seed, int most = 3) {
  std::mt19937 random{seed};
  std::uniform_int_distribution<int> draw{-most, most};
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(static_cast<float>(draw(random)));
  return values;
}

// Powers of two from 1/4 to 4: scales that change no digit.
inline std::vector<float> powers_of_two(std::size_t count, unsigned seed) {
  std::vector<float> values(count);
  std::mt19937 random{seed};
  for (float& value : values) value = std::ldexp(1.0f, static_cast<int>(random() % 5) - 2);
  return values;
}

template <class T>
std::vector<float> as_floats(const std::vector<T>& values) {
  return {values.begin(), values.end()};
}

// Sums of s8 are exact for all of its values.
template <class T>
constexpr int most_of = std::is_same_v<T, std::int8_t> ? 127 : 3;

struct Sizes3 {
  std::size_t m, n, k, groups = 1;
};

// C = A B of the engine's Config C, with the matrices that it wants.
template <class C>
class Case {
 public:
  explicit Case(const Sizes3& of)
      : sizes{of},
        a_host_{integers<typename C::A::Element>(sizes.m * sizes.k, 1, most_of<typename C::A::Element>)},
        b_host_{integers<typename C::B::Element>(sizes.groups * sizes.n * sizes.k, 2, most_of<typename C::B::Element>)},
        a_{a_host_},
        b_{b_host_} {}

  // The sum for row i and column j, by the definition.
  double product(std::size_t i, std::size_t j, std::size_t group = 0) const { return product(i, j, group, 0, sizes.k); }
  double product(std::size_t i, std::size_t j, std::size_t group, std::size_t k_begin, std::size_t k_end) const {
    double sum = 0;
    for (std::size_t k = k_begin; k < k_end; ++k) {
      const std::size_t of_a = C::A::major == Major::k ? i * sizes.k + k : k * sizes.m + i;
      const std::size_t of_b =
          C::B::major == Major::k ? (group * sizes.n + j) * sizes.k + k : (group * sizes.k + k) * sizes.n + j;
      sum += static_cast<double>(static_cast<float>(a_host_[of_a])) * static_cast<double>(static_cast<float>(b_host_[of_b]));
    }
    return sum;
  }

  // Returns the engine's result, followed by 64 elements that it must leave alone. `Taken`: the Config whose operands the kernel
  // takes these bytes for; another one than C is a fault that a test plants.
  template <class Schedule = Bands, class Epilogue = Identity, class Store = TmaStore<>, class Taken = C>
  std::vector<float> run(const Epilogue& epilogue = {}, const Schedule& schedule = {}, const float* a_scales = nullptr,
                         const float* b_scales = nullptr, std::size_t a_scales_stride = 0,
                         const typename Store::Element* other = nullptr) const {
    using Engine = Gemm<Taken, Schedule, Epilogue, Store>;
    using Out = typename Store::Element;
    const std::size_t count = sizes.m * (sizes.n / Epilogue::narrowing);
    const OnGpu<Out> c{std::vector<Out>(count + 64, Out{untouched})};
    const typename Engine::Problem problem{.a = reinterpret_cast<const typename Taken::A::Element*>(a_.get()),
                                           .b = reinterpret_cast<const typename Taken::B::Element*>(b_.get()),
                                           .c = c.get(),
                                           .m = sizes.m,
                                           .n = sizes.n,
                                           .k = sizes.k,
                                           .groups = sizes.groups,
                                           .a_scales = a_scales,
                                           .b_scales = b_scales,
                                           .a_scales_stride = a_scales_stride,
                                           .other = other};
    const Engine gemm{problem, schedule};
    gemm.run(nullptr, epilogue);
    check(cudaDeviceSynchronize());
    return of_c(as_floats(c.host()), count);
  }

  // The same in ranges of K (GemmInRanges), whose kernels take workspaces of their own.
  template <class Ranges, class Epilogue, class Store>
  std::vector<float> run_in_ranges(const Epilogue& epilogue, const Ranges& ranges = {}) const {
    using Product = GemmInRanges<C, Epilogue, Store, Ranges>;
    const OnGpu<float> workspace{std::vector<float>(Product::workspace_floats(), untouched)};
    const std::size_t count = sizes.m * sizes.n;
    const OnGpu<bf16> c{std::vector<bf16>(count + 64, bf16{untouched})};
    const Product product{
        {.a = a_.get(), .b = b_.get(), .c = c.get(), .m = sizes.m, .n = sizes.n, .k = sizes.k, .groups = sizes.groups},
        workspace.get(),
        ranges};
    product.run(nullptr, epilogue);
    check(cudaDeviceSynchronize());
    return of_c(as_floats(c.host()), count);
  }

  // The same with a second part.
  struct SecondPart {
    const float *a_scales, *b_scales;
    const bf16 *a2, *b2;
    std::size_t k2;
    const int* used;
  };
  template <class Store>
  std::vector<float> run_two_parts(const SecondPart& second) const {
    using Engine = Gemm<C, Bands, Identity, Store>;
    using Out = typename Store::Element;
    const OnGpu<Out> c{std::vector<Out>(sizes.m * sizes.n, Out{untouched})};
    const Engine gemm{typename Engine::Problem{.a = a_.get(),
                                               .b = b_.get(),
                                               .c = c.get(),
                                               .m = sizes.m,
                                               .n = sizes.n,
                                               .k = sizes.k,
                                               .a_scales = second.a_scales,
                                               .b_scales = second.b_scales,
                                               .a2 = second.a2,
                                               .b2 = second.b2,
                                               .k2 = second.k2,
                                               .used = second.used}};
    gemm.run(nullptr);
    check(cudaDeviceSynchronize());
    return as_floats(c.host());
  }

  const Sizes3 sizes;

 private:
  // Without what lies behind C, which nobody may have touched.
  static std::vector<float> of_c(std::vector<float> results, std::size_t count) {
    for (std::size_t i = count; i < results.size(); ++i) EXPECT_EQ(results[i], untouched) << i - count << " elements behind C";
    results.resize(count);
    return results;
  }

  std::vector<typename C::A::Element> a_host_;
  std::vector<typename C::B::Element> b_host_;
  OnGpu<typename C::A::Element> a_;
  OnGpu<typename C::B::Element> b_;
};

// Whether the results are what expected(row, column) says: exactly, after rounding to Out once, or within `relative`.
template <class Out = bf16, class Expected>
testing::AssertionResult right(const std::vector<float>& results, std::size_t columns, const Expected& expected,
                               double relative = 0) {
  std::size_t wrong = 0, first = 0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const double exact = expected(i / columns, i % columns), rounded = static_cast<float>(Out{static_cast<float>(exact)});
    const double most = relative * (std::abs(exact) + 0.01);
    if (relative == 0 ? results[i] == rounded : std::abs(results[i] - exact) <= most) continue;
    if (wrong++ == 0) first = i;
  }
  if (wrong == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << wrong << " of " << results.size() << " are wrong, the first in row " << first / columns
                                     << ", column " << first % columns << ": " << results[first] << ", not "
                                     << expected(first / columns, first % columns);
}

// The comparison must see faults in results that are right: neighbouring columns exchanged, and rows that stand one too high.
template <class Out = bf16, class Expected>
void expect_shifts_seen(const std::vector<float>& results, std::size_t columns, const Expected& expected) {
  const std::size_t rows = results.size() / columns;
  EXPECT_FALSE(right<Out>(results, columns, [&](std::size_t i, std::size_t j) {
    return expected(i, (j ^ 1) < columns ? j ^ 1 : j);
  })) << "columns exchanged";
  if (rows > 1)
    EXPECT_FALSE(right<Out>(results, columns, [&](std::size_t i, std::size_t j) { return expected((i + 1) % rows, j); }))
        << "rows one too high";
}

}  // namespace aisp::gemm
