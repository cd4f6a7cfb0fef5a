// SPDX-License-Identifier: Apache-2.0
// One training step of a GPT with six layers of width 768 and 50304 words, on 8192 tokens: forward, loss, backward, AdamW. With
// one operation a kernel, the products and attention are less than half of it. The loss writes log-probabilities and their
// gradients in fp32, four bytes for each of 412 million logits, again and again; in one kernel the gradient takes the logits'
// place. The optimizer passes over all weights ten times, or once.
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpt_loss.cuh"
#include "gpt_model.hpp"
#include "gpt_reference.hpp"
#include "gpt_rows.cuh"
#include "training/adamw.cuh"
#include "training/decoder_block.hpp"

namespace aisp::ch20 {
namespace {

using namespace gpt;
constexpr int step_number = 10;          // of the training run: the bias corrections depend on it
constexpr double gradient_limit = 3e-2;  // of one tensor

// A variant's steps: those of one kernel each, and what a control leaves out.
struct Fused {
  bool rows = false, loss = false, adamw = false;
  bool bf16_loss = false, products_alone = false;
};

class GptTrainStep final : public Workload {
 public:
  explicit GptTrainStep(Setup& setup)
      : s_{of_check(setup, "layers", 2), setup.shape(768, 128), of_check(setup, "words", 1016), of_check(setup, "batch", 2),
           of_check(setup, "length", 72)},
        // Words by Zipf's law; the second sequence repeats one, whose gradient is the sum of all its places.
        tokens_{setup.input<int>(s_.rows(), tokens(), {.name = "tokens"})},
        labels_{setup.input<int>(s_.rows(), zipf(number(s_.words)).set(-100, drawn({1, s_.rows()}, s_.rows() / 8 + 1)),
                                 {.name = "labels"})},
        loss_{setup.output<float>(1, {.name = "loss"})},
        gradients_{setup.output<bf16>(s_.size(), {.name = "gradients"})},
        weights_{setup.inout<float>(s_.size(), normal(0, 0.04f), {.name = "weights"})},
        firsts_{setup.inout<float>(s_.size(), normal(0, 1e-2f), {.name = "first moments"})},
        seconds_{setup.inout<float>(s_.size(), uniform(1e-3f, 1e-2f), {.name = "second moments"})},
        copies_{setup.scratch<bf16>(s_.size())},
        activations_{setup.scratch<bf16>(s_.rows() * s_.width * (Kept::planes * s_.layers + 9))},
        moments_{setup.scratch<float2>((2 * s_.layers + 1) * s_.rows())},
        log_sums_{setup.scratch<float>(s_.layers * s_.rows() * s_.heads())},
        logits_{setup.scratch<bf16>(s_.rows() * s_.words)},
        wide_{setup.scratch<float>(2 * wide_size())},
        partials_{setup.scratch<float>(std::max<std::size_t>(norm_blocks * 2, column_parts * 4) * s_.width)},
        losses_{setup.scratch<float>(s_.rows() + 1)},
        lt_{setup},
        attention_{setup, lt_, {s_.sequences, s_.length, s_.heads(), 64}},
        words_{setup, lt_, MatmulProblem{.m = s_.rows(), .n = s_.words, .k = s_.width, .b_is_transposed = true}},
        d_normed_{setup, lt_, MatmulProblem{.m = s_.rows(), .n = s_.width, .k = s_.words}},
        d_words_{setup, lt_,
                 MatmulProblem{.m = s_.words, .n = s_.width, .k = s_.rows(), .result = CUDA_R_32F, .a_is_transposed = true}},
        reproducible_{setup.reproducible()} {
    for (std::size_t layer = 0; layer < s_.layers; ++layer)
      products_.emplace_back(setup, lt_, s_, Layer<const bf16>{s_, copies_, layer}, Layer<bf16>{s_, gradients_, layer},
                             kept(layer));
  }

  // Products and attention, then an update that reads gradients, weights and moments and writes the last three.
  Cost cost() const override {
    return in_turn({{.flops = model_flops(), .math = Math::bf16}, {.bytes = 26.0 * static_cast<double>(s_.size())}});
  }
  void compute_reference(Launch&) override {
    gpt::reference::Values weights(s_.size());
    std::vector<int> tokens(s_.rows()), labels(s_.rows());
    for (std::size_t i = 0; i < s_.size(); ++i)
      weights[i] = static_cast<double>(__bfloat162float(__float2bfloat16_rn(static_cast<float>(weights_.initial(i)))));
    for (std::size_t i = 0; i < s_.rows(); ++i) tokens[i] = tokens_.host(i), labels[i] = labels_.host(i);
    gpt::reference::Step step{s_, std::move(weights), std::move(tokens), std::move(labels)};
    step.run();
    expected_ = {gpt::reference::Values{step.loss()}, step.gradients()};
    for (auto* const values : {&expected_[2], &expected_[3], &expected_[4]}) values->resize(s_.size());
    for (std::size_t i = 0; i < s_.size(); ++i) {
      double &w = expected_[2][i] = weights_.initial(i), &m = expected_[3][i] = firsts_.initial(i),
             &v = expected_[4][i] = seconds_.initial(i);
      update_.update(w, expected_[1][i], m, v);
    }
  }
  double expected_output(int output, std::size_t i) const override { return expected_.at(static_cast<std::size_t>(output))[i]; }
  // Each tensor's gradient by itself, where there is a reference: in the norm of all of them, small ones do not count.
  void validate(std::string_view) override {
    if (expected_[1].empty()) return;
    std::vector<bf16> found(s_.size());
    check(cudaMemcpy(found.data(), gradients_, gradients_.bytes(), cudaMemcpyDeviceToHost));
    const std::size_t w = s_.width;
    std::size_t first = 0;
    const auto compare = [&](const char* name, std::size_t count) {
      double error = 0, norm = 0;
      for (std::size_t i = first; i < first + count; ++i) {
        error += std::pow(static_cast<double>(__bfloat162float(found[i])) - expected_[1][i], 2);
        norm += std::pow(expected_[1][i], 2);
      }
      first += count;
      if (!(error <= gradient_limit * gradient_limit * norm))
        throw std::runtime_error{std::string{"the gradient of "} + name + " is off by " +
                                 std::to_string(std::sqrt(error / norm)) + " of its norm, and " + std::to_string(gradient_limit) +
                                 " is allowed"};
    };
    compare("the words", s_.words * w);
    compare("the places", s_.length * w);
    for (std::size_t layer = 0; layer < s_.layers; ++layer) {
      compare("a first norm", 2 * w), compare("a QKV projection", 3 * w * w), compare("its bias", 3 * w);
      compare("an output projection", w * w), compare("its bias", w), compare("a second norm", 2 * w);
      compare("a projection up", 4 * w * w), compare("its bias", 4 * w);
      compare("a projection down", 4 * w * w), compare("its bias", w);
    }
    compare("the last norm", 2 * w);
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("token rate", static_cast<double>(s_.rows()), "tokens/s");
    metrics.report_rate("model FLOP rate", model_flops() * 1e-12, "TFLOP/s");
  }

  void eager(Launch& launch) { step(launch, {}); }
  void fused_rows(Launch& launch) { step(launch, {.rows = true}); }
  void fused_loss(Launch& launch) { step(launch, {.rows = true, .loss = true}); }
  void fused_adamw(Launch& launch) { step(launch, {.rows = true, .loss = true, .adamw = true}); }
  void bf16_loss(Launch& launch) { step(launch, {.rows = true, .bf16_loss = true}); }
  void products_alone(Launch& launch) { step(launch, {.products_alone = true}); }
  void tune(Launch& launch) {
    step(launch, {});
    if (reproducible_) return;
    for (LayerProducts& products : products_) products.tune(launch.stream, spaces());
    words_->tune(launch.stream, spaces().last_normed, copies_, logits_);
    d_normed_->tune(launch.stream, logits_, copies_, spaces().d_normed);
    d_words_->tune(launch.stream, logits_, spaces().last_normed, wide_);
    step(launch, {});
  }

 private:
  static std::size_t of_check(Setup& setup, std::string_view size, std::size_t most) {
    return setup.shape(setup.size(size), std::min(setup.size(size), most));
  }
  static std::int64_t number(std::size_t count) { return static_cast<std::int64_t>(count); }
  Pattern tokens() const {
    const Pattern words = zipf(number(s_.words));
    return s_.sequences > 1 ? words.set(7, at({s_.length, s_.sequences}, 1)) : words;
  }
  std::size_t wide_size() const { return std::max(s_.rows() * s_.words, s_.size()); }
  double model_flops() const {
    const auto rows = static_cast<double>(s_.rows()), width = static_cast<double>(s_.width),
               length = static_cast<double>(s_.length);
    const double of_row = width * (12 * width * static_cast<double>(s_.layers) + static_cast<double>(s_.words));
    const double seen = (length + 1) / 2;  // keys of a row on average: two products forward, five backward
    return 6 * rows * of_row + 14 * rows * seen * width * static_cast<double>(s_.layers);
  }

  static const uint4* packets(const bf16* data) { return reinterpret_cast<const uint4*>(data); }
  static uint4* packets(bf16* data) { return reinterpret_cast<uint4*>(data); }
  int row_packets() const { return static_cast<int>(s_.width / packet); }
  int rows() const { return static_cast<int>(s_.rows()); }
  std::size_t plane() const { return s_.rows() * s_.width; }
  Grid per_warp() const { return {static_cast<unsigned>((s_.rows() + row_warps - 1) / row_warps), threads}; }
  Kept kept(std::size_t layer) const { return {s_, layer, activations_, moments_, log_sums_}; }
  bf16* last_x() const { return activations_ + s_.layers * Kept::planes * plane(); }
  Spaces spaces() const {
    bf16* const at = last_x() + plane();
    return {logits_, at, wide_, at + plane(), at + 2 * plane(), at + 6 * plane(), at + 7 * plane()};
  }
  training::AttentionActivations attention(const Kept& kept) const {
    return {nullptr, nullptr, kept.qkv, kept.attended, kept.log_sums};
  }

  void step(Launch& launch, const Fused& fused) {
    if (!fused.products_alone)
      launch(training::narrow_kernel<bf16>, {training::cast_blocks(s_.size()), training::cast_threads},
             reinterpret_cast<const training::WidePacket*>(weights_.get()),
             reinterpret_cast<training::Packet<bf16>*>(copies_.get()), training::cast_packets(s_.size()));
    forward(launch, fused);
    if (!fused.products_alone) lose(launch, fused);
    backward(launch, fused);
    if (fused.adamw)
      launch(adamw_kernel, {blocks_for(s_.size() / 4), threads}, quads(weights_),
             reinterpret_cast<const uint2*>(gradients_.get()), quads(firsts_), quads(seconds_), s_.size() / 4, update_);
    else if (!fused.products_alone) update_by_passes(launch);
  }

  // The residual stream, with what has been computed for it added first, and its norm.
  void add_and_normalize(Launch& launch, const Fused& fused, const bf16* x, const bf16* delta, bf16* sum, const bf16* weight,
                         bf16* normed, float2* moments) const {
    if (fused.products_alone) return;
    if (delta != nullptr && !fused.rows) add(launch, x, delta, sum);
    const bool adds = delta != nullptr && fused.rows;
    const bf16* const from = delta != nullptr && !fused.rows ? sum : x;
    launch(norm_kernel, per_warp(),
           Norm{packets(from), adds ? packets(delta) : nullptr, packets(sum), packets(weight), packets(weight + s_.width),
                packets(normed), moments, rows(), row_packets()});
  }
  void add(Launch& launch, const bf16* a, const bf16* b, bf16* sum) const {
    launch(add_kernel, {blocks_for(plane() / packet), threads}, packets(a), packets(b), packets(sum), plane() / packet);
  }
  void forward(Launch& launch, const Fused& fused) {
    const Spaces at = spaces();
    if (!fused.products_alone)
      launch(embed_kernel, per_warp(), tokens_, packets(copies_.get()), packets(copies_ + s_.places_at()), packets(kept(0).x),
             rows(), s_.length, row_packets());
    for (std::size_t layer = 0; layer < s_.layers; ++layer) {
      const Kept k = kept(layer);
      const Layer<const bf16> w{s_, copies_, layer};
      const LayerProducts& products = products_[layer];
      add_and_normalize(launch, fused, layer == 0 ? k.x : kept(layer - 1).middle, layer == 0 ? nullptr : at.delta, k.x, w.norm_1,
                        k.normed_1, k.moments_1);
      products.project_in(launch.stream);
      attention_.attend(launch, attention(k));
      products.project_out(launch.stream, at.delta);
      add_and_normalize(launch, fused, k.x, at.delta, k.middle, w.norm_2, k.normed_2, k.moments_2);
      products.up(launch.stream, fused.rows);
      const std::size_t all = 4 * plane() / packet;
      if (!fused.rows && !fused.products_alone)
        launch(gelu_kernel, {blocks_for(all), threads}, packets(k.h), packets(k.active), all);
      products.down(launch.stream, at.delta);
    }
    add_and_normalize(launch, fused, kept(s_.layers - 1).middle, at.delta, last_x(), copies_ + s_.last_norm_at(), at.last_normed,
                      moments_ + 2 * s_.layers * s_.rows());
    words_->run(launch.stream, at.last_normed, copies_, logits_);
  }

  float* inverse_count() const { return losses_ + s_.rows(); }
  Grid per_row() const { return {static_cast<unsigned>(s_.rows()), loss_threads}; }
  void lose(Launch& launch, const Fused& fused) {
    const int word_packets = static_cast<int>(s_.words / packet);
    launch(count_labels_kernel, {1, loss_threads}, labels_, inverse_count(), rows());
    if (fused.loss) launch(fused_loss_kernel, per_row(), logits_, labels_, inverse_count(), losses_, word_packets);
    else if (fused.bf16_loss) {
      bf16 *const space = reinterpret_cast<bf16*>(wide_.get()), *const d = space + logits_.size();
      lose_by_steps(launch, logits_.get(), space, d);
      check(cudaMemcpyAsync(logits_, d, logits_.bytes(), cudaMemcpyDeviceToDevice, launch.stream));
    } else {
      float *const wide = wide_, *const other = wide_ + wide_size();
      const Grid casts{training::cast_blocks(logits_.size()), training::cast_threads};
      auto* const narrow = reinterpret_cast<training::Packet<bf16>*>(logits_.get());
      auto* const widened = reinterpret_cast<training::WidePacket*>(wide);
      launch(training::widen_kernel<bf16>, casts, narrow, widened, training::cast_packets(logits_.size()));
      lose_by_steps(launch, wide, other, wide);
      launch(training::narrow_kernel<bf16>, casts, widened, narrow, training::cast_packets(logits_.size()));
    }
    launch(mean_kernel, {1, loss_threads}, losses_, inverse_count(), loss_, rows());
  }
  // `d` may be the logits, which only the first kernel reads.
  template <class T>
  void lose_by_steps(Launch& launch, const T* logits, T* log_probabilities, T* d) {
    const int word_packets = static_cast<int>(s_.words / packet);
    launch(log_softmax_kernel<T>, per_row(), logits, log_probabilities, word_packets);
    launch(pick_labels_kernel<T>, {blocks_for(s_.rows()), threads}, log_probabilities, labels_, losses_, rows(), s_.words);
    check(cudaMemsetAsync(d, 0, logits_.size() * sizeof(T), launch.stream));
    launch(pick_backward_kernel<T>, {blocks_for(s_.rows()), threads}, labels_, inverse_count(), d, rows(), s_.words);
    launch(log_softmax_backward_kernel<T>, per_row(), log_probabilities, d, word_packets);
  }

  void bias_gradient(Launch& launch, const bf16* dy, std::size_t columns, bf16* to) const {
    const auto column_blocks = static_cast<unsigned>((columns / packet + 31) / 32);
    launch(column_sums_kernel, {dim3{column_blocks, column_parts}, threads}, packets(dy), partials_, rows(), columns / packet);
    launch(sum_partials_kernel, {static_cast<unsigned>(columns / 32), threads}, partials_, to, column_parts, columns);
  }
  // dx += the gradient through the norm; of the last norm, dx is that gradient alone.
  void norm_backward(Launch& launch, const Fused& fused, const bf16* x, const bf16* weight, const float2* moments, bf16* to,
                     bool passes) {
    if (fused.products_alone) return;
    const Spaces at = spaces();
    bf16* const dx = passes && !fused.rows ? at.delta : at.d_x;
    launch(norm_backward_kernel, {norm_blocks, threads},
           NormBackward{packets(x), packets(at.d_normed), passes && fused.rows ? packets(at.d_x) : nullptr, packets(weight),
                        moments, packets(dx), partials_, rows(), row_packets()});
    launch(sum_partials_kernel, {static_cast<unsigned>(2 * s_.width / 32), threads}, partials_, to, norm_blocks, 2 * s_.width);
    if (passes && !fused.rows) add(launch, at.d_x, at.delta, at.d_x);
  }
  void backward(Launch& launch, const Fused& fused) {
    const Spaces at = spaces();
    const bool apart = !fused.rows && !fused.products_alone;
    d_words_->run(launch.stream, logits_, at.last_normed, at.words_gradient);
    d_normed_->run(launch.stream, logits_, copies_, at.d_normed);
    norm_backward(launch, fused, last_x(), copies_ + s_.last_norm_at(), moments_ + 2 * s_.layers * s_.rows(),
                  gradients_ + s_.last_norm_at(), false);
    for (std::size_t layer = s_.layers; layer-- > 0;) {
      const Kept k = kept(layer);
      const Layer<const bf16> w{s_, copies_, layer};
      const Layer<bf16> g{s_, gradients_, layer};
      const LayerProducts& products = products_[layer];
      products.down_backward(launch.stream, at.d_x, at.d_wide, fused.rows);
      if (apart) {
        const std::size_t all = 4 * plane() / packet;
        bias_gradient(launch, at.d_x, s_.width, g.down_bias);
        launch(gelu_backward_kernel, {blocks_for(all), threads}, packets(k.h), packets(at.d_wide), all);
        bias_gradient(launch, at.d_wide, 4 * s_.width, g.up_bias);
      }
      products.up_backward(launch.stream, at.d_wide, at.d_normed);
      norm_backward(launch, fused, k.middle, w.norm_2, k.moments_2, g.norm_2, true);
      products.out_backward(launch.stream, at.d_x, at.d_normed, fused.rows);
      if (apart) bias_gradient(launch, at.d_x, s_.width, g.out_bias);
      attention_.attend_backward(launch, attention(k), {nullptr, at.d_wide, at.d_normed});
      products.in_backward(launch.stream, at.d_wide, at.d_normed, fused.rows);
      if (apart) bias_gradient(launch, at.d_wide, 3 * s_.width, g.qkv_bias);
      norm_backward(launch, fused, k.x, w.norm_1, k.moments_1, g.norm_1, true);
    }
    if (fused.products_alone) return;
    launch(places_backward_kernel, {blocks_for(s_.length * s_.width / packet), threads}, packets(at.d_x),
           packets(gradients_ + s_.places_at()), s_.sequences, s_.length * s_.width / packet);
    launch(words_backward_kernel, per_warp(), tokens_, packets(at.d_x), at.words_gradient, rows(), row_packets());
    const std::size_t words = s_.words * s_.width;
    launch(training::narrow_kernel<bf16>, {training::cast_blocks(words), training::cast_threads},
           reinterpret_cast<const training::WidePacket*>(at.words_gradient),
           reinterpret_cast<training::Packet<bf16>*>(gradients_.get()), training::cast_packets(words));
  }

  static float4* quads(float* data) { return reinterpret_cast<float4*>(data); }
  // As an optimizer does that has an operation for all tensors at a time: gradients to fp32, then eight passes.
  void update_by_passes(Launch& launch) {
    float *const g = wide_, *const root = wide_ + wide_size();
    launch(training::widen_kernel<bf16>, {training::cast_blocks(s_.size()), training::cast_threads},
           reinterpret_cast<const training::Packet<bf16>*>(gradients_.get()), reinterpret_cast<training::WidePacket*>(g),
           training::cast_packets(s_.size()));
    const auto pass = [&]<class F>(float* a, float* b, float* c, const F& f) {
      launch(each_kernel<F>, {blocks_for(s_.size() / 4), threads}, quads(a), quads(b), quads(c), s_.size() / 4, f);
    };
    const training::AdamW& of = update_.of;
    pass(weights_, nullptr, nullptr, Times{1 - of.rate * of.decay});
    pass(firsts_, g, nullptr, Towards{1 - of.beta1});
    pass(seconds_, nullptr, nullptr, Times{of.beta2});
    pass(seconds_, g, nullptr, AddSquare{1 - of.beta2});
    pass(root, seconds_, nullptr, RootOf{});
    pass(root, nullptr, nullptr, Times{update_.inverse_root2});
    pass(root, nullptr, nullptr, Plus{of.epsilon});
    pass(weights_, firsts_, root, AddQuotient{-update_.step_size});
  }

  Shape s_;
  Input<int> tokens_, labels_;
  Output<float> loss_;
  Output<bf16> gradients_;
  InOut<float> weights_, firsts_, seconds_;
  Scratch<bf16> copies_, activations_;
  Scratch<float2> moments_;
  Scratch<float> log_sums_;
  Scratch<bf16> logits_;
  Scratch<float> wide_, partials_, losses_;
  Opened<CublasLt> lt_;
  training::AttentionBlock<64> attention_;
  Opened<MatmulPlan> words_, d_normed_, d_words_;
  bool reproducible_;
  std::vector<LayerProducts> products_;
  training::AdamWStep update_{{.rate = 0.1f, .decay = 0.1f}, step_number};  // so large that each term shows
  std::array<gpt::reference::Values, 5> expected_;
};

template <Method run>
constexpr Variant step(std::string_view name, std::uint32_t outputs = all_outputs) {
  // Words' gradients are added up by atomics.
  return {.name = name, .run = run, .prepare = call<&GptTrainStep::tune>, .deterministic = false, .outputs = outputs};
}

}  // namespace

extern constinit const Pair gpt_train_step{
    .teaches =
        "much of a training step is element-wise traffic, most of it the loss over the vocabulary: its gradient in place of "
        "the logits saves the tensors between",
    .lesson = "fused_loss",
    .make = make<GptTrainStep>,
    .baseline = step<call<&GptTrainStep::eager>>("eager"),
    .optimized =
        variants({step<call<&GptTrainStep::fused_rows>>("fused_rows"), step<call<&GptTrainStep::fused_loss>>("fused_loss"),
                  step<call<&GptTrainStep::fused_adamw>>("fused_adamw")}),
    // The loss's steps over bf16, whose log-probabilities have three digits; and products and attention with nothing between.
    .controls = variants({step<call<&GptTrainStep::bf16_loss>>("bf16_loss", no_outputs),
                          step<call<&GptTrainStep::products_alone>>("products_alone", no_outputs)}),
    .bound = Bound::compute,
    // About thirty roundings to bf16 follow one another on the way to a gradient: 9e-3, and in single elements whose addends
    // cancel as much as the largest of them lost. Of the weights an update is 5e-2 and the decay 1e-2.
    .tolerance = per_output({within(1e-3), within(3e-2, 0.4), within(1e-3, 2e-2), within(2e-2, 0.4)}),
    .needs = training::AttentionBlock<64>::needs(),
    .verification = Verification::small_shape,
    .sizes = sizes({{.name = "batch", .full = 8, .most = 64},
                    {.name = "length", .full = 1024, .multiple = 8, .most = 4096, .scales = false},
                    {.name = "words", .full = 50304, .multiple = 64, .most = 131072, .scales = false},
                    {.name = "layers", .full = 6, .most = 24, .scales = false}}),
    .sweep = cases({{"words_8192", "words=8192"},
                    {"words_50304", "words=50304"},
                    {"words_131072", "words=131072,batch=4"},
                    {"batch_1", "batch=1"}}),
    .edges =
        cases({{"one_sequence", "batch=1,length=64,layers=1,words=512"}, {"few_words", "batch=2,length=40,layers=2,words=64"}}),
};

}  // namespace aisp::ch20
