// SPDX-License-Identifier: Apache-2.0
// A projection leaves Q, K and V packed, all heads of a token together; a kernel that asserts contiguous heads wants each head's
// rows together, and so is given copies, and its result is copied back. A row of a head is 256 contiguous bytes in either layout:
// tensor maps with the strides of the packed one read and write the same boxes of rows, and no copy is left.
#include <aisp/opened.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention/forward.hpp"
#include "cudnn_packed_attention.hpp"

namespace aisp::ch13 {
namespace {

using attention::bf16;

constexpr std::size_t head_size = 128;
constexpr unsigned threads = 256, packets = head_size * sizeof(bf16) / sizeof(uint4);  // of a row of a head
enum Slot : std::uint8_t { of_q, of_k, of_v, slots };

struct Layout {
  unsigned tokens, heads;
  // Packet i of all heads of a token, in a tensor [head][token] of one sequence after the other.
  __device__ __forceinline__ std::size_t by_heads(unsigned token, unsigned i) const {
    const unsigned sequence = token / tokens;
    return ((std::size_t{sequence} * heads + i / packets) * tokens + token % tokens) * packets + i % packets;
  }
};

// A block has the heads of Q, K or V of a token, which are contiguous on one side and rows of 256 bytes on the other.
__global__ __launch_bounds__(threads) void permute_kernel(const uint4* __restrict__ qkv, uint4* __restrict__ by_heads,
                                                          std::size_t slot_packets, Layout layout) {
  const unsigned token = blockIdx.x, slot = blockIdx.y, all = layout.heads * packets;
  const uint4* const from = qkv + (std::size_t{token} * slots + slot) * all;
  uint4* const to = by_heads + slot * slot_packets;
#pragma unroll 4
  for (unsigned i = threadIdx.x; i < all; i += threads) to[layout.by_heads(token, i)] = from[i];
}
__global__ __launch_bounds__(threads) void permute_back_kernel(const uint4* __restrict__ by_heads, uint4* __restrict__ o,
                                                               Layout layout) {
  const unsigned token = blockIdx.x, all = layout.heads * packets;
#pragma unroll 4
  for (unsigned i = threadIdx.x; i < all; i += threads) o[std::size_t{token} * all + i] = by_heads[layout.by_heads(token, i)];
}

class QkvLayout final : public Workload {
 public:
  explicit QkvLayout(Setup& setup)
      : batch_{setup.size("batch")},
        tokens_{setup.size("tokens")},
        heads_{setup.size("heads")},
        reproducible_{setup.reproducible()},
        qkv_{setup.input<bf16>(slots * rows() * head_size, contents(), {.name = "qkv"})},
        o_{setup.output<bf16>(rows() * head_size, {.name = "o", .groups = {head_size, heads_}})},
        by_heads_{setup.scratch<bf16>(qkv_.size(), {.name = "q, k and v by heads"})},
        o_by_heads_{setup.scratch<bf16>(o_.size(), {.name = "o by heads"})},
        taken_{setup.scratch<unsigned>(1, {.name = "taken"})},
        cudnn_{setup, batch_, tokens_, heads_, head_size} {}

  Cost cost() const override {
    const auto length = static_cast<double>(tokens_);
    return {.flops = 4 * static_cast<double>(batch_ * heads_) * length * (length + 1) / 2 * static_cast<double>(head_size),
            .math = Math::bf16,
            .bytes = static_cast<double>(qkv_.bytes() + o_.bytes())};
  }
  double expected(std::size_t i) const override {
    const std::size_t column = i % head_size, head = i / head_size % heads_, token = i / (head_size * heads_);
    return output(token, head, column, 1)[0];
  }
  void compute_reference(Launch&) override {
    checked_.clear();
    for (const std::size_t sequence : {std::size_t{0}, batch_ - 1})
      for (std::size_t head = 0; head < heads_; head += std::max<std::size_t>(heads_ / 5, 1))
        for (const std::size_t token : {std::size_t{0}, std::size_t{1}, std::size_t{127}, std::size_t{128}, tokens_ - 1})
          if (token < tokens_) {
            const std::size_t row = sequence * tokens_ + token;
            checked_.push_back({row, head, output(row, head, 0, head_size)});
          }
  }
  // Rows at the borders of tiles and sequences, whole: weights and results are rounded to bf16, up to 4.2e-3 together.
  void validate(std::string_view) override {
    constexpr double limit = 5e-3;
    std::vector<bf16> found(head_size);
    for (const Row& row : checked_) {
      check(cudaMemcpy(found.data(), o_ + (row.token * heads_ + row.head) * head_size, head_size * sizeof(bf16),
                       cudaMemcpyDeviceToHost));
      double difference = 0, norm = 0;
      for (std::size_t i = 0; i < head_size; ++i) {
        const double error = static_cast<double>(__bfloat162float(found[i])) - row.wanted[i];
        difference += error * error;
        norm += row.wanted[i] * row.wanted[i];
      }
      if (!(difference <= limit * limit * norm))
        throw std::runtime_error{"token " + std::to_string(row.token) + " of head " + std::to_string(row.head) +
                                 " has a relative L2 error of " + std::to_string(std::sqrt(difference / norm))};
    }
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(batch_ * tokens_), "tokens/s");
  }

  // Once: each run leaves it as it was.
  void clear_taken(Launch& launch) { check(cudaMemsetAsync(taken_, 0, taken_.bytes(), launch.stream)); }
  void permuted(Launch& launch) {
    permute(launch);
    attend(launch, by_heads(of_q), by_heads(of_k), by_heads(of_v), contiguous(o_by_heads_));
    launch(permute_back_kernel, {static_cast<unsigned>(batch_ * tokens_), threads},
           reinterpret_cast<const uint4*>(o_by_heads_.get()), reinterpret_cast<uint4*>(o_.get()), layout());
  }
  void strided_output(Launch& launch) {
    permute(launch);
    attention_alone(launch);
  }
  void strided_tma(Launch& launch) { attend(launch, packed(of_q), packed(of_k), packed(of_v), by_tokens(o_, heads_)); }
  void attention_alone(Launch& launch) { attend(launch, by_heads(of_q), by_heads(of_k), by_heads(of_v), by_tokens(o_, heads_)); }
  void prepare_alone(Launch& launch) {
    clear_taken(launch);
    permute(launch);
  }
  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{"the clock would choose its engine, which --reproducible rules out"};
    cudnn_->tune(launch.stream, qkv_, o_);
  }
  void cudnn(Launch& launch) { cudnn_->run(launch.stream, qkv_, o_); }

 private:
  using Pass = attention::ForwardPass<head_size, head_size, attention::Causal, attention::Dense, attention::Scaled, false,
                                      attention::LongestFirst>;
  struct Row {
    std::size_t token, head;
    std::vector<double> wanted;
  };

  std::size_t rows() const { return batch_ * tokens_ * heads_; }
  Layout layout() const { return {static_cast<unsigned>(tokens_), static_cast<unsigned>(heads_)}; }

  // Queries have a 4 in their first column, so that the first column of K adds to all scores of a key: in the third head they
  // rise by 12 powers of two every 128 keys, in the fourth they fall. V is three times as large as K.
  Pattern contents() const {
    const auto step = static_cast<float>(12 * std::sqrt(static_cast<double>(head_size)) / (4 * 1.4426950408889634));
    const Axis columns{1, head_size}, slot{heads_ * head_size, slots}, heads{head_size, slots * heads_},
        token{slots * heads_ * head_size, tokens_};
    return normal(0, 1)
        .times(3, at(slot, of_v))
        .set(4, at(columns, 0), at(slot, of_q))
        .set(-step * static_cast<float>((tokens_ - 1) / 128), at(columns, 0), at(heads, heads_ + 2), at(slot, of_k))
        .plus_steps(step, 128, all_of(token), at(columns, 0), at(heads, heads_ + 2))
        .plus_steps(-step, 128, all_of(token), at(columns, 0), at(heads, heads_ + 3));
  }
  double value(std::size_t token, Slot slot, std::size_t head, std::size_t column) const {
    return qkv_.host(((token * slots + slot) * heads_ + head) * head_size + column);
  }
  // Columns of a row of the result; tokens are counted over all sequences.
  std::vector<double> output(std::size_t token, std::size_t head, std::size_t first, std::size_t count) const {
    const std::size_t begin = token / tokens_ * tokens_;
    std::vector<double> weights(token - begin + 1), result(count), query(head_size);
    for (std::size_t i = 0; i < head_size; ++i) query[i] = value(token, of_q, head, i) / std::sqrt(double{head_size});
    double highest = -INFINITY, sum = 0;
    for (std::size_t key = begin; key <= token; ++key) {
      double& weight = weights[key - begin];
      for (std::size_t i = 0; i < head_size; ++i) weight += query[i] * value(key, of_k, head, i);
      highest = std::max(highest, weight);
    }
    for (std::size_t key = begin; key <= token; ++key) {
      const double weight = std::exp(weights[key - begin] - highest);
      if (weight == 0) continue;
      sum += weight;
      for (std::size_t i = 0; i < count; ++i) result[i] += weight * value(key, of_v, head, first + i);
    }
    for (double& of : result) of /= sum;
    return result;
  }

  void permute(Launch& launch) const {
    launch(permute_kernel, {dim3{static_cast<unsigned>(batch_ * tokens_), slots}, threads},
           reinterpret_cast<const uint4*>(qkv_.get()), reinterpret_cast<uint4*>(by_heads_.get()), rows() * packets, layout());
  }
  attention::Tensor contiguous(const bf16* data) const {
    return attention::heads_first(data, batch_, heads_, tokens_, head_size);
  }
  attention::Tensor by_heads(Slot slot) const { return contiguous(by_heads_ + slot * rows() * head_size); }
  attention::Tensor by_tokens(const bf16* data, std::size_t row_heads) const {
    return attention::rows_first(data, batch_, tokens_, heads_, head_size, row_heads);
  }
  attention::Tensor packed(Slot slot) const { return by_tokens(qkv_ + slot * heads_ * head_size, slots * heads_); }
  void attend(Launch& launch, const attention::Tensor& q, const attention::Tensor& k, const attention::Tensor& v,
              const attention::Tensor& o) const {
    const auto length = static_cast<int>(tokens_);
    const auto order = attention::longest_first(tokens_, tokens_, 2 * head_size, heads_, 1, batch_, taken_.get());
    const float scale = attention::log2_e / std::sqrt(static_cast<float>(head_size));
    Pass{{q, k, v, o}, {.mask = {}, .keys = {length, length}, .score = {scale}, .order = order}}.run(launch);
  }

  std::size_t batch_, tokens_, heads_;
  bool reproducible_;
  Input<bf16> qkv_;
  Output<bf16> o_;
  Scratch<bf16> by_heads_, o_by_heads_;  // [q, k, v][sequence][head][token], [sequence][head][token]
  Scratch<unsigned> taken_;
  Opened<CudnnPackedAttention> cudnn_;
  std::vector<Row> checked_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair qkv_layout{
    .teaches =
        "a tensor map reads heads where a projection left them: copies into another layout around attention are for nothing",
    .lesson = "strided_tma",
    .make = make<QkvLayout>,
    .baseline = {.name = "permuted", .run = call<&QkvLayout::permuted>, .prepare = call<&QkvLayout::clear_taken>},
    .optimized = variants({{.name = "strided_output",
                            .run = call<&QkvLayout::strided_output>,
                            .prepare = call<&QkvLayout::clear_taken>,
                            .same_bits_as = "permuted",
                            .kernels = nothing_spilled},
                           {.name = "strided_tma",
                            .run = call<&QkvLayout::strided_tma>,
                            .prepare = call<&QkvLayout::clear_taken>,
                            .same_bits_as = "permuted",
                            .kernels = nothing_spilled}}),
    // Attention on copies that are there.
    .controls = variants({{.name = "attention_alone",
                           .run = call<&QkvLayout::attention_alone>,
                           .prepare = call<&QkvLayout::prepare_alone>,
                           .outputs = no_outputs}}),
    .libraries = variants({{.name = "cudnn_packed",
                            .run = call<&QkvLayout::cudnn>,
                            .prepare = call<&QkvLayout::tune_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::memory,
    // Limits for a head: weights and results are rounded to bf16 once each. In rows of few keys an element may cancel, and then
    // keeps its summands' rounding, 2^-8 of the largest values; such rows are compared whole.
    .tolerance = within(5e-3, 0.4),
    .needs = {.min_sm = 90, .max_sm = 90},
    .sizes = sizes({{.name = "batch", .full = 8, .most = 256, .scales = false},
                    {.name = "tokens", .full = 2048, .most = 32768},
                    {.name = "heads", .full = 32, .most = 128, .scales = false}}),
    // 16384 tokens in all.
    .sweep = cases({{"tokens_256", "batch=64,tokens=256"},
                    {"tokens_512", "batch=32,tokens=512"},
                    {"tokens_1024", "batch=16,tokens=1024"},
                    {"tokens_2048", "batch=8,tokens=2048"},
                    {"tokens_4096", "batch=4,tokens=4096"},
                    {"tokens_8192", "batch=2,tokens=8192"},
                    {"tokens_16384", "batch=1,tokens=16384"}}),
    .edges = cases({{"one_token", "batch=1,tokens=1,heads=1"},
                    {"borders", "batch=3,tokens=1984,heads=5"},
                    {"tail", "batch=2,tokens=713,heads=3"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch13
