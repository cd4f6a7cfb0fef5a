// SPDX-License-Identifier: Apache-2.0
// The head of a language model with GPT-2's vocabulary of 50257 words: logits, loss, gradient of the hidden states. Rows of
// logits that are 50257 elements long begin at odd addresses, and TMA, which the library's kernels for Hopper load and store
// with, wants strides of 16 bytes. Padding the rows alone does not let the library choose them; padding the vocabulary does.
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>

#include "head_reference.hpp"
#include "loss_rows.cuh"

namespace aisp::ch13 {
namespace {

using shared::bf16;

class VocabPadding final : public Workload {
 public:
  explicit VocabPadding(Setup& setup)
      : tokens_{small(setup, "tokens", 64)},
        depth_{small(setup, "depth", 192)},
        vocabulary_{small(setup, "vocabulary", 505)},
        padded_{(vocabulary_ + 63) / 64 * 64},
        hidden_{setup.input<bf16>(tokens_ * depth_, normal(0, 1).on_grid(hidden_step), {.name = "hidden states"})},
        // Logits deviate by two, those of the last word by eight, so that it is the likeliest of many rows.
        weights_{setup.input<bf16>(vocabulary_ * depth_,
                                   normal(0, deviation(2)).times(4, at(words(), vocabulary_ - 1)).on_grid(weight_step()),
                                   {.name = "weights", .constant = true})},
        labels_{setup.input<int>(tokens_, labels(), {.name = "labels"})},
        losses_{setup.output<float>(tokens_, {.name = "losses"})},
        dhidden_{setup.output<bf16>(tokens_ * depth_, {.name = "gradient of the hidden states"})},
        logits_{setup.scratch<bf16>(tokens_ * padded_, {.name = "logits"})},
        padded_weights_{setup.scratch<bf16>(padded_ * depth_, {.name = "padded weights"})},
        counted_{setup.scratch<unsigned>(1, {.name = "labelled rows"})},
        // The library, where it splits K, may round the parts to bf16 unless told otherwise. Parts in fp32 are exact
        // (weight_step).
        cublas_{setup, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION},
        tuned_logits_{setup, {.m = tokens_, .n = vocabulary_, .k = depth_, .b_is_transposed = true}},
        tuned_gradient_{setup, {.m = tokens_, .n = depth_, .k = vocabulary_}},
        reference_{hidden_, weights_, depth_, vocabulary_} {}

  Cost cost() const override { return cost_of(vocabulary_); }
  Cost variant_cost(std::string_view variant) const override {
    return cost_of(variant == "aligned_vocabulary" ? aligned_words() : vocabulary_);
  }
  void compute_reference(Launch&) override { reference_.forget(tokens_); }
  double expected_output(int output, std::size_t i) const override {
    const std::size_t row = output == 0 ? i : i / depth_;
    const auto label = static_cast<std::size_t>(labels_.host(row));
    return output == 0 ? reference_.loss(row, label) : reference_.gradient(row, i % depth_, label) / static_cast<double>(tokens_);
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(tokens_), "tokens/s");
  }

  void count(Launch& launch) { launch(count_labels_kernel, {1, loss_threads}, labels_, counted_, tokens_); }
  void pad_weights(Launch& launch) {
    count(launch);
    check(cudaMemsetAsync(padded_weights_, 0, padded_weights_.bytes(), launch.stream));
    check(cudaMemcpyAsync(padded_weights_, weights_, weights_.bytes(), cudaMemcpyDeviceToDevice, launch.stream));
  }
  // NaN in all that nobody has written yet, padding too.
  void poison_logits(Launch& launch) { check(cudaMemsetAsync(logits_, 0xFF, logits_.bytes(), launch.stream)); }

  void packed(Launch& launch) { by_cublas(launch, {vocabulary_, vocabulary_, vocabulary_, weights_}); }
  void padded_pitch(Launch& launch) { by_cublas(launch, {vocabulary_, vocabulary_, padded_, weights_}); }
  void padded(Launch& launch) { by_cublas(launch, {vocabulary_, padded_, padded_, padded_weights_}); }
  void aligned_vocabulary(Launch& launch) {
    const std::size_t words = aligned_words();
    by_cublas(launch, {words, words, words, weights_});
  }
  void tune(Launch& launch) {
    count(launch);
    tuned_logits_.tune(launch, hidden_, weights_, logits_);
    tuned_gradient_.tune(launch, logits_, weights_, dhidden_);
  }
  void cublaslt_tuned(Launch& launch) {
    tuned_logits_.run_tuned(launch, hidden_, weights_, logits_);
    loss(launch, {vocabulary_, vocabulary_, vocabulary_, weights_});
    tuned_gradient_.run_tuned(launch, logits_, weights_, dhidden_);
  }

 private:
  // Words, columns that are multiplied, elements from one row of logits to the next.
  struct Layout {
    std::size_t words, columns, pitch;
    const bf16* weights;
  };

  static std::size_t small(Setup& setup, std::string_view name, std::size_t most) {
    const std::size_t full = setup.size(name);
    return setup.shape(full, std::min(full, most));
  }
  // Values on grids have sums that are exact in any order, and so every product rounds a logit to the same bf16. A logit of 16
  // that rounds the other way is 0.125 away, and its share of the gradient 13 %.
  static constexpr float hidden_step = 1.0f / 16;
  float weight_step() const { return std::exp2(std::floor(std::log2(deviation(2))) - 4); }
  float deviation(float of_logits) const { return of_logits / std::sqrt(static_cast<float>(depth_)); }
  Axis words() const { return {depth_, vocabulary_}; }
  // The first word and the last among them.
  Pattern labels() const {
    const Axis rows{1, tokens_};
    const auto last = static_cast<std::int64_t>(vocabulary_) - 1;
    return integers(0, last).set(0, at(rows, 0)).set(static_cast<float>(last), at(rows, 1, 2));
  }
  // The next smaller vocabulary that is aligned by itself.
  std::size_t aligned_words() const { return std::max<std::size_t>(vocabulary_ / 256 * 256, 8); }
  Cost cost_of(std::size_t words) const {
    const double elements = static_cast<double>(tokens_) * static_cast<double>(words);
    return {.flops = 4 * elements * static_cast<double>(depth_),
            .math = Math::bf16,
            .bytes = static_cast<double>(hidden_.bytes() + weights_.bytes() + dhidden_.bytes())};
  }

  void by_cublas(Launch& launch, const Layout& layout) {
    const auto gemm = Cublas::function<Cublas::GemmEx>("cublasGemmEx");
    const float one = 1, zero = 0;
    const auto number = [](std::size_t size) { return static_cast<int>(size); };
    const int tokens = number(tokens_), depth = number(depth_), columns = number(layout.columns), pitch = number(layout.pitch);
    cublas_->use(launch.stream);
    check(gemm(cublas_->handle(), CUBLAS_OP_T, CUBLAS_OP_N, columns, tokens, depth, &one, layout.weights, CUDA_R_16BF, depth,
               hidden_, CUDA_R_16BF, depth, &zero, logits_, CUDA_R_16BF, pitch, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    launch.mark("logits_done");
    loss(launch, layout);
    launch.mark("loss_done");
    check(gemm(cublas_->handle(), CUBLAS_OP_N, CUBLAS_OP_N, depth, tokens, columns, &one, layout.weights, CUDA_R_16BF, depth,
               logits_, CUDA_R_16BF, pitch, &zero, dhidden_, CUDA_R_16BF, depth, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }
  void loss(Launch& launch, const Layout& layout) {
    run_loss(launch.stream, {.logits = logits_,
                             .labels = labels_,
                             .rows_of = nullptr,
                             .counted = counted_,
                             .losses = losses_,
                             .rows = static_cast<unsigned>(tokens_),
                             .columns = static_cast<unsigned>(layout.words),
                             .pitch = layout.pitch,
                             .padded = static_cast<unsigned>(layout.columns)});
  }

  std::size_t tokens_, depth_, vocabulary_, padded_;
  Input<bf16> hidden_, weights_;
  Input<int> labels_;
  Output<float> losses_;
  Output<bf16> dhidden_;
  Scratch<bf16> logits_, padded_weights_;
  Scratch<unsigned> counted_;
  Opened<Cublas> cublas_;
  LibraryMatmul tuned_logits_, tuned_gradient_;
  HeadReference reference_;
};

constexpr Needs by_library{.libraries = {Library::cublas}};

}  // namespace

extern constinit const Pair vocab_padding{
    .teaches = "an odd vocabulary keeps a library from its fastest kernels: pad the vocabulary, not only the rows of logits",
    .lesson = "padded",
    .make = make<VocabPadding>,
    .baseline = {.name = "packed",
                 .run = call<&VocabPadding::packed>,
                 .prepare = call<&VocabPadding::count>,
                 .needs = by_library},
    .optimized = variants({{.name = "padded",
                            .run = call<&VocabPadding::padded>,
                            .prepare = call<&VocabPadding::pad_weights>,
                            .reset = call<&VocabPadding::poison_logits>,
                            .needs = by_library}}),
    // Strides of 16 bytes alone, and a vocabulary that needs no padding.
    .controls = variants({{.name = "padded_pitch",
                           .run = call<&VocabPadding::padded_pitch>,
                           .prepare = call<&VocabPadding::count>,
                           .reset = call<&VocabPadding::poison_logits>,
                           .needs = by_library},
                          {.name = "aligned_vocabulary",
                           .run = call<&VocabPadding::aligned_vocabulary>,
                           .prepare = call<&VocabPadding::count>,
                           .needs = by_library,
                           .outputs = no_outputs}}),
    // The fastest of all that the library has for the odd rows.
    .libraries = variants({{.name = "cublaslt_tuned",
                            .run = call<&VocabPadding::cublaslt_tuned>,
                            .prepare = call<&VocabPadding::tune>,
                            .needs = {.libraries = {Library::cublaslt}},
                            // It may split K and round the parts to bf16: 1.6e-3 of logits that deviate by 2 and 8, of losses of
                            // 8 to 13; of the likeliest word's logit it is up to 0.06, and that of its share of the gradient.
                            .tolerance = per_output({within(2e-3, 2e-2), within(1e-2, 5e-2)})}}),
    .bound = Bound::compute,
    // Logits are exact sums that the reference rounds to bf16 as the products do, so that losses have fp32's errors alone. The
    // gradient has two roundings of 1.6e-3: of what the loss leaves, and of the result.
    .tolerance = per_output({within(1e-5), within(5e-3)}),
    .verification = Verification::small_shape,
    .sizes = sizes({{.name = "tokens", .full = 4096},
                    {.name = "depth", .full = 4096, .multiple = 64, .most = 16384, .scales = false},
                    {.name = "vocabulary", .full = 50257, .least = 8, .most = 1u << 18, .scales = false}}),
    .sweep = cases({{"words_50257", "vocabulary=50257"},
                    {"words_50258", "vocabulary=50258"},
                    {"words_50259", "vocabulary=50259"},
                    {"words_50260", "vocabulary=50260"},
                    {"words_50261", "vocabulary=50261"},
                    {"words_50262", "vocabulary=50262"},
                    {"words_50263", "vocabulary=50263"},
                    {"words_50264", "vocabulary=50264"},
                    {"words_50272", "vocabulary=50272"},
                    {"words_50304", "vocabulary=50304"},
                    {"words_51200", "vocabulary=51200"}}),
    .edges = cases({{"three_tokens", "tokens=3,depth=64,vocabulary=9"}, {"odd", "tokens=77,depth=128,vocabulary=1021"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch13
