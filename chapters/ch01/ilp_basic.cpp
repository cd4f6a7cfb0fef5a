// SPDX-License-Identifier: Apache-2.0
// A dot product with one accumulator is a chain: each addition waits several cycles for the one before, while the core could
// start two or more vector operations in every cycle. The compiler may not break the chain, because another order of summation
// gives other bits. The programmer may: with several accumulators the additions overlap, with vectors each adds many elements,
// and the limit becomes the loads from the second-level cache that holds both vectors.
#include <aisp/pair.hpp>

#include <cstring>

namespace aisp::ch01 {
namespace {

constexpr std::size_t repetitions = 64;
constexpr std::size_t multiple = 128;  // eight accumulators of sixteen lanes

float dot_one(const float* a, const float* b, std::size_t count) {
  float sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// A compiler may keep the four sums in the lanes of one register: the same four chains in the same order, and no shorter ones.
float dot_four(const float* a, const float* b, std::size_t count) {
  float sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;
  for (std::size_t i = 0; i < count; i += 4) {
    sum0 += a[i] * b[i];
    sum1 += a[i + 1] * b[i + 1];
    sum2 += a[i + 2] * b[i + 2];
    sum3 += a[i + 3] * b[i + 3];
  }
  return (sum0 + sum1) + (sum2 + sum3);
}

template <int lanes>
struct Lanes {
  typedef float Vector __attribute__((vector_size(lanes * sizeof(float))));
};

// Inlined into functions with the vector unit of their own, where a product and a sum become one fused instruction. The loop
// over the accumulators must be unrolled for them to be registers.
template <int lanes>
[[gnu::always_inline]] inline float dot_eight(const float* a, const float* b, std::size_t count) {
  using Vector = typename Lanes<lanes>::Vector;
  constexpr int accumulators = 8;
  Vector sum[accumulators] = {};
  for (std::size_t i = 0; i < count; i += accumulators * lanes)
#pragma GCC unroll 8
    for (int k = 0; k < accumulators; ++k) {
      Vector x, y;
      std::memcpy(&x, a + i + k * lanes, sizeof x);
      std::memcpy(&y, b + i + k * lanes, sizeof y);
      sum[k] += x * y;
    }
  const Vector all = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
  float total = 0;
  for (int lane = 0; lane < lanes; ++lane) total += all[lane];
  return total;
}

using Dot = float (*)(const float* a, const float* b, std::size_t count);

#if defined(__x86_64__)
[[gnu::target("avx512f")]] float dot_avx512(const float* a, const float* b, std::size_t count) {
  return dot_eight<16>(a, b, count);
}
[[gnu::target("avx2,fma")]] float dot_avx2(const float* a, const float* b, std::size_t count) {
  return dot_eight<8>(a, b, count);
}
#endif
float dot_portable(const float* a, const float* b, std::size_t count) { return dot_eight<4>(a, b, count); }

Dot best_dot() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return dot_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return dot_avx2;
#endif
  return dot_portable;
}

class IlpBasic final : public Workload {
 public:
  // Integers up to 15: their products sum up to less than 2^24, so every order of summation must give the same, exact result,
  // and a single wrong or missing element shows.
  explicit IlpBasic(Setup& setup)
      : count_{setup.size("elements")},
        a_{setup.input<float>(count_, integers(0, 15))},
        b_{setup.input<float>(count_, integers(0, 15))},
        sums_{setup.output<float>(repetitions)},
        best_dot_{best_dot()} {}

  Cost cost() const override { return {.host_bytes = static_cast<double>(a_.bytes() + b_.bytes() + sums_.bytes())}; }
  double expected(std::size_t) const override { return reference_; }
  void compute_reference(Launch&) override {
    reference_ = 0;
    for (std::size_t i = 0; i < count_; ++i) reference_ += a_.host(i) * b_.host(i);
  }

  void one_accumulator(Launch&) { repeat(dot_one); }
  void four_accumulators(Launch&) { repeat(dot_four); }
  void simd_accumulators(Launch&) { repeat(best_dot_); }

 private:
  // Called through a pointer the compiler cannot see through: it may not replace 64 equal products by one.
  void repeat(Dot dot) const {
    Dot volatile opaque = dot;
    for (std::size_t i = 0; i < repetitions; ++i) sums_[i] = opaque(a_, b_, count_);
  }

  std::size_t count_;
  Input<float> a_, b_;
  Output<float> sums_;
  Dot best_dot_;
  double reference_ = 0;
};

}  // namespace

extern constinit const Pair ilp_basic{
    .teaches = "a single floating-point accumulator waits for itself in every addition, and the compiler may not reorder the sum",
    .lesson = "four_accumulators",
    .make = make<IlpBasic>,
    .baseline = {.name = "one_accumulator", .run = call<&IlpBasic::one_accumulator>},
    .optimized = variants({{.name = "four_accumulators", .run = call<&IlpBasic::four_accumulators>},
                           {.name = "simd_accumulators", .run = call<&IlpBasic::simd_accumulators>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    // Products are 56 in the mean, so that no longer sum is sure to be exact.
    .sizes = sizes({{.name = "elements", .full = 64u << 10, .multiple = multiple, .most = 256u << 10}}),
    .sweep = cases(
        {{"kib_8", "elements=2048"}, {"kib_32", "elements=8192"}, {"kib_256", "elements=65536"}, {"mib_1", "elements=262144"}}),
};

}  // namespace aisp::ch01
