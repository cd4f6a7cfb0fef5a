// SPDX-License-Identifier: Apache-2.0
// dQ, dK and dV of attention in bf16 from the log-sum-exps of the forward kernel, which is not timed: five products where the
// forward pass has two, limited by the tensor cores. Blocks of keys add their parts of dQ in fp32 in L2: in the order of the
// keys, so that equal inputs give equal bits, or as they come.
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>

#include "attention/backward.hpp"
#include "gradients_reference.hpp"

namespace aisp::attention_engine {
namespace {

using attention::bf16;

class AttentionBackward final : public Workload {
 public:
  explicit AttentionBackward(Setup& setup)
      : batch_{smaller(setup, "batch", 1)},
        group_{shared_by(setup.size("heads"), setup.size("kv_heads"))},
        kv_heads_{smaller(setup, "kv_heads", 2)},
        tokens_{smaller(setup, "tokens", 328)},
        head_size_{setup.size("head_size")},
        causal_{setup.size("causal") == 1},
        cpus_{setup.cpus()},
        // Constant: what the forward pass makes of them in `prepare` must still be true in every run.
        q_{setup.input<bf16>(queries(), normal(0, 1), {.name = "q", .constant = true})},
        k_{setup.input<bf16>(keys(), normal(0, 1), {.name = "k", .constant = true})},
        v_{setup.input<bf16>(keys(), normal(0, 1), {.name = "v", .constant = true})},
        d_o_{setup.input<bf16>(queries(), normal(0, 1), {.name = "gradient of o", .constant = true})},
        d_q_{setup.output<bf16>(queries(), {.name = "gradient of q", .groups = {tokens_ * head_size_, batch_ * heads()}})},
        d_k_{setup.output<bf16>(keys(), {.name = "gradient of k", .groups = {tokens_ * head_size_, batch_ * kv_heads_}})},
        d_v_{setup.output<bf16>(keys(), {.name = "gradient of v", .groups = {tokens_ * head_size_, batch_ * kv_heads_}})},
        scratch_{attention::backward_scratch(tokens_, heads(), batch_, head_size_)},
        o_{setup.scratch<bf16>(queries(), {.name = "o"})},
        log_sums_{setup.scratch<float>(batch_ * heads() * tokens_, {.name = "log-sum-exps"})},
        padded_log_sums_{setup.scratch<float>(scratch_.rows, {.name = "padded log-sum-exps"})},
        deltas_{setup.scratch<float>(scratch_.rows, {.name = "sums of o times its gradient"})},
        d_q_sums_{setup.scratch<float>(scratch_.d_q_sums, {.name = "sums of the gradient of q"})},
        added_{setup.scratch<unsigned>(scratch_.added, {.name = "parts added"})},
        begun_{setup.scratch<unsigned>(1, {.name = "blocks begun"})} {
    if (head_size_ == 64 && causal_) prepare_passes<64, attention::Causal>();
    else if (head_size_ == 64) prepare_passes<64, attention::NoMask>();
    else if (causal_) prepare_passes<128, attention::Causal>();
    else prepare_passes<128, attention::NoMask>();
  }

  Cost cost() const override {
    const auto tokens = static_cast<double>(tokens_);
    const double keys_of_a_row = causal_ ? (tokens + 1) / 2 : tokens;  // on average: of masked ones nothing need be computed
    return {.flops = 10 * static_cast<double>(batch_ * heads()) * tokens * keys_of_a_row * static_cast<double>(head_size_),
            .math = Math::bf16,
            // O and the log-sum-exps are read as well.
            .bytes = static_cast<double>(q_.bytes() + k_.bytes() + v_.bytes() + o_.bytes() + log_sums_.bytes() + d_o_.bytes() +
                                         d_q_.bytes() + d_k_.bytes() + d_v_.bytes())};
  }
  void compute_reference(Launch&) override {
    reference_.emplace(GradientSizes{batch_ * kv_heads_, group_, tokens_, head_size_, causal_}, q_, k_, v_, d_o_, cpus_);
  }
  double expected_output(int output, std::size_t i) const override {
    return reference_->gradients[static_cast<std::size_t>(output)][i];
  }

  void forward(Launch& launch) { forward_(launch); }
  void in_order(Launch& launch) { in_order_(launch); }
  void as_they_come(Launch& launch) { as_they_come_(launch); }

 private:
  using Pass = std::function<void(const Launch&)>;

  // The reference wants time as the square of the tokens.
  static std::size_t smaller(const Setup& setup, std::string_view size, std::size_t most) {
    const std::size_t full = setup.size(size);
    return setup.shape(full, std::min(full, most));
  }
  static std::size_t shared_by(std::size_t heads, std::size_t kv_heads) {
    if (heads % kv_heads != 0)
      throw Unsupported{std::to_string(heads) + " heads cannot share " + std::to_string(kv_heads) + " heads of keys evenly"};
    return heads / kv_heads;
  }
  std::size_t heads() const { return kv_heads_ * group_; }
  std::size_t queries() const { return batch_ * heads() * tokens_ * head_size_; }
  std::size_t keys() const { return batch_ * kv_heads_ * tokens_ * head_size_; }

  attention::Tensor of_queries(const bf16* data) const {
    return attention::heads_first(data, batch_, heads(), tokens_, head_size_);
  }
  attention::Tensor of_keys(const bf16* data) const {
    return attention::heads_first(data, batch_, kv_heads_, tokens_, head_size_);
  }
  template <int head_size, class Mask>
  void prepare_passes() {
    using Forward =
        attention::ForwardPass<head_size, head_size, Mask, attention::Dense, attention::Scaled, true, attention::InOrder>;
    const auto rows = static_cast<int>(tokens_);
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_size)));
    const attention::Strides by_row{1, tokens_, heads() * tokens_};
    const Forward pass{{of_queries(q_), of_keys(k_), of_keys(v_), of_queries(o_)},
                       {.mask = {},
                        .keys = {rows, rows},
                        .score = {scale * attention::log2_e},
                        .order = attention::in_order(tokens_, heads(), batch_),
                        .log_sums = log_sums_,
                        .log_sum_strides = by_row}};
    forward_ = [pass](const Launch& launch) { pass.run(launch); };

    attention::Backward<Mask> work{};
    work.lengths = {rows, rows};
    work.scale = scale;
    work.log_sums = log_sums_;
    work.log_sum_strides = by_row;
    work.padded_log_sums = padded_log_sums_;
    work.deltas = deltas_;
    work.d_q_sums = d_q_sums_;
    work.added = added_;
    work.begun = begun_;
    const attention::BackwardTensors tensors{of_queries(q_),   of_keys(k_),      of_keys(v_),   of_queries(o_),
                                             of_queries(d_o_), of_queries(d_q_), of_keys(d_k_), of_keys(d_v_)};
    in_order_ = [pass = attention::BackwardPass<head_size, Mask, true>{tensors, work}](const Launch& launch) {
      pass.run(launch);
    };
    as_they_come_ = [pass = attention::BackwardPass<head_size, Mask, false>{tensors, work}](const Launch& launch) {
      pass.run(launch);
    };
  }

  std::size_t batch_, group_, kv_heads_, tokens_, head_size_;
  bool causal_;
  int cpus_;
  Input<bf16> q_, k_, v_, d_o_;
  Output<bf16> d_q_, d_k_, d_v_;
  attention::BackwardScratch scratch_;
  Scratch<bf16> o_;
  Scratch<float> log_sums_, padded_log_sums_, deltas_, d_q_sums_;
  Scratch<unsigned> added_, begun_;
  Pass forward_, in_order_, as_they_come_;
  std::optional<GradientsReference> reference_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair attention_backward{
    .teaches =
        "the attention engine's backward kernel, its parts of dQ added in order or as they come, beside the tensor cores' rate",
    .lesson = "as_they_come",
    .make = make<AttentionBackward>,
    .baseline = {.name = "in_order",
                 .run = call<&AttentionBackward::in_order>,
                 .prepare = call<&AttentionBackward::forward>,
                 .kernels = nothing_spilled},
    .optimized = variants({{.name = "as_they_come",
                            .run = call<&AttentionBackward::as_they_come>,
                            .prepare = call<&AttentionBackward::forward>,
                            .deterministic = false,
                            .kernels = nothing_spilled}}),
    .bound = Bound::compute,
    // Weights, their derivatives, O and results are rounded to bf16 once each: 1.6e-3 four times, 3.2e-3 together; half as much
    // again is allowed.
    .tolerance = within(5e-3),
    .needs = {.min_sm = 90, .max_sm = 90},
    .verification = Verification::small_shape,
    .sizes = sizes({{.name = "batch", .full = 2, .most = 256, .scales = false},
                    {.name = "heads", .full = 16, .most = 256, .scales = false},
                    {.name = "kv_heads", .full = 16, .most = 256, .scales = false},
                    {.name = "tokens", .full = 8192},
                    {.name = "head_size", .full = 128, .multiple = 64, .most = 128, .scales = false},
                    option("causal")}),
    // 16384 tokens in all.
    .sweep = cases({{"full_4096", "batch=4,tokens=4096"},
                    {"full_16384", "batch=1,tokens=16384"},
                    {"causal_1024", "batch=16,tokens=1024,causal=1"},
                    {"causal_4096", "batch=4,tokens=4096,causal=1"},
                    {"causal_16384", "batch=1,tokens=16384,causal=1"},
                    {"small_heads_causal_4096", "batch=4,tokens=4096,heads=32,kv_heads=32,head_size=64,causal=1"},
                    {"grouped_causal_8192", "batch=2,tokens=8192,heads=32,kv_heads=8,causal=1"}}),
    .edges = cases({{"small_heads", "batch=1,heads=4,kv_heads=2,tokens=129,head_size=64"},
                    {"small_heads_causal", "batch=1,heads=4,kv_heads=4,tokens=200,head_size=64,causal=1"},
                    {"grouped_causal", "batch=1,heads=8,kv_heads=2,tokens=300,causal=1"}}),
};

}  // namespace aisp::attention_engine
