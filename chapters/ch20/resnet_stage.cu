// SPDX-License-Identifier: Apache-2.0
// Six bottlenecks of ResNet-50 on 256 images of 14 x 14 pixels and 1024 channels, as inference runs them. Each of the 18
// convolutions is followed by a batch norm, six by a residual, and all by ReLU, each of which reads and writes what the one
// before has just written. Batch norm is a scale and a bias, which fold into the weights and into what follows; and that goes
// into the convolution's epilogue.
#include <aisp/device_attribute.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "gemm/gemm.hpp"
#include "resnet_convolutions.hpp"
#include "resnet_reference.hpp"
#include "resnet_rows.cuh"

namespace aisp::ch20 {
namespace {

using namespace resnet;
constexpr std::size_t wide = 1024, narrow = 256, convolutions = 3;
struct Kind {
  std::size_t in, out, filter;
  constexpr std::size_t weights() const { return in * out * filter * filter; }
};
constexpr std::array<Kind, convolutions> kinds{{{wide, narrow, 1}, {narrow, narrow, 3}, {narrow, wide, 1}}};
constexpr std::size_t block_weights = kinds[0].weights() + kinds[1].weights() + kinds[2].weights(),
                      block_channels = kinds[0].out + kinds[1].out + kinds[2].out;
constexpr std::size_t weights_before(std::size_t kind) {
  return kind == 0 ? 0 : weights_before(kind - 1) + kinds.at(kind - 1).weights();
}
constexpr std::size_t channels_before(std::size_t kind) {
  return kind == 0 ? 0 : channels_before(kind - 1) + kinds.at(kind - 1).out;
}

using Operand = gemm::Operand<bf16>;
using WholeTile = gemm::Config<Operand, Operand, gemm::InTensorCores, gemm::Shape{.tile_n = 256, .stages = 4}>;
using TurnTile = gemm::Config<Operand, Operand, gemm::InTensorCores, gemm::Shape{.stages = 4, .pingpong = true}>;
using Reduce = gemm::Gemm<WholeTile, gemm::Bands, BiasRelu, gemm::TmaStore<bf16, 1>>;
using Middle = gemm::Gemm<WholeTile, gemm::Windows, BiasRelu, gemm::RowsStore<>>;
using Expand = gemm::Gemm<TurnTile, gemm::Bands, BiasResidualRelu, gemm::TmaExchange>;
struct Bottleneck {
  Reduce reduce;
  Middle middle;
  Expand expand;
};

class ResnetStage final : public Workload {
 public:
  explicit ResnetStage(Setup& setup)
      : images_{setup.shape(setup.size("images"), std::min<std::size_t>(setup.size("images"), 2))},
        blocks_{setup.shape(setup.size("blocks"), std::min<std::size_t>(setup.size("blocks"), 2))},
        x_{setup.input<bf16>(plane() * wide, uniform(0, 1.7f), {.name = "images", .constant = true})},
        w_{setup.input<bf16>(blocks_ * block_weights, [](std::span<bf16> to, std::uint64_t seed) { fill_weights(to, seed); },
                             {.name = "weights", .constant = true})},
        norms_{setup.input<float>(blocks_ * block_channels * 4,
                                  [](std::span<float> to, std::uint64_t seed) { fill_norms(to, seed); },
                                  {.name = "batch norms", .constant = true})},
        out_{setup.output<bf16>(images_ * looks * wide, {.name = "twelve pixels of each image"})},
        x_first_{setup.scratch<bf16>(x_.size())},
        w_first_{setup.scratch<bf16>(w_.size())},
        folded_{setup.scratch<bf16>(w_.size())},
        biases_{setup.scratch<float>(blocks_ * block_channels)},
        wides_{setup.scratch<bf16>(2 * plane() * wide)},
        narrows_{setup.scratch<bf16>(2 * plane() * narrow)} {
    for (const auto& [order, fused] :
         {std::pair{Order::channels_first, false}, {Order::channels_last, false}, {Order::channels_last, true}})
      for (std::size_t kind = 0; kind < convolutions; ++kind)
        plans_.emplace_back(setup, Convolution::Shape{images_, side, kinds[kind].in, kinds[kind].out, kinds[kind].filter}, order,
                            !fused      ? Then::nothing
                            : kind == 2 ? Then::bias_residual_relu
                                        : Then::bias_relu);
  }

  // Three kernels for each bottleneck, whose tensors are too large to stay in L2. What lies outside of the images need not be
  // multiplied: 3 n - 2 taps in all along n pixels.
  Cost cost() const override {
    const auto images = static_cast<double>(images_), all = images * pixels * sizeof(bf16);
    const double taps_inside = images * (3 * side - 2) * (3 * side - 2), blocks = static_cast<double>(blocks_);
    const auto phase = [&](double macs, double channels, std::size_t kind) {
      const double weights = static_cast<double>(kinds.at(kind).weights() * sizeof(bf16));
      return Cost{.flops = blocks * 2 * macs, .math = Math::bf16, .bytes = blocks * (all * channels + weights)};
    };
    return in_turn({phase(images * pixels * wide * narrow, wide + narrow, 0), phase(taps_inside * narrow * narrow, 2 * narrow, 1),
                    phase(images * pixels * narrow * wide, narrow + 2 * wide, 2)});
  }
  void compute_reference(Launch&) override {
    using namespace resnet::reference;
    Values x(x_.size());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = x_.host(i);
    for (std::size_t block = 0; block < blocks_; ++block) {
      std::array<Layer, convolutions> layers;
      for (std::size_t kind = 0; kind < convolutions; ++kind) {
        const auto& [in, out, filter] = kinds[kind];
        Layer& layer = layers[kind] = {in, out, filter, Values(kinds[kind].weights()), std::vector<Channel>(out)};
        for (std::size_t i = 0; i < layer.weights.size(); ++i) layer.weights[i] = w_.host(first_weight(block, kind) + i);
        for (std::size_t c = 0; c < out; ++c) {
          const std::size_t at = 4 * first_channel(block, kind) + c;
          layer.channels[c] = {norms_.host(at), norms_.host(at + out), norms_.host(at + 2 * out), norms_.host(at + 3 * out)};
        }
      }
      x = bottleneck(x, layers[0], layers[1], layers[2]);
    }
    expected_ = std::move(x);
  }
  double expected(std::size_t i) const override {
    const std::size_t image = i / (looks * wide);
    const auto pixel = static_cast<std::size_t>(looked_at(image, static_cast<int>(i / wide % looks)));
    return expected_[(image * pixels + pixel) * wide + i % wide];
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("image rate", static_cast<double>(images_), "images/s");
  }

  void channels_first(Launch& launch) { by_steps<true>(launch); }
  void channels_last(Launch& launch) { by_steps<false>(launch); }
  void one_pass(Launch& launch) { in_one_pass<false>(launch, w_); }
  void folded_bn(Launch& launch) { in_one_pass<true>(launch, folded_); }
  void library_epilogue(Launch& launch) {
    run(launch, [&](std::size_t block, std::size_t kind, const bf16* from, bf16* to, const bf16* residual) {
      plans_[6 + kind]->run(launch.stream, {from, folded_ + first_weight(block, kind), to, bias(block, kind), residual});
    });
  }
  void implicit_fused(Launch& launch) {
    for (std::size_t block = 0; block < blocks_; ++block) {
      engines_[block].reduce.run(launch.stream, {bias(block, 0)});
      engines_[block].middle.run(launch.stream, {bias(block, 1)});
      engines_[block].expand.run(launch.stream, {bias(block, 2)});
    }
    look<false>(launch);
  }
  void convolutions_alone(Launch& launch) {
    run(launch, [&](std::size_t block, std::size_t kind, const bf16* from, bf16* to, const bf16*) {
      convolve(launch, 3 + kind, from, w_ + first_weight(block, kind), to);
    });
  }

  void tune_first(Launch& launch) {
    const std::size_t count = x_.size();
    launch(transpose_kernel, {blocks_for(count), threads}, x_, x_first_, pixels, wide, count);
    for (std::size_t block = 0; block < blocks_; ++block)
      for (std::size_t kind = 0; kind < convolutions; ++kind)
        launch(transpose_kernel, {blocks_for(kinds[kind].weights()), threads}, w_ + first_weight(block, kind),
               w_first_ + first_weight(block, kind), kinds[kind].filter * kinds[kind].filter, kinds[kind].in,
               kinds[kind].weights());
    tune(launch, 0);
  }
  void tune_last(Launch& launch) { tune(launch, 3); }
  void fold_and_tune(Launch& launch) {
    fold(launch);
    tune(launch, 3);
  }
  void fold_and_tune_fused(Launch& launch) {
    fold(launch);
    tune(launch, 6);
  }
  void make_engines(Launch& launch) {
    fold(launch);
    if (!engines_.empty()) return;
    const std::size_t m = plane();
    const gemm::Windows windows{.height = side, .width = side, .channels = narrow, .filter = 3};
    for (std::size_t block = 0; block < blocks_; ++block) {
      const bf16 *const from = input(block), *const w = folded_ + block * block_weights;
      engines_.push_back(
          {Reduce{{.a = from, .b = w, .c = narrows_, .m = m, .n = narrow, .k = wide}},
           Middle{{.a = narrows_, .b = w + weights_before(1), .c = narrows_ + m * narrow, .m = m, .n = narrow, .k = 9 * narrow},
                  windows},
           Expand{{.a = narrows_ + m * narrow,
                   .b = w + weights_before(2),
                   .c = result(block),
                   .m = m,
                   .n = wide,
                   .k = narrow,
                   .other = from}}});
    }
  }

 private:
  std::size_t plane() const { return images_ * pixels; }
  static unsigned blocks_for(std::size_t count) { return static_cast<unsigned>((count + threads - 1) / threads); }
  static std::size_t first_weight(std::size_t block, std::size_t kind) { return block * block_weights + weights_before(kind); }
  static std::size_t first_channel(std::size_t block, std::size_t kind) { return block * block_channels + channels_before(kind); }
  const float* bias(std::size_t block, std::size_t kind) const { return biases_ + first_channel(block, kind); }
  Norm norm(std::size_t block, std::size_t kind) const {
    const float* const at = norms_ + 4 * first_channel(block, kind);
    const std::size_t out = kinds[kind].out;
    return {at, at + out, at + 2 * out, at + 3 * out};
  }
  bf16* result(std::size_t block) const { return wides_ + block % 2 * plane() * wide; }
  const bf16* input(std::size_t block) const { return block == 0 ? x_.get() : result(block - 1); }
  static const uint4* packets(const bf16* data) { return reinterpret_cast<const uint4*>(data); }
  static uint4* packets(bf16* data) { return reinterpret_cast<uint4*>(data); }

  // Returns the variance of a channel among all channels of all blocks: from 1e-4 to 1e2. Weights are so large that a
  // convolution's results have it.
  static double unit(std::uint64_t seed, std::size_t i) { return static_cast<double>(random_bits(seed, i) >> 11) * 0x1p-53; }
  static double variance_of(std::size_t channel) { return std::pow(10, 6 * unit(0xBA7C, channel) - 4); }
  static void fill_weights(std::span<bf16> to, std::uint64_t seed) {
    for (std::size_t i = 0, kind = 0, channel = 0; i < to.size(); kind = (kind + 1) % convolutions)
      for (std::size_t c = 0; c < kinds[kind].out; ++c, ++channel) {
        const std::size_t depth = kinds[kind].weights() / kinds[kind].out;
        const double largest = std::sqrt(3 * variance_of(channel) / static_cast<double>(depth));
        for (std::size_t k = 0; k < depth; ++k, ++i)
          to[i] = __float2bfloat16_rn(static_cast<float>(largest * (2 * unit(seed, i) - 1)));
      }
  }
  // Gains of both signs; those of a block's last norm are small, so that the sum of many blocks is not large.
  static void fill_norms(std::span<float> to, std::uint64_t seed) {
    for (std::size_t i = 0, kind = 0, channel = 0; i < to.size(); kind = (kind + 1) % convolutions) {
      const std::size_t out = kinds[kind].out;
      for (std::size_t c = 0; c < out; ++c, ++channel) {
        const double gain = (kind == 2 ? 0.3 : 1) * (0.5 + unit(seed, 4 * channel));
        to[i + c] = static_cast<float>((unit(seed, 4 * channel + 1) - 0.5) * std::sqrt(variance_of(channel)));
        to[i + out + c] = static_cast<float>(variance_of(channel));
        to[i + 2 * out + c] = static_cast<float>(unit(seed, 4 * channel + 2) < 0.25 ? -gain : gain);
        to[i + 3 * out + c] = static_cast<float>(unit(seed, 4 * channel + 3) - 0.5);
      }
      i += 4 * out;
    }
  }

  // Calls layer(block, kind, from, to, residual) for all convolutions, then looks at the result.
  template <bool first = false, class Layer>
  void run(Launch& launch, const Layer& layer) {
    for (std::size_t block = 0; block < blocks_; ++block) {
      const bf16* const from = block == 0 && first ? x_first_.get() : input(block);
      bf16* const between[2] = {narrows_, narrows_ + plane() * narrow};
      layer(block, 0, from, between[0], nullptr);
      layer(block, 1, between[0], between[1], nullptr);
      layer(block, 2, between[1], result(block), from);
    }
    look<first>(launch);
  }
  template <bool first>
  void look(Launch& launch) const {
    launch(look_kernel<first>, {dim3{static_cast<unsigned>(images_), looks}, threads}, result(blocks_ - 1), out_, wide);
  }
  void convolve(Launch& launch, std::size_t plan, const bf16* x, const bf16* w, bf16* y) {
    plans_[plan]->run(launch.stream, {x, w, y});
  }
  template <bool first>
  void by_steps(Launch& launch) {
    run<first>(launch, [&](std::size_t block, std::size_t kind, const bf16* from, bf16* to, const bf16* residual) {
      convolve(launch, (first ? 0 : 3) + kind, from, (first ? w_first_.get() : w_.get()) + first_weight(block, kind), to);
      const std::size_t all = plane() * kinds[kind].out;
      if constexpr (first)
        launch(planes_norm_kernel, {blocks_for(all / 4), threads}, reinterpret_cast<uint2*>(to), norm(block, kind),
               kinds[kind].out, all / 4);
      else normalize<false, false>(launch, block, kind, to, nullptr);
      if (residual != nullptr)
        launch(add_kernel, {blocks_for(all / packet), threads}, packets(to), packets(residual), all / packet);
      launch(relu_kernel, {blocks_for(all / packet), threads}, packets(to), all / packet);
    });
  }
  template <bool folded, bool finishes>
  void normalize(Launch& launch, std::size_t block, std::size_t kind, bf16* x, const bf16* residual) const {
    const std::size_t all = plane() * kinds[kind].out / packet;
    launch(channels_norm_kernel<folded, finishes>, {blocks_for(all / line_pixels), threads}, packets(x), norm(block, kind),
           bias(block, kind), packets(residual), kinds[kind].out, all);
  }
  template <bool folded>
  void in_one_pass(Launch& launch, const bf16* weights) {
    run(launch, [&](std::size_t block, std::size_t kind, const bf16* from, bf16* to, const bf16* residual) {
      convolve(launch, 3 + kind, from, weights + first_weight(block, kind), to);
      normalize<folded, true>(launch, block, kind, to, residual);
    });
  }
  void fold(Launch& launch) const {
    for (std::size_t block = 0; block < blocks_; ++block)
      for (std::size_t kind = 0; kind < convolutions; ++kind)
        launch(fold_kernel, {static_cast<unsigned>(kinds[kind].out), threads}, w_ + first_weight(block, kind), norm(block, kind),
               folded_ + first_weight(block, kind), biases_ + first_channel(block, kind),
               kinds[kind].weights() / kinds[kind].out);
  }
  void tune(Launch& launch, std::size_t first) {
    for (std::size_t kind = 0; kind < convolutions; ++kind) {
      const bf16* const from = kind == 0 ? x_.get() : narrows_.get();
      bf16* const to = kind == 2 ? wides_.get() : narrows_ + plane() * narrow;
      plans_[first + kind]->tune(launch.stream, {from, w_ + weights_before(kind), to, biases_, x_});
    }
  }

  std::size_t images_, blocks_;
  Input<bf16> x_, w_;   // [image][pixel][channel]; of each block [out][in], [out][tap][in], [out][in]
  Input<float> norms_;  // of each convolution: means, variances, gains, biases
  Output<bf16> out_;
  Scratch<bf16> x_first_, w_first_, folded_;
  Scratch<float> biases_;
  Scratch<bf16> wides_, narrows_;
  std::vector<Opened<Convolution>> plans_;  // for each kind: channels first, channels last, with epilogues
  std::vector<Bottleneck> engines_;
  std::vector<double> expected_;
};

}  // namespace

extern constinit const Pair resnet_stage{
    .teaches =
        "batch norm folds into the weights of a convolution, and what is left of it, the residual and ReLU go into its epilogue",
    .lesson = "library_epilogue",
    .make = make<ResnetStage>,
    .baseline = {.name = "channels_first", .run = call<&ResnetStage::channels_first>, .prepare = call<&ResnetStage::tune_first>},
    .optimized =
        variants({{.name = "channels_last", .run = call<&ResnetStage::channels_last>, .prepare = call<&ResnetStage::tune_last>},
                  {.name = "one_pass", .run = call<&ResnetStage::one_pass>, .prepare = call<&ResnetStage::tune_last>},
                  {.name = "library_epilogue",
                   .run = call<&ResnetStage::library_epilogue>,
                   .prepare = call<&ResnetStage::fold_and_tune_fused>},
                  {.name = "implicit_fused",
                   .run = call<&ResnetStage::implicit_fused>,
                   .prepare = call<&ResnetStage::make_engines>,
                   .needs = Middle::needs(),
                   .kernels = {.local_bytes = 0}}}),
    // Folded weights without an epilogue; and nothing but the convolutions.
    .controls =
        variants({{.name = "folded_bn", .run = call<&ResnetStage::folded_bn>, .prepare = call<&ResnetStage::fold_and_tune>},
                  {.name = "convolutions_alone",
                   .run = call<&ResnetStage::convolutions_alone>,
                   .prepare = call<&ResnetStage::tune_last>,
                   .outputs = no_outputs}}),
    .bound = Bound::compute,
    // On a bottleneck's branch some nine roundings to bf16 of 1.6e-3 follow one another, of folded weights among them, and the
    // residual stream has one in each block: 8e-3 at most after six.
    .tolerance = within(1e-2, 0.1),
    .needs = {.libraries = {Library::cudnn}},
    .verification = Verification::small_shape,
    .sizes = sizes({{.name = "images", .full = 256, .most = 1024}, {.name = "blocks", .full = 6, .most = 24, .scales = false}}),
    .sweep =
        cases({{"images_1", "images=1"}, {"images_8", "images=8"}, {"images_32", "images=32"}, {"images_256", "images=256"}}),
    .edges = cases({{"one_image", "images=1,blocks=1"}, {"three_images", "images=3,blocks=2"}}),
};

}  // namespace aisp::ch20
