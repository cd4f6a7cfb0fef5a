// SPDX-License-Identifier: Apache-2.0
// AdamW on 250 million parameters. Two moments in fp32 are 16 of the 28 bytes that an update moves for each of them, and twice
// the memory of the weights. As codes of FP8 with one scale for 256 neighbours they are 4 bytes. A warp has such a block in
// registers: it decodes, updates, finds the new maxima and encodes. What that costs in accuracy is a metric, of 20 and of 200
// steps.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "rows.cuh"

namespace aisp::ch13 {
namespace {

using shared::bf16, shared::packet;

constexpr unsigned threads = 256;
constexpr unsigned block_values = 256, block_quads = block_values / 4;  // that share a scale, and are a warp's
constexpr std::size_t tensors = 32;

struct Adam {
  float learning_rate, beta1, beta2, epsilon, decay, inverse_bias1, inverse_bias2;
};
Adam adam_at(int step) {
  Adam adam{.learning_rate = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-8f, .decay = 0.01f};
  adam.inverse_bias1 = static_cast<float>(1 / (1 - std::pow(double{adam.beta1}, step)));
  adam.inverse_bias2 = static_cast<float>(1 / (1 - std::pow(double{adam.beta2}, step)));
  return adam;
}
__device__ __forceinline__ void update(const Adam& adam, float gradient, float& weight, float& m, float& v) {
  m = adam.beta1 * m + (1 - adam.beta1) * gradient;
  v = adam.beta2 * v + (1 - adam.beta2) * gradient * gradient;
  const float direction = __fdividef(adam.inverse_bias1 * m, sqrtf(adam.inverse_bias2 * v) + adam.epsilon);
  weight -= adam.learning_rate * (adam.decay * weight + direction);
}
void update_on_host(const Adam& adam, double gradient, double& weight, double& m, double& v) {
  m = double{adam.beta1} * m + (1 - double{adam.beta1}) * gradient;
  v = double{adam.beta2} * v + (1 - double{adam.beta2}) * gradient * gradient;
  const double direction = double{adam.inverse_bias1} * m / (std::sqrt(double{adam.inverse_bias2} * v) + double{adam.epsilon});
  weight -= double{adam.learning_rate} * (double{adam.decay} * weight + direction);
}

// Philox4x32 with seven rounds, the fewest that pass its authors' tests: 128 bits, 16 for each of eight values.
struct Random {
  unsigned words[4];
  __device__ __forceinline__ unsigned of(int value) const { return words[value / 2] >> (value % 2 * 16) & 0xFFFF; }
};
__device__ __forceinline__ Random philox(unsigned thread, unsigned moment, unsigned step) {
  uint4 state = make_uint4(thread, moment, step, 0);
  unsigned key0 = 0x2545F491u, key1 = 0x4F6CDD1Du;
#pragma unroll
  for (int round = 0; round < 7; ++round) {
    const unsigned high0 = __umulhi(0xD2511F53u, state.x), low0 = 0xD2511F53u * state.x;
    const unsigned high1 = __umulhi(0xCD9E8D57u, state.z), low1 = 0xCD9E8D57u * state.z;
    state = make_uint4(high1 ^ state.y ^ key0, low1, high0 ^ state.w ^ key1, low0);
    key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
  }
  return {{state.x, state.y, state.z, state.w}};
}

// A lane's eight values of a block: two quads that lie 32 apart, so that the accesses of a warp have no gaps.
struct Place {
  std::size_t block, quad[2];
  bool exists[2];
  unsigned thread, step;  // of the random numbers
};

template <class Use>
__device__ __forceinline__ void for_quads(const Place& at, Use use) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (at.exists[half]) use(at.quad[half], 4 * half);
}
__device__ __forceinline__ void load(const float* from, const Place& at, float (&x)[packet]) {
  for_quads(at, [&](std::size_t quad, int first) {
    const float4 values = reinterpret_cast<const float4*>(from)[quad];
    x[first] = values.x, x[first + 1] = values.y, x[first + 2] = values.z, x[first + 3] = values.w;
  });
}
__device__ __forceinline__ void load(const bf16* from, const Place& at, float (&x)[packet]) {
  for_quads(at, [&](std::size_t quad, int first) {
    const uint2 words = reinterpret_cast<const uint2*>(from)[quad];
    x[first] = __uint_as_float(words.x << 16), x[first + 1] = __uint_as_float(words.x & 0xFFFF0000u);
    x[first + 2] = __uint_as_float(words.y << 16), x[first + 3] = __uint_as_float(words.y & 0xFFFF0000u);
  });
}
__device__ __forceinline__ void store(float* to, const Place& at, const float (&x)[packet]) {
  for_quads(at, [&](std::size_t quad, int first) {
    reinterpret_cast<float4*>(to)[quad] = make_float4(x[first], x[first + 1], x[first + 2], x[first + 3]);
  });
}
__device__ __forceinline__ void store(bf16* to, const Place& at, const float (&x)[packet]) {
  for_quads(at, [&](std::size_t quad, int first) {
    reinterpret_cast<uint2*>(to)[quad] =
        make_uint2(device::narrow_bf16(x[first], x[first + 1]), device::narrow_bf16(x[first + 2], x[first + 3]));
  });
}

enum class Rounding { nearest, stochastic, through_codes };

// Values that E4M3 holds, in units of 2^-9 below 2^-6 and with three bits of mantissa above: up with the probability of what is
// cut off. `x` is not negative.
__device__ __forceinline__ float round_to_e4m3(float x, unsigned random) {
  constexpr float least_normal = 0x1p-6f;
  const float offset = x < least_normal ? least_normal : 0;  // in the next binade, whose steps are the same
  return __uint_as_float((__float_as_uint(x + offset) + (random << 4)) & 0xFFF00000u) - offset;
}

// The scale of a block whose largest magnitude this is, and what values are multiplied by before they are rounded.
struct Scale {
  float scale, inverse;
};
__device__ __forceinline__ Scale scale_of(float largest) {
  constexpr float largest_code = 448;
  if (!(largest > 1e-30f)) return {0, 0};
  return {largest / largest_code, largest_code / largest};
}
// Eight values in units of the scale, as E4M3 holds them. No root of a second moment becomes 0 that is not: steps would explode.
template <Rounding rounding, bool is_root>
__device__ __forceinline__ void to_codes(const float (&x)[packet], float inverse, const Place& at, uint2& codes) {
  Random random{};
  if constexpr (rounding == Rounding::stochastic) random = philox(at.thread, is_root ? 1 : 0, at.step);
  unsigned pairs[4];
#pragma unroll
  for (int i = 0; i < packet; i += 2) {
    float two[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float scaled = x[i + j] * inverse;
      if constexpr (is_root) scaled = x[i + j] > 0 ? fmaxf(scaled, 0x1p-9f) : 0;
      if constexpr (rounding == Rounding::stochastic) scaled = copysignf(round_to_e4m3(fabsf(scaled), random.of(i + j)), scaled);
      two[j] = scaled;
    }
    pairs[i / 2] = __nv_cvt_float2_to_fp8x2(make_float2(two[0], two[1]), __NV_SATFINITE, __NV_E4M3);
  }
  codes = make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}
__device__ __forceinline__ void from_codes(const uint2& codes, float scale, float (&x)[packet]) {
  const unsigned words[2] = {codes.x, codes.y};
#pragma unroll
  for (int i = 0; i < packet; i += 2) {
    const auto two = static_cast<__nv_fp8x2_storage_t>(words[i / 4] >> (i % 4 * 8));
    const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)));
    x[i] = values.x * scale, x[i + 1] = values.y * scale;
  }
}

// Both moments in one type.
template <class T>
struct Plain {
  T *m, *v;

  __device__ __forceinline__ void load_moments(const Place& at, float (&m_of)[packet], float (&v_of)[packet]) const {
    load(m, at, m_of);
    load(v, at, v_of);
  }
  template <Rounding rounding>
  __device__ __forceinline__ void store_moments(const Place& at, float (&m_of)[packet], float (&v_of)[packet]) const;
};
// Codes of the first moment and of the root of the second, whose range is half as wide.
struct Coded {
  unsigned *m, *v;  // quads of codes
  float *m_scales, *v_scales;

  __device__ __forceinline__ void load_moments(const Place& at, float (&m_of)[packet], float (&v_of)[packet]) const {
    uint2 m_codes{}, v_codes{};
    for_quads(at, [&](std::size_t quad, int first) {
      (first == 0 ? m_codes.x : m_codes.y) = m[quad];
      (first == 0 ? v_codes.x : v_codes.y) = v[quad];
    });
    from_codes(m_codes, m_scales[at.block], m_of);
    from_codes(v_codes, v_scales[at.block], v_of);
#pragma unroll
    for (float& root : v_of) root *= root;
  }
  template <Rounding rounding>
  __device__ __forceinline__ void store_moments(const Place& at, float (&m_of)[packet], float (&v_of)[packet]) const;
};

struct BlockCodes {
  uint2 m, v;
  float m_scale, v_scale;
};
template <Rounding rounding>
__device__ __forceinline__ BlockCodes encode(const Place& at, const float (&m)[packet], const float (&v)[packet]) {
  float roots[packet], largest_m = 0, largest_root = 0;
#pragma unroll
  for (int i = 0; i < packet; ++i) {
    roots[i] = sqrtf(v[i]);
    largest_m = fmaxf(largest_m, fabsf(m[i]));
    largest_root = fmaxf(largest_root, roots[i]);
  }
  const Scale of_m = scale_of(device::warp_max(largest_m)), of_root = scale_of(device::warp_max(largest_root));
  BlockCodes result{.m_scale = of_m.scale, .v_scale = of_root.scale};
  to_codes<rounding, false>(m, of_m.inverse, at, result.m);
  to_codes<rounding, true>(roots, of_root.inverse, at, result.v);
  return result;
}

template <class T>
template <Rounding rounding>
__device__ __forceinline__ void Plain<T>::store_moments(const Place& at, float (&m_of)[packet], float (&v_of)[packet]) const {
  if constexpr (rounding == Rounding::through_codes) {
    const BlockCodes codes = encode<Rounding::nearest>(at, m_of, v_of);
    from_codes(codes.m, codes.m_scale, m_of);
    from_codes(codes.v, codes.v_scale, v_of);
#pragma unroll
    for (float& root : v_of) root *= root;
  }
  if constexpr (rounding == Rounding::stochastic) {
    const Random of_m = philox(at.thread, 0, at.step), of_v = philox(at.thread, 1, at.step);
#pragma unroll
    for (int i = 0; i < packet; ++i) {  // bits that bf16 has not carry over, or are cut off by its conversion
      m_of[i] = __uint_as_float((__float_as_uint(m_of[i]) + of_m.of(i)) & 0xFFFF0000u);
      v_of[i] = __uint_as_float((__float_as_uint(v_of[i]) + of_v.of(i)) & 0xFFFF0000u);
    }
  }
  store(m, at, m_of);
  store(v, at, v_of);
}
template <Rounding rounding>
__device__ __forceinline__ void Coded::store_moments(const Place& at, float (&m_of)[packet], float (&v_of)[packet]) const {
  const BlockCodes codes = encode<rounding>(at, m_of, v_of);
  for_quads(at, [&](std::size_t quad, int first) {
    m[quad] = first == 0 ? codes.m.x : codes.m.y;
    v[quad] = first == 0 ? codes.v.x : codes.v.y;
  });
  if (threadIdx.x % 32 == 0) m_scales[at.block] = codes.m_scale, v_scales[at.block] = codes.v_scale;
}

// Tensors of equal length lie one after the other; the last block of each may be short.
struct Blocks {
  unsigned tensor_quads, of_tensor, all;
};
__device__ __forceinline__ Place place_of(const Blocks& blocks, unsigned block, unsigned step) {
  const unsigned tensor = block / blocks.of_tensor, lane = threadIdx.x % 32;
  const unsigned first = block % blocks.of_tensor * block_quads + lane;
  const std::size_t base = std::size_t{tensor} * blocks.tensor_quads + first;
  return {.block = block,
          .quad = {base, base + 32},
          .exists = {first < blocks.tensor_quads, first + 32 < blocks.tensor_quads},
          .thread = block * 32 + lane,
          .step = step};
}

// Not in place, which moves the same bytes and lets every sample start from the same state.
template <class Moments, Rounding rounding>
__global__ __launch_bounds__(threads) void adam_kernel(const float* __restrict__ weights, const bf16* __restrict__ gradients,
                                                       Moments before, Moments after, float* __restrict__ new_weights,
                                                       bf16* __restrict__ working, Adam adam, Blocks blocks, unsigned step) {
  const unsigned block = (blockIdx.x * threads + threadIdx.x) / 32;
  if (block >= blocks.all) return;
  const Place at = place_of(blocks, block, step);
  float weight[packet] = {}, gradient[packet] = {}, m[packet] = {}, v[packet] = {};
  load(weights, at, weight);
  load(gradients, at, gradient);
  before.load_moments(at, m, v);
#pragma unroll
  for (int i = 0; i < packet; ++i) update(adam, gradient[i], weight[i], m[i], v[i]);
  store(new_weights, at, weight);
  store(working, at, weight);
  after.template store_moments<rounding>(at, m, v);
}

// The state that all begin with is what the codes say, in each variant's own type.
template <class T>
__global__ __launch_bounds__(threads) void decode_kernel(Coded from, Plain<T> to, Blocks blocks) {
  const unsigned block = (blockIdx.x * threads + threadIdx.x) / 32;
  if (block >= blocks.all) return;
  const Place at = place_of(blocks, block, 0);
  float m[packet] = {}, v[packet] = {};
  from.load_moments(at, m, v);
  to.template store_moments<Rounding::nearest>(at, m, v);
}

// Moments of `count` values in memory that holds nothing else.
template <class T>
Plain<T> moments_in(const Scratch<std::byte>& memory, std::size_t count, Plain<T>*) {
  T* const first = reinterpret_cast<T*>(memory.get());
  return {first, first + count};
}
Coded moments_in(const Scratch<std::byte>& memory, std::size_t count, Coded*) {
  auto* const codes = reinterpret_cast<unsigned*>(memory.get());
  auto* const scales = reinterpret_cast<float*>(codes + count / 2);
  return {codes, codes + count / 4, scales, scales + (memory.bytes() - 2 * count) / 8};
}
constexpr std::size_t coded_bytes(std::size_t count, std::size_t blocks) { return 2 * count + 8 * blocks; }

// Twenty and two hundred steps from zero, of blocks of different kinds, whose changes of weights are compared with float64.
constexpr std::size_t drift_blocks = 64, drift_count = drift_blocks * block_values, outlier_block = 9;
constexpr int few_steps = 20, many_steps = 200;
constexpr double most_error = 0.12;

// Gradients of a block are alike or differ by a factor of up to e^2, have a mean or not, or stay the same for all steps; one
// block has none, and one has a single value that makes all others of the block small beside it.
float drift_gradient(int step, std::size_t i) {
  const std::size_t block = i / block_values;
  if (block == 5) return 0;
  if (block == outlier_block && i % block_values == 17) return 1e4f;
  const float drawn = pattern_value<float>(normal(0, 1), 1, static_cast<std::size_t>(step) * drift_count + i);
  const float size = 1e-3f * std::exp(pattern_value<float>(uniform(-1, 1), 2, i));
  switch (block % 4) {
    case 0: return size * (0.5f + drawn);
    case 1: return 1e-3f * drawn;
    case 2: return size;
    default: return size * drawn;
  }
}

struct Drift {
  double few = 0, many = 0;  // relative L2 of the change of weights after few and many steps
};

class Adam8bit final : public Workload {
 public:
  explicit Adam8bit(Setup& setup)
      : count_{setup.size("parameters")},
        blocks_{blocks_of(count_ / tensors, tensors)},
        weights_{setup.input<float>(count_, normal(0, 0.02f), {.name = "weights", .constant = true})},
        gradients_{setup.input<bf16>(count_, gradients(), {.name = "gradients"})},
        codes_m_{setup.input<__nv_fp8_e4m3>(count_, normal(0, 100).set(0, zeros()), {.name = "codes of m", .constant = true})},
        codes_v_{setup.input<__nv_fp8_e4m3>(count_, uniform(16, 448).set(0, zeros()),
                                            {.name = "codes of the root of v", .constant = true})},
        scales_m_{setup.input<float>(blocks_.all, uniform(5e-6f, 2e-5f), {.name = "scales of m", .constant = true})},
        scales_v_{setup.input<float>(blocks_.all, uniform(5e-6f, 2e-5f), {.name = "scales of the root of v", .constant = true})},
        new_weights_{setup.output<float>(count_, {.name = "new weights"})},
        working_{setup.scratch<bf16>(count_, {.name = "weights in bf16"})},
        fp32_{setup, 8 * count_},
        bf16_{setup, 4 * count_},
        codes_{setup, coded_bytes(count_, blocks_.all)},
        drift_gradients_{setup.scratch<bf16>(many_steps * drift_count, {.name = "gradients of 200 steps"})},
        drift_weights_{setup.scratch<float>(2 * drift_count, {.name = "weights of 200 steps"})},
        drift_working_{setup.scratch<bf16>(drift_count, {.name = "weights in bf16 of 200 steps"})},
        drift_moments_{setup, 8 * drift_count} {}

  Cost cost() const override { return cost_of(8); }
  Cost variant_cost(std::string_view variant) const override { return cost_of(state_bytes(variant)); }
  double expected(std::size_t i) const override { return after(i, false).weight; }
  // The weights' change is computed before moments are rounded.
  double expected_quantized(std::string_view variant, int, std::size_t i) const override {
    return after(i, variant == "bf16_moments").weight;
  }
  // The moments that are kept, of the first blocks; and the errors of many steps.
  void validate(std::string_view variant) override {
    const Drift& drift = drifts_.find(variant)->second;
    if (!(drift.few <= most_error))
      throw std::runtime_error{"after 20 steps the change of weights is off by " + std::to_string(drift.few)};
    if (variant.starts_with("block_fp8")) check_codes(variant == "block_fp8_stochastic" ? 1.0 : 0.5);
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    const Drift& drift = drifts_.find(variant)->second;
    metrics.report("error_20_steps", 100 * drift.few, "%", Metrics::Better::lower);
    metrics.report("error_200_steps", 100 * drift.many, "%", Metrics::Better::lower);
    metrics.report("moments_per_parameter", state_bytes(variant), "bytes", Metrics::Better::lower);
    metrics.report_rate("parameters_per_second", static_cast<double>(count_), "parameters/s");
  }

  void prepare_fp32(Launch& launch) { prepare<Plain<float>, Rounding::nearest>(launch, fp32_, "fp32_moments"); }
  void fp32_moments(Launch& launch) { run<Plain<float>, Rounding::nearest>(launch, fp32_); }
  void prepare_bf16(Launch& launch) { prepare<Plain<bf16>, Rounding::stochastic>(launch, bf16_, "bf16_moments"); }
  void bf16_moments(Launch& launch) { run<Plain<bf16>, Rounding::stochastic>(launch, bf16_); }
  void prepare_codes(Launch& launch) { prepare<Coded, Rounding::nearest>(launch, codes_, "block_fp8"); }
  void block_fp8(Launch& launch) { run<Coded, Rounding::nearest>(launch, codes_); }
  void prepare_stochastic(Launch& launch) { prepare<Coded, Rounding::stochastic>(launch, codes_, "block_fp8_stochastic"); }
  void block_fp8_stochastic(Launch& launch) { run<Coded, Rounding::stochastic>(launch, codes_); }
  void prepare_through_codes(Launch& launch) {
    prepare<Plain<float>, Rounding::through_codes>(launch, fp32_, "fp32_through_codes");
  }
  void fp32_through_codes(Launch& launch) { run<Plain<float>, Rounding::through_codes>(launch, fp32_); }

 private:
  // Where a step's moments come from and where they go.
  struct Memory {
    Scratch<std::byte> before, after;
    Memory(Setup& setup, std::size_t bytes)
        : before{setup.scratch<std::byte>(bytes, {.name = "moments"})},
          after{setup.scratch<std::byte>(bytes, {.name = "new moments"})} {}
  };
  struct After {
    double weight, m, v;
  };

  static Blocks blocks_of(std::size_t of_tensor, std::size_t count) {
    const auto quads = static_cast<unsigned>(of_tensor / 4), blocks = (quads + block_quads - 1) / block_quads;
    return {quads, blocks, static_cast<unsigned>(count) * blocks};
  }
  static unsigned grid(const Blocks& blocks) { return (blocks.all + threads / 32 - 1) / (threads / 32); }
  double state_bytes(std::string_view variant) const {
    if (variant == "bf16_moments") return 4;
    if (!variant.starts_with("block_fp8")) return 8;
    return static_cast<double>(coded_bytes(count_, blocks_.all)) / static_cast<double>(count_);
  }
  Cost cost_of(double state_bytes) const {
    const auto parameters = static_cast<double>(count_);
    return {.flops = 15 * parameters, .bytes = parameters * (2 + 8 + 2 + 2 * state_bytes)};
  }
  // One block has neither moments nor gradients; in another one gradient is huge. In all of them sizes differ by a factor of e^4.
  Places zeros() const { return at(Axis{block_values, count_ / block_values + 1}, 5); }
  Pattern gradients() const {
    return normal(0, 1e-3f)
        .times(0.14f, 7.4f, all_of(Axis{1, block_values}))
        .set(0, zeros())
        .set(1e4f, at(Axis{1, count_}, outlier_block * block_values + 17));
  }
  std::size_t block_of(std::size_t i) const {
    const std::size_t of_tensor = count_ / tensors;
    return i / of_tensor * blocks_.of_tensor + i % of_tensor / block_values;
  }
  After after(std::size_t i, bool from_bf16) const {
    const auto stored = [&](float x) {
      return from_bf16 ? static_cast<double>(__bfloat162float(__float2bfloat16(x))) : static_cast<double>(x);
    };
    const std::size_t block = block_of(i);
    const float root = static_cast<float>(codes_v_.host(i)) * static_cast<float>(scales_v_.host(block));
    After result{weights_.host(i), stored(static_cast<float>(codes_m_.host(i)) * static_cast<float>(scales_m_.host(block))),
                 stored(root * root)};
    update_on_host(adam_at(first_step), gradients_.host(i), result.weight, result.m, result.v);
    return result;
  }

  template <class Moments, Rounding rounding>
  void run(Launch& launch, const Memory& memory) {
    Moments* const type = nullptr;
    launch(adam_kernel<Moments, rounding>, {grid(blocks_), threads}, weights_, gradients_,
           moments_in(memory.before, count_, type), moments_in(memory.after, count_, type), new_weights_, working_,
           adam_at(first_step), blocks_, first_step);
  }
  template <class Moments, Rounding rounding>
  void prepare(Launch& launch, const Memory& memory, const char* variant) {
    const Coded codes = moments_in(codes_.before, count_, static_cast<Coded*>(nullptr));
    const auto copy = [&](void* to, const void* from, std::size_t bytes) {
      check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, launch.stream));
    };
    copy(codes.m, codes_m_, codes_m_.bytes());
    copy(codes.v, codes_v_, codes_v_.bytes());
    copy(codes.m_scales, scales_m_, scales_m_.bytes());
    copy(codes.v_scales, scales_v_, scales_v_.bytes());
    if constexpr (!std::is_same_v<Moments, Coded>)
      launch(decode_kernel<std::remove_pointer_t<decltype(Moments::m)>>, {grid(blocks_), threads}, codes,
             moments_in(memory.before, count_, static_cast<Moments*>(nullptr)), blocks_);
    if (drifts_.find(variant) == drifts_.end()) drifts_[variant] = measure_drift<Moments, rounding>(launch);
  }

  template <class Moments, Rounding rounding>
  Drift measure_drift(Launch& launch) {
    std::vector<bf16> gradients(many_steps * drift_count);
    for (std::size_t i = 0; i < gradients.size(); ++i)
      gradients[i] = __float2bfloat16(drift_gradient(static_cast<int>(i / drift_count), i % drift_count));
    check(cudaMemcpyAsync(drift_gradients_, gradients.data(), drift_gradients_.bytes(), cudaMemcpyHostToDevice, launch.stream));
    check(cudaMemsetAsync(drift_weights_, 0, drift_weights_.bytes(), launch.stream));
    check(cudaMemsetAsync(drift_moments_.before, 0, drift_moments_.before.bytes(), launch.stream));
    const Blocks blocks = blocks_of(drift_count, 1);
    Moments from = moments_in(drift_moments_.before, drift_count, static_cast<Moments*>(nullptr));
    Moments to = moments_in(drift_moments_.after, drift_count, static_cast<Moments*>(nullptr));
    std::vector<double> weights(drift_count), m(drift_count), v(drift_count);
    std::vector<float> found(drift_count);
    Drift drift;
    float* weight = drift_weights_.get();
    float* new_weight = weight + drift_count;
    for (int step = 1; step <= many_steps; ++step) {
      const std::size_t first = static_cast<std::size_t>(step - 1) * drift_count;
      launch(adam_kernel<Moments, rounding>, {grid(blocks), threads}, weight, drift_gradients_.get() + first, from, to,
             new_weight, drift_working_, adam_at(step), blocks, step);
      std::swap(from, to);
      std::swap(weight, new_weight);
      for (std::size_t i = 0; i < drift_count; ++i)
        update_on_host(adam_at(step), static_cast<double>(__bfloat162float(gradients[first + i])), weights[i], m[i], v[i]);
      if (step != few_steps && step != many_steps) continue;
      check(cudaMemcpyAsync(found.data(), weight, found.size() * sizeof(float), cudaMemcpyDeviceToHost, launch.stream));
      check(cudaStreamSynchronize(launch.stream));
      (step == few_steps ? drift.few : drift.many) = error_of(found, weights, step);
    }
    return drift;
  }
  // Of all blocks but that of the outlier, whose small values have no codes: their steps are only bounded.
  static double error_of(const std::vector<float>& found, const std::vector<double>& expected, int step) {
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const double difference = static_cast<double>(found[i]) - expected[i];
      if (!(std::abs(static_cast<double>(found[i])) <= 5e-3 * step))
        throw std::runtime_error{"a weight has moved by " + std::to_string(found[i]) + " in " + std::to_string(step) + " steps"};
      if (i / block_values == outlier_block) continue;
      error += difference * difference;
      norm += expected[i] * expected[i];
    }
    return std::sqrt(error / norm);
  }

  // At most `steps` of a code away: half a one where they are rounded to nearest.
  void check_codes(double steps) const {
    const std::size_t part = std::min<std::size_t>(count_ / tensors, 64 * block_values);
    std::vector<__nv_fp8_e4m3> m(part), v(part);
    const std::size_t blocks = (part + block_values - 1) / block_values;
    std::vector<float> m_scales(blocks), v_scales(blocks);
    const Coded codes = moments_in(codes_.after, count_, static_cast<Coded*>(nullptr));
    const auto read = [](auto& to, const void* from) {
      check(cudaMemcpy(to.data(), from, to.size() * sizeof(to[0]), cudaMemcpyDeviceToHost));
    };
    read(m, codes.m), read(v, codes.v), read(m_scales, codes.m_scales), read(v_scales, codes.v_scales);
    const auto check_one = [&](double found, double expected, double scale, bool is_root) {
      // Three bits of mantissa above 2^-6, steps of 2^-9 below; the smallest root that is not zero keeps one step.
      const double step = scale * std::exp2(std::max(-9.0, std::floor(std::log2(std::abs(expected) / scale + 1e-30)) - 3));
      const double wanted = is_root && expected > 0 ? std::max(expected, scale * 0x1p-9) : expected;
      if (!(std::abs(found - wanted) <= (steps + 1e-3) * step))
        throw std::runtime_error{"a moment is kept as " + std::to_string(found) + ", not " + std::to_string(wanted)};
    };
    for (std::size_t i = 0; i < part; ++i) {
      const After exact = after(i, false);
      const double m_scale = static_cast<double>(m_scales[i / block_values]);
      const double v_scale = static_cast<double>(v_scales[i / block_values]);
      check_one(static_cast<double>(static_cast<float>(m[i])) * m_scale, exact.m, m_scale, false);
      check_one(static_cast<double>(static_cast<float>(v[i])) * v_scale, std::sqrt(exact.v), v_scale, true);
    }
  }
  static constexpr int first_step = 10;  // of the training run: the bias corrections depend on it

  std::size_t count_;
  Blocks blocks_;
  Input<float> weights_;
  Input<bf16> gradients_;
  Input<__nv_fp8_e4m3> codes_m_, codes_v_;
  Input<float> scales_m_, scales_v_;
  Output<float> new_weights_;
  Scratch<bf16> working_;
  Memory fp32_, bf16_, codes_;
  Scratch<bf16> drift_gradients_;
  Scratch<float> drift_weights_;
  Scratch<bf16> drift_working_;
  Memory drift_moments_;
  std::map<std::string, Drift, std::less<>> drifts_;
};

constexpr KernelLimits in_registers{.local_bytes = 0};

}  // namespace

extern constinit const Pair adam_8bit{
    .teaches =
        "moments in eight bits with a scale for each block halve an optimizer's traffic, and the memory of its state by four",
    .lesson = "block_fp8",
    .make = make<Adam8bit>,
    .baseline = {.name = "fp32_moments", .run = call<&Adam8bit::fp32_moments>, .prepare = call<&Adam8bit::prepare_fp32>},
    .optimized = variants({{.name = "bf16_moments",
                            .run = call<&Adam8bit::bf16_moments>,
                            .prepare = call<&Adam8bit::prepare_bf16>,
                            .changes_precision = true,
                            .kernels = in_registers},
                           {.name = "block_fp8",
                            .run = call<&Adam8bit::block_fp8>,
                            .prepare = call<&Adam8bit::prepare_codes>,
                            .needs = {.min_sm = 89},
                            .changes_precision = true,
                            .kernels = in_registers},
                           {.name = "block_fp8_stochastic",
                            .run = call<&Adam8bit::block_fp8_stochastic>,
                            .prepare = call<&Adam8bit::prepare_stochastic>,
                            .needs = {.min_sm = 89},
                            .changes_precision = true,
                            .kernels = in_registers}}),
    // All that encoding computes, and the bytes of the baseline.
    .controls = variants({{.name = "fp32_through_codes",
                           .run = call<&Adam8bit::fp32_through_codes>,
                           .prepare = call<&Adam8bit::prepare_through_codes>,
                           .needs = {.min_sm = 89},
                           .changes_precision = true}}),
    .bound = Bound::memory,
    // A handful of roundings to fp32: the change of a weight, a twentieth of it, is computed from moments in fp32 and then
    // rounded.
    .tolerance = within(1e-6, 1e-5),
    .sizes = sizes({{.name = "parameters", .full = 250'000'000, .multiple = 128, .most = 1u << 30}}),
    .sweep = cases(
        {{"million_1", "parameters=1048576"}, {"million_16", "parameters=16777216"}, {"million_250", "parameters=250000000"}}),
    .edges = cases({{"one_quad_each", "parameters=128"}, {"short_blocks", "parameters=99968"}}),
};

}  // namespace aisp::ch13
