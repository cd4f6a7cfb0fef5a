// SPDX-License-Identifier: Apache-2.0
// One decoding step over a bf16 cache of keys and values, 1, 4 or 8 query heads to each of eight KV heads of 64 or 128: limited
// by reading the cache. A block for each sequence and KV head leaves multiprocessors idle where sequences are few and long; cut
// into pieces, which the last of a row's merges in a fixed order, the keys keep all of them reading.
#include <aisp/check.hpp>
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/fastest.hpp>
#include <aisp/pair.hpp>

#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/decode.hpp"
#include "cudnn_attention.hpp"

namespace aisp::attention_engine {
namespace {

using attention::bf16;

constexpr std::size_t kv_heads = 8;
// The number of candidate i + 1, which `split_kv` takes where a size says so.
constexpr std::array all_splits{1, 2, 4, 8, 16, 32, 64};

class AttentionDecode final : public Workload {
 public:
  explicit AttentionDecode(Setup& setup)
      : batch_{setup.size("batch")},
        heads_{setup.size("heads")},
        head_size_{setup.size("head_size")},
        context_{setup.size("context")},
        q_{setup.input<bf16>(batch_ * heads_ * head_size_, normal(0, 1), {.name = "q"})},
        k_{setup.input<bf16>(batch_ * kv_heads * context_ * head_size_, normal(0, 1), {.name = "k"})},
        v_{setup.input<bf16>(batch_ * kv_heads * context_ * head_size_, normal(0, 1), {.name = "v"})},
        lengths_{setup.input<int>(batch_, integers(static_cast<std::int64_t>(context_), static_cast<std::int64_t>(context_)),
                                  {.name = "lengths", .constant = true})},
        o_{setup.output<bf16>(q_.size(), {.name = "o"})},
        parts_{setup.scratch<float>(all_splits.back() * q_.size(), {.name = "results of pieces"})},
        part_log_sums_{setup.scratch<float>(all_splits.back() * batch_ * heads_, {.name = "log-sum-exps of pieces"})},
        reproducible_{setup.reproducible()},
        candidate_{setup.size("candidate")},
        cudnn_{setup, sizes()},
        tuned_cudnn_{setup, sizes()} {
    if (group() != 1 && group() != 4 && group() != 8)
      throw Unsupported{"compiled for 1, 4 and 8 heads to each of " + std::to_string(kv_heads) +
                        " KV heads: heads are 8, 32 or 64, not " + std::to_string(heads_)};
  }

  Cost cost() const override {
    return {.flops = 4 * static_cast<double>(batch_ * heads_) * static_cast<double>(context_ * head_size_),
            .math = Math::bf16,
            .bytes = static_cast<double>(q_.bytes() + k_.bytes() + v_.bytes() + o_.bytes())};
  }
  double expected(std::size_t i) const override {
    const std::size_t row = i / head_size_, kv_row = row / group() * context_;
    std::vector<double> q(head_size_);
    for (std::size_t d = 0; d < head_size_; ++d)
      q[d] = q_.host(row * head_size_ + d) / std::sqrt(static_cast<double>(head_size_));
    double sum = 0, weights = 0;  // float64 reaches to exp(709): no maximum need be taken off
    for (std::size_t key = kv_row; key < kv_row + context_; ++key) {
      double score = 0;
      for (std::size_t d = 0; d < head_size_; ++d) score += q[d] * k_.host(key * head_size_ + d);
      const double weight = std::exp(score);
      weights += weight;
      sum += weight * v_.host(key * head_size_ + i % head_size_);
    }
    return sum / weights;
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (!variant.starts_with("split_kv")) return;
    metrics.report("splits", variant == "split_kv" ? usual() : chosen_.value_or(1), "", Metrics::Better::higher);
  }

  void whole_sequences(Launch& launch) { run(launch, 1); }
  void split_kv(Launch& launch) { run(launch, usual()); }
  void make_tickets(Launch&) {
    if (tickets_) return;
    const std::size_t bytes = batch_ * heads_ * sizeof(unsigned);
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes));
    tickets_.reset(static_cast<unsigned*>(memory));
    check(cudaMemset(memory, 0, bytes));
  }
  void choose(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    make_tickets(launch);
    if (chosen_) return;
    const auto best = fastest(launch.stream, all_splits.size(), [&](std::size_t i) { run(launch, all_splits.at(i)); });
    if (!best) throw Unsupported{"decoding runs with no number of pieces on this GPU"};
    chosen_ = all_splits.at(*best);
  }
  void split_kv_tuned(Launch& launch) { run(launch, *chosen_); }

  void plan_cudnn(Launch&) { cudnn_->plan(); }
  void cudnn(Launch& launch) { cudnn_->run(launch.stream, q_, k_, v_, o_); }
  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    tuned_cudnn_->tune(launch.stream, q_, k_, v_, o_);
  }
  void cudnn_tuned(Launch& launch) { tuned_cudnn_->run(launch.stream, q_, k_, v_, o_); }

 private:
  shared::AttentionSizes sizes() const { return {batch_, heads_, kv_heads, 1, context_, head_size_}; }
  int usual() const { return candidate_ == 0 ? splits() : all_splits.at(candidate_ - 1); }
  // As many pieces as leave few of the places for blocks empty: more only begin and end more often.
  int splits() const {
    const std::size_t places =
        std::size_t{multiprocessors()} * (head_size_ == 64 ? attention::decode_blocks<64> : attention::decode_blocks<128>);
    for (const int pieces : all_splits)
      if (10 * batch_ * kv_heads * static_cast<std::size_t>(pieces) >= 9 * places) return pieces;
    return all_splits.back();
  }
  std::size_t group() const { return heads_ / kv_heads; }
  void run(Launch& launch, int pieces) const {
    if (head_size_ == 64) run<64>(launch, pieces);
    else run<128>(launch, pieces);
  }
  template <int head_size>
  void run(Launch& launch, int pieces) const {
    if (group() == 8) decode<head_size, 8>(launch, pieces);
    else if (group() == 4) decode<head_size, 4>(launch, pieces);
    else decode<head_size, 1>(launch, pieces);
  }
  template <int head_size, int group>
  void decode(Launch& launch, int pieces) const {
    const attention::FixedSplits splits{lengths_, pieces};
    if (pieces == 1) return decode<head_size, group>(launch, splits, o_.get(), nullptr);
    const attention::MergedByLast<attention::FixedSplits, bf16> merged{splits, tickets_.get(), o_, nullptr};
    decode<head_size, group>(launch, merged, parts_.get(), part_log_sums_.get());
  }
  template <int head_size, int group, class Splits, class Out>
  void decode(Launch& launch, const Splits& splits, Out* o, float* log_sums) const {
    const attention::ContiguousCache cache{k_, v_, head_size, context_ * head_size, kv_heads * context_ * head_size};
    const float scale = attention::log2_e / std::sqrt(static_cast<float>(head_size));
    launch(attention::decode_kernel<head_size, group, 1, attention::ContiguousCache, Splits, Out>,
           attention::decode_grid<head_size, group>(static_cast<int>(kv_heads), static_cast<int>(batch_) * splits.splits),
           attention::Decode<attention::ContiguousCache, Splits, Out>{q_, cache, splits, static_cast<int>(heads_), scale, o,
                                                                      log_sums});
  }

  struct CudaFree {
    void operator()(unsigned* memory) const { cudaFree(memory); }
  };

  std::size_t batch_, heads_, head_size_, context_;
  Input<bf16> q_, k_, v_;  // q[sequence][head], k and v[sequence][kv_head][row]
  Input<int> lengths_;
  Output<bf16> o_;
  Scratch<float> parts_, part_log_sums_;
  std::unique_ptr<unsigned, CudaFree> tickets_;  // of memory that runs leave as they find it, so no scratch, which is poisoned
  bool reproducible_;
  std::size_t candidate_;
  Opened<shared::CudnnAttention> cudnn_, tuned_cudnn_;
  std::optional<int> chosen_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair attention_decode{
    .teaches = "the attention engine's decoding, its keys cut into pieces, beside cuDNN and the rate of reading",
    .lesson = "split_kv_tuned",
    .make = make<AttentionDecode>,
    .baseline = {.name = "whole_sequences", .run = call<&AttentionDecode::whole_sequences>, .kernels = nothing_spilled},
    .optimized = variants({{.name = "split_kv",
                            .run = call<&AttentionDecode::split_kv>,
                            .prepare = call<&AttentionDecode::make_tickets>,
                            .kernels = nothing_spilled},
                           {.name = "split_kv_tuned",
                            .run = call<&AttentionDecode::split_kv_tuned>,
                            .prepare = call<&AttentionDecode::choose>,
                            .kernels = nothing_spilled}}),
    .libraries = variants({{.name = "cudnn",
                            .run = call<&AttentionDecode::cudnn>,
                            .prepare = call<&AttentionDecode::plan_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}},
                           {.name = "cudnn_tuned",
                            .run = call<&AttentionDecode::cudnn_tuned>,
                            .prepare = call<&AttentionDecode::tune_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::memory,
    // Weights and results are rounded to bf16 once each: 1.6e-3 twice, 2.3e-3 together; half as much again is allowed.
    .tolerance = within(3.5e-3),
    // A grid has at most 65535 rows of blocks, and a sequence takes up to 64.
    .sizes = sizes({{.name = "batch", .full = 64, .most = 1023},
                    {.name = "heads", .full = 32, .multiple = 8, .most = 64, .scales = false},
                    {.name = "head_size", .full = 128, .multiple = 64, .most = 128, .scales = false},
                    {.name = "context", .full = 8192, .scales = false},
                    {.name = "candidate", .full = 0, .most = all_splits.size(), .scales = false}}),
    .sweep = cases({{"many_sequences", "batch=64,context=8192"},
                    {"longer", "batch=32,context=16384"},
                    {"few_long_sequences", "batch=8,context=65536"},
                    {"few_sequences", "batch=8,context=8192"},
                    {"groups_of_eight", "batch=32,heads=64,context=8192"},
                    {"small_heads", "batch=64,heads=8,context=16384,head_size=64"},
                    {"small_heads_few_sequences", "batch=8,context=16384,head_size=64"},
                    {"small_heads_groups_of_eight", "batch=32,heads=64,context=16384,head_size=64"}}),
    .edges = cases({{"one_key", "batch=1,context=1"},
                    {"pieces_without_keys", "batch=3,context=65"},
                    {"tails_in_groups_of_eight", "batch=2,heads=64,context=1021"},
                    {"tails_without_groups", "batch=2,heads=8,context=1021"},
                    {"small_heads", "batch=3,context=1021,head_size=64"},
                    {"small_heads_without_groups", "batch=3,heads=8,context=65,head_size=64"},
                    {"small_heads_in_groups_of_eight", "batch=2,heads=64,context=1021,head_size=64"}}),
    .reference_samples = 128,
};

}  // namespace aisp::attention_engine
