// SPDX-License-Identifier: Apache-2.0
// A decode step of requests whose keys and values are given: what of those each GPU has, the parts of the step between which GPUs
// exchange what they have, and the step in float64 on the CPU.
#pragma once
#include <cmath>
#include <vector>

#include "decoder/decoder.hpp"
#include "decoder/model.hpp"

namespace aisp::ch17 {

using decoder::bf16, decoder::Shape;

constexpr int head_size = 128;

// Keys and values of the positions before the step's: [layer][request][head][position][column] of the whole model.
struct CacheContent {
  int heads, positions, requests;
  __host__ __device__ float at(bool is_value, int layer, int request, int head, int position, int column) const {
    const auto index =
        (((static_cast<std::uint64_t>(layer) * requests + request) * heads + head) * positions + position) * head_size + column;
    const std::uint64_t bits = random_bits(is_value ? 0x17A1 : 0x17A2, index);
    return static_cast<float>(static_cast<int>(bits & 0xFFFF) - 32768) * (1.75f / 32768);  // a deviation of 1
  }
};
// Fills a GPU's part: `kv_heads` heads from first_head on, of requests from first_request on. blockIdx: position, request, layer
// and whether it is values.
static __global__ void fill_cache_kernel(CacheContent content, attention::ContiguousCache cache, std::size_t layer_elements,
                                         int kv_heads, int first_head, int first_request) {
  const int position = static_cast<int>(blockIdx.x), request = static_cast<int>(blockIdx.y),
            layer = static_cast<int>(blockIdx.z) / 2;
  const bool is_value = blockIdx.z % 2 == 1;
  bf16* const to = const_cast<bf16*>(is_value ? cache.v : cache.k) + layer * layer_elements;
  for (int i = static_cast<int>(threadIdx.x); i < kv_heads * head_size; i += static_cast<int>(blockDim.x))
    to[cache.at(request, i / head_size, position) + i % head_size] = __float2bfloat16_rn(
        content.at(is_value, layer, first_request + request, first_head + i / head_size, position, i % head_size));
}

// The parts of a step between which GPUs may exchange what they have.
struct Parts : decoder::Step<attention::ContiguousCache> {
  void attention_half(cudaStream_t stream, int layer, bf16* delta) const {
    project(stream, layer);
    append(stream, layer);
    attend(stream, layer);
    model.products->o.run(stream, model.weights.o, layer, model.workspace.attended, delta, batch.rows, overlapping);
  }
  void feed_forward_half(cudaStream_t stream, int layer, bf16* delta) const {
    const decoder::Workspace& w = model.workspace;
    const Shape& s = model.shape;
    model.products->gate_up.run(stream, model.weights.gate_up, layer, w.normed, w.gate_up, batch.rows, overlapping);
    const int packets = s.ffn / shared::packet;
    const dim3 blocks{static_cast<unsigned>((packets + decoder::swiglu_threads - 1) / decoder::swiglu_threads),
                      static_cast<unsigned>(batch.rows)};
    launch_kernel(stream, decoder::swiglu_kernel, grid(blocks, decoder::swiglu_threads), w.gate_up, w.active, s.ffn);
    model.products->down.run(stream, model.weights.down, layer, w.active, delta, batch.rows, overlapping);
  }
  const bf16* norm_weight(int norm) const { return model.weights.norms + static_cast<std::size_t>(norm) * model.shape.hidden; }
  void add_and_norm(cudaStream_t stream, int norm, const bf16* delta) const {
    const decoder::Norm work{nullptr, nullptr,           delta, model.workspace.x, model.workspace.normed, norm_weight(norm),
                             nullptr, model.shape.hidden};
    launch_kernel(stream, decoder::norm_kernel, grid(static_cast<unsigned>(batch.rows), decoder::norm_threads), work);
  }
  void last(cudaStream_t stream, bf16* delta) const {
    decoder::Step<attention::ContiguousCache> step{*this};
    step.model.workspace.delta = delta;
    step.choose(stream);
  }
};

// The step's weights, element by element.
struct HostWeights {
  std::vector<float> embedding, norms, qkv, o, gate_up, down;
};
// The normed state of a request after the step: `token` stands at `position`.
inline std::vector<double> decoded_state(const Shape& s, const HostWeights& w, const CacheContent& cache, int request, int token,
                                         int position) {
  const auto hidden = static_cast<std::size_t>(s.hidden);
  std::vector<double> x(hidden);
  for (std::size_t i = 0; i < hidden; ++i) x[i] = static_cast<double>(w.embedding[static_cast<std::size_t>(token) * hidden + i]);
  const auto normed = [&](int norm) {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double scale = 1 / std::sqrt(squares / s.hidden + static_cast<double>(decoder::norm_epsilon));
    std::vector<double> result(hidden);
    for (std::size_t i = 0; i < hidden; ++i)
      result[i] = x[i] * scale * static_cast<double>(w.norms[static_cast<std::size_t>(norm) * hidden + i]);
    return result;
  };
  const auto multiply = [](const std::vector<float>& matrices, int layer, int outputs, const std::vector<double>& by) {
    std::vector<double> result(static_cast<std::size_t>(outputs));
    const float* row = matrices.data() + static_cast<std::size_t>(layer) * result.size() * by.size();
    for (double& sum : result)
      for (const double value : by) sum += static_cast<double>(*row++) * value;
    return result;
  };
  const auto add = [&](const std::vector<double>& more) {
    for (std::size_t i = 0; i < hidden; ++i) x[i] += more[i];
  };
  for (int layer = 0; layer < s.layers; ++layer) {
    std::vector<double> qkv = multiply(w.qkv, layer, s.qkv_columns(), normed(2 * layer));
    for (std::size_t i = 0; i < static_cast<std::size_t>(s.q_columns() + s.kv_columns()); i += 2) {
      const double angle = position * std::pow(decoder::rope_base, -static_cast<double>(i % head_size) / head_size);
      const double a = qkv[i], b = qkv[i + 1];
      qkv[i] = a * std::cos(angle) - b * std::sin(angle), qkv[i + 1] = b * std::cos(angle) + a * std::sin(angle);
    }
    std::vector<double> attended(static_cast<std::size_t>(s.q_columns()));
    for (int head = 0; head < s.heads; ++head) {
      const int kv_head = head / s.group();
      const double* const q = &qkv[static_cast<std::size_t>(head * head_size)];
      const double* const own_k = &qkv[static_cast<std::size_t>(s.q_columns() + kv_head * head_size)];
      const double* const own_v = own_k + s.kv_columns();
      const auto value = [&](bool is_value, int at, int column) {
        if (at == position) return (is_value ? own_v : own_k)[column];
        return static_cast<double>(
            __bfloat162float(__float2bfloat16_rn(cache.at(is_value, layer, request, kv_head, at, column))));
      };
      double weights = 0;
      double* const to = &attended[static_cast<std::size_t>(head * head_size)];
      for (int at = 0; at <= position; ++at) {
        double score = 0;
        for (int i = 0; i < head_size; ++i) score += q[i] * value(false, at, i);
        const double weight = std::exp(score / std::sqrt(static_cast<double>(head_size)));  // float64 reaches to exp(709)
        weights += weight;
        for (int i = 0; i < head_size; ++i) to[i] += weight * value(true, at, i);
      }
      for (int i = 0; i < head_size; ++i) to[i] /= weights;
    }
    add(multiply(w.o, layer, s.hidden, attended));
    const std::vector<double> gate_up = multiply(w.gate_up, layer, 2 * s.ffn, normed(2 * layer + 1));
    std::vector<double> active(static_cast<std::size_t>(s.ffn));
    for (std::size_t i = 0; i < active.size(); ++i)
      active[i] = gate_up[i] / (1 + std::exp(-gate_up[i])) * gate_up[active.size() + i];
    add(multiply(w.down, layer, s.hidden, active));
  }
  return normed(2 * s.layers);
}

}  // namespace aisp::ch17
