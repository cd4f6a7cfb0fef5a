// SPDX-License-Identifier: Apache-2.0
// One token of one long request. With a block for each query head 32 blocks read 131072 keys each, and three quarters of the SMs
// have nothing to do: the keys are the only long axis that is left, so they are cut into pieces for all SMs, and the states of
// the pieces are merged by their log-sum-exps. ch18:ragged_decode_balance cuts for balance; here it is for a grid at all.
#include <cuda_bf16.h>
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/fastest.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/decode.hpp"
#include "cudnn_attention.hpp"
#include "decode_reference.cuh"

namespace aisp::ch16 {
namespace {

using namespace attention;

constexpr int head_size = 128, kv_heads = 8, group = 4, heads = kv_heads * group;
constexpr float planted_query = 8;

// A query head (blockIdx.x) over a piece (blockIdx.y), as the engine's decode_block does it for a group: eight warps, since a
// block may have the SM for itself, each with 16 rows of keys and of values on their way.
constexpr int wide_warps = 8;
template <class Splits, class Out>
__global__ __launch_bounds__(wide_warps * 32,
                             1) void query_head_kernel(const __grid_constant__ Decode<ContiguousCache, Splits, Out> work) {
  using S = DecodeShape<head_size, 1>;
  __shared__ DecodePartial<S> parts[wide_warps];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = DecodeWarp<S>::lane(), head = static_cast<int>(blockIdx.x);
  Piece piece;
  if (!work.splits.piece(static_cast<int>(blockIdx.y), piece)) return;
  DecodeWarp<S> own;
  int first = piece.begin + warp * decode_tile;
  if (first < piece.end) {
    own.request_keys(work.cache, piece, head / group, first);
    own.request_values(work.cache, piece, head / group, first);
  }
#pragma unroll
  for (int i = 0; i < S::pieces; ++i) {
    const bf16* const from = work.q + (static_cast<std::size_t>(piece.sequence) * heads + head) * head_size + lane * 8 + i * 32;
    own.q[0][i] = lane < 4 ? *reinterpret_cast<const uint4*>(from) : uint4{0, 0, 0, 0};  // the row of lanes 0 to 3
    own.q[1][i] = uint4{0, 0, 0, 0};
  }
#pragma unroll
  for (int i = 0; i < S::halves * 32; ++i) own.values[i / 32][i / 4 % 8][i % 4] = 0;
  for (; first < piece.end; first += wide_warps * decode_tile) {
    const int following = first + wide_warps * decode_tile;
    float scores[8] = {}, factor[2];
    own.score(scores);
    own.request_keys(work.cache, piece, head / group, following);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (first + i / 4 * 8 + lane % 4 * 2 + i % 2 >= piece.end) scores[i] = -infinity;
    if (online_softmax(scores, own.rows, work.scale_log2, factor)) own.rescale_values(factor);
    unsigned weights[4];
    narrow(weights, scores, 0);
    own.add_values(weights);
    own.request_values(work.cache, piece, head / group, following);
  }
  whole_sums(own.rows);
  if (lane < 4) {
    parts[warp].maximum[0] = own.rows.maximum[0] * work.scale_log2;
    parts[warp].sum[0] = own.rows.sum[0];
#pragma unroll
    for (int i = 0; i < S::halves * 16; ++i)
      parts[warp].values[0][i / 16 * 64 + lane * 16 + i % 16] = own.values[i / 16][i % 8][i / 8 % 2];
  }
  __syncthreads();
  if (warp > 0) return;
  float values[head_size / 32] = {}, maximum = -infinity, sum = 0;
  for (const DecodePartial<S>& part : parts) maximum = fmaxf(maximum, part.maximum[0]);
  for (const DecodePartial<S>& part : parts) {
    const float weight = device::exp2_approximate(part.maximum[0] - base_of(maximum));
    sum += weight * part.sum[0];
#pragma unroll
    for (int i = 0; i < head_size / 32; ++i) values[i] += weight * part.values[0][lane * (head_size / 32) + i];
  }
  const std::size_t to = static_cast<std::size_t>(piece.slot) * heads + head;
  store_row(work.o + to * head_size + lane * (head_size / 32), values, reciprocal(sum));
  if (work.log_sums != nullptr && lane == 0) work.log_sums[to] = log_sum_exp(maximum, sum, 1);
}

class FlashDecoding final : public Workload {
 public:
  explicit FlashDecoding(Setup& setup)
      : batch_{setup.size("batch")},
        context_{setup.size("context")},
        pieces_{setup.size("pieces") > 0 ? static_cast<int>(setup.size("pieces")) : pieces_for_all_sms()},
        q_{setup.input<bf16>(batch_ * heads * head_size, queries(), {.name = "q"})},
        k_{setup.input<bf16>(batch_ * kv_heads * context_ * head_size, keys(), {.name = "k"})},
        v_{setup.input<bf16>(k_.size(), normal(0, 1), {.name = "v"})},
        lengths_{setup.input<int>(batch_, constant(static_cast<float>(context_)), {.name = "lengths", .constant = true})},
        short_q_{setup.input<bf16>(q_.size() * parts, normal(0, 1), {.name = "q of the short requests"})},
        short_lengths_{setup.input<int>(batch_ * parts, constant(static_cast<float>(context_ / parts)),
                                        {.name = "lengths of the short requests", .constant = true})},
        o_{setup.output<bf16>(q_.size(), {.name = "o", .groups = {head_size, batch_ * heads}})},
        short_o_{setup.scratch<bf16>(short_q_.size(), {.name = "o of the short requests"})},
        states_{
            setup.scratch<float>(batch_ * heads * head_size * static_cast<std::size_t>(pieces_), {.name = "results of pieces"})},
        log_sums_{setup.scratch<float>(batch_ * heads * static_cast<std::size_t>(pieces_), {.name = "log-sum-exps of pieces"})},
        tickets_{setup.scratch<unsigned>(batch_ * heads, {.name = "tickets"})},
        exact_scores_{setup.scratch<double>(batch_ * heads * context_, {.name = "scores in float64"})},
        exact_{setup.scratch<double>(o_.size(), {.name = "o in float64"})},
        reproducible_{setup.reproducible()},
        cudnn_{setup, shared::AttentionSizes{batch_, heads, kv_heads, 1, context_, head_size}} {}

  void metrics(std::string_view variant, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(variant == "many_blocks" ? batch_ * parts : batch_),
                        "tokens of a layer/s");
  }
  Cost cost() const override {
    return {.flops = 4 * static_cast<double>(batch_ * heads * context_) * head_size,
            .math = Math::bf16,
            .bytes = static_cast<double>(q_.bytes() + k_.bytes() + v_.bytes() + o_.bytes())};
  }
  void compute_reference(Launch& launch) override {
    launch(attention_in_float64_kernel<head_size, group>, {static_cast<unsigned>(batch_ * heads), reference_threads}, q_.get(),
           k_.get(), v_.get(), context_, exact_scores_.get(), exact_.get());
    reference_.resize(exact_.size());
    check(cudaMemcpyAsync(reference_.data(), exact_, exact_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
  }
  double expected(std::size_t i) const override { return reference_[i]; }

  void block_per_head(Launch& launch) { heads_apart<bf16>(launch, context_, q_, {lengths_, 1}, batch_, o_, nullptr); }
  void split_kv(Launch& launch) {
    heads_apart<float>(launch, context_, q_, splits(), batch_, states_, log_sums_);
    merge(launch);
  }
  void split_kv_packed(Launch& launch) {
    packed(launch, splits());
    merge(launch);
  }
  // Once: each run leaves the tickets as they were.
  void clear_tickets(Launch& launch) { check(cudaMemsetAsync(tickets_, 0, tickets_.bytes(), launch.stream)); }
  void split_kv_one_kernel(Launch& launch) {
    using Splits = MergedByLast<FixedSplits, bf16>;
    packed(launch, Splits{splits(), tickets_, o_, nullptr});
  }
  // The cache as if it were that of `parts` times as many requests, each so much shorter: as many bytes, and blocks for all SMs.
  void many_blocks(Launch& launch) {
    if (context_ < parts) throw Unsupported{"a context of fewer than 16 tokens is not that of 16 requests"};
    heads_apart<bf16>(launch, context_ / parts, short_q_, {short_lengths_, 1}, batch_ * parts, short_o_, nullptr);
  }
  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    cudnn_->tune(launch.stream, q_, k_, v_, o_);
  }
  void cudnn_tuned(Launch& launch) { cudnn_->run(launch.stream, q_, k_, v_, o_); }

 private:
  static constexpr std::size_t parts = 16;  // of the context, for many_blocks
  static constexpr Axis dimensions{1, head_size};
  static float score_scale_log2() { return log2_e / std::sqrt(static_cast<float>(head_size)); }

  // Two blocks are on an SM at once.
  int pieces_for_all_sms() const { return std::max(1, static_cast<int>(2 * multiprocessors() / (kv_heads * batch_))); }

  // Keys of KV head 0 grow eightfold along the context and those of head 1 shrink, so that maxima rise and fall; the last key of
  // head 2 has all weight.
  Pattern keys() const {
    const Axis tokens{head_size, context_}, of_heads{context_ * head_size, kv_heads};
    return normal(0, 1)
        .times(1, 8, all_of(tokens), at(of_heads, 0))
        .times(8, 1, all_of(tokens), at(of_heads, 1))
        .set(64, at(tokens, context_ - 1), at(of_heads, 2), at(dimensions, 0));
  }
  // Heads of a group differ in scale, so that their maxima move apart.
  static Pattern queries() {
    return normal(0, 1)
        .times(0.5, 2, all_of(Axis{head_size, group}))
        .set(planted_query, at(Axis{head_size * group, kv_heads}, 2), at(dimensions, 0));
  }
  ContiguousCache cache(std::size_t context) const {
    return {k_, v_, head_size, context * head_size, kv_heads * context * head_size};
  }
  FixedSplits splits() const { return {lengths_, pieces_}; }
  template <class Out>
  void heads_apart(Launch& launch, std::size_t context, const bf16* q, const FixedSplits& splits, std::size_t sequences, Out* o,
                   float* log_sums) const {
    launch(query_head_kernel<FixedSplits, Out>,
           {dim3{heads, static_cast<unsigned>(sequences) * static_cast<unsigned>(splits.splits)}, wide_warps * 32},
           Decode<ContiguousCache, FixedSplits, Out>{q, cache(context), splits, heads, score_scale_log2(), o, log_sums});
  }
  template <class Splits>
  void packed(Launch& launch, const Splits& splits) const {
    launch(decode_kernel<head_size, group, 1, ContiguousCache, Splits, float>,
           decode_grid<head_size, group>(kv_heads, static_cast<int>(batch_) * pieces_),
           Decode<ContiguousCache, Splits, float>{q_, cache(context_), splits, heads, score_scale_log2(), states_, log_sums_});
  }
  void merge(Launch& launch) const {
    float* const no_log_sums = nullptr;
    launch(merge_states<head_size, FixedSplits, float, bf16>, merge_grid(heads, static_cast<int>(batch_)), splits(),
           states_.get(), log_sums_.get(), heads, o_.get(), no_log_sums);
  }

  std::size_t batch_, context_;
  int pieces_;
  Input<bf16> q_, k_, v_;  // q: [sequence][head], k and v: [sequence][KV head][token], each of head_size
  Input<int> lengths_;
  Input<bf16> short_q_;
  Input<int> short_lengths_;
  Output<bf16> o_;
  Scratch<bf16> short_o_;
  Scratch<float> states_, log_sums_;
  Scratch<unsigned> tickets_;
  Scratch<double> exact_scores_, exact_;
  bool reproducible_;
  Opened<shared::CudnnAttention> cudnn_;
  std::vector<double> reference_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair flash_decoding{
    .teaches = "with one request a block for each head leaves most SMs idle; the sequence is the only long axis left to split",
    .lesson = "split_kv",
    .make = make<FlashDecoding>,
    .baseline = {.name = "block_per_head", .run = call<&FlashDecoding::block_per_head>, .kernels = nothing_spilled},
    .optimized = variants({{.name = "split_kv", .run = call<&FlashDecoding::split_kv>, .kernels = nothing_spilled},
                           {.name = "split_kv_packed", .run = call<&FlashDecoding::split_kv_packed>, .kernels = nothing_spilled},
                           {.name = "split_kv_one_kernel",
                            .run = call<&FlashDecoding::split_kv_one_kernel>,
                            .prepare = call<&FlashDecoding::clear_tickets>,
                            .kernels = nothing_spilled}}),
    .controls = variants(
        {{.name = "many_blocks", .run = call<&FlashDecoding::many_blocks>, .outputs = no_outputs, .kernels = nothing_spilled}}),
    .libraries = variants({{.name = "cudnn_tuned",
                            .run = call<&FlashDecoding::cudnn_tuned>,
                            .prepare = call<&FlashDecoding::tune_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::memory,
    // Weights and results are rounded to bf16 once each: 1.6e-3 twice, 2.3e-3 together. A group of 128 elements scatters, and
    // where one key has all the weight its rounding is common to all of them: up to 2^-9.
    .tolerance = within(5e-3),
    .sizes = sizes({{.name = "batch", .full = 1, .most = 256, .scales = false},
                    {.name = "context", .full = 131072, .most = 1 << 20},
                    // Pieces of each sequence; 0: as many as give every SM two blocks of packed heads.
                    {.name = "pieces", .full = 0, .least = 0, .most = 256, .scales = false}}),
    .sweep = cases({{"context_1k", "context=1024"},
                    {"context_8k", "context=8192"},
                    {"context_32k", "context=32768"},
                    {"context_128k", "context=131072"},
                    {"batch_4", "batch=4,context=8192"},
                    {"batch_16", "batch=16,context=8192"},
                    {"batch_64", "batch=64,context=8192"},
                    {"pieces_4", "pieces=4"},
                    {"pieces_16", "pieces=16"},
                    {"pieces_64", "pieces=64"}}),
    .edges = cases({{"one_key", "context=1"},
                    {"fewer_keys_than_pieces", "context=31"},
                    {"one_key_less", "context=131071"},
                    {"one_key_more", "context=131073"},
                    {"two_sequences", "batch=2,context=1021,pieces=7"}}),
};

}  // namespace aisp::ch16
