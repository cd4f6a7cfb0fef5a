// SPDX-License-Identifier: Apache-2.0
// The optimizer can update the layers whose gradients are ready while the backward pass still multiplies: the one needs bytes,
// the other FLOPs. But SMs go to the kernel that asked first, so on two streams they run one after the other. A green context
// sets SMs apart: AdamW gets the few that fill memory, the products get the rest, and both flow at the same time. The last step
// does it without contexts: few AdamW blocks that stay, and products that the library keeps to the other SMs.
#include <cuda_bf16.h>
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace aisp::ch11 {
namespace {

using bf16 = __nv_bfloat16;
constexpr std::size_t products = 4;  // weight gradients of one layer each
constexpr std::size_t inputs = 4096, outputs = 14336,
                      tokens = 4096;  // C[inputs][outputs] = A^T[inputs][tokens] B[tokens][outputs]
constexpr float learning_rate = 1e-2f, beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f, weight_decay = 0.01f;
constexpr float correction1 = 1 - beta1, correction2 = 1 - beta2;  // of the first step
constexpr unsigned threads = 1024;

// Two quads of each array a thread are on their way at a time: few SMs fill memory only with many bytes in flight on each.
__global__ __launch_bounds__(threads) void adamw_kernel(float4* weights, float4* first_moment, float4* second_moment,
                                                        const float4* gradient, std::size_t quads) {
  const auto update = [](float& w, float& m, float& v, float g) {
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    w -= __fdividef(learning_rate / correction1 * m, sqrtf(1 / correction2 * v) + epsilon) + learning_rate * weight_decay * w;
  };
  const std::size_t stride = std::size_t{gridDim.x} * threads;
  for (std::size_t first = std::size_t{blockIdx.x} * threads + threadIdx.x; first < quads; first += 2 * stride) {
    float4 w[2], m[2], v[2], g[2];
#pragma unroll
    for (unsigned k = 0; k < 2; ++k) {
      const std::size_t i = min(first + k * stride, quads - 1);
      w[k] = weights[i], m[k] = first_moment[i], v[k] = second_moment[i], g[k] = gradient[i];
    }
#pragma unroll
    for (unsigned k = 0; k < 2; ++k) {
      const std::size_t i = first + k * stride;
      if (i >= quads) break;
      update(w[k].x, m[k].x, v[k].x, g[k].x);
      update(w[k].y, m[k].y, v[k].y, g[k].y);
      update(w[k].z, m[k].z, v[k].z, g[k].z);
      update(w[k].w, m[k].w, v[k].w, g[k].w);
      weights[i] = w[k], first_moment[i] = m[k], second_moment[i] = v[k];
    }
  }
}

class GreenContexts final : public Workload {
 public:
  explicit GreenContexts(Setup& setup)
      : parameters_{setup.scaled(std::size_t{300} << 20, threads * 4)},
        k_{setup.scaled(tokens, 256)},
        optimizer_sms_{static_cast<int>(setup.size("optimizer_sms"))},
        a_{setup.input<bf16>(products * k_ * inputs, normal(0, 1), {.name = "activations"})},
        b_{setup.input<bf16>(products * k_ * outputs, normal(0, 1), {.name = "gradients of outputs"})},
        gradient_{setup.input<float>(parameters_, normal(0, 1), {.name = "ready gradients"})},
        c_{setup.output<bf16>(products * inputs * outputs, {.name = "weight gradients"})},
        weights_{setup.inout<float>(parameters_, normal(0, 0.02f), {.name = "weights"})},
        first_{setup.inout<float>(parameters_, normal(0, 0.1f), {.name = "first moment"})},
        second_{setup.inout<float>(parameters_, uniform(0, 0.002f), {.name = "second moment"})},
        cublas_{setup},
        part_of_optimizer_{setup.stream_on(optimizer_sms_)},
        part_of_products_{setup.stream_on(static_cast<int>(multiprocessors()) - part_of_optimizer_.sms)},
        optimizer_stream_{setup.stream()},
        products_stream_{setup.stream()},
        urgent_stream_{setup.stream(0, true)},
        forked_{setup.event()},
        optimized_{setup.event()},
        multiplied_{setup.event()} {}

  Cost cost() const override { return cost_of(true, true); }
  Cost variant_cost(std::string_view variant) const override {
    return cost_of(!variant.starts_with("optimizer_alone"), !variant.starts_with("products_alone"));
  }
  double expected_output(int output, std::size_t index) const override {
    if (output == 0) {
      const std::size_t product = index / (inputs * outputs), row = index / outputs % inputs, column = index % outputs;
      double sum = 0;
      for (std::size_t i = product * k_; i < (product + 1) * k_; ++i)
        sum += a_.host(i * inputs + row) * b_.host(i * outputs + column);
      return sum;
    }
    const double g = gradient_.host(index), w = weights_.initial(index);
    const double m = double{beta1} * first_.initial(index) + (1 - double{beta1}) * g;
    const double v = double{beta2} * second_.initial(index) + (1 - double{beta2}) * g * g;
    if (output > 1) return output == 2 ? m : v;
    const double update = m / double{correction1} / (std::sqrt(v / double{correction2}) + double{epsilon});
    return w - double{learning_rate} * (update + double{weight_decay} * w);
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    const bool apart = variant == "green_partition";
    const double all = multiprocessors();
    metrics.report("sms_of_products", apart ? part_of_products_.sms : all, "SMs", Metrics::Better::higher);
    metrics.report_rate("steps", 1, "steps/s");
  }

  void products_first(Launch& launch) {
    both(launch, products_stream_, optimizer_stream_, [&] {
      multiply(launch, products_stream_);
      optimize(launch, optimizer_stream_, all_blocks());
    });
  }
  void optimizer_first(Launch& launch) {
    both(launch, products_stream_, optimizer_stream_, [&] {
      optimize(launch, optimizer_stream_, all_blocks());
      multiply(launch, products_stream_);
    });
  }
  void high_priority(Launch& launch) {
    both(launch, products_stream_, urgent_stream_, [&] {
      multiply(launch, products_stream_);
      optimize(launch, urgent_stream_, all_blocks());
    });
  }
  void green_partition(Launch& launch) {
    both(launch, part_of_products_.stream, part_of_optimizer_.stream, [&] {
      multiply(launch, part_of_products_.stream);
      optimize(launch, part_of_optimizer_.stream, static_cast<unsigned>(part_of_optimizer_.sms));
    });
  }
  void sm_count_target(Launch& launch) {
    limit_products(static_cast<int>(multiprocessors()) - optimizer_sms_);
    both(launch, products_stream_, urgent_stream_, [&] {
      optimize(launch, urgent_stream_, static_cast<unsigned>(optimizer_sms_));
      multiply(launch, products_stream_);
    });
    limit_products(0);
  }
  void products_alone(Launch& launch) {
    both(launch, part_of_products_.stream, part_of_optimizer_.stream, [&] { multiply(launch, part_of_products_.stream); });
  }
  void optimizer_alone(Launch& launch) {
    both(launch, part_of_products_.stream, part_of_optimizer_.stream,
         [&] { optimize(launch, part_of_optimizer_.stream, static_cast<unsigned>(part_of_optimizer_.sms)); });
  }

 private:
  Cost cost_of(bool with_products, bool with_optimizer) const {
    Cost cost{.math = Math::bf16};
    if (with_products) {
      cost.flops = 2.0 * products * inputs * outputs * static_cast<double>(k_);
      cost.bytes = static_cast<double>(a_.bytes() + b_.bytes() + c_.bytes());
    }
    if (with_optimizer) cost.bytes += 7.0 * static_cast<double>(gradient_.bytes());
    return cost;
  }
  static unsigned all_blocks() { return multiprocessors(); }

  template <class Queue>
  void both(Launch& launch, cudaStream_t of_products, cudaStream_t of_optimizer, const Queue& queue) {
    check(cudaEventRecord(forked_, launch.stream));
    check(cudaStreamWaitEvent(of_products, forked_));
    check(cudaStreamWaitEvent(of_optimizer, forked_));
    queue();
    check(cudaEventRecord(multiplied_, of_products));
    check(cudaEventRecord(optimized_, of_optimizer));
    check(cudaStreamWaitEvent(launch.stream, multiplied_));
    check(cudaStreamWaitEvent(launch.stream, optimized_));
  }
  void optimize(Launch& launch, cudaStream_t stream, unsigned blocks) {
    launch_kernel(stream, adamw_kernel, {blocks, threads}, reinterpret_cast<float4*>(weights_.get()),
                  reinterpret_cast<float4*>(first_.get()), reinterpret_cast<float4*>(second_.get()),
                  reinterpret_cast<const float4*>(gradient_.get()), parameters_ / 4);
    launch.mark("optimizer_done", stream);
  }
  // The library is column-major: it computes C^T = B^T A.
  void multiply(Launch& launch, cudaStream_t stream) {
    const auto gemm = Cublas::function<Cublas::GemmEx>("cublasGemmEx");
    const float one = 1, zero = 0;
    const int m = static_cast<int>(inputs), n = static_cast<int>(outputs), k = static_cast<int>(k_);
    cublas_->use(stream);
    for (std::size_t p = 0; p < products; ++p)
      check(gemm(cublas_->handle(), CUBLAS_OP_N, CUBLAS_OP_T, n, m, k, &one, b_ + p * k_ * outputs, CUDA_R_16BF, n,
                 a_ + p * k_ * inputs, CUDA_R_16BF, m, &zero, c_ + p * inputs * outputs, CUDA_R_16BF, n, CUBLAS_COMPUTE_32F,
                 CUBLAS_GEMM_DEFAULT));
    launch.mark("products_done", stream);
  }
  void limit_products(int sms) const {
    check(Cublas::function<decltype(cublasSetSmCountTarget)>("cublasSetSmCountTarget")(cublas_->handle(), sms));
  }

  std::size_t parameters_, k_;
  int optimizer_sms_;
  Input<bf16> a_, b_;
  Input<float> gradient_;
  Output<bf16> c_;
  InOut<float> weights_, first_, second_;
  Opened<Cublas> cublas_;
  SmStream part_of_optimizer_, part_of_products_;
  cudaStream_t optimizer_stream_, products_stream_, urgent_stream_;
  cudaEvent_t forked_, optimized_, multiplied_;
};

}  // namespace

extern constinit const Pair green_contexts{
    .teaches = "SMs go first come, first served; on SMs set apart, memory traffic and matrix products flow at the same time",
    .lesson = "green_partition",
    .make = make<GreenContexts>,
    .baseline = {.name = "products_first", .run = call<&GreenContexts::products_first>},
    .optimized =
        variants({{.name = "green_partition", .run = call<&GreenContexts::green_partition>},
                  {.name = "sm_count_target", .run = call<&GreenContexts::sm_count_target>, .gains_over = "products_first"}}),
    .controls = variants({{.name = "optimizer_first", .run = call<&GreenContexts::optimizer_first>},
                          {.name = "high_priority", .run = call<&GreenContexts::high_priority>},
                          {.name = "products_alone", .run = call<&GreenContexts::products_alone>, .outputs = no_outputs},
                          {.name = "optimizer_alone", .run = call<&GreenContexts::optimizer_alone>, .outputs = no_outputs}}),
    .bound = Bound::compute,
    // A product's sum is rounded once to bf16. A parameter changes by half of itself, in a handful of fp32 operations.
    .tolerance = per_output({rounded_to_bf16, within(1e-6)}),
    .needs = {.driver = 12050, .libraries = {Library::cublas}},
    .start = Start::immediate,
    .timeline = true,
    .sizes = sizes({{.name = "optimizer_sms", .full = 32, .multiple = 8, .most = 96, .scales = false}}),
    .sweep = cases({{"sms_16", "optimizer_sms=16"},
                    {"sms_24", "optimizer_sms=24"},
                    {"sms_32", "optimizer_sms=32"},
                    {"sms_40", "optimizer_sms=40"},
                    {"sms_48", "optimizer_sms=48"}}),
    .reference_samples = 2048,  // a product's element is a sum of 4096
};

}  // namespace aisp::ch11
