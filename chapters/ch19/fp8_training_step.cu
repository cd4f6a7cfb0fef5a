// SPDX-License-Identifier: Apache-2.0
// One optimizer step of a SwiGLU MLP, 4096 to 14336 and back, as eight micro-batches of 1024 tokens whose gradients add up in
// fp32. Its products take FP8, along K alone, so that each tensor is cast and transposed; at twice the rate of bf16 a micro-batch
// is so short that this shows. Weights change once a step, not in every micro-batch: their codes are kept. What is left is done
// with fewer passes: scales that earlier steps have left need no maximum first, one pass writes both layouts, and SwiGLU writes
// codes.
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "fp8_casts.cuh"
#include "fp8_step_products.hpp"
#include "fp8_step_reference.hpp"

namespace aisp::ch19 {
namespace {

constexpr unsigned threads = transposing_threads, history_steps = 16;
constexpr std::size_t spikes = 8;
// Largest magnitudes of x, a, dy and dh in earlier steps.
constexpr float seen[recorded_tensors] = {500, 40, 5e-6f, 3e-5f};

// A variant's technique, each field one step of the ladder.
struct Recipe {
  bool cached_weights = false, delayed_scales = false, both_ways = false, swiglu_casts = false;
  bool engine_adds = false, deferred = false;
};
constexpr Recipe nothing_kept{}, cached{true}, delayed{true, true}, one_pass{true, true, true}, fused{true, true, true, true},
    adding{true, true, true, true, true}, at_the_end{true, true, true, true, false, true};

class Fp8TrainingStep final : public Workload {
 public:
  explicit Fp8TrainingStep(Setup& setup)
      : shape_{shape_of(setup)},
        first_step_{setup.size("first_step") == 1},
        burst_{setup.size("burst") == 1},
        reproducible_{setup.reproducible()},
        // A row of zeros, zeros of both signs, and channels so large that a tenth of the other values become subnormal.
        x_{setup.input<bf16>(tokens() * depth(),
                             normal(0, 1)
                                 .times(20, 100, drawn(Axis{1, depth()}, 8))
                                 .set(-0.0f, drawn(Axis{1, tokens() * depth()}, tokens()))
                                 .set(0, at(Axis{depth(), tokens()}, 0)),
                             {.name = "x"})},
        dy_{setup.input<bf16>(tokens() * depth(), gradients(), {.name = "dy"})},
        // Products have a variance near one; the outliers of x add as much as 32768 channels.
        w1_{setup.input<bf16>(2 * width() * depth(), normal(0, 1 / std::sqrt(static_cast<float>(depth()) + 32768)),
                              {.name = "weights of gate and up"})},
        w2_{setup.input<bf16>(depth() * width(), normal(0, 1 / std::sqrt(static_cast<float>(width()))),
                              {.name = "weights down"})},
        history_{setup.input<float>(std::size_t{recorded_tensors} * history_steps,
                                    [this](std::span<float> to, std::uint64_t) { fill_history(to); }, {.name = "history"})},
        y_{setup.output<bf16>(tokens() * depth(), {.name = "y"})},
        dx_{setup.output<bf16>(tokens() * depth(), {.name = "dx"})},
        dw1_{setup.inout<float>(w1_.size(), normal(0, 3e-5f), {.name = "gradient of gate and up"})},
        dw2_{setup.inout<float>(w2_.size(), normal(0, 3e-5f), {.name = "gradient of down"})},
        amaxes_{setup.scratch<float>(shape_.microbatches * recorded_tensors)},
        h_{setup.scratch<bf16>(rows() * 2 * width())},
        a_{setup.scratch<bf16>(rows() * width())},
        da_{setup.scratch<bf16>(rows() * width())},
        dh_{setup.scratch<bf16>(rows() * 2 * width())},
        codes_{setup, shape_},
        inverses_{setup.scratch<float>((recorded_tensors + 2) * scale_stride)},
        maxima_{setup.scratch<float>(recorded_tensors + 2)},
        beyond_{setup.scratch<unsigned>(1)},
        lt_{setup},
        fp8_{setup, lt_, shape_, shape_.rows(), inverses_.get()},
        deferred_{setup, lt_, shape_, shape_.tokens, inverses_.get()},
        bf16_{setup, lt_, shape_} {}

  Cost cost() const override { return cost_of(Math::fp8, shape_.microbatches); }
  Cost variant_cost(std::string_view variant) const override {
    return cost_of(variant == "bf16_step" ? Math::bf16 : Math::fp8, variant == "deferred_gradients" ? 1 : shape_.microbatches);
  }

  void compute_reference(Launch&) override {
    const auto values = [](const auto& buffer, auto get) {
      Values result(buffer.size());
      for (std::size_t i = 0; i < result.size(); ++i) result[i] = get(i);
      return result;
    };
    const auto host = [&](const auto& input) { return values(input, [&](std::size_t i) { return input.host(i); }); };
    const auto initial = [&](const auto& inout) { return values(inout, [&](std::size_t i) { return inout.initial(i); }); };
    StepInputs inputs{host(x_), host(dy_), host(w1_), host(w2_), initial(dw1_), initial(dw2_), Values(recorded_tensors)};
    for (unsigned t = 0; t < recorded_tensors; ++t) inputs.history_maxima[t] = first_step_ ? 0 : double{seen[t]};
    for (const Casts casts : {Casts::none, Casts::current, Casts::delayed})
      results_[static_cast<std::size_t>(casts)] = StepReference{shape_, inputs, casts}.compute();
  }
  double expected_output(int output, std::size_t i) const override { return result(Casts::none, output)[i]; }
  double expected_quantized(std::string_view variant, int output, std::size_t i) const override {
    return result(casts_of(variant), output)[i];
  }
  // Checks what is left for later steps: the largest magnitudes, and how many gradients were larger than the history's.
  void validate(std::string_view variant) override {
    if (variant == "bf16_step" || variant == "products_alone") return;
    std::vector<float> amaxes(amaxes_.size());
    check(cudaMemcpy(amaxes.data(), amaxes_, amaxes_.bytes(), cudaMemcpyDeviceToHost));
    const Values& expected = results_[static_cast<std::size_t>(casts_of(variant))].amaxes;
    for (std::size_t i = 0; i < expected.size(); ++i)  // of a small shape; there is no reference of the full one
      if (!(std::abs(amaxes[i] - expected[i]) <= 0.03 * expected[i]))
        throw std::runtime_error{"a largest magnitude is " + std::to_string(amaxes[i]) + ", not " + std::to_string(expected[i])};
    if (casts_of(variant) != Casts::delayed) return;
    unsigned found = 0;
    check(cudaMemcpy(&found, beyond_, sizeof found, cudaMemcpyDeviceToHost));
    if (const std::size_t planted = burst_ && !first_step_ ? spikes : 0; found != planted)
      throw std::runtime_error{std::to_string(found) + " gradients were counted as larger than the history's, not " +
                               std::to_string(planted)};
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(tokens()), "tokens/s");
  }

  template <const Recipe& recipe>
  void run(Launch& launch) {
    step(launch, recipe);
  }
  template <const Recipe& recipe>
  void prepare(Launch& launch) {
    if constexpr (recipe.engine_adds) describe_adding();
    step(launch, recipe);
    if (reproducible_) return;
    fp8_.tune(launch.stream, codes_, targets());
    if constexpr (recipe.deferred) deferred_.tune_gradients(launch.stream, codes_, targets());
  }
  void products_alone(Launch& launch) {
    for (std::size_t b = 0; b < shape_.microbatches; ++b) {
      forward_products(launch, b, [] {});
      backward_products(launch, b, [] {});
      fp8_.add_gradients(launch.stream, codes_, targets());
    }
  }
  void bf16_step(Launch& launch) {
    for (std::size_t b = 0; b < shape_.microbatches; ++b) {
      const std::size_t first = b * rows() * depth();
      const Bf16Operands of{x_ + first, dy_ + first, w1_, w2_, a_, dh_};
      const StepTargets to = targets(b);
      bf16_.h(launch.stream, of, to);
      swiglu_forward(launch);
      bf16_.y(launch.stream, of, to);
      bf16_.da(launch.stream, of, to);
      swiglu_gradient(launch);
      bf16_.dx(launch.stream, of, to);
      bf16_.add_gradients(launch.stream, of, to);
    }
  }
  void prepare_bf16(Launch& launch) {
    bf16_step(launch);
    if (reproducible_) return;
    bf16_.tune(launch.stream, {x_, dy_, w1_, w2_, a_, dh_}, targets());
  }

 private:
  // Verified on a small one, with a last tile that is not full in every direction.
  static StepShape shape_of(Setup& setup) {
    const auto at_most = [&](const char* name, std::size_t small) {
      const std::size_t full = setup.size(name);
      return setup.shape(full, std::min(full, small));
    };
    const StepShape shape{at_most("tokens", 256), setup.size("microbatches"), at_most("depth", 176), at_most("width", 304)};
    if (shape.tokens % (16 * shape.microbatches) != 0)
      throw Unsupported{"tokens of a micro-batch are a multiple of 16, " + std::to_string(shape.tokens) + " in " +
                        std::to_string(shape.microbatches) + " are not"};
    return shape;
  }
  static Casts casts_of(std::string_view variant) {
    if (variant == "bf16_step") return Casts::none;
    return variant == "cast_every_time" || variant == "weight_cache" ? Casts::current : Casts::delayed;
  }
  std::size_t tokens() const { return shape_.tokens; }
  std::size_t rows() const { return shape_.rows(); }
  std::size_t depth() const { return shape_.depth; }
  std::size_t width() const { return shape_.width; }

  // Forward products and gradients of activations read and write each tensor once; gradients of weights read and write their sums
  // `times`.
  Cost cost_of(Math math, std::size_t times) const {
    const double multiplied = 2.0 * static_cast<double>(tokens()) * static_cast<double>(w1_.size() + w2_.size());
    return in_turn(
        {{.flops = 2 * multiplied,
          .math = math,
          .bytes = static_cast<double>(x_.bytes() + dy_.bytes() + w1_.bytes() + w2_.bytes() + y_.bytes() + dx_.bytes())},
         {.flops = multiplied, .math = math, .bytes = 2.0 * static_cast<double>(times * (dw1_.bytes() + dw2_.bytes()))}});
  }
  const Values& result(Casts casts, int output) const {
    const StepResults& of = results_[static_cast<std::size_t>(casts)];
    const Values* const all[] = {&of.y, &of.dx, &of.dw1, &of.dw2};
    return *all[output];
  }
  // Too small for E5M2 without a scale; in the first step, which has no history and so no scale, of a size that it holds. Of a
  // burst eight are 16 times what the history has seen.
  Pattern gradients() const {
    const Pattern pattern = normal(0, first_step_ ? 1e-3f : 1e-6f);
    return burst_ ? pattern.set(16 * seen[of_dy], drawn(Axis{1, tokens() * depth()}, spikes)) : pattern;
  }
  void fill_history(std::span<float> to) const {
    for (std::size_t i = 0; i < to.size(); ++i)
      to[i] = first_step_ ? 0 : seen[i / history_steps] * (i % history_steps == 5 ? 1 : 0.75f);
  }

  void step(Launch& launch, const Recipe& recipe) {
    check(cudaMemsetAsync(amaxes_, 0, amaxes_.bytes(), launch.stream));
    check(cudaMemsetAsync(maxima_, 0, maxima_.bytes(), launch.stream));
    check(cudaMemsetAsync(beyond_, 0, beyond_.bytes(), launch.stream));
    if (recipe.delayed_scales) launch(history_kernel, {1, recorded_tensors}, history_, history_steps, maxima_.get());
    if (recipe.cached_weights) cast_weights(launch, recipe);
    for (std::size_t b = 0; b < shape_.microbatches; ++b) {
      if (!recipe.cached_weights) cast_weights(launch, recipe);
      cast<e4m3>(launch, recipe, x_ + b * rows() * depth(), codes_.x, of_x, b);
      forward_products(launch, b, [&] {
        if (recipe.swiglu_casts) return write_both_ways<e4m3>(launch, recipe, SwigluOf{packets(h_)}, codes_.a, of_a, b);
        swiglu_forward(launch);
        cast<e4m3>(launch, recipe, a_, codes_.a, of_a, b);
      });
      cast<e5m2>(launch, recipe, dy_ + b * rows() * depth(), codes_.dy, of_dy, b);
      backward_products(launch, b, [&] {
        if (recipe.swiglu_casts)
          return write_both_ways<e5m2>(launch, recipe, SwigluGradient{{packets(h_)}, packets(da_)}, codes_.dh, of_dh, b);
        swiglu_gradient(launch);
        cast<e5m2>(launch, recipe, dh_, codes_.dh, of_dh, b);
      });
      if (recipe.engine_adds) {
        adding_dw2_->run(launch.stream, {inverse_of(of_dy), inverse_of(of_a)});
        adding_dw1_->run(launch.stream, {inverse_of(of_dh), inverse_of(of_x)});
      } else if (!recipe.deferred) fp8_.add_gradients(launch.stream, codes_, targets());
    }
    if (recipe.deferred) deferred_.add_gradients(launch.stream, codes_, targets());
  }
  template <class Between>
  void forward_products(Launch& launch, std::size_t b, const Between& between) {
    fp8_.h(launch.stream, codes_, targets());
    between();
    fp8_.y(launch.stream, codes_, targets(b));
  }
  template <class Between>
  void backward_products(Launch& launch, std::size_t b, const Between& between) {
    fp8_.da(launch.stream, codes_, targets());
    between();
    fp8_.dx(launch.stream, codes_, targets(b));
  }
  void describe_adding() {
    const auto describe = [&](std::optional<Adding>& to, const Codes& a, const Codes& b, float* c) {
      if (!to)
        to.emplace(Adding::Problem{.a = reinterpret_cast<const e5m2*>(a.along_columns.get()),
                                   .b = reinterpret_cast<const e4m3*>(b.along_columns.get()),
                                   .c = c,
                                   .m = a.columns,
                                   .n = b.columns,
                                   .k = rows()});
    };
    describe(adding_dw2_, codes_.dy, codes_.a, dw2_);
    describe(adding_dw1_, codes_.dh, codes_.x, dw1_);
  }

  StepTargets targets(std::size_t b = 0) const {
    const std::size_t first = b * rows() * depth();
    return {h_, y_ + first, da_, dx_ + first, dw1_, dw2_};
  }
  static const uint4* packets(const bf16* of) { return reinterpret_cast<const uint4*>(of); }
  static unsigned blocks(std::size_t count, unsigned each) { return static_cast<unsigned>((count + each - 1) / each); }
  void swiglu_forward(Launch& launch) {
    const std::size_t count = rows() * width() / packet;
    launch(swiglu_kernel, {blocks(count, threads), threads}, packets(h_), reinterpret_cast<uint4*>(a_.get()), width() / packet,
           count);
  }
  void swiglu_gradient(Launch& launch) {
    const std::size_t count = rows() * width() / packet;
    launch(swiglu_backward_kernel, {blocks(count, threads), threads}, packets(h_), packets(da_),
           reinterpret_cast<uint4*>(dh_.get()), width() / packet, count);
  }

  // Weights always have the scale of their own largest magnitude.
  void cast_weights(Launch& launch, const Recipe& recipe) {
    cast<e4m3>(launch, recipe, w1_, codes_.w1, of_w1, 0);
    cast<e4m3>(launch, recipe, w2_, codes_.w2, of_w2, 0);
  }
  float* inverse_of(StepTensor tensor) const { return inverses_ + scale_stride * tensor; }
  Scaling scaling(const Recipe& recipe, StepTensor tensor, std::size_t b) const {
    float* const inverse = inverse_of(tensor);
    if (tensor >= recorded_tensors) return {.maximum = maxima_ + tensor, .inverse = inverse};
    float* const amax = amaxes_ + b * recorded_tensors + tensor;
    if (!recipe.delayed_scales) return {.maximum = amax, .inverse = inverse};
    return {.maximum = maxima_ + tensor, .inverse = inverse, .record = amax, .beyond = tensor == of_dy ? beyond_.get() : nullptr};
  }
  template <class Code>
  void cast(Launch& launch, const Recipe& recipe, const bf16* from, const Codes& to, StepTensor tensor, std::size_t b) {
    const std::size_t count = to.rows * to.columns / packet;
    const Grid some{std::min(blocks(count, threads), multiprocessors() * 8), threads};
    const Scaling scaling_of = scaling(recipe, tensor, b);
    if (scaling_of.record == nullptr) launch(amax_kernel, some, packets(from), count, const_cast<float*>(scaling_of.maximum));
    if (recipe.both_ways) return write_both_ways<Code>(launch, recipe, Stored{packets(from)}, to, tensor, b);
    auto* const codes = reinterpret_cast<uint2*>(to.along_rows.get());
    launch(cast_kernel<Code>, some, packets(from), count, codes, scaling_of);
    launch(transpose_kernel, tiles(to, 1), codes, transposed_shape(recipe, to, tensor, 1), columns_at(recipe, to, tensor, b));
  }
  template <class Code, class Source>
  void write_both_ways(Launch& launch, const Recipe& recipe, const Source& source, const Codes& to, StepTensor tensor,
                       std::size_t b) {
    launch(both_ways_kernel<Code, Source>, tiles(to, Source::parts), source, transposed_shape(recipe, to, tensor, Source::parts),
           reinterpret_cast<uint2*>(to.along_rows.get()), columns_at(recipe, to, tensor, b), scaling(recipe, tensor, b));
  }
  static Grid tiles(const Codes& of, unsigned parts) {
    return {blocks(of.rows, transposed_tile) * blocks(of.columns / parts, transposed_tile), threads};
  }
  // If gradients of weights are computed at the end, micro-batches lie side by side.
  TransposedShape transposed_shape(const Recipe& recipe, const Codes& to, StepTensor tensor, unsigned parts) const {
    const bool side_by_side = recipe.deferred && tensor < recorded_tensors;
    return {static_cast<unsigned>(to.rows), static_cast<unsigned>(to.columns / parts),
            static_cast<unsigned>(side_by_side ? tokens() : to.rows)};
  }
  unsigned char* columns_at(const Recipe& recipe, const Codes& to, StepTensor tensor, std::size_t b) const {
    return to.along_columns + (recipe.deferred && tensor < recorded_tensors ? b * rows() : 0);
  }

  StepShape shape_;
  bool first_step_, burst_, reproducible_;
  Input<bf16> x_, dy_, w1_, w2_;  // [tokens][depth], [gates, ups][depth], [depth][width]
  Input<float> history_;          // [x, a, dy, dh][steps]
  Output<bf16> y_, dx_;
  InOut<float> dw1_, dw2_;
  Scratch<float> amaxes_;  // [micro-batch][x, a, dy, dh]
  Scratch<bf16> h_, a_, da_, dh_;
  StepCodes codes_;
  Scratch<float> inverses_, maxima_;
  Scratch<unsigned> beyond_;
  Opened<CublasLt> lt_;
  Fp8Products fp8_, deferred_;
  Bf16Products bf16_;
  std::optional<Adding> adding_dw1_, adding_dw2_;
  StepResults results_[3];
};

template <const Recipe& recipe>
constexpr Variant variant(std::string_view name, std::string_view same_bits_as = {}) {
  return {.name = name,
          .run = call<&Fp8TrainingStep::run<recipe>>,
          .prepare = call<&Fp8TrainingStep::prepare<recipe>>,
          .needs = recipe.engine_adds ? Adding::needs() : Needs{},
          .changes_precision = true,
          .same_bits_as = same_bits_as};
}

}  // namespace

extern constinit const Pair fp8_training_step{
    .teaches =
        "FP8 products are so short that casting the weights again in every micro-batch shows: cast once a step, fuse the rest",
    .lesson = "weight_cache",
    .make = make<Fp8TrainingStep>,
    .baseline = variant<nothing_kept>("cast_every_time"),
    .optimized = variants({variant<cached>("weight_cache", "cast_every_time"), variant<delayed>("delayed_scales"),
                           variant<one_pass>("cast_transpose", "delayed_scales"), variant<fused>("swiglu_cast", "delayed_scales"),
                           variant<at_the_end>("deferred_gradients")}),
    // The two ends, a step without FP8, whose results cannot be held to a baseline in FP8, and one without casts; and
    // `swiglu_cast` with our own product for gradients of weights.
    .controls = variants({{.name = "bf16_step",
                           .run = call<&Fp8TrainingStep::bf16_step>,
                           .prepare = call<&Fp8TrainingStep::prepare_bf16>,
                           .outputs = no_outputs},
                          {.name = "products_alone",
                           .run = call<&Fp8TrainingStep::products_alone>,
                           .prepare = call<&Fp8TrainingStep::prepare<fused>>,
                           .outputs = no_outputs},
                          variant<adding>("engine_gradients")}),
    .bound = Bound::compute,
    // Results are compared with what the same casts give in float64. Sums in 14 bits are off by 2e-4 to 4e-4, which moves some 5
    // % of the values to the next one of bf16, and one of 20 of these to the next code, 9 % away in E4M3 and 18 % in E5M2: by the
    // reference with such errors put in, 0.6e-2 of Y and up to 1.3e-2 of the gradients. What the casts cost is 7e-2 to 10e-2. A
    // gradient whose addends cancel keeps what the largest of them lost, a code's 18 % of it: an element is off by a third of the
    // others' root mean square where that addend is twice as large.
    .tolerance = within(2e-2, 0.4),
    .needs = {.min_sm = 90, .libraries = {Library::cublaslt}},
    .verification = Verification::small_shape,
    .overrides = {.measurement_seconds = 30},
    .sizes = sizes({{.name = "tokens", .full = 8192, .multiple = 256},
                    {.name = "microbatches", .full = 8, .most = 16, .scales = false},
                    {.name = "depth", .full = 4096, .multiple = 16, .most = 16384, .scales = false},
                    {.name = "width", .full = 14336, .multiple = 16, .most = 32768, .scales = false},
                    option("first_step"),
                    option("burst")}),
    .sweep = cases({{"microbatches_1", "microbatches=1"},
                    {"microbatches_2", "microbatches=2"},
                    {"microbatches_4", "microbatches=4"},
                    {"microbatches_8", "microbatches=8"},
                    {"microbatches_16", "microbatches=16"}}),
    .edges = cases({{"first_step", "first_step=1"}, {"burst", "burst=1"}, {"narrow", "depth=16,width=48,microbatches=16"}}),
    .reference_samples = 2048,
};

}  // namespace aisp::ch19
