// SPDX-License-Identifier: Apache-2.0
// A network too large for one GPU is cut into stages of consecutive layers, one for each GPU. One batch after the other through
// all stages, only one GPU works at a time. Cut into microbatches, a stage works on one while the next stage has the one before,
// and waits only while the pipeline fills and drains (GPipe: Huang et al., NeurIPS 2019). The rest of that bubble can be filled
// with gradients of weights, for which no other stage waits (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024). The loss is
// left out: the gradient of the outputs is an input.
#include <cuda_bf16.h>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "float64.hpp"
#include "gpus.hpp"
#include "pipeline.hpp"
#include "products.hpp"

namespace aisp::ch04 {
namespace {

using bf16 = __nv_bfloat16;
using float64::Matrix;
using pipeline::Policy, pipeline::Schedule, pipeline::Step, pipeline::Work;

constexpr std::size_t many_microbatches = 16;

// The extents of one stage.
struct Part {
  std::size_t layers, width, tokens;

  std::size_t weights() const { return width * width; }  // of a layer
  std::size_t values() const { return tokens * width; }
};

// The layers of one GPU. Activation and gradient `layer` are those between its layers, 0 to `layers`.
class StageLayers {
 public:
  StageLayers(Setup& setup, int gpu, int gpus, int ordinal, const Part& part)
      : part_{part},
        weights_{setup.input<bf16>(part.layers * part.weights(), normal(0, 1 / std::sqrt(static_cast<float>(part.width))),
                                   {.name = "weights", .device = gpu})},
        activations_{setup.scratch<bf16>((part.layers + 1) * part.values(), {.name = "activations", .device = gpu})},
        gradients_{setup.scratch<bf16>((part.layers + 1) * part.values(), {.name = "gradients of activations", .device = gpu})},
        of_weights_{
            setup.output<float>(part.layers * part.weights(),
                                {.name = "gradients of weights", .device = gpu, .groups = Axis{part.weights(), part.layers}})},
        cublas_{setup, ordinal} {
    if (gpu == 0) {
      x_.emplace(setup.input<bf16>(part.values(), normal(0, 1), {.name = "inputs"}));
      dx_.emplace(setup.output<bf16>(part.values(), {.name = "gradients of inputs"}));
    }
    if (gpu + 1 == gpus) {
      dy_.emplace(setup.input<bf16>(part.values(), normal(0, 1), {.name = "gradients of outputs", .device = gpu}));
      y_.emplace(setup.output<bf16>(part.values(), {.name = "outputs", .device = gpu}));
    }
  }

  const bf16* activation(std::size_t layer) const { return layer == 0 && x_ ? x_->get() : of(activations_, layer); }
  const bf16* gradient(std::size_t layer) const { return layer == part_.layers && dy_ ? dy_->get() : of(gradients_, layer); }
  bf16* own_activation(std::size_t layer) const { return layer == part_.layers && y_ ? y_->get() : of(activations_, layer); }
  bf16* own_gradient(std::size_t layer) const { return layer == 0 && dx_ ? dx_->get() : of(gradients_, layer); }

  const Input<bf16>& weights() const { return weights_; }
  const std::optional<Input<bf16>>& x() const { return x_; }
  const std::optional<Input<bf16>>& dy() const { return dy_; }

  // Queues the work on `rows` rows from `row` on. `adds`: to the gradients of the weights that are there.
  void queue(cudaStream_t stream, Work work, std::size_t row, std::size_t rows, bool adds) const {
    const std::size_t width = part_.width, first = row * width;
    if (work == Work::forward) {
      for (std::size_t layer = 0; layer < part_.layers; ++layer)
        multiply(*cublas_, stream, {.m = rows, .n = width, .k = width, .b_is_transposed = true}, activation(layer) + first,
                 weights(layer), own_activation(layer + 1) + first);
      return;
    }
    const Product sum{
        .m = width, .n = width, .k = rows, .a_is_transposed = true, .result = CUDA_R_32F, .beta = adds ? 1.0f : 0.0f};
    for (std::size_t layer = part_.layers; layer-- > 0;) {
      const bf16* const dy = gradient(layer + 1) + first;
      if (work != Work::input_gradients)
        multiply(*cublas_, stream, sum, dy, activation(layer) + first, of_weights_ + layer * part_.weights());
      if (work != Work::weight_gradients)
        multiply(*cublas_, stream, {.m = rows, .n = width, .k = width}, dy, weights(layer), own_gradient(layer) + first);
    }
  }

 private:
  const bf16* weights(std::size_t layer) const { return weights_ + layer * part_.weights(); }
  bf16* of(const Scratch<bf16>& all, std::size_t layer) const { return all + layer * part_.values(); }

  Part part_;
  Input<bf16> weights_;
  Scratch<bf16> activations_, gradients_;
  Output<float> of_weights_;
  std::optional<Input<bf16>> x_, dy_;
  std::optional<Output<bf16>> y_, dx_;
  Opened<OnGpu<Cublas>> cublas_;
};

class PipelineParallelism final : public Workload {
 public:
  explicit PipelineParallelism(Setup& setup)
      : gpus_{setup},
        microbatches_{setup.size("microbatches")},
        part_{setup.size("layers") / stages(), float64::size_of(setup, "width", 256), float64::size_of(setup, "tokens", 256)} {
    if (part_.layers * stages() != setup.size("layers"))
      throw Unsupported{"layers must be a multiple of the GPUs, " + std::to_string(stages())};
    if (part_.tokens % (8 * microbatches_) != 0) throw Unsupported{"tokens must be a multiple of 8 in each microbatch"};
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) {
      layers_.add(std::make_unique<StageLayers>(setup, gpu, gpus_.count(), gpus_.ordinal(gpu), part_));
      out_.add(setup.stream(gpu));
      for (std::size_t i = 0; i < 2 * many_microbatches; ++i) arrived_.push_back(setup.event(gpu));
    }
  }

  Cost cost() const override {
    return {.flops = 3 * 2.0 * static_cast<double>(part_.layers * part_.values() * part_.width),
            .math = Math::bf16,
            .peer_bytes = static_cast<double>(part_.values() * sizeof(bf16))};
  }

  void compute_reference(Launch&) override {
    const auto& [of_stage, width, tokens] = part_;
    const std::size_t layers = of_stage * stages();
    x_.assign(layers + 1, {}), dy_.assign(layers + 1, {});
    x_[0] = float64::values(*layers_[0]->x(), 0, part_.values());
    dy_[layers] = float64::values(*layers_[gpus_.count() - 1]->dy(), 0, part_.values());
    for (std::size_t layer = 0; layer < layers; ++layer)
      x_[layer + 1] = float64::product(x_[layer], float64::transposed(weights_of(layer), width, width), tokens, width, width);
    for (std::size_t layer = layers; layer-- > 0;)
      dy_[layer] = float64::product(dy_[layer + 1], weights_of(layer), tokens, width, width);
  }
  // The order of outputs: the first GPU's two, the gradients of the weights of all others, and the network's outputs.
  double expected_output(int output, std::size_t index) const override {
    if (output == 1) return dy_[0][index];
    if (output == gpus_.count() + 1) return x_.back()[index];
    const std::size_t stage = static_cast<std::size_t>(output == 0 ? 0 : output - 1);
    const std::size_t layer = stage * part_.layers + index / part_.weights();
    return float64::element(dy_[layer + 1], x_[layer], part_.width, part_.width, index / part_.width % part_.width,
                            index % part_.width);
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    const auto& [microbatches, policy] = plan_of(variant);
    const Schedule schedule = pipeline::schedule(gpus_.count(), static_cast<int>(microbatches), policy);
    const double kept = static_cast<double>(part_.layers * part_.values() * sizeof(bf16) / microbatches) * schedule.most_kept;
    metrics.report("bubble", 100 * schedule.bubble(static_cast<int>(microbatches)), "%", Metrics::Better::lower);
    metrics.report("kept_activations", kept / 1e6, "MB", Metrics::Better::lower);
    metrics.report_rate("tokens_per_second", static_cast<double>(part_.tokens), "tokens/s");
  }

  void stage_by_stage(Launch& launch) { run(launch, plan_of("stage_by_stage")); }
  void gpipe(Launch& launch) { run(launch, plan_of("gpipe")); }
  void one_f_one_b(Launch& launch) { run(launch, plan_of("one_f_one_b")); }
  void zero_bubble(Launch& launch) { run(launch, plan_of("zero_bubble")); }
  void gpipe_of_16(Launch& launch) { run(launch, plan_of("gpipe_of_16")); }

 private:
  struct Plan {
    std::size_t microbatches;
    Policy policy;
  };
  enum Direction : std::uint8_t { onward, back };

  std::size_t stages() const { return static_cast<std::size_t>(gpus_.count()); }
  Plan plan_of(std::string_view variant) const {
    if (variant == "stage_by_stage") return {1, Policy::all_forward};
    if (variant == "gpipe_of_16") return {many_microbatches, Policy::all_forward};
    return {microbatches_, variant == "gpipe"         ? Policy::all_forward
                           : variant == "one_f_one_b" ? Policy::one_forward_one_backward
                                                      : Policy::split_backward};
  }
  Matrix weights_of(std::size_t layer) const {
    return float64::values(layers_[static_cast<int>(layer / part_.layers)]->weights(), layer % part_.layers * part_.weights(),
                           part_.weights());
  }
  // Queues all steps. A step waits only for what another stage sends, and a stage goes on while its results are copied.
  void run(Launch& launch, const Plan& plan) const {
    const std::size_t rows = part_.tokens / plan.microbatches;
    std::vector<char> has_sums(stages(), 0);  // of gradients of weights
    for (const Step& step : pipeline::schedule(gpus_.count(), static_cast<int>(plan.microbatches), plan.policy).steps) {
      const Direction direction = step.work == Work::forward ? onward : back;
      const int first = direction == onward ? 0 : gpus_.count() - 1, end = gpus_.count() - 1 - first;
      const int next = direction == onward ? 1 : -1;
      const std::size_t row = static_cast<std::size_t>(step.microbatch) * rows;
      const bool is_shared = step.work != Work::weight_gradients;
      char& has_sum = has_sums[static_cast<std::size_t>(step.stage)];
      {
        const SelectedGpu selected{gpus_.ordinal(step.stage)};
        const cudaStream_t stream = launch.streams[step.stage];
        if (is_shared && step.stage != first)
          check(cudaStreamWaitEvent(stream, arrived(step.stage - next, direction, step.microbatch)));
        layers_[step.stage]->queue(stream, step.work, row, rows, has_sum != 0);
      }
      if (step.work == Work::backward || step.work == Work::weight_gradients) has_sum = 1;
      if (is_shared && step.stage != end) hand_on(launch, step, direction, step.stage + next, row, rows);
    }
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) gpus_.order(gpu, out_[gpu], launch.streams[gpu]);
  }
  void hand_on(Launch& launch, const Step& step, Direction direction, int to, std::size_t row, std::size_t rows) const {
    const StageLayers &of_sender = *layers_[step.stage], &of_receiver = *layers_[to];
    const bf16* const from = direction == onward ? of_sender.activation(part_.layers) : of_sender.gradient(0);
    bf16* const target = direction == onward ? of_receiver.own_activation(0) : of_receiver.own_gradient(part_.layers);
    gpus_.order(step.stage, launch.streams[step.stage], out_[step.stage]);
    check(cudaMemcpyPeerAsync(target + row * part_.width, gpus_.ordinal(to), from + row * part_.width, gpus_.ordinal(step.stage),
                              rows * part_.width * sizeof(bf16), out_[step.stage]));
    check(cudaEventRecord(arrived(step.stage, direction, step.microbatch), out_[step.stage]));
  }
  // Returns the event that the stage which sends records.
  cudaEvent_t arrived(int sender, Direction direction, int microbatch) const {
    const int event = (2 * sender + direction) * static_cast<int>(many_microbatches) + microbatch;
    return arrived_[static_cast<std::size_t>(event)];
  }

  Gpus gpus_;
  std::size_t microbatches_;
  Part part_;
  Each<std::unique_ptr<StageLayers>> layers_;
  Each<cudaStream_t> out_;
  std::vector<cudaEvent_t> arrived_;
  std::vector<Matrix> x_, dy_;  // before and after each layer
};

}  // namespace

extern constinit const Pair pipeline_parallelism{
    .teaches = "microbatches fill a pipeline's bubble; gradients of weights, which no stage waits for, fill what is left",
    .lesson = "gpipe",
    .make = make<PipelineParallelism>,
    .baseline = {.name = "stage_by_stage", .run = call<&PipelineParallelism::stage_by_stage>},
    .optimized = variants({{.name = "gpipe", .run = call<&PipelineParallelism::gpipe>},
                           {.name = "one_f_one_b", .run = call<&PipelineParallelism::one_f_one_b>},
                           {.name = "zero_bubble", .run = call<&PipelineParallelism::zero_bubble>}}),
    .controls = variants({{.name = "gpipe_of_16", .run = call<&PipelineParallelism::gpipe_of_16>}}),
    .bound = Bound::compute,
    // A result has passed up to eight products, which round to bf16 by 1.6e-3 each.
    .tolerance = within(6e-3),
    .needs = {.gpus = 2, .peer_access = true, .libraries = {Library::cublas}},
    .verification = Verification::small_shape,
    .timeline = true,
    .sizes = sizes({{.name = "layers", .full = 8, .most = 8, .scales = false},
                    {.name = "width", .full = 4096, .multiple = 64, .most = 8192, .scales = false},
                    {.name = "tokens", .full = 8192, .multiple = 128},
                    {.name = "microbatches", .full = 4, .most = 16, .scales = false}}),
    .sweep = cases({{"microbatches_2", "microbatches=2"},
                    {"microbatches_4", "microbatches=4"},
                    {"microbatches_8", "microbatches=8"},
                    {"microbatches_16", "microbatches=16"}}),
    .edges = cases({{"one_microbatch", "layers=2,width=64,tokens=128,microbatches=1"},
                    {"sixteen_microbatches", "layers=4,width=192,tokens=256,microbatches=16"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch04
