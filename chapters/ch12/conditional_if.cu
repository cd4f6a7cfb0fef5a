// SPDX-License-Identifier: Apache-2.0
// Mixed-precision training skips the optimizer step when a gradient overflowed. Asking the device and branching on the host
// empties the GPU once a step; an IF node with an else branch takes the decision where the flag is, and so do kernels that read
// the flag and return. One hundred steps, one in twenty overflows; a step is two kernels of a few microseconds, so the question
// is the cost.
#include <cuda_fp16.h>
#include <aisp/device_attribute.hpp>
#include <aisp/graph.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "graph_nodes.hpp"

namespace aisp::ch12 {
namespace {

constexpr float learning_rate = 1e-3f, beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f, weight_decay = 0.01f;
constexpr float first_loss_scale = 1024;
constexpr int block_threads = 256;
constexpr std::size_t steps_per_overflow = 20;

// All of the optimizer's state that is not per parameter, on the device.
struct Control {
  unsigned blocks_done;
  unsigned overflowed;  // in the step that is under way
  unsigned skip;        // decision about the step that follows
  unsigned good_steps;  // AdamW steps taken, this one included
};

struct Step {
  const float* gradient;
  const float* gain;  // what this step's data multiply the gradient by; huge once in a while
  float* unscaled;
  float* loss_scale;
  Control* control;
  int parameters;
};

// Receivers of the decision to skip the step, beside the kernels that read Control.
enum class Told { kernels, conditional_node, host, nobody };

// The backward pass left gradients in half precision, scaled; any infinity means that the step must be skipped. The last block
// decides.
template <Told told>
__global__ void unscale_kernel(Step step, cudaGraphConditionalHandle handle, unsigned* mapped, unsigned number) {
  const float scale = *step.loss_scale, gain = *step.gain;
  bool overflow = false;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < step.parameters; i += gridDim.x * blockDim.x) {
    const __half scaled = __float2half_rn(step.gradient[i] * gain * scale);
    overflow |= __hisinf(scaled) != 0 || __hisnan(scaled);
    step.unscaled[i] = __half2float(scaled) / scale;
  }
  if constexpr (told == Told::nobody) return;
  if (__syncthreads_or(overflow) && threadIdx.x == 0) atomicOr(&step.control->overflowed, 1u);
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&step.control->blocks_done, 1u) != gridDim.x - 1) return;
  const unsigned skip = atomicExch(&step.control->overflowed, 0u);
  step.control->blocks_done = 0;
  step.control->skip = skip;
  step.control->good_steps += 1 - skip;
  if constexpr (told == Told::conditional_node) cudaGraphSetConditional(handle, 1 - skip);
  if constexpr (told == Told::host) *static_cast<volatile unsigned*>(mapped) = 2 * number + skip;
}

template <bool predicated>
__global__ void adamw_kernel(Step step, float* weights, float* first_moment, float* second_moment) {
  if constexpr (predicated) {
    if (step.control->skip != 0) {
      if (blockIdx.x == 0 && threadIdx.x == 0) *step.loss_scale *= 0.5f;
      return;
    }
  }
  const float t = static_cast<float>(step.control->good_steps);
  const float correction1 = 1 / (1 - powf(beta1, t)), correction2 = 1 / (1 - powf(beta2, t));
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < step.parameters; i += gridDim.x * blockDim.x) {
    const float gradient = step.unscaled[i];
    const float m = beta1 * first_moment[i] + (1 - beta1) * gradient;
    const float v = beta2 * second_moment[i] + (1 - beta2) * gradient * gradient;
    first_moment[i] = m;
    second_moment[i] = v;
    const float update = m * correction1 / (sqrtf(v * correction2) + epsilon);
    weights[i] -= learning_rate * (update + weight_decay * weights[i]);
  }
}

__global__ void lower_scale_kernel(float* loss_scale) { *loss_scale *= 0.5f; }

class ConditionalIf final : public Workload {
 public:
  explicit ConditionalIf(Setup& setup)
      : parameters_{static_cast<int>(setup.size("parameters"))},
        steps_{100},
        gradient_{setup.input<float>(size(), uniform(-1, 1), {.name = "gradient"})},
        gain_{setup.input<float>(steps_, HostFill<float>{draw_gains}, {.name = "gain"})},
        weights_{setup.inout<float>(size(), uniform(-1, 1), {.name = "weights"})},
        first_moment_{setup.inout<float>(size(), constant(0), {.name = "first moment"})},
        second_moment_{setup.inout<float>(size(), constant(0), {.name = "second moment"})},
        loss_scale_{setup.inout<float>(1, constant(first_loss_scale), {.name = "loss scale"})},
        control_{setup.inout<unsigned>(4, integers(0, 0), {.name = "control"})},
        unscaled_{setup.scratch<float>(size())},
        flag_{setup.scratch<unsigned>(1, {.memory = Memory::pinned})} {}

  // Two dependent kernels a step, and the arrays that they pass through L2, or through memory where L2 does not hold them: the
  // gradient read and written by the one, the unscaled gradient, weights and moments by the other unless the step is skipped.
  Cost cost() const override {
    const auto steps = static_cast<double>(steps_), array_bytes = static_cast<double>(gradient_.bytes());
    const double bytes = steps * array_bytes * (2 + 7 * (1 - 1.0 / steps_per_overflow));
    const bool resident = 5 * gradient_.bytes() <= static_cast<std::size_t>(device_attribute(cudaDevAttrL2CacheSize));
    const Cost traffic{.bytes = resident ? 0 : bytes, .l2_bytes = bytes};
    return in_turn({traffic, {.dependent_kernels = 2 * steps}});
  }

  void compute_reference(Launch&) override {
    taken_.clear();
    scales_.clear();
    float scale = first_loss_scale;
    for (std::size_t step = 0; step < steps_; ++step) {
      const bool overflow = gain_.host(step) > 1e6;
      scales_.push_back(scale);
      taken_.push_back(!overflow);
      if (overflow) scale *= 0.5f;
    }
    last_scale_ = scale;
  }

  double expected_output(int output, std::size_t index) const override {
    if (output == 3) return last_scale_;
    if (output == 4)
      return index == 3 ? static_cast<double>(std::count(taken_.begin(), taken_.end(), true)) : index == 2 ? !taken_.back() : 0;
    double w = weights_.initial(index), m = 0, v = 0;
    int t = 0;
    for (std::size_t step = 0; step < steps_; ++step) {
      if (!taken_[step]) continue;
      ++t;
      const float scaled = static_cast<float>(gradient_.host(index)) * static_cast<float>(gain_.host(step)) * scales_[step];
      const double g = static_cast<double>(__half2float(__float2half_rn(scaled))) / scales_[step];
      m = double{beta1} * m + (1 - double{beta1}) * g;
      v = double{beta2} * v + (1 - double{beta2}) * g * g;
      const double update =
          m / (1 - std::pow(double{beta1}, t)) / (std::sqrt(v / (1 - std::pow(double{beta2}, t))) + double{epsilon});
      w -= double{learning_rate} * (update + double{weight_decay} * w);
    }
    return output == 0 ? w : output == 1 ? m : v;
  }

  void host_branch(Launch& launch) {
    for (std::size_t s = 0; s < steps_; ++s) {
      unscale<Told::kernels>(launch.stream, s);
      check(cudaMemcpyAsync(flag_, &control()->skip, sizeof(unsigned), cudaMemcpyDeviceToHost, launch.stream));
      check(cudaStreamSynchronize(launch.stream));
      if (*flag_ != 0) launch(lower_scale_kernel, {1, 1}, loss_scale_);
      else adamw<false>(launch.stream, s);
    }
  }
  // The flag comes over PCIe by a store of the kernel, without a copy and without the driver's wait.
  void check_every_step_mapped(Launch& launch) {
    const std::atomic_ref<unsigned> flag{*flag_.get()};
    flag.store(0);
    for (std::size_t s = 0; s < steps_; ++s) {
      const auto number = static_cast<unsigned>(s + 1);
      unscale<Told::host>(launch.stream, s);
      unsigned told = 0;
      for (int looks = 1; (told = flag.load(std::memory_order_acquire)) / 2 != number; ++looks)
        if (looks % (1 << 20) == 0 && cudaStreamQuery(launch.stream) != cudaErrorNotReady)
          check(cudaStreamSynchronize(launch.stream));
      if (told % 2 != 0) launch(lower_scale_kernel, {1, 1}, loss_scale_);
      else adamw<false>(launch.stream, s);
    }
  }

  void predicated_kernel(Launch& launch) { predicated(launch.stream); }
  void capture_predicated(Launch& launch) {
    predicated(launch.stream);  // a kernel's code is loaded at its first launch: not while a capture is under way
    predicated_.capture(launch.stream, [this](cudaStream_t stream) { predicated(stream); });
  }
  void predicated_graph(Launch& launch) { predicated_.launch(launch.stream); }
  void capture_undecided(Launch& launch) {
    undecided(launch.stream);
    undecided_.capture(launch.stream, [this](cudaStream_t stream) { undecided(stream); });
  }
  void no_decision(Launch& launch) { undecided_.launch(launch.stream); }

  void build_graph(Launch&) {
    conditional_.build([this](cudaGraph_t graph) {
      Node last = nullptr;
      for (std::size_t s = 0; s < steps_; ++s) last = add_step(graph, last, s);
    });
  }
  void if_else_node(Launch& launch) { conditional_.launch(launch.stream); }

 private:
  static void draw_gains(std::span<float> gains, std::uint64_t seed) {
    for (std::size_t i = 0; i < gains.size(); ++i)
      gains[i] = i % steps_per_overflow == random_bits(seed, i / steps_per_overflow) % steps_per_overflow ? 1e8f : 1.0f;
  }
  std::size_t size() const { return static_cast<std::size_t>(parameters_); }
  Grid grid() const { return {static_cast<unsigned>(std::min(parameters_ / block_threads, 1056)), block_threads}; }
  Control* control() const { return reinterpret_cast<Control*>(control_.get()); }
  Step step(std::size_t s) const { return {gradient_, gain_.get() + s, unscaled_, loss_scale_, control(), parameters_}; }

  template <Told told>
  void unscale(cudaStream_t stream, std::size_t s) {
    launch_kernel(stream, unscale_kernel<told>, grid(), step(s), cudaGraphConditionalHandle{}, flag_.get(), s + 1);
  }
  template <bool predicated>
  void adamw(cudaStream_t stream, std::size_t s) {
    launch_kernel(stream, adamw_kernel<predicated>, grid(), step(s), weights_, first_moment_, second_moment_);
  }
  void predicated(cudaStream_t stream) {
    for (std::size_t s = 0; s < steps_; ++s) {
      unscale<Told::kernels>(stream, s);
      adamw<true>(stream, s);
    }
  }

  void undecided(cudaStream_t stream) {
    for (std::size_t s = 0; s < steps_; ++s) {
      unscale<Told::nobody>(stream, s);
      adamw<false>(stream, s);
    }
  }

  Node add_step(cudaGraph_t graph, Node last, std::size_t s) {
    const cudaGraphConditionalHandle handle = conditional_handle(graph);
    const Nodes after = last != nullptr ? Nodes{&last, 1} : Nodes{};
    const Node unscaled = add_kernel(graph, after, unscale_kernel<Told::conditional_node>, grid(), step(s), handle, nullptr, 0u);
    const Conditional decision = add_conditional(graph, {&unscaled, 1}, handle, cudaGraphCondTypeIf, 2);
    add_kernel(decision.bodies[0], {}, adamw_kernel<false>, grid(), step(s), weights_.get(), first_moment_.get(),
               second_moment_.get());
    add_kernel(decision.bodies[1], {}, lower_scale_kernel, {1, 1}, loss_scale_.get());
    return decision.node;
  }

  int parameters_;
  std::size_t steps_;
  Input<float> gradient_, gain_;
  InOut<float> weights_, first_moment_, second_moment_, loss_scale_;
  InOut<unsigned> control_;
  Scratch<float> unscaled_;
  Scratch<unsigned> flag_;
  NodeGraph conditional_;
  Graph predicated_, undecided_;
  std::vector<bool> taken_;  // of the float64 reference: which steps were not skipped
  std::vector<float> scales_;
  double last_scale_ = 0;
};

}  // namespace

extern constinit const Pair conditional_if{
    .teaches = "an IF node decides on the device whether the optimizer step runs",
    .lesson = "if_else_node",
    .make = make<ConditionalIf>,
    .baseline = {.name = "host_branch", .run = call<&ConditionalIf::host_branch>},
    .optimized = variants({{.name = "if_else_node",
                            .run = call<&ConditionalIf::if_else_node>,
                            .prepare = call<&ConditionalIf::build_graph>,
                            .needs = {.driver = 12080},
                            .same_bits_as = "host_branch"},
                           {.name = "predicated_kernel",
                            .run = call<&ConditionalIf::predicated_kernel>,
                            .same_bits_as = "host_branch",
                            .gains_over = "host_branch"},
                           {.name = "predicated_graph",
                            .run = call<&ConditionalIf::predicated_graph>,
                            .prepare = call<&ConditionalIf::capture_predicated>,
                            .same_bits_as = "host_branch"}}),
    .controls = variants({{.name = "no_decision",
                           .run = call<&ConditionalIf::no_decision>,
                           .prepare = call<&ConditionalIf::capture_undecided>,
                           .outputs = no_outputs},
                          {.name = "check_every_step_mapped",
                           .run = call<&ConditionalIf::check_every_step_mapped>,
                           .same_bits_as = "host_branch"}}),
    .bound = Bound::latency,
    // A hundred dependent fp32 steps against float64: 3 sqrt(100) roundings of 2.4e-8, and AdamW divides by the root of small
    // moments.
    .tolerance = within(2e-6, 1e-4),
    .cache = Cache::hot,
    .start = Start::immediate,
    .sizes = sizes({{.name = "parameters", .full = 1 << 20, .multiple = block_threads, .most = 64 << 20}}),
    .sweep = cases({{"ki_64", "parameters=65536"},
                    {"ki_256", "parameters=262144"},
                    {"mi_1", "parameters=1048576"},
                    {"mi_4", "parameters=4194304"},
                    {"mi_16", "parameters=16777216"},
                    {"mi_64", "parameters=67108864"}}),
    .edges = cases({{"one_block", "parameters=256"}}),
};

}  // namespace aisp::ch12
