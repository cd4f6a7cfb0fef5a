// SPDX-License-Identifier: Apache-2.0
// AdamW with weights in bf16. Most updates are less than half of the distance to the next bf16 value, and rounding to nearest
// loses them; so optimizers keep a copy of the weights in fp32, and memory is what limits them. Rounding up with the probability
// of what is cut off loses nothing on average and needs no copy: its random bits cost arithmetic, which is idle, from a
// counter-based generator that is called once for eight weights.
#include <cuda_bf16.h>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "rows.cuh"

namespace aisp::ch19 {
namespace {

using shared::bf16;
constexpr unsigned threads = 256;

struct Adam {
  float learning_rate, beta_1, beta_2, epsilon, decay, inverse_bias_1, inverse_bias_2;
};
constexpr Adam third_step{.learning_rate = 1e-4f,
                          .beta_1 = 0.9f,
                          .beta_2 = 0.95f,
                          .epsilon = 1e-8f,
                          .decay = 0.1f,
                          .inverse_bias_1 = 1 / (1 - 0.9f * 0.9f * 0.9f),
                          .inverse_bias_2 = 1 / (1 - 0.95f * 0.95f * 0.95f)};

// Weight and moments after a step. Root and quotient are approximate, a few parts in ten million of the update: exact ones would
// be most of the instructions. The first moment may cancel, so that its roundings, which the reference repeats, are spelled out.
__device__ __forceinline__ void step(const Adam& adam, float gradient, float& weight, float& m, float& v) {
  m = __fmaf_rn(adam.beta_1, m, __fmul_rn(1 - adam.beta_1, gradient));
  v = adam.beta_2 * v + (1 - adam.beta_2) * gradient * gradient;
  float root;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(adam.inverse_bias_2 * v));
  const float direction = __fdividef(adam.inverse_bias_1 * m, root + adam.epsilon);
  weight -= adam.learning_rate * (adam.decay * weight + direction);
}
// The reference's, of the same constants. `m` and `gradient` are numbers of fp32.
void step_on_host(const Adam& adam, double gradient, double& weight, double& m, double& v) {
  const float share = (1 - adam.beta_1) * static_cast<float>(gradient);
  m = static_cast<double>(std::fma(adam.beta_1, static_cast<float>(m), share));
  v = double{adam.beta_2} * v + double{1 - adam.beta_2} * gradient * gradient;
  const double direction = double{adam.inverse_bias_1} * m / (std::sqrt(double{adam.inverse_bias_2} * v) + double{adam.epsilon});
  weight -= double{adam.learning_rate} * (double{adam.decay} * weight + direction);
}

// Philox4x32 (Salmon and others: Parallel random numbers: as easy as 1, 2, 3, SC 2011), which is specified with ten rounds; seven
// are the fewest that pass its authors' tests.
constexpr unsigned multiplier_0 = 0xD2511F53u, multiplier_1 = 0xCD9E8D57u, weyl_0 = 0x9E3779B9u, weyl_1 = 0xBB67AE85u;

template <int rounds>
__device__ __forceinline__ uint4 philox(unsigned thread, unsigned stream, uint2 key) {
  uint4 state = make_uint4(thread, stream, 0, 0);
#pragma unroll
  for (int round = 0; round < rounds; ++round) {
    const unsigned high_0 = __umulhi(multiplier_0, state.x), low_0 = multiplier_0 * state.x;
    const unsigned high_1 = __umulhi(multiplier_1, state.z), low_1 = multiplier_1 * state.z;
    state = make_uint4(high_1 ^ state.y ^ key.x, low_1, high_0 ^ state.w ^ key.y, low_0);
    key.x += weyl_0, key.y += weyl_1;
  }
  return state;
}

// Rounds the magnitude up with a probability of 16 bits: those of fp32 that bf16 has not, added to as many random ones, carry
// over or not. What bf16 holds exactly stays, as do infinity and NaN, to which nothing is added.
__device__ __forceinline__ unsigned round_stochastically(float x, unsigned random) {
  const unsigned bits = __float_as_uint(x);
  return ((bits & 0x7F800000u) == 0x7F800000u ? bits : bits + (random & 0xFFFF)) >> 16;
}

// Four neighbours: 16 bytes of fp32, or 8 of bf16.
__device__ __forceinline__ float4 load(const float* from, unsigned quad) { return reinterpret_cast<const float4*>(from)[quad]; }
__device__ __forceinline__ float4 load(const bf16* from, unsigned quad) {
  const uint2 words = reinterpret_cast<const uint2*>(from)[quad];
  return make_float4(__uint_as_float(words.x << 16), __uint_as_float(words.x & 0xFFFF0000u), __uint_as_float(words.y << 16),
                     __uint_as_float(words.y & 0xFFFF0000u));
}
__device__ __forceinline__ void store_nearest(bf16* to, unsigned quad, const float4& x) {
  reinterpret_cast<uint2*>(to)[quad] = make_uint2(device::narrow_bf16(x.x, x.y), device::narrow_bf16(x.z, x.w));
}
// `low`, `high`: 16 random bits for each.
__device__ __forceinline__ void store_stochastic(bf16* to, unsigned quad, const float4& x, unsigned low, unsigned high) {
  reinterpret_cast<uint2*>(to)[quad] = make_uint2(round_stochastically(x.x, low) | round_stochastically(x.y, low >> 16) << 16,
                                                  round_stochastically(x.z, high) | round_stochastically(x.w, high >> 16) << 16);
}

template <class Weight, class Moment>
struct Before {
  const Weight* weights;
  const Moment *m, *v;
};
template <class Weight, class Moment>
struct After {
  Weight* weights;
  Moment *m, *v;
};

enum class Rounding { nearest, stochastic };

// A warp has 64 quads, and a thread two that lie 32 apart, so that every access of a warp is without gaps.
constexpr unsigned quads_of_warp = 64, apart = 32;

// The step is not in place, which moves the same bytes and lets every sample start from the same state. Where weights are fp32,
// `working` gets them as bf16, too.
template <Rounding rounding, int rounds, class Weight, class Moment>
__global__ __launch_bounds__(threads) void adam_kernel(Before<Weight, Moment> before, const bf16* __restrict__ gradients,
                                                       After<Weight, Moment> after, bf16* __restrict__ working,
                                                       const uint2* __restrict__ key, Adam adam, unsigned quads) {
  const unsigned thread = blockIdx.x * threads + threadIdx.x, first = thread / 32 * quads_of_warp + thread % 32;
  float4 weight[2] = {}, gradient[2] = {}, m[2] = {}, v[2] = {};
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned quad = first + half * apart;
    if (quad >= quads) continue;
    weight[half] = load(before.weights, quad);
    gradient[half] = load(gradients, quad);
    m[half] = load(before.m, quad);
    v[half] = load(before.v, quad);
  }
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    step(adam, gradient[half].x, weight[half].x, m[half].x, v[half].x);
    step(adam, gradient[half].y, weight[half].y, m[half].y, v[half].y);
    step(adam, gradient[half].z, weight[half].z, m[half].z, v[half].z);
    step(adam, gradient[half].w, weight[half].w, m[half].w, v[half].w);
  }
  const auto keep = [&](auto* to, const float4(&x)[2], unsigned stream) {
    uint4 random{};
    if constexpr (rounding == Rounding::stochastic && std::is_same_v<decltype(to), bf16*>)
      random = philox<rounds>(thread, stream, *key);
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned quad = first + half * apart;
      if (quad >= quads) continue;
      if constexpr (std::is_same_v<decltype(to), float*>) reinterpret_cast<float4*>(to)[quad] = x[half];
      else if constexpr (rounding == Rounding::nearest) store_nearest(to, quad, x[half]);
      else store_stochastic(to, quad, x[half], half == 0 ? random.x : random.z, half == 0 ? random.y : random.w);
    }
  };
  keep(after.weights, weight, 0);
  keep(after.m, m, 1);
  keep(after.v, v, 2);
  if constexpr (std::is_same_v<Weight, float>)
    for (unsigned half = 0; half < 2; ++half)
      if (const unsigned quad = first + half * apart; quad < quads) store_nearest(working, quad, weight[half]);
}

template <class From, class To>
__global__ __launch_bounds__(threads) void convert_kernel(const From* __restrict__ from, To* __restrict__ to, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i < count) to[i] = static_cast<To>(static_cast<float>(from[i]));
}

// The same numbers on the host, written on its own: the 16 bits of an element of a stream.
unsigned drawn_on_host(std::size_t element, std::uint32_t stream, int rounds, std::uint32_t key_0, std::uint32_t key_1) {
  const std::size_t quad = element / 4, thread = quad / quads_of_warp * 32 + quad % 32;
  std::array<std::uint32_t, 4> c{static_cast<std::uint32_t>(thread), stream, 0, 0};
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t first = std::uint64_t{multiplier_0} * c[0], second = std::uint64_t{multiplier_1} * c[2];
    c = {static_cast<std::uint32_t>(second >> 32) ^ c[1] ^ key_0, static_cast<std::uint32_t>(second),
         static_cast<std::uint32_t>(first >> 32) ^ c[3] ^ key_1, static_cast<std::uint32_t>(first)};
    key_0 += weyl_0, key_1 += weyl_1;
  }
  const std::size_t place = quad % quads_of_warp / apart * 4 + element % 4;
  return c[place / 2] >> (place % 2 * 16) & 0xFFFF;
}
double rounded_on_host(double x, unsigned random) {
  const auto single = static_cast<float>(x);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &single, sizeof bits);
  bits = (bits + random) & 0xFFFF0000u;
  float result = 0;
  std::memcpy(&result, &bits, sizeof result);
  return static_cast<double>(result);
}

class StochasticRounding final : public Workload {
 public:
  explicit StochasticRounding(Setup& setup)
      : count_{setup.size("parameters")},
        rounds_{static_cast<int>(setup.size("rounds"))},
        weights_{setup.input<bf16>(count_, weights(setup.size("huge_weights") != 0), {.name = "weights", .constant = true})},
        m_{setup.input<float>(count_, normal(0, 1e-3f), {.name = "first moment", .constant = true})},
        v_{setup.input<float>(count_, uniform(1e-7f, 4e-6f), {.name = "second moment", .constant = true})},
        gradients_{setup.input<bf16>(count_, gradients(), {.name = "gradients"})},
        key_{setup.input<std::uint32_t>(2, integers(0, 0xFFFFFFFF), {.name = "key of the generator"})},
        new_master_{setup.output<float>(count_, {.name = "new master weights"})},
        new_weights_{setup.output<bf16>(count_, {.name = "new weights"})},
        new_m_{setup.output<float>(count_, {.name = "new first moment"})},
        new_narrow_m_{setup.output<bf16>(count_, {.name = "new first moment in bf16"})},
        new_v_{setup.output<float>(count_, {.name = "new second moment"})},
        new_narrow_v_{setup.output<bf16>(count_, {.name = "new second moment in bf16"})},
        master_{setup.scratch<float>(count_, {.name = "master weights"})},
        narrow_m_{setup.scratch<bf16>(count_, {.name = "first moment in bf16"})},
        narrow_v_{setup.scratch<bf16>(count_, {.name = "second moment in bf16"})},
        working_{setup.scratch<bf16>(count_, {.name = "working copy of the weights"})} {
    if (rounds_ != 7 && rounds_ != 10) throw Unsupported{"the generator has 7 or 10 rounds"};
  }

  Cost cost() const override { return cost_of(28); }
  Cost variant_cost(std::string_view variant) const override {
    return cost_of(variant == "fp32_master" ? 28 : variant == "sr_all" ? 14 : 22);
  }
  double expected_output(int output, std::size_t i) const override { return after(i, false)[place_of(output)]; }
  // The generator is the same on the host, so that every code is known but where fp32 and float64 differ.
  double expected_quantized(std::string_view variant, int output, std::size_t i) const override {
    const double exact = after(i, variant == "sr_all")[place_of(output)];
    if (variant == "nearest" || output % 2 == 0) return exact;  // fp32, or rounded to nearest where it is compared
    const unsigned random = drawn_on_host(i, static_cast<std::uint32_t>(place_of(output)), rounds_, key_.host(0), key_.host(1));
    return rounded_on_host(exact, random);
  }
  // Checks the share of the updates that has arrived in the weights, and that stochastic rounding has no drift.
  void validate(std::string_view variant) override {
    const std::size_t part = std::min<std::size_t>(count_, std::size_t{1} << 18);
    const bool is_master = variant == "fp32_master";
    std::vector<bf16> found(part);
    check(cudaMemcpy(found.data(), is_master ? working_.get() : new_weights_.get(), found.size() * sizeof(bf16),
                     cudaMemcpyDeviceToHost));
    double wanted = 0, arrived = 0, drift = 0, counted = 0;
    for (std::size_t i = 0; i < part; ++i) {
      const double old = weights_.host(i), exact = after(i, variant == "sr_all")[0];
      const double weight = static_cast<double>(__bfloat162float(found[i]));
      if (std::abs(old) < 1e-3 || std::abs(old) > 1e3) continue;  // the others would be most of the sum, or none of it
      wanted += std::abs(exact - old);
      arrived += exact > old ? weight - old : old - weight;
      drift += (weight - exact) / std::exp2(std::floor(std::log2(std::abs(exact))) - 7);
      counted += 1;
    }
    arrived_[std::string{variant}] = wanted > 0 ? 100 * arrived / wanted : 100;
    // The deviation of one rounding is half a step at most.
    if (variant.starts_with("sr_") && std::abs(drift) > 4 * 0.5 * std::sqrt(counted))
      throw std::runtime_error{"the sum of " + std::to_string(counted) + " rounding errors is " + std::to_string(drift) +
                               " steps"};
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (const auto known = arrived_.find(variant); variant != "fp32_master" && known != arrived_.end())
      metrics.report("updates_that_arrive", known->second, "%", Metrics::Better::higher);
  }

  void make_master(Launch& launch) { convert(launch, weights_.get(), master_.get()); }
  void make_narrow_moments(Launch& launch) {
    convert(launch, m_.get(), narrow_m_.get());
    convert(launch, v_.get(), narrow_v_.get());
  }
  void fp32_master(Launch& launch) {
    run<Rounding::nearest, 10, float, float>(launch, {master_, m_, v_}, {new_master_, new_m_, new_v_});
  }
  void sr_weights(Launch& launch) { stochastic<bf16, float>(launch, {weights_, m_, v_}, {new_weights_, new_m_, new_v_}); }
  void sr_all(Launch& launch) {
    stochastic<bf16, bf16>(launch, {weights_, narrow_m_, narrow_v_}, {new_weights_, new_narrow_m_, new_narrow_v_});
  }
  void nearest(Launch& launch) {
    run<Rounding::nearest, 10, bf16, float>(launch, {weights_, m_, v_}, {new_weights_, new_m_, new_v_});
  }

 private:
  // Weights of both signs and both zeros; some are subnormal. `huge`: many of them near the largest of the type.
  Pattern weights(bool huge) const {
    const Axis all{1, count_};
    const Pattern pattern = normal(0, 0.5f)
                                .set(0, drawn(all, std::max<std::size_t>(count_ / 1024, 1)))
                                .set(-0.0f, drawn(all, std::max<std::size_t>(count_ / 1024, 1)))
                                .times(1e-38f, drawn(all, std::max<std::size_t>(count_ / 1024, 1)));
    return huge ? pattern.set(3.38e38f, drawn(all, std::max<std::size_t>(count_ / 8, 1))) : pattern;
  }
  Pattern gradients() const {
    return normal(0, 1e-3f)
        .times(100, drawn(Axis{1, count_}, 8))
        .set(0, drawn(Axis{1, count_}, std::max<std::size_t>(count_ / 64, 1)));
  }
  Cost cost_of(int bytes_of_parameter) const { return {.bytes = static_cast<double>(count_) * bytes_of_parameter}; }
  static std::size_t place_of(int output) { return static_cast<std::size_t>(output / 2); }
  // Weight and moments, exactly.
  std::array<double, 3> after(std::size_t i, bool narrow_moments) const {
    const auto stored = [&](double x) {
      return narrow_moments ? static_cast<double>(__bfloat162float(__float2bfloat16(static_cast<float>(x)))) : x;
    };
    double weight = weights_.host(i), m = stored(m_.host(i)), v = stored(v_.host(i));
    step_on_host(third_step, gradients_.host(i), weight, m, v);
    return {weight, m, v};
  }

  unsigned quads() const { return static_cast<unsigned>(count_ / 4); }
  static unsigned blocks_of(std::size_t items) { return static_cast<unsigned>((items + threads - 1) / threads); }
  template <class From, class To>
  void convert(Launch& launch, const From* from, To* to) {
    launch(convert_kernel<From, To>, {blocks_of(count_), threads}, from, to, count_);
  }
  template <Rounding rounding, int rounds, class Weight, class Moment>
  void run(Launch& launch, const Before<Weight, Moment>& before, const After<Weight, Moment>& after) {
    launch(adam_kernel<rounding, rounds, Weight, Moment>,
           {blocks_of((quads() + quads_of_warp - 1) / quads_of_warp * 32), threads}, before, gradients_, after, working_,
           reinterpret_cast<const uint2*>(key_.get()), third_step, quads());
  }
  template <class Weight, class Moment>
  void stochastic(Launch& launch, const Before<Weight, Moment>& before, const After<Weight, Moment>& after) {
    if (rounds_ == 7) run<Rounding::stochastic, 7, Weight, Moment>(launch, before, after);
    else run<Rounding::stochastic, 10, Weight, Moment>(launch, before, after);
  }

  std::size_t count_;
  int rounds_;
  Input<bf16> weights_;
  Input<float> m_, v_;
  Input<bf16> gradients_;
  Input<std::uint32_t> key_;
  // In pairs, so that the three of each variant come in the same order.
  Output<float> new_master_;
  Output<bf16> new_weights_;
  Output<float> new_m_;
  Output<bf16> new_narrow_m_;
  Output<float> new_v_;
  Output<bf16> new_narrow_v_;
  Scratch<float> master_;
  Scratch<bf16> narrow_m_, narrow_v_, working_;
  std::map<std::string, double, std::less<>> arrived_;  // in the weights, by variant: they are validated one after the other
};

constexpr std::uint32_t fp32_outputs = 0b010101, bf16_weights = 0b010110, bf16_outputs = 0b101010;
// A handful of roundings to fp32.
constexpr Tolerance in_fp32 = within(2e-7, 4e-6);
// Those move a sum by 2^-16 of a step of bf16, and 1 code in some ten thousand to its neighbour.
constexpr Tolerance same_codes = within_steps(1, 1e-3);

}  // namespace

extern constinit const Pair stochastic_rounding{
    .teaches =
        "unbiased rounding keeps weights and moments in bf16 without a copy in fp32, which is half of an optimizer's bytes",
    .lesson = "sr_weights",
    .make = make<StochasticRounding>,
    .baseline = {.name = "fp32_master",
                 .run = call<&StochasticRounding::fp32_master>,
                 .prepare = call<&StochasticRounding::make_master>,
                 .outputs = fp32_outputs},
    .optimized = variants({{.name = "sr_weights",
                            .run = call<&StochasticRounding::sr_weights>,
                            .changes_precision = true,
                            .tolerance = per_output({in_fp32, same_codes, in_fp32}),
                            .outputs = bf16_weights,
                            .kernels = {.local_bytes = 0}},
                           {.name = "sr_all",
                            .run = call<&StochasticRounding::sr_all>,
                            .prepare = call<&StochasticRounding::make_narrow_moments>,
                            .changes_precision = true,
                            .tolerance = same_codes,
                            .outputs = bf16_outputs,
                            .kernels = {.local_bytes = 0}}}),
    // As fast, and of the updates most are lost: it is the randomness that does it, and not the type.
    .controls = variants({{.name = "nearest",
                           .run = call<&StochasticRounding::nearest>,
                           .changes_precision = true,
                           .tolerance = per_output({in_fp32, same_codes, in_fp32}),
                           .outputs = bf16_weights}}),
    .bound = Bound::memory,
    .tolerance = in_fp32,
    .sizes = sizes({{.name = "parameters", .full = 200'000'000, .multiple = 4, .most = 1u << 30},
                    {.name = "rounds", .full = 10, .most = 10, .scales = false},
                    option("huge_weights")}),
    .sweep = cases({{"parameters_1m", "parameters=1048576"},
                    {"parameters_16m", "parameters=16777216"},
                    {"parameters_200m", "parameters=200000000"},
                    {"rounds_7", "rounds=7"},
                    {"rounds_10", "rounds=10"}}),
    .edges =
        cases({{"one_quad", "parameters=4"}, {"tail", "parameters=100008,rounds=7"}, {"huge", "parameters=4104,huge_weights=1"}}),
};

}  // namespace aisp::ch19
