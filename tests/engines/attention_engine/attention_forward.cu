// SPDX-License-Identifier: Apache-2.0
// Attention of a prompt in bf16: heads of 64 and 128, with and without a causal mask, grouped heads, and heads whose scores rise
// by 2^12 from one tile of keys to the next as the engine walks, so that it must rescale its sums at each, which it otherwise
// defers. Limited by the tensor cores, or where heads are small by the exponentials. The clock chooses the order of the blocks of
// rows.
#include <aisp/libraries/fastest.hpp>
#include <aisp/pair.hpp>

#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "attention/forward.hpp"
#include "attention/forward_by_three.hpp"
#include "attention_reference.hpp"
#include "cudnn_attention.hpp"

namespace aisp::attention_engine {
namespace {

using attention::bf16;

class AttentionForward final : public Workload {
 public:
  explicit AttentionForward(Setup& setup)
      : batch_{setup.size("batch")},
        heads_{setup.size("heads")},
        kv_heads_{shared_heads(heads_, setup.size("kv_heads"))},
        tokens_{setup.size("tokens")},
        head_size_{setup.size("head_size")},
        causal_{setup.size("causal") == 1},
        q_{setup.input<bf16>(batch_ * heads_ * tokens_ * head_size_, queries(setup.size("rising") == 1), {.name = "q"})},
        k_{setup.input<bf16>(batch_ * kv_heads_ * tokens_ * head_size_, keys(setup.size("rising") == 1), {.name = "k"})},
        v_{setup.input<bf16>(batch_ * kv_heads_ * tokens_ * head_size_, normal(0, 1), {.name = "v"})},
        o_{setup.output<bf16>(q_.size(), {.name = "o", .groups = {tokens_ * head_size_, batch_ * heads_}})},
        taken_{setup.scratch<unsigned>(1, {.name = "taken"})},
        cpus_{setup.cpus()},
        reproducible_{setup.reproducible()},
        cudnn_{setup, sizes(), mask()},
        tuned_cudnn_{setup, sizes(), mask()} {
    if (head_size_ == 64) add_orders<64>();
    else add_orders<128>();
  }

  Cost cost() const override {
    const auto tokens = static_cast<double>(tokens_);
    const double keys_of_a_row = causal_ ? (tokens + 1) / 2 : tokens;  // on average: of masked ones nothing need be computed
    return {.flops = 4 * static_cast<double>(batch_ * heads_) * tokens * keys_of_a_row * static_cast<double>(head_size_),
            .math = Math::bf16,
            .bytes = static_cast<double>(q_.bytes() + k_.bytes() + v_.bytes() + o_.bytes())};
  }
  void compute_reference(Launch&) override { reference_.keep(k_, cpus_); }
  double expected(std::size_t i) const override { return reference_.output(i, q_, v_); }
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (!variant.starts_with("engine")) return;
    const std::size_t used = variant == "engine_tuned" ? chosen_.value_or(0) : 0;
    metrics.report("in_order", orders_[used].in_order ? 1 : 0, "of 1", Metrics::Better::higher);
    metrics.report("warpgroups", orders_[used].warpgroups, "of a block", Metrics::Better::higher);
  }

  void plan_cudnn(Launch&) { cudnn_->plan(); }
  void cudnn(Launch& launch) { cudnn_->run(launch.stream, q_, k_, v_, o_); }
  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    tuned_cudnn_->tune(launch.stream, q_, k_, v_, o_);
  }
  void cudnn_tuned(Launch& launch) { tuned_cudnn_->run(launch.stream, q_, k_, v_, o_); }

  // Each run leaves it as it was.
  void clear_taken(Launch& launch) { check(cudaMemsetAsync(taken_, 0, taken_.bytes(), launch.stream)); }
  void engine(Launch& launch) { orders_.front().run(launch); }
  void choose(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    clear_taken(launch);
    if (chosen_) return;
    chosen_ = fastest(launch.stream, orders_.size(), [&](std::size_t i) { orders_[i].run(launch); });
    if (!chosen_) throw Unsupported{"the engine runs in none of its orders on this GPU"};
  }
  void engine_tuned(Launch& launch) { orders_[*chosen_].run(launch); }

 private:
  template <int head_size, class Mask, class Turns>
  using Pass = attention::ForwardPass<head_size, head_size, Mask, attention::Dense, attention::Scaled, false, Turns>;

  struct Order {
    bool in_order;
    int warpgroups;
    std::function<void(const Launch&)> run;
  };

  static std::size_t shared_heads(std::size_t heads, std::size_t kv_heads) {
    if (heads % kv_heads != 0)
      throw Unsupported{std::to_string(heads) + " heads cannot share " + std::to_string(kv_heads) + " heads of keys evenly"};
    return kv_heads;
  }
  // With a factor of 4 in the first column of each query, scores are 12 powers of two lower with each 128 keys: keys are taken
  // from the last to the first.
  Pattern queries(bool rising) const { return rising ? normal(0, 1).set(4, aisp::at(Axis{1, head_size_}, 0)) : normal(0, 1); }
  Pattern keys(bool rising) const {
    const double step = 12 * std::sqrt(static_cast<double>(head_size_)) / (4 * double{attention::log2_e});
    if (!rising) return normal(0, 1);
    return normal(0, 1).plus_steps(static_cast<float>(-step), attention::tile_keys, all_of(Axis{head_size_, tokens_}),
                                   aisp::at(Axis{1, head_size_}, 0));
  }
  shared::AttentionSizes sizes() const { return {batch_, heads_, kv_heads_, tokens_, tokens_, head_size_}; }
  shared::Mask mask() const { return causal_ ? shared::Mask::causal : shared::Mask::none; }

  // The usual order first.
  template <int head_size>
  void add_orders() {
    const attention::InOrder in_order = attention::in_order(tokens_, heads_, batch_);
    const attention::LongestFirst longest_first = attention::longest_first(
        tokens_, tokens_, 2 * head_size_, heads_, static_cast<int>(heads_ / kv_heads_), batch_, taken_.get());
    if (causal_) {
      add<head_size, attention::Causal>(longest_first);
      add<head_size, attention::Causal>(in_order);
    } else {
      if constexpr (head_size == 64)
        add_by_three<attention::NoMask>(attention::FullBlocksFirst{in_order, static_cast<int>(tokens_), taken_.get()});
      add<head_size, attention::NoMask>(in_order);
      add<head_size, attention::NoMask>(longest_first);
    }
  }
  template <int head_size, class Mask, class Turns>
  void add(const Turns& turns) {
    if constexpr (head_size == 64) add_by_three<Mask>(turns);
    const Pass<head_size, Mask, Turns> pass{tensors(), work<Mask>(turns)};
    orders_.push_back({std::is_same_v<Turns, attention::InOrder>, 2, [pass](const Launch& launch) { pass.run(launch); }});
  }
  template <class Mask, class Turns>
  void add_by_three(const Turns& turns) {
    const attention::ForwardByThree<Mask, attention::Dense, attention::Scaled, false, Turns> pass{tensors(), work<Mask>(turns),
                                                                                                  tokens_};
    orders_.push_back({std::is_same_v<Turns, attention::InOrder>, 3, [pass](const Launch& launch) { pass.run(launch); }});
  }
  template <class Mask, class Turns>
  attention::Forward<Mask, attention::Dense, attention::Scaled, Turns> work(const Turns& turns) const {
    const auto rows = static_cast<int>(tokens_);
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_size_)));
    return {.mask = {}, .keys = {rows, rows}, .score = {scale * attention::log2_e}, .order = turns};
  }
  attention::Tensors tensors() const {
    const auto tensor = [&](const bf16* data, std::size_t heads) {
      return attention::heads_first(data, batch_, heads, tokens_, head_size_);
    };
    return {tensor(q_, heads_), tensor(k_, kv_heads_), tensor(v_, kv_heads_), tensor(o_, heads_)};
  }

  std::size_t batch_, heads_, kv_heads_, tokens_, head_size_;
  bool causal_;
  Input<bf16> q_, k_, v_;
  Output<bf16> o_;
  Scratch<unsigned> taken_;
  int cpus_;
  bool reproducible_;
  shared::AttentionReference reference_{batch_ * heads_, tokens_, head_size_, causal_, heads_ / kv_heads_};
  Opened<shared::CudnnAttention> cudnn_, tuned_cudnn_;
  std::vector<Order> orders_;
  std::optional<std::size_t> chosen_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair attention_forward{
    .teaches = "the attention engine's forward kernel beside cuDNN",
    .lesson = "engine_tuned",
    .make = make<AttentionForward>,
    .baseline = {.name = "cudnn",
                 .run = call<&AttentionForward::cudnn>,
                 .prepare = call<&AttentionForward::plan_cudnn>,
                 .needs = {.libraries = {Library::cudnn}}},
    .optimized = variants({{.name = "engine",
                            .run = call<&AttentionForward::engine>,
                            .prepare = call<&AttentionForward::clear_taken>,
                            .kernels = nothing_spilled},
                           {.name = "engine_tuned",
                            .run = call<&AttentionForward::engine_tuned>,
                            .prepare = call<&AttentionForward::choose>,
                            .kernels = nothing_spilled}}),
    .libraries = variants({{.name = "cudnn_tuned",
                            .run = call<&AttentionForward::cudnn_tuned>,
                            .prepare = call<&AttentionForward::tune_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::compute,
    // Weights and results are rounded to bf16 once each: 1.6e-3 twice, 2.3e-3 together, and the 64 elements or so that are looked
    // at of a head scatter to twice that. Where a mask leaves a row few keys, their values may cancel and the weights' roundings
    // do not: a deviation of about 1e-3, beside a root mean square of 3e-2 over 8192 rows. The largest of some ten thousand such
    // elements is four deviations, 0.1.
    .tolerance = within(5e-3, 0.1),
    .needs = {.min_sm = 90, .max_sm = 90},
    .sizes = sizes({{.name = "batch", .full = 2, .most = 256, .scales = false},
                    {.name = "heads", .full = 16, .most = 256, .scales = false},
                    {.name = "kv_heads", .full = 16, .most = 256, .scales = false},
                    {.name = "tokens", .full = 8192},
                    {.name = "head_size", .full = 128, .multiple = 64, .most = 128, .scales = false},
                    option("causal"),
                    option("rising")}),
    // 16384 tokens in all.
    .sweep = cases({{"full_1024", "batch=16,tokens=1024"},
                    {"full_4096", "batch=4,tokens=4096"},
                    {"full_16384", "batch=1,tokens=16384"},
                    {"causal_1024", "batch=16,tokens=1024,causal=1"},
                    {"causal_4096", "batch=4,tokens=4096,causal=1"},
                    {"causal_16384", "batch=1,tokens=16384,causal=1"},
                    {"small_heads_4096", "batch=4,tokens=4096,heads=32,kv_heads=32,head_size=64"},
                    {"small_heads_causal_4096", "batch=4,tokens=4096,heads=32,kv_heads=32,head_size=64,causal=1"},
                    {"grouped_causal_8192", "batch=2,tokens=8192,heads=32,kv_heads=8,causal=1"},
                    {"rising_4096", "batch=4,tokens=4096,rising=1"},
                    {"rising_causal_4096", "batch=4,tokens=4096,causal=1,rising=1"}}),
    .edges = cases({{"tail", "batch=1,heads=3,kv_heads=3,tokens=200"},
                    {"tail_causal", "batch=3,heads=5,kv_heads=5,tokens=712,causal=1"},
                    {"small_heads", "batch=1,heads=4,kv_heads=4,tokens=512,head_size=64"},
                    {"small_heads_causal", "batch=2,heads=4,kv_heads=4,tokens=640,head_size=64,causal=1"},
                    {"grouped", "batch=2,heads=8,kv_heads=2,tokens=512"},
                    {"rising", "batch=1,heads=2,kv_heads=2,tokens=1024,rising=1"},
                    {"rising_small_causal", "batch=1,heads=2,kv_heads=2,tokens=1024,head_size=64,causal=1,rising=1"}}),
    .reference_samples = 4096,
};

}  // namespace aisp::attention_engine
