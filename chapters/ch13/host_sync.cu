// SPDX-License-Identifier: Apache-2.0
// Eight training steps of 24 tensors, each a short kernel after which its gradient's norm is known; the loss is known after the
// last. A host that reads each of these values at once waits 25 times a step, and each time the GPU runs dry until the next
// kernel arrives. Gathered on the device, a step's values are read once; read a step later, they cost no wait at all.
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "regression.cuh"

namespace aisp::ch13 {
namespace {

constexpr std::size_t steps = 8, tensors = 24, logged = tensors + 1;  // norms, then the loss
constexpr std::size_t elements = std::size_t{1} << 18;
constexpr unsigned blocks = elements / weights_of_block;
constexpr std::size_t nan_step = 5, most_delay = 4, slots = most_delay + 1;
constexpr float rate = 0.3f;

// Returns a value as the log has it: -1 for NaN, which no norm and no loss can be otherwise.
template <class T>
T as_logged(T value) {
  return std::isnan(value) ? T{-1} : value;
}

class HostSync final : public Workload {
 public:
  explicit HostSync(Setup& setup)
      : tokens_{setup.size("tokens")},
        delay_{setup.size("delay")},
        x_{setup.input<float>(steps * tokens_ * features, uniform(-1, 1), {.name = "features"})},
        y_{setup.input<float>(steps * tokens_, uniform(-1, 1), {.name = "targets"})},
        // One for each step; that of a bad batch is NaN.
        penalty_{setup.input<float>(steps,
                                    uniform(0, 1).set(std::numeric_limits<float>::quiet_NaN(), at(Axis{1, steps}, nan_step)),
                                    {.name = "penalties"})},
        weights_{setup.inout<float>(tensors * elements, uniform(-1, 1), {.name = "weights"})},
        log_{setup.output<float>(steps * logged, {.name = "log", .memory = Memory::pinned})},
        values_{setup.scratch<float>(slots * logged, {.name = "values on the device"})},
        arrived_{setup.scratch<float>(slots * logged, {.name = "values on the host", .memory = Memory::pinned})},
        partial_{setup.scratch<BlockSums>(1, {.name = "sums of blocks"})} {
    for (cudaEvent_t& event : copied_) event = setup.event();
  }

  Cost cost() const override {
    return {.flops = 6.0 * steps * tensors * elements * static_cast<double>(tokens_),
            .dependent_kernels = double{steps * tensors}};
  }

  void compute_reference(Launch&) override {
    std::vector<std::vector<WeightSums>> sums(tensors, std::vector<WeightSums>(features));
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      const double weight = weights_.initial(i);
      WeightSums& of = sums[i / elements][i % features];
      of.count += 1, of.values += weight, of.squares += weight * weight;
    }
    batches_.clear();
    for (std::size_t step = 0; step < steps; ++step) {
      batches_.push_back(moments_of(
          tokens_, [&](std::size_t i) -> double { return x_.host(step * tokens_ * features + i); },
          [&](std::size_t s) -> double { return y_.host(step * tokens_ + s); }));
      double loss = penalty_.host(step);
      for (std::size_t t = 0; t < tensors; ++t) {
        const TensorStep result = descend(sums[t], batches_.back(), rate);
        loss += result.loss;
        expected_log_[step * logged + t] = std::sqrt(result.norm_squares);
      }
      expected_log_[step * logged + tensors] = as_logged(loss);
    }
  }
  double expected_output(int output, std::size_t index) const override {
    if (output == 1) return expected_log_[index];
    double weight = weights_.initial(index);
    for (const auto& batch : batches_) weight = descended(weight, batch[index % features], rate);
    return weight;
  }

  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant != "unread")
      metrics.report("nan_seen_after", static_cast<double>(nan_seen_after_), "steps", Metrics::Better::lower);
    metrics.report_rate("steps", steps, "steps/s");
  }

  // As tensor.item() does: an asynchronous copy to ordinary memory, and a wait for the stream.
  void read_each(Launch& launch) {
    float value = 0;
    train(
        launch, [&](std::size_t step, std::size_t t) { read_now(launch, step, t, &value); },
        [&](std::size_t step) { read_now(launch, step, tensors, &value); });
  }
  void pinned_blocking(Launch& launch) {
    train(
        launch, [&](std::size_t step, std::size_t t) { read_now(launch, step, t, arrived_); },
        [&](std::size_t step) { read_now(launch, step, tensors, arrived_); });
  }
  void one_read_a_step(Launch& launch) {
    std::array<float, logged> values{};
    train(
        launch, [](std::size_t, std::size_t) {},
        [&](std::size_t step) {
          check(cudaMemcpyAsync(values.data(), on_device(step), sizeof(values), cudaMemcpyDeviceToHost, launch.stream));
          check(cudaStreamSynchronize(launch.stream));
          keep(step, values.data(), step);
        });
  }
  // Copies go to a ring of pinned slots; a step's values are read when `delay` further steps are queued.
  void device_metrics(Launch& launch) {
    const auto take = [&](std::size_t step, std::size_t queued) {
      check(cudaEventSynchronize(copied_[step % slots]));
      keep(step, arrived_ + step % slots * logged, queued);
    };
    train(
        launch, [](std::size_t, std::size_t) {},
        [&](std::size_t step) {
          const std::size_t slot = step % slots;
          check(cudaMemcpyAsync(arrived_ + slot * logged, on_device(step), logged * sizeof(float), cudaMemcpyDeviceToHost,
                                launch.stream));
          check(cudaEventRecord(copied_[slot], launch.stream));
          if (step >= delay_) take(step - delay_, step);
        });
    for (std::size_t step = steps - std::min(delay_, steps); step < steps; ++step) take(step, steps - 1);
  }
  void unread(Launch& launch) {
    train(
        launch, [](std::size_t, std::size_t) {}, [](std::size_t) {});
  }

 private:
  float* on_device(std::size_t step) const { return values_ + step % slots * logged; }

  // Queues all kernels; after_tensor(step, tensor) and after_step(step) read what they want to.
  template <class AfterTensor, class AfterStep>
  void train(Launch& launch, const AfterTensor& after_tensor, const AfterStep& after_step) {
    nan_seen_after_ = 0;
    check(cudaMemsetAsync(partial_, 0, partial_.bytes(), launch.stream));
    for (std::size_t step = 0; step < steps; ++step) {
      const Batch batch{x_ + step * tokens_ * features, y_ + step * tokens_, static_cast<int>(tokens_)};
      float *const norms = on_device(step), *const loss = norms + tensors;
      for (std::size_t t = 0; t < tensors; ++t) {
        launch(descend_kernel, {blocks, features}, weights_ + t * elements, batch, rate, partial_, norms + t, loss,
               t == 0 ? penalty_ + step : nullptr);
        after_tensor(step, t);
      }
      after_step(step);
    }
  }
  void read_now(Launch& launch, std::size_t step, std::size_t which, float* to) {
    check(cudaMemcpyAsync(to, on_device(step) + which, sizeof(float), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
    log_[step * logged + which] = as_logged(*to);
  }
  void keep(std::size_t step, const float* values, std::size_t queued) {
    std::transform(values, values + logged, log_ + step * logged, as_logged<float>);
    if (std::isnan(values[tensors])) nan_seen_after_ = queued - step;
  }

  std::size_t tokens_, delay_;
  Input<float> x_, y_, penalty_;
  InOut<float> weights_;
  Output<float> log_;
  Scratch<float> values_, arrived_;
  Scratch<BlockSums> partial_;
  std::array<cudaEvent_t, slots> copied_{};
  std::size_t nan_seen_after_ = 0;
  std::vector<std::vector<Moments>> batches_;
  std::array<double, steps * logged> expected_log_{};
};

}  // namespace

extern constinit const Pair host_sync{
    .teaches =
        "each value that the host reads at once drains the queue; gathered on the device, the values of a step cost one drain",
    .lesson = "one_read_a_step",
    .make = make<HostSync>,
    .baseline = {.name = "read_each", .run = call<&HostSync::read_each>},
    .optimized = variants({{.name = "one_read_a_step", .run = call<&HostSync::one_read_a_step>, .same_bits_as = "read_each"},
                           {.name = "device_metrics", .run = call<&HostSync::device_metrics>, .same_bits_as = "read_each"}}),
    .controls = variants({{.name = "pinned_blocking", .run = call<&HostSync::pinned_blocking>, .same_bits_as = "read_each"},
                          {.name = "unread", .run = call<&HostSync::unread>, .outputs = no_outputs}}),
    .bound = Bound::latency,
    // Sums of up to 8192 terms in fp32, whose errors the eight steps damp; a missed update changes weights by a tenth.
    .tolerance = within(2e-5),
    .start = Start::immediate,  // waits of the host are the subject
    .timeline = true,
    .sizes = sizes({{.name = "tokens", .full = 128, .multiple = 4, .least = 4, .most = 8192, .scales = false},
                    {.name = "delay", .full = 1, .least = 0, .most = most_delay, .scales = false}}),
    .sweep = cases({{"tokens_128", "tokens=128"},
                    {"tokens_512", "tokens=512"},
                    {"tokens_2048", "tokens=2048"},
                    {"tokens_8192", "tokens=8192"},
                    {"delay_0", "delay=0"},
                    {"delay_1", "delay=1"},
                    {"delay_4", "delay=4"}}),
    .edges = cases({{"few_tokens", "tokens=4"}, {"no_delay", "delay=0"}, {"long_delay", "delay=4"}}),
};

}  // namespace aisp::ch13
