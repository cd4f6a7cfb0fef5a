// SPDX-License-Identifier: Apache-2.0
// Mixed-precision training skips the optimizer step when a gradient overflowed. Asking the device and branching on the host
// empties the GPU once a step; an IF node with an else branch takes the decision where the flag is, and so do kernels that read
// the flag and return. One hundred steps, about one in twenty overflows; a step is two kernels of a few microseconds, so the
// question is the cost.
#include <cuda_fp16.h>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

namespace aisp::ch12 {
namespace {

constexpr float learning_rate = 1e-3f, beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f, weight_decay = 0.01f;
constexpr float first_loss_scale = 1024;
constexpr int block_threads = 256;

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

// The backward pass left gradients in half precision, scaled; any infinity means that the step must be skipped. The last block
// decides.
template <bool in_graph>
__global__ void unscale_kernel(Step step, cudaGraphConditionalHandle handle) {
  const float scale = *step.loss_scale, gain = *step.gain;
  bool overflow = false;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < step.parameters; i += gridDim.x * blockDim.x) {
    const __half scaled = __float2half_rn(step.gradient[i] * gain * scale);
    overflow |= __hisinf(scaled) != 0 || __hisnan(scaled);
    step.unscaled[i] = __half2float(scaled) / scale;
  }
  if (__syncthreads_or(overflow) && threadIdx.x == 0) atomicOr(&step.control->overflowed, 1u);
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&step.control->blocks_done, 1u) != gridDim.x - 1) return;
  const unsigned skip = atomicExch(&step.control->overflowed, 0u);
  step.control->blocks_done = 0;
  step.control->skip = skip;
  step.control->good_steps += 1 - skip;
  if constexpr (in_graph) cudaGraphSetConditional(handle, 1 - skip);
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
      : parameters_{static_cast<int>(setup.scaled(1 << 20, block_threads))},
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
  ~ConditionalIf() override {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
  }

  // Two dependent kernels a step. Parameters and moments stay in L2, where a step moves 36 MB: there is no ceiling for that here,
  // so the percentage of this floor stays small however good a variant is.
  Cost cost() const override { return {.dependent_kernels = 2.0 * static_cast<double>(steps_)}; }

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
      unscale_kernel<false><<<grid(), block_threads, 0, launch.stream>>>(step(s), {});
      check(cudaMemcpyAsync(flag_, &control()->skip, sizeof(unsigned), cudaMemcpyDeviceToHost, launch.stream));
      check(cudaStreamSynchronize(launch.stream));
      if (*flag_ != 0) lower_scale_kernel<<<1, 1, 0, launch.stream>>>(loss_scale_);
      else adamw_kernel<false><<<grid(), block_threads, 0, launch.stream>>>(step(s), weights_, first_moment_, second_moment_);
    }
    check(cudaGetLastError());
  }

  void predicated_kernel(Launch& launch) {
    for (std::size_t s = 0; s < steps_; ++s) {
      unscale_kernel<false><<<grid(), block_threads, 0, launch.stream>>>(step(s), {});
      adamw_kernel<true><<<grid(), block_threads, 0, launch.stream>>>(step(s), weights_, first_moment_, second_moment_);
    }
    check(cudaGetLastError());
  }

  void build_graph(Launch&) {
    cudaGraph_t graph = nullptr;
    check(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t last = nullptr;
    for (std::size_t s = 0; s < steps_; ++s) last = add_step(graph, last, s);
    if (executable_ != nullptr) check(cudaGraphExecDestroy(executable_));
    check(cudaGraphInstantiate(&executable_, graph, 0));
    check(cudaGraphDestroy(graph));
  }
  void if_else_node(Launch& launch) { check(cudaGraphLaunch(executable_, launch.stream)); }

 private:
  static void draw_gains(std::span<float> gains, std::uint64_t seed) {
    for (std::size_t i = 0; i < gains.size(); ++i) gains[i] = random_bits(seed, i) % 20 == 0 ? 1e8f : 1.0f;
  }
  std::size_t size() const { return static_cast<std::size_t>(parameters_); }
  unsigned grid() const { return static_cast<unsigned>(std::min(parameters_ / block_threads, 1056)); }
  Control* control() const { return reinterpret_cast<Control*>(control_.get()); }
  Step step(std::size_t s) const { return {gradient_, gain_.get() + s, unscaled_, loss_scale_, control(), parameters_}; }

  template <class... Parameters, class... Arguments>
  static cudaGraphNode_t add_kernel(cudaGraph_t graph, const cudaGraphNode_t* after, unsigned blocks, unsigned threads,
                                    void (*kernel)(Parameters...), Arguments... arguments) {
    std::tuple<Parameters...> values{arguments...};
    return std::apply(
        [&](auto&... value) {
          void* pointers[] = {static_cast<void*>(&value)...};
          cudaKernelNodeParams node{};
          node.func = reinterpret_cast<void*>(kernel);
          node.gridDim = dim3{blocks};
          node.blockDim = dim3{threads};
          node.kernelParams = pointers;
          cudaGraphNode_t added = nullptr;
          check(cudaGraphAddKernelNode(&added, graph, after, after != nullptr ? 1 : 0, &node));
          return added;
        },
        values);
  }

  cudaGraphNode_t add_step(cudaGraph_t graph, cudaGraphNode_t last, std::size_t s) {
    cudaGraphConditionalHandle handle{};
    check(cudaGraphConditionalHandleCreate(&handle, graph, 0, 0));
    const cudaGraphNode_t unscaled =
        add_kernel(graph, last != nullptr ? &last : nullptr, grid(), block_threads, unscale_kernel<true>, step(s), handle);
    cudaGraphNodeParams decision{};
    decision.type = cudaGraphNodeTypeConditional;
    decision.conditional.handle = handle;
    decision.conditional.type = cudaGraphCondTypeIf;
    decision.conditional.size = 2;  // the second body is the else branch
    cudaGraphNode_t branch = nullptr;
    check(cudaGraphAddNode(&branch, graph, &unscaled, nullptr, 1, &decision));
    add_kernel(decision.conditional.phGraph_out[0], nullptr, grid(), block_threads, adamw_kernel<false>, step(s), weights_.get(),
               first_moment_.get(), second_moment_.get());
    add_kernel(decision.conditional.phGraph_out[1], nullptr, 1, 1, lower_scale_kernel, loss_scale_.get());
    return branch;
  }

  int parameters_;
  std::size_t steps_;
  Input<float> gradient_, gain_;
  InOut<float> weights_, first_moment_, second_moment_, loss_scale_;
  InOut<unsigned> control_;
  Scratch<float> unscaled_;
  Scratch<unsigned> flag_;
  cudaGraphExec_t executable_ = nullptr;
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
    .optimized =
        variants({{.name = "if_else_node",
                   .run = call<&ConditionalIf::if_else_node>,
                   .prepare = call<&ConditionalIf::build_graph>,
                   .needs = {.driver = 12080}},
                  {.name = "predicated_kernel", .run = call<&ConditionalIf::predicated_kernel>, .gains_over = "host_branch"}}),
    .bound = Bound::latency,
    // A hundred dependent fp32 steps against float64: 3 sqrt(100) roundings of 2.4e-8, and AdamW divides by the root of small
    // moments.
    .tolerance = within(2e-6, 1e-4),
    .cache = Cache::hot,
    .start = Start::immediate,
};

}  // namespace aisp::ch12
