// SPDX-License-Identifier: Apache-2.0
// Gated linear attention: a state of 128 x 128 for each head, S = decay S + k v, and o = q S. Token by token it is a chain of
// 8192 small updates on ordinary FMA units. For a chunk of tokens the state is read once and written once, and what they owe one
// another is a small attention without softmax: products that tensor cores run. Then the bytes of Q, K, V and O are the limit,
// unless the states of all chunks go through memory, too.
#include <aisp/pair.hpp>
#include <aisp/tensor_map.hpp>

#include <cuda_bf16.h>

#include <string_view>

#include "linear_mma.cuh"
#include "linear_wgmma.cuh"

namespace aisp::ch18 {
namespace {

using bf16 = __nv_bfloat16;
using linear_mma::Operands, linear_mma::head_size;

constexpr float result_scale = 0.08838834764831845f;  // 1 / sqrt(head_size)

// A block for each head keeps the state in fp32: a thread has one column of the values and 32 of the keys. Tokens come in steps,
// the next ones while these are worked on.
constexpr int step_tokens = 8, parts = 4, recurrent_threads = parts * head_size;

__global__ __launch_bounds__(recurrent_threads) void recurrent_kernel(const __grid_constant__ Operands of) {
  constexpr int held = step_tokens / parts;  // tokens of a step of which a thread loads an element
  __shared__ alignas(16) float q[step_tokens][head_size], k[step_tokens][head_size], v[step_tokens][head_size],
      decays[step_tokens];
  __shared__ float sums[step_tokens][parts][head_size];
  const int column = static_cast<int>(threadIdx.x) % head_size, part = static_cast<int>(threadIdx.x) / head_size;
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * of.length;
  bf16 next_q[held], next_k[held], next_v[held];
  float next_decay = 1, state[head_size / parts] = {};
  const auto load = [&](int token) {
#pragma unroll
    for (int i = 0; i < held; ++i) {
      const std::size_t at = (first + token + part * held + i) * head_size + column;
      const bool exists = token + part * held + i < of.length;
      next_q[i] = exists ? of.q[at] : bf16{};
      next_k[i] = exists ? of.k[at] : bf16{};
      next_v[i] = exists ? of.v[at] : bf16{};
    }
    const int own = token + static_cast<int>(threadIdx.x);
    if (threadIdx.x < step_tokens) next_decay = own < of.length ? of.decays[first + own] : 1;
  };
  load(0);
  for (int token = 0; token < of.length; token += step_tokens) {
#pragma unroll
    for (int i = 0; i < held; ++i) {
      q[part * held + i][column] = __bfloat162float(next_q[i]) * of.scale;
      k[part * held + i][column] = __bfloat162float(next_k[i]);
      v[part * held + i][column] = __bfloat162float(next_v[i]);
    }
    if (threadIdx.x < step_tokens) decays[threadIdx.x] = next_decay;
    __syncthreads();
    load(token + step_tokens);
#pragma unroll 2
    for (int i = 0; i < step_tokens; ++i) {
      const float decay = decays[i], value = v[i][column];
      float sum[2] = {};
#pragma unroll
      for (int row = 0; row < head_size / parts; row += 4) {
        const float4 key = *reinterpret_cast<const float4*>(&k[i][part * (head_size / parts) + row]);
        const float4 query = *reinterpret_cast<const float4*>(&q[i][part * (head_size / parts) + row]);
        state[row] = fmaf(key.x, value, decay * state[row]);
        state[row + 1] = fmaf(key.y, value, decay * state[row + 1]);
        state[row + 2] = fmaf(key.z, value, decay * state[row + 2]);
        state[row + 3] = fmaf(key.w, value, decay * state[row + 3]);
        sum[0] = fmaf(query.x, state[row], fmaf(query.y, state[row + 1], sum[0]));
        sum[1] = fmaf(query.z, state[row + 2], fmaf(query.w, state[row + 3], sum[1]));
      }
      sums[i][part][column] = sum[0] + sum[1];
    }
    __syncthreads();
#pragma unroll
    for (int i = part; i < step_tokens; i += parts)
      if (token + i < of.length)
        of.o[(first + token + i) * head_size + column] =
            __float2bfloat16(sums[i][0][column] + sums[i][1][column] + (sums[i][2][column] + sums[i][3][column]));
  }
}

class LinearAttention final : public Workload {
 public:
  explicit LinearAttention(Setup& setup)
      : heads_{setup.size("heads")},
        length_{setup.size("tokens")},
        chunks_{(length_ + linear_mma::tokens - 1) / linear_mma::tokens},
        q_{setup.input<bf16>(elements(), normal(0, 1), {.name = "q"})},
        k_{setup.input<bf16>(elements(), normal(0, 1), {.name = "k"})},
        v_{setup.input<bf16>(elements(), normal(0, 1), {.name = "v"})},
        decays_{setup.input<float>(heads_ * length_, decays(), {.name = "decays"})},
        o_{setup.output<bf16>(elements(), {.name = "o", .groups = {length_ * head_size, heads_}})},
        states_{setup.scratch<bf16>(heads_ * chunks_ * head_size * head_size, {.name = "states"})} {}

  Cost cost() const override {
    return {.flops = 6 * static_cast<double>(elements()) * head_size,  // decay, add and read each element of the state
            .math = Math::bf16,
            .bytes = static_cast<double>(q_.bytes() + k_.bytes() + v_.bytes() + decays_.bytes() + o_.bytes())};
  }
  double expected(std::size_t i) const override {
    const std::size_t of_head = i / head_size / length_ * length_, column = i % head_size;
    double sum = 0, decay = 1;
    for (std::size_t at = i / head_size + 1; at-- > of_head && decay > 1e-30;) {
      double product = 0;
      for (std::size_t j = 0; j < head_size; ++j) product += q_.host(i - column + j) * k_.host(at * head_size + j);
      sum += decay * product * v_.host(at * head_size + column);
      decay *= decays_.host(at);
    }
    return sum * static_cast<double>(result_scale);
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens", static_cast<double>(heads_ * length_), "tokens of a head/s");
  }

  void recurrent(Launch& launch) { launch(recurrent_kernel, {of_heads(), recurrent_threads}, operands()); }
  void chunked_states(Launch& launch) {
    auto* const states = reinterpret_cast<uint4*>(states_.get());
    launch(linear_mma::states_kernel, {{2, of_heads()}, linear_mma::half_threads, sizeof(linear_mma::States)}, operands(),
           states);
    launch(linear_mma::chunks_kernel,
           {{static_cast<unsigned>(chunks_), of_heads()}, linear_mma::threads, sizeof(linear_mma::OneChunk)}, operands(), states);
  }
  void chunked_mma(Launch& launch) {
    launch(linear_mma::one_pass_kernel, {of_heads(), linear_mma::threads, sizeof(linear_mma::OnePass)}, operands());
  }
  void chunked_wgmma(Launch& launch) {
    launch(linear_wgmma::wgmma_kernel, {of_heads(), linear_wgmma::threads, sizeof(linear_wgmma::Memory)},
           linear_wgmma::Maps{map_of(q_), map_of(k_), map_of(v_), map_of(o_)}, decays_, length_, result_scale);
  }

 private:
  // Most are drawn between 0.9 and 1. The first head has no gate, the second and the third one that is always the same, with
  // products over a chunk of 0.5 and 1e-128, and in the fourth one in 97 is 0, after which nothing of what was before is left.
  Pattern decays() const {
    const Axis heads{length_, heads_};
    return uniform(0.9f, 1)
        .set(1, at(heads, 0))
        .set(0.99f, at(heads, 1))
        .set(0.01f, at(heads, 2))
        .set(0, at({1, 97}, 50), at(heads, 3));
  }
  std::size_t elements() const { return heads_ * length_ * head_size; }
  unsigned of_heads() const { return static_cast<unsigned>(heads_); }
  Operands operands() const { return {q_, k_, v_, decays_, o_, static_cast<int>(length_), result_scale}; }
  CUtensorMap map_of(const bf16* data) const {
    constexpr std::uint64_t row = head_size * sizeof(bf16);
    const std::uint64_t sizes[] = {head_size, length_, heads_, 1}, strides[] = {row, length_ * row, heads_ * length_ * row};
    const std::uint32_t box[] = {64, linear_wgmma::tokens, 1, 1};
    return tensor_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, sizes, strides, box);
  }

  std::size_t heads_, length_, chunks_;
  Input<bf16> q_, k_, v_;
  Input<float> decays_;
  Output<bf16> o_;
  Scratch<bf16> states_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair linear_attention{
    .teaches = "a gated recurrence is sequential token by token, but a chain of small products chunk by chunk",
    .lesson = "chunked_mma",
    .make = make<LinearAttention>,
    .baseline = {.name = "recurrent", .run = call<&LinearAttention::recurrent>},
    .optimized = variants({{.name = "chunked_states", .run = call<&LinearAttention::chunked_states>, .kernels = nothing_spilled},
                           {.name = "chunked_mma", .run = call<&LinearAttention::chunked_mma>, .kernels = nothing_spilled},
                           {.name = "chunked_wgmma",
                            .run = call<&LinearAttention::chunked_wgmma>,
                            .needs = {.min_sm = 90, .max_sm = 90},
                            .kernels = nothing_spilled}}),
    .bound = Bound::memory,
    // Weights, decayed values, the state that queries meet, and results are rounded to bf16 once each, 1.6e-3 four times: 3.2e-3.
    // Half as much again is allowed. Rows differ in size, as the first head's, which grow along the tokens.
    .tolerance = within(5e-3, 5e-2),
    .sizes = sizes({{.name = "heads", .full = 128, .most = 4096, .scales = false},  // of all sequences
                    {.name = "tokens", .full = 8192, .most = 1u << 20}}),
    // As many tokens in all.
    .sweep = cases({{"heads_8", "heads=8,tokens=131072"},
                    {"heads_32", "heads=32,tokens=32768"},
                    {"heads_128", "heads=128,tokens=8192"},
                    {"heads_512", "heads=512,tokens=2048"}}),
    .edges = cases({{"one_token", "heads=5,tokens=1"},
                    {"chunk_less_one", "heads=5,tokens=63"},
                    {"chunk", "heads=5,tokens=64"},
                    {"chunk_and_one", "heads=5,tokens=65"},
                    {"tail", "heads=7,tokens=1000"}}),
    .reference_samples = 1024,  // of a head without a gate an element takes all tokens before it
};

}  // namespace aisp::ch18
