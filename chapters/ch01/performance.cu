// SPDX-License-Identifier: Apache-2.0
// Eight SGD steps of a small MLP; the math of one is worth some 11 us. A step that allocates its activations, copies a pageable
// batch, waits for the loss and frees everything leaves the GPU idle most of the time. Fixed buffers, pinned batches that are
// copied while the step before computes, and losses that stay on the GPU until the end let the host run ahead; a graph then takes
// the launches off it as well. The kernels are the same in all three.
#include <aisp/graph.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "device_array.hpp"
#include "mlp_reference.hpp"
#include "mlp_step.cuh"

namespace aisp::ch01 {
namespace {

using namespace mlp;

class Performance final : public Workload {
 public:
  explicit Performance(Setup& setup)
      : hidden_{static_cast<int>(setup.scaled(2048, 128))},
        pageable_{setup.input<float>(steps * batch_floats, normal(0, 1), {.name = "batches", .memory = Memory::pageable})},
        pinned_{setup.input<float>(pageable_.size(), same_batches(), {.name = "pinned batches", .memory = Memory::pinned})},
        weights_{layer(setup, features, hidden_, "weights 1"), layer(setup, hidden_, hidden_, "weights 2"),
                 layer(setup, hidden_, classes, "weights 3")},
        losses_{setup.output<float>(steps, {.name = "losses", .memory = Memory::pinned})},
        data_{setup.scratch<float>(slots * batch_floats, {.name = "batches on the device"})},
        activations_{setup.scratch<float>(4 * hidden_floats() + outputs, {.name = "activations and gradients"})},
        progress_{setup.scratch<Progress>(1, {.name = "progress"})},
        reference_{setup.threads(std::min(setup.cpus(), batch / 8), false), batch, {features, width(), width(), classes}},
        copies_{setup.stream()},
        begin_{setup.event()},
        trainer_{setup, hidden_} {
    for (int slot = 0; slot < slots; ++slot) filled_[slot] = setup.event(), used_[slot] = setup.event();
  }

  // Forward, to the weights, and to the layer before, which the first one does not have. The floor is the math at full rate; 13
  // short kernels a step, each waiting for the one before, stay far from it.
  Cost cost() const override {
    const double h = hidden_, w1 = features * h, w2 = h * h, w3 = h * classes;
    return {.flops = 2.0 * steps * batch * (2 * w1 + 3 * w2 + 3 * w3),
            .math = Math::tf32,
            .bytes = 2 * (w1 + w2 + w3) * sizeof(float),  // in and out once: between the steps L2 can keep them
            .host_to_device = static_cast<double>(pinned_.bytes()),
            .dependent_kernels = 13.0 * steps};
  }

  void compute_reference(Launch&) override {
    for (std::size_t l = 0; l < weights_.size(); ++l) {
      reference_.weights[l].resize(weights_[l].size());
      for (std::size_t i = 0; i < weights_[l].size(); ++i) reference_.weights[l][i] = weights_[l].initial(i);
    }
    for (std::size_t step = 0; step < steps; ++step) {
      MlpReference::Matrix x(batch * features), y(outputs);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = pageable_.host(step * batch_floats + i);
      for (std::size_t i = 0; i < y.size(); ++i) y[i] = pageable_.host(step * batch_floats + x.size() + i);
      expected_losses_[step] = reference_.step(x, y, rate);
    }
  }
  double expected_output(int output, std::size_t index) const override {
    const auto l = static_cast<std::size_t>(output);
    return l < weights_.size() ? reference_.weights[l][index] : expected_losses_[index];
  }
  // The weights are compared by their change as well: all of it, so that no step and no layer can be missing.
  void validate(std::string_view) override {
    for (std::size_t l = 0; l < weights_.size(); ++l) {
      std::vector<float> now(weights_[l].size());
      check(cudaMemcpy(now.data(), weights_[l], weights_[l].bytes(), cudaMemcpyDeviceToHost));
      double error = 0, change = 0;
      for (std::size_t i = 0; i < now.size(); ++i) {
        error += std::pow(static_cast<double>(now[i]) - reference_.weights[l][i], 2);
        change += std::pow(reference_.weights[l][i] - weights_[l].initial(i), 2);
      }
      if (!(std::sqrt(error / change) <= 1e-2))
        throw std::runtime_error{"the change of weights " + std::to_string(l + 1) + " is off by " +
                                 std::to_string(std::sqrt(error / change)) + " of it, more than 0.01"};
    }
  }

  void capture(Launch& launch) {
    preallocated_pinned(launch);  // code is loaded at its first launch: not while a capture is under way
    for (int slot = 0; slot < slots; ++slot)
      graphs_[slot].capture(launch.stream, [&](cudaStream_t stream) { train(stream, fixed(slot)); });
  }

  void per_step_setup(Launch& launch) {
    for (int step = 0; step < steps; ++step) {
      const auto data = allocate<float>(batch_floats), o = allocate<float>(outputs);
      const auto h1 = allocate<float>(hidden_floats()), h2 = allocate<float>(hidden_floats());
      const auto d1 = allocate<float>(hidden_floats()), d2 = allocate<float>(hidden_floats());
      const auto progress = allocate<Progress>(1);
      const Step s{.data = data.get(),
                   .h1 = h1.get(),
                   .h2 = h2.get(),
                   .o = o.get(),
                   .d1 = d1.get(),
                   .d2 = d2.get(),
                   .progress = progress.get()};
      check(cudaMemcpyAsync(s.data, pageable_ + step * batch_floats, batch_bytes, cudaMemcpyHostToDevice, launch.stream));
      check(cudaMemsetAsync(s.progress, 0, sizeof(Progress), launch.stream));
      train(launch.stream, s);
      check(cudaMemcpyAsync(losses_ + step, s.progress->losses, sizeof(float), cudaMemcpyDeviceToHost, launch.stream));
      check(cudaStreamSynchronize(launch.stream));
    }  // all seven are freed
  }
  void preallocated_pinned(Launch& launch) {
    all_steps(launch, [&](int slot) { train(launch.stream, fixed(slot)); });
  }
  void graph_step(Launch& launch) {
    all_steps(launch, [&](int slot) { graphs_[slot].launch(launch.stream); });
  }

 private:
  static constexpr int slots = 2;  // a batch is copied while the one before is used

  std::size_t width() const { return static_cast<std::size_t>(hidden_); }
  std::size_t hidden_floats() const { return batch * width(); }
  static InOut<float> layer(Setup& setup, int in, int out, const char* name) {
    const float limit = std::sqrt(3.0f / static_cast<float>(in));  // a variance of one over the sums' length
    return setup.inout<float>(static_cast<std::size_t>(in) * static_cast<std::size_t>(out), uniform(-limit, limit),
                              {.name = name});
  }
  // The pageable batches are declared, and so filled, first.
  HostFill<float> same_batches() {
    return [this](std::span<float> values, std::uint64_t) { std::copy_n(pageable_.get(), values.size(), values.data()); };
  }
  Step fixed(int slot) const {
    float* const first = activations_;
    const std::size_t floats = hidden_floats();
    return {.data = data_ + slot * batch_floats,
            .h1 = first,
            .h2 = first + floats,
            .o = first + 4 * floats,
            .d1 = first + 2 * floats,
            .d2 = first + 3 * floats,
            .progress = progress_};
  }

  template <class Compute>
  void all_steps(Launch& launch, Compute compute) {
    check(cudaMemsetAsync(progress_, 0, sizeof(Progress), launch.stream));
    check(cudaEventRecord(begin_, launch.stream));
    check(cudaStreamWaitEvent(copies_, begin_));
    for (int step = 0; step < steps; ++step) {
      const int slot = step % slots;
      if (step >= slots) check(cudaStreamWaitEvent(copies_, used_[slot]));
      check(cudaMemcpyAsync(data_ + slot * batch_floats, pinned_ + step * batch_floats, batch_bytes, cudaMemcpyHostToDevice,
                            copies_));
      check(cudaEventRecord(filled_[slot], copies_));
      check(cudaStreamWaitEvent(launch.stream, filled_[slot]));
      compute(slot);
      check(cudaEventRecord(used_[slot], launch.stream));
    }
    check(cudaMemcpyAsync(losses_, progress_.get()->losses, losses_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
  }

  void train(cudaStream_t stream, const Step& s) { trainer_->queue(stream, s, {weights_[0], weights_[1], weights_[2]}); }

  int hidden_;
  Input<float> pageable_, pinned_;
  std::array<InOut<float>, 3> weights_;
  Output<float> losses_;
  Scratch<float> data_, activations_;
  Scratch<Progress> progress_;
  MlpReference reference_;
  cudaStream_t copies_;
  cudaEvent_t begin_;
  std::array<cudaEvent_t, slots> filled_{}, used_{};
  std::array<Graph, slots> graphs_;
  std::array<double, steps> expected_losses_{};
  Opened<Trainer> trainer_;
};

}  // namespace

extern constinit const Pair performance{
    .teaches =
        "a training step loses its time around its kernels: allocations, pageable copies, launches and waits; remedies multiply",
    .lesson = "graph_step",
    .make = make<Performance>,
    .baseline = {.name = "per_step_setup", .run = call<&Performance::per_step_setup>},
    .optimized =
        variants({{.name = "preallocated_pinned", .run = call<&Performance::preallocated_pinned>},
                  {.name = "graph_step", .run = call<&Performance::graph_step>, .prepare = call<&Performance::capture>}}),
    .bound = Bound::latency,
    // TF32 operands that are cut rather than rounded shift the losses by 5e-4. The weights are held to a hundredth of their
    // change.
    .tolerance = within(1e-3),
    .needs = {.libraries = {Library::cublas}},
    .start = Start::immediate,  // the host's work is the subject, and the baseline waits for the GPU
};

}  // namespace aisp::ch01
