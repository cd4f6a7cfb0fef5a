// SPDX-License-Identifier: Apache-2.0
// A step of a serving engine in which some requests decode while a chunk of a long prompt is prefilled. Prefill waits for tensor
// cores and decoding for memory, so one after the other leaves half of the chip idle at any time. On two streams the first of
// them fills every multiprocessor and the second has to wait all the same. A block that has both, each in warps of its own, uses
// both everywhere and always.
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/fastest.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/forward.hpp"
#include "cudnn_attention.hpp"
#include "decode_reference.hpp"
#include "mixed_block.cuh"
#include "row_cache.hpp"

namespace aisp::ch18 {
namespace {

using attention::ContiguousCache, attention::FixedSplits;

constexpr int group = mixed_group, heads = group * kv_heads;

class MixedBatchAttention final : public Workload {
  template <class Order>
  using Pass = attention::ForwardPass<head_size, head_size, attention::Causal, attention::Dense, attention::Scaled, false, Order>;

 public:
  explicit MixedBatchAttention(Setup& setup)
      : requests_{setup.size("requests")},
        cached_{setup.size("cached")},
        queries_{setup.size("chunk")},
        keys_{std::max(setup.size("context"), queries_)},
        q_{setup.input<bf16>(heads * queries_ * head_size, queries_of_chunk(), {.name = "q of the chunk"})},
        k_{setup.input<bf16>(kv_heads * keys_ * head_size, keys_in_motion({head_size, keys_}, {keys_ * head_size, kv_heads}),
                             {.name = "k of the prompt"})},
        v_{setup.input<bf16>(k_.size(), normal(0, 1), {.name = "v of the prompt"})},
        decode_q_{setup.input<bf16>(requests_ * heads * head_size, queries_in_motion(group), {.name = "q that decode"})},
        decode_k_{setup.input<bf16>(requests_ * kv_heads * cached_ * head_size,
                                    keys_in_motion({head_size, cached_}, {cached_ * head_size, kv_heads}),
                                    {.name = "k of the cache"})},
        decode_v_{setup.input<bf16>(decode_k_.size(), normal(0, 1), {.name = "v of the cache"})},
        lengths_{setup.input<int>(requests_, constant(static_cast<float>(cached_)), {.name = "lengths", .constant = true})},
        o_{setup.output<bf16>(q_.size(), {.name = "o of the chunk", .groups = {queries_ * head_size, heads}})},
        decode_o_{setup.output<bf16>(decode_q_.size(), {.name = "o that decode", .groups = {head_size, requests_ * heads}})},
        side_{setup.stream()},
        forked_{setup.event()},
        joined_{setup.event()},
        reproducible_{setup.reproducible()},
        cudnn_chunk_{setup, shared::AttentionSizes{1, heads, kv_heads, queries_, keys_, head_size}, shared::Mask::causal},
        cudnn_decode_{setup, shared::AttentionSizes{requests_, heads, kv_heads, 1, cached_, head_size}} {}

  Cost cost() const override {
    return {.flops = chunk_flops() + 4 * static_cast<double>(requests_ * cached_) * heads * head_size,
            .math = Math::bf16,
            .bytes = static_cast<double>(q_.bytes() + k_.bytes() + v_.bytes() + o_.bytes()) + decode_bytes()};
  }
  Cost variant_cost(std::string_view variant) const override {
    const Cost both = cost();
    if (variant == "chunk_alone") return {.flops = chunk_flops(), .math = Math::bf16, .bytes = both.bytes - decode_bytes()};
    if (variant == "decoding_alone") return {.flops = both.flops - chunk_flops(), .math = Math::bf16, .bytes = decode_bytes()};
    return both;
  }
  void compute_reference(Launch&) override {
    rows_.forget(heads * queries_);
    decode_rows_.forget(requests_ * heads);
  }
  double expected_output(int output, std::size_t i) const override {
    const std::size_t row = i / head_size, d = i % head_size;
    if (output == 0)
      return rows_.of(row, [&] {
        return reference(q_, k_, v_, row, row / queries_ / group * keys_, keys_ - queries_ + row % queries_ + 1);
      })[d];
    return decode_rows_.of(row,
                           [&] { return reference(decode_q_, decode_k_, decode_v_, row, row / group * cached_, cached_); })[d];
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(queries_ + requests_), "tokens of a layer/s");
  }

  void one_after_the_other(Launch& launch) {
    chunk(launch.stream);
    decode(launch.stream);
  }
  void two_streams(Launch& launch) {
    beside(launch, [&](cudaStream_t first, cudaStream_t second) {
      chunk(first);
      decode(second);
    });
  }
  // As many multiprocessors for the chunk as make both end soonest, if it keeps its rate for each of them, and decoding gets from
  // each what its ring can have under way.
  void split_sms(Launch& launch) {
    constexpr double products = 5.4e12,
                     bytes = 55e9;  // a second, of a multiprocessor: guesses that choose a split and nothing else
    const double row_blocks = std::ceil(static_cast<double>(queries_) / MixedShape::block_rows) * heads,
                 units = static_cast<double>(requests_) * kv_heads;
    const auto all = static_cast<int>(multiprocessors());
    int best = 1;
    double shortest = std::numeric_limits<double>::infinity();
    for (int blocks = 1; blocks < all; ++blocks) {
      const double longest = std::max(std::ceil(row_blocks / blocks) * chunk_flops() / row_blocks / products,
                                      std::ceil(units / (all - blocks)) * decode_bytes() / units / bytes);
      if (longest < shortest) shortest = longest, best = blocks;
    }
    mixed<true>(launch, best, best);
  }
  void one_launch(Launch& launch) { mixed<true>(launch, static_cast<int>(multiprocessors()), 0); }
  void waiting_products(Launch& launch) { mixed<false>(launch, static_cast<int>(multiprocessors()), 0); }
  void chunk_alone(Launch& launch) { chunk(launch.stream); }
  void decoding_alone(Launch& launch) { decode(launch.stream); }
  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    cudnn_chunk_->tune(launch.stream, q_, k_, v_, o_);
    cudnn_decode_->tune(launch.stream, decode_q_, decode_k_, decode_v_, decode_o_);
  }
  void cudnn_in_turn(Launch& launch) {
    cudnn_chunk_->run(launch.stream, q_, k_, v_, o_);
    cudnn_decode_->run(launch.stream, decode_q_, decode_k_, decode_v_, decode_o_);
  }
  void cudnn_two_streams(Launch& launch) {
    beside(launch, [&](cudaStream_t first, cudaStream_t second) {
      cudnn_chunk_->run(first, q_, k_, v_, o_);
      cudnn_decode_->run(second, decode_q_, decode_k_, decode_v_, decode_o_);
    });
  }

 private:
  Pattern queries_of_chunk() const {
    const std::uint64_t head = queries_ * head_size;
    return normal(0, 1)
        .times(0.5, 2, all_of(Axis{head, group}))
        .set(staircase_query, at(Axis{head * group, kv_heads}, 2, 2), at(dimensions, 0));
  }
  double chunk_flops() const {
    const auto rows = static_cast<double>(queries_);
    return 4 * (rows * static_cast<double>(keys_ - queries_) + rows * (rows + 1) / 2) * heads * head_size;
  }
  double decode_bytes() const {
    return static_cast<double>(decode_q_.bytes() + decode_k_.bytes() + decode_v_.bytes() + decode_o_.bytes());
  }
  // `first`: the row where the head's keys begin.
  static Row reference(const Input<bf16>& q, const Input<bf16>& k, const Input<bf16>& v, std::size_t row, std::size_t first,
                       std::size_t seen) {
    return attend(
        seen, [&](std::size_t d) { return q.host(row * head_size + d); },
        [&](std::size_t key, std::size_t d) { return k.host((first + key) * head_size + d); },
        [&](std::size_t key, std::size_t d) { return v.host((first + key) * head_size + d); });
  }
  template <class Order>
  Pass<Order> pass(const Order& order) const {
    const auto of_queries = [&](const bf16* data) { return attention::heads_first(data, 1, heads, queries_, head_size); };
    const auto of_keys = [&](const bf16* data) { return attention::heads_first(data, 1, kv_heads, keys_, head_size); };
    return {{of_queries(q_), of_keys(k_), of_keys(v_), of_queries(o_)},
            {.mask = {},
             .keys = {static_cast<int>(queries_), static_cast<int>(keys_)},
             .score = {score_scale_log2()},
             .order = order}};
  }
  void chunk(cudaStream_t stream) const {
    pass(attention::in_order(queries_, heads, 1)).run([&](auto kernel, const Grid& grid, const auto&... arguments) {
      launch_kernel(stream, kernel, grid, arguments...);
    });
  }
  void decode(cudaStream_t stream) const {
    const ContiguousCache cache{decode_k_, decode_v_, head_size, cached_ * head_size, kv_heads * cached_ * head_size};
    launch_kernel(stream, attention::decode_kernel<head_size, group, 1, ContiguousCache, FixedSplits, bf16>,
                  attention::decode_grid<head_size, group>(kv_heads, static_cast<int>(requests_)),
                  attention::Decode<ContiguousCache, FixedSplits, bf16>{
                      decode_q_, cache, {lengths_, 1}, heads, score_scale_log2(), decode_o_, nullptr});
  }
  template <class Act>
  void beside(Launch& launch, Act act) const {
    check(cudaEventRecord(forked_, launch.stream));
    check(cudaStreamWaitEvent(side_, forked_));
    act(launch.stream, side_);
    check(cudaEventRecord(joined_, side_));
    check(cudaStreamWaitEvent(launch.stream, joined_));
  }
  // The chunk in the first `chunk_blocks` blocks of threads, decoding in those from first_decoding on; there is one on each
  // multiprocessor.
  template <bool ahead>
  void mixed(Launch& launch, int chunk_blocks, int first_decoding) const {
    const auto both = pass(SomeBlocksInOrder{attention::in_order(queries_, heads, 1), chunk_blocks});
    const auto cache = [&](const bf16* data) {
      return attention::map_of(attention::heads_first(data, requests_, kv_heads, cached_, head_size), head_size, ring_keys);
    };
    const auto all = static_cast<int>(multiprocessors());
    const RingDecode decode{.k = cache(decode_k_),
                            .v = cache(decode_v_),
                            .q = decode_q_,
                            .o = decode_o_,
                            .sequences = static_cast<int>(requests_),
                            .keys = static_cast<int>(cached_),
                            .first_block = first_decoding,
                            .blocks = all - first_decoding,
                            .scale_log2 = score_scale_log2()};
    launch(mixed_kernel<ahead, Pass<SomeBlocksInOrder>::Work>, {static_cast<unsigned>(all), mixed_threads, sizeof(MixedShared)},
           both.maps(), both.work, decode);
  }

  std::size_t requests_, cached_, queries_, keys_;
  Input<bf16> q_, k_, v_;  // [head][row]
  Input<bf16> decode_q_, decode_k_, decode_v_;
  Input<int> lengths_;
  Output<bf16> o_, decode_o_;
  cudaStream_t side_;
  cudaEvent_t forked_, joined_;
  bool reproducible_;
  Opened<shared::CudnnAttention> cudnn_chunk_, cudnn_decode_;
  shared::RowCache<Row> rows_, decode_rows_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair mixed_batch_attention{
    .teaches = "prefill waits for tensor cores and decoding for memory: blocks that have both on every SM use both at once",
    .lesson = "one_launch",
    .make = make<MixedBatchAttention>,
    .baseline = {.name = "one_after_the_other",
                 .run = call<&MixedBatchAttention::one_after_the_other>,
                 .kernels = nothing_spilled},
    .optimized = variants({{.name = "two_streams",
                            .run = call<&MixedBatchAttention::two_streams>,
                            .same_bits_as = "one_after_the_other",
                            .kernels = nothing_spilled},
                           {.name = "one_launch", .run = call<&MixedBatchAttention::one_launch>, .kernels = nothing_spilled}}),
    // The chip is shared, and its multiprocessors are not; products that wait for one another; either half with nothing beside
    // it.
    .controls =
        variants({{.name = "split_sms",
                   .run = call<&MixedBatchAttention::split_sms>,
                   .same_bits_as = "one_launch",
                   .kernels = nothing_spilled},
                  {.name = "waiting_products", .run = call<&MixedBatchAttention::waiting_products>, .kernels = nothing_spilled},
                  {.name = "chunk_alone",
                   .run = call<&MixedBatchAttention::chunk_alone>,
                   .outputs = no_outputs,
                   .kernels = nothing_spilled},
                  {.name = "decoding_alone",
                   .run = call<&MixedBatchAttention::decoding_alone>,
                   .outputs = no_outputs,
                   .kernels = nothing_spilled}}),
    .libraries = variants({{.name = "cudnn_in_turn",
                            .run = call<&MixedBatchAttention::cudnn_in_turn>,
                            .prepare = call<&MixedBatchAttention::tune_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}},
                           {.name = "cudnn_two_streams",
                            .run = call<&MixedBatchAttention::cudnn_two_streams>,
                            .prepare = call<&MixedBatchAttention::tune_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::memory,
    // Weights and results are rounded to bf16 once each: 1.6e-3 twice, 2.3e-3 together. A group of 128 elements scatters, and
    // where one key has all the weight its rounding is common to all of them: up to 2^-9.
    .tolerance = within(5e-3),
    .needs = {.min_sm = 90, .max_sm = 90},
    .sizes = sizes({{.name = "requests", .full = 64, .most = 4096},
                    {.name = "cached", .full = 8192, .most = 1 << 17, .scales = false},
                    {.name = "chunk", .full = 1024, .most = 1 << 15, .scales = false},
                    {.name = "context", .full = 16384, .most = 1 << 17, .scales = false}}),
    // About as long in all cases, if one comes after the other.
    .sweep = cases({{"prefill", "requests=1,chunk=2368"},
                    {"a_quarter_decodes", "requests=28,chunk=1792"},
                    {"half_decodes", "requests=56,chunk=1152"},
                    {"three_quarters_decode", "requests=84,chunk=576"},
                    {"decoding", "requests=112,chunk=1"}}),
    .edges = cases({{"one_key", "requests=3,cached=1,chunk=1,context=1"},
                    {"one_query", "requests=2,cached=77,chunk=1,context=300"},
                    {"long_contexts", "requests=1,cached=131072,chunk=130,context=131"},
                    {"tails", "requests=19,cached=1001,chunk=200,context=1111"}}),
    .reference_samples = 256,
};

}  // namespace aisp::ch18
