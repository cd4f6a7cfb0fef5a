// SPDX-License-Identifier: Apache-2.0
// Forward and backward through four gated MLP blocks, whose activations are more than the memory that there is for them. What is
// dropped is computed again in the backward pass, and that sets the price: a whole block costs its products once more, a norm and
// a SwiGLU cost a pass over memory each, and are a third of the bytes.
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

#include "training/mlp_block.hpp"
#include "training/reference.cuh"

namespace aisp::ch13 {
namespace {

using training::bf16, training::MlpActivations, training::MlpShape, training::MlpWeights;

constexpr std::size_t blocks = 4;

// A block keeps these from the forward to the backward pass, besides its input.
enum class Keep : std::uint8_t { nothing, projections, all };

class ActivationCheckpointing final : public Workload {
 public:
  explicit ActivationCheckpointing(Setup& setup)
      : shape_{setup.shape(setup.size("tokens"), std::min<std::size_t>(setup.size("tokens"), 264)),
               setup.shape(setup.size("width"), std::min<std::size_t>(setup.size("width"), 512)),
               setup.shape(setup.size("hidden"), std::min<std::size_t>(setup.size("hidden"), 1800))},
        reproducible_{setup.reproducible()},
        // Rows of zeros, whose gates are 0.
        x_{setup.input<bf16>(rows(), normal(0, 1).set(0, drawn(Axis{shape_.width, shape_.tokens}, 3)), {.name = "x"})},
        dy_{setup.input<bf16>(rows(), normal(0, 1), {.name = "dy"})},
        norm_{setup.input<bf16>(blocks * shape_.width, normal(1, 0.3f), {.name = "weights of the norms"})},
        // Some gates are so large that the exponential overflows. Their weights down are small, or the rounding of x, so many
        // times larger, would be most of a gradient's error.
        gate_up_{setup.input<bf16>(blocks * up_size(),
                                   normal(0, 1 / std::sqrt(static_cast<float>(shape_.width)))
                                       .times(20, 100, at(Axis{shape_.width, 2 * shape_.hidden}, 3, 8)),
                                   {.name = "weights of gates and ups"})},
        // A block hands on its input, and its gradient.
        down_{setup.input<bf16>(blocks * down_size(),
                                normal(0, 1 / std::sqrt(static_cast<float>(shape_.hidden)))
                                    .times(0.01f, at(Axis{1, shape_.hidden}, 3, 8))
                                    .set(0, at(Axis{down_size(), blocks}, 2)),
                                {.name = "weights down"})},
        y_{setup.output<bf16>(rows(), {.name = "y"})},
        dx_{setup.output<bf16>(rows(), {.name = "dx"})},
        d_norm_{setup.output<float>(norm_.size(), {.name = "gradient of the norms", .groups = {shape_.width, blocks}})},
        d_gate_up_{setup.output<bf16>(gate_up_.size(), {.name = "gradient of gates and ups", .groups = {up_size(), blocks}})},
        d_down_{setup.output<bf16>(down_.size(), {.name = "gradient down", .groups = {down_size(), blocks}})},
        inputs_{setup.scratch<bf16>((blocks - 1) * rows())},
        rerun_y_{setup.scratch<bf16>(rows())},
        normed_{setup.scratch<bf16>(blocks * rows())},
        inverse_rms_{setup.scratch<float>(blocks * shape_.tokens)},
        projections_{setup.scratch<bf16>(blocks * shape_.tokens * 2 * shape_.hidden)},
        products_{setup.scratch<bf16>(blocks * shape_.tokens * shape_.hidden)},
        d_normed_{setup.scratch<bf16>(rows())},
        d_projections_{setup.scratch<bf16>(shape_.tokens * 2 * shape_.hidden)},
        d_product_{setup.scratch<bf16>(shape_.tokens * shape_.hidden)},
        lt_{setup},
        block_{setup, lt_, shape_} {}

  // Forward, and both gradients, without anything computed twice; each step reads and writes whole tensors.
  Cost cost() const override {
    const double weights = static_cast<double>(gate_up_.bytes() + down_.bytes());
    const double of_width = 1e6 * megabytes(rows()), of_hidden = 1e6 * megabytes(shape_.tokens * shape_.hidden);
    return {.flops = 6 * static_cast<double>(shape_.tokens) * static_cast<double>(gate_up_.size() + down_.size()),
            .math = Math::bf16,
            .bytes = 3 * weights + blocks * (15 * of_width + 17 * of_hidden)};
  }
  void compute_reference(Launch& launch) override {
    const auto host = [](const Input<bf16>& input) {
      std::vector<double> values(input.size());
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = input.host(i);
      return values;
    };
    const training::Doubles x{host(x_)}, y{rows()}, d_norm{norm_.size()}, d_gate_up{gate_up_.size()}, d_down{down_.size()};
    const training::Doubles d[2] = {training::Doubles{host(dy_)}, training::Doubles{rows()}};  // the last block reads the first
    const training::MlpReference of[blocks] = {training::MlpReference{shape_}, training::MlpReference{shape_},
                                               training::MlpReference{shape_}, training::MlpReference{shape_}};
    for (std::size_t b = 0; b < blocks; ++b) of[b].forward(launch.stream, b == 0 ? x : y, weights(b), y);
    for (std::size_t b = blocks; b-- > 0;)
      of[b].backward(launch.stream, d[(b + 1) % 2], weights(b),
                     {d_norm + b * shape_.width, d_gate_up + b * up_size(), d_down + b * down_size()}, d[b % 2]);
    reference_[0] = y.host();
    reference_[1] = d[0].host();
    reference_[2] = d_norm.host();
    reference_[3] = d_gate_up.host();
    reference_[4] = d_down.host();
  }
  double expected_output(int output, std::size_t i) const override { return reference_[output][i]; }
  void metrics(std::string_view variant, Metrics& metrics) override {
    const Keep keep = variant == "selective" ? Keep::projections : variant == "save_all" ? Keep::all : Keep::nothing;
    const double input = megabytes(rows()), projections = megabytes(shape_.tokens * 2 * shape_.hidden),
                 others = megabytes(rows() + shape_.tokens * shape_.hidden);
    const double of_block = (keep == Keep::nothing ? 0 : projections) + (keep == Keep::all ? others : 0);
    metrics.report("activations_kept", blocks * (input + of_block), "MB", Metrics::Better::lower);
    metrics.report_rate("tokens_per_second", static_cast<double>(shape_.tokens), "tokens/s");
  }

  template <Keep keep, bool whole_block>
  void run(Launch& launch) {
    for (std::size_t b = 0; b < blocks; ++b)
      block_.forward(launch, input(b), weights(b), activations(b, keep), b + 1 < blocks ? inputs_ + b * rows() : y_.get());
    for (std::size_t b = blocks; b-- > 0;) {
      const MlpActivations of = activations(b, keep);
      if (keep != Keep::all) block_.normalize(launch, input(b), weights(b), of);
      if (keep == Keep::nothing) {
        block_.project_up(launch, weights(b), of);
        block_.gate(launch, of);
        if (whole_block) block_.project_down(launch, input(b), weights(b), of, rerun_y_);
      }
      block_.backward(launch, input(b), b + 1 < blocks ? dx_.get() : dy_.get(), weights(b), of, workspace(), gradients(b), dx_,
                      keep == Keep::projections);
    }
  }
  void tune(Launch& launch) {
    if (reproducible_) return;
    run<Keep::nothing, false>(launch);
    block_.tune(launch, weights(0), activations(0, Keep::nothing), workspace(), gradients(0), rerun_y_);
  }

 private:
  std::size_t rows() const { return shape_.tokens * shape_.width; }
  std::size_t up_size() const { return 2 * shape_.hidden * shape_.width; }
  std::size_t down_size() const { return shape_.width * shape_.hidden; }
  static double megabytes(std::size_t elements) { return static_cast<double>(elements * sizeof(bf16)) * 1e-6; }

  const bf16* input(std::size_t b) const { return b == 0 ? x_.get() : inputs_ + (b - 1) * rows(); }
  MlpWeights weights(std::size_t b) const {
    return {norm_ + b * shape_.width, gate_up_ + b * up_size(), down_ + b * down_size()};
  }
  training::MlpGradients gradients(std::size_t b) const {
    return {d_norm_ + b * shape_.width, d_gate_up_ + b * up_size(), d_down_ + b * down_size()};
  }
  training::MlpWorkspace workspace() const { return {d_normed_, d_projections_, d_product_}; }
  // All blocks share one place for values that they do not keep.
  MlpActivations activations(std::size_t b, Keep keep) const {
    const std::size_t of_all = keep == Keep::all ? b : 0, of_projections = keep == Keep::nothing ? 0 : b;
    return {normed_ + of_all * rows(), inverse_rms_ + of_all * shape_.tokens,
            projections_ + of_projections * shape_.tokens * 2 * shape_.hidden,
            products_ + of_all * shape_.tokens * shape_.hidden};
  }

  MlpShape shape_;
  bool reproducible_;
  Input<bf16> x_, dy_, norm_, gate_up_, down_;
  Output<bf16> y_, dx_;
  Output<float> d_norm_;
  Output<bf16> d_gate_up_, d_down_;
  Scratch<bf16> inputs_, rerun_y_;  // of the blocks after the first; what a whole rerun computes and nobody reads
  Scratch<bf16> normed_;
  Scratch<float> inverse_rms_;
  Scratch<bf16> projections_, products_, d_normed_, d_projections_, d_product_;
  Opened<CublasLt> lt_;
  training::MlpBlock block_;
  std::vector<double> reference_[5];
};

template <Keep keep, bool whole_block = false>
constexpr Variant variant(std::string_view name, std::string_view same_bits_as = {}) {
  return {.name = name,
          .run = call<&ActivationCheckpointing::run<keep, whole_block>>,
          .prepare = call<&ActivationCheckpointing::tune>,
          .same_bits_as = same_bits_as};
}

}  // namespace

extern constinit const Pair activation_checkpointing{
    .teaches = "what checkpointing drops sets its price: products are dear to repeat, norms and gates cost a pass over memory",
    .lesson = "selective",
    .make = make<ActivationCheckpointing>,
    .baseline = variant<Keep::nothing, true>("whole_blocks"),
    .optimized =
        variants({variant<Keep::nothing>("stop_early", "whole_blocks"), variant<Keep::projections>("selective", "whole_blocks")}),
    // Over the budget of 0.6 GB.
    .controls = variants({variant<Keep::all>("save_all", "whole_blocks")}),
    .bound = Bound::compute,
    // In each block and direction some eight roundings to bf16 of 1.6e-3 add up, and gates whose weights are large take the
    // rounding of x that many times: 1.2e-2 in one of the blocks. A gradient whose addends cancel keeps what the largest lost.
    .tolerance = within(3e-2, 0.4),
    .needs = {.libraries = {Library::cublaslt}},
    .verification = Verification::small_shape,
    .sizes = sizes({{.name = "tokens", .full = 2048, .multiple = 8},
                    {.name = "width", .full = 4096, .multiple = 8, .most = training::widest_row, .scales = false},
                    {.name = "hidden", .full = 14336, .multiple = 8, .most = 32768, .scales = false}}),
    .sweep = cases({{"tokens_512", "tokens=512"},
                    {"tokens_1024", "tokens=1024"},
                    {"tokens_2048", "tokens=2048"},
                    {"tokens_4096", "tokens=4096"},
                    {"tokens_8192", "tokens=8192"}}),
    .edges = cases({{"tails", "tokens=104,width=264,hidden=328"}}),
};

}  // namespace aisp::ch13
