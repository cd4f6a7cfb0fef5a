// SPDX-License-Identifier: Apache-2.0
// AdamW on 250 million parameters. Two moments in fp32 are 16 of the 28 bytes that an update moves for each of them, and twice
// the memory of the weights. As codes of FP8 with one scale for 256 neighbours they are 4 bytes. A warp has such a block in
// registers: it decodes, updates, finds the new maxima and encodes. What that costs in accuracy is a metric, of 20 and of 200
// steps.
#include <cuda_bf16.h>
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

#include "adam_drift.hpp"
#include "warp_blocks.cuh"

namespace aisp::ch13 {
namespace {

constexpr unsigned threads = 256;
constexpr std::size_t tensors = 32;

__device__ __forceinline__ void update(const Adam& adam, float gradient, float& weight, float& m, float& v) {
  m = adam.beta1 * m + (1 - adam.beta1) * gradient;
  v = adam.beta2 * v + (1 - adam.beta2) * gradient * gradient;
  const float direction = __fdividef(adam.inverse_bias1 * m, sqrtf(adam.inverse_bias2 * v) + adam.epsilon);
  weight -= adam.learning_rate * (adam.decay * weight + direction);
}
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

// Both moments in one type.
template <class T>
struct Plain {
  T *m, *v;

  __device__ __forceinline__ void load_moments(const Place& at, float (&m_of)[packet], float (&v_of)[packet]) const {
    load(m, at, m_of);
    load(v, at, v_of);
  }
  template <Rounding rounding>
  __device__ __forceinline__ void store_moments(const Place& at, float (&m_of)[packet], float (&v_of)[packet]) const {
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
  __device__ __forceinline__ void store_moments(const Place& at, float (&m_of)[packet], float (&v_of)[packet]) const {
    const BlockCodes codes = encode<rounding>(at, m_of, v_of);
    for_quads(at, [&](std::size_t quad, int first) {
      m[quad] = first == 0 ? codes.m.x : codes.m.y;
      v[quad] = first == 0 ? codes.v.x : codes.v.y;
    });
    if (threadIdx.x % 32 == 0) m_scales[at.block] = codes.m_scale, v_scales[at.block] = codes.v_scale;
  }
};

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
  // The places that a step's moments come from and go to.
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
    DriftReference reference;
    check(cudaMemcpyAsync(drift_gradients_, reference.gradients.data(), drift_gradients_.bytes(), cudaMemcpyHostToDevice,
                          launch.stream));
    check(cudaMemsetAsync(drift_weights_, 0, drift_weights_.bytes(), launch.stream));
    check(cudaMemsetAsync(drift_moments_.before, 0, drift_moments_.before.bytes(), launch.stream));
    const Blocks blocks = blocks_of(drift_count, 1);
    Moments* const type = nullptr;
    Moments from = moments_in(drift_moments_.before, drift_count, type), to = moments_in(drift_moments_.after, drift_count, type);
    float *weights = drift_weights_, *new_weights = weights + drift_count;
    std::vector<float> found(drift_count);
    Drift drift;
    for (int step = 1; step <= many_steps; ++step) {
      launch(adam_kernel<Moments, rounding>, {grid(blocks), threads}, weights, drift_gradients_ + (step - 1) * drift_count, from,
             to, new_weights, drift_working_, adam_at(step), blocks, step);
      std::swap(from, to);
      std::swap(weights, new_weights);
      reference.take(step);
      if (step != few_steps && step != many_steps) continue;
      check(cudaMemcpyAsync(found.data(), weights, found.size() * sizeof(float), cudaMemcpyDeviceToHost, launch.stream));
      check(cudaStreamSynchronize(launch.stream));
      (step == few_steps ? drift.few : drift.many) = reference.error_of(found, step);
    }
    return drift;
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
    for (std::size_t i = 0; i < part; ++i) {
      const After exact = after(i, false);
      const double m_scale = static_cast<double>(m_scales[i / block_values]);
      const double v_scale = static_cast<double>(v_scales[i / block_values]);
      check_code(static_cast<double>(static_cast<float>(m[i])) * m_scale, exact.m, m_scale, steps, false);
      check_code(static_cast<double>(static_cast<float>(v[i])) * v_scale, std::sqrt(exact.v), v_scale, steps, true);
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
        "moments in eight bits with a scale for each block take a quarter of their memory, and an update 16 bytes instead of 28",
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
