// SPDX-License-Identifier: Apache-2.0
// In data-parallel training the gradients of a layer are complete long before backward has reached the first layer. Reduced after
// backward, they keep the links busy while all SMs wait. Reduced bucket by bucket on a stream of their own, most of them cross
// the link under the products of earlier layers; but a collective's kernels take SMs away from those products, whose tiles are
// cut for the whole GPU. Copy engines take none. One process drives all GPUs.
#include <cuda_bf16.h>
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/nccl.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "copied_sums.cuh"
#include "equal_copies.cuh"
#include "float64.hpp"
#include "gpus.hpp"
#include "products.hpp"

namespace aisp::ch04 {
namespace {

using bf16 = __nv_bfloat16;
using float64::Matrix;

struct Network {
  std::size_t layers, width, tokens;

  std::size_t weights() const { return width * width; }  // of a layer
  std::size_t values() const { return tokens * width; }
};

// The copy of the network on one GPU, and its own batch.
class Replica {
 public:
  Replica(Setup& setup, int gpu, int ordinal, const Network& network)
      : network_{network},
        x_{setup.input<bf16>(network.layers * network.values(), normal(0, 1), named("inputs of layers", gpu))},
        dy_{setup.input<bf16>(network.values(), normal(0, 1), named("gradient of outputs", gpu))},
        flowing_{setup.scratch<bf16>(2 * network.values(), {.name = "gradient between layers", .device = gpu})},
        gradients_{setup.output<bf16>(network.layers * network.weights(), gradient_options(network, gpu))},
        cublas_{setup, ordinal} {}

  double host_x(std::size_t i) const { return x_.host(i); }
  const Input<bf16>& dy() const { return dy_; }
  bf16* gradients(std::size_t layer) const { return gradients_ + layer * network_.weights(); }
  double bytes() const { return static_cast<double>(x_.bytes() + dy_.bytes() + gradients_.bytes()); }

  // Has the library choose kernels for so many SMs; 0: all.
  void leave_sms(int sms) const {
    check(Cublas::function<decltype(cublasSetSmCountTarget)>("cublasSetSmCountTarget")(cublas_->handle(), sms));
  }
  void weight_gradient(cudaStream_t stream, std::size_t layer) const {
    multiply(*cublas_, stream, {.m = network_.width, .n = network_.width, .k = network_.tokens, .a_is_transposed = true},
             gradient_of_output(layer), x_ + layer * network_.values(), gradients(layer));
  }
  void input_gradient(cudaStream_t stream, std::size_t layer, const bf16* weights) const {
    multiply(*cublas_, stream, {.m = network_.tokens, .n = network_.width, .k = network_.width}, gradient_of_output(layer),
             weights + layer * network_.weights(), place(layer - 1));
  }

 private:
  static BufferOptions named(const char* name, int gpu) { return {.name = name, .device = gpu}; }
  static BufferOptions gradient_options(const Network& network, int gpu) {
    return {.name = "gradients of weights", .device = gpu, .groups = Axis{network.weights(), network.layers}};
  }
  bf16* place(std::size_t layer) const { return flowing_ + layer % 2 * network_.values(); }
  const bf16* gradient_of_output(std::size_t layer) const { return layer + 1 == network_.layers ? dy_.get() : place(layer); }

  Network network_;
  Input<bf16> x_, dy_;
  Scratch<bf16> flowing_;
  Output<bf16> gradients_;
  Opened<OnGpu<Cublas>> cublas_;
};

class NoOverlap final : public Workload {
 public:
  explicit NoOverlap(Setup& setup)
      : gpus_{setup},
        network_{setup.size("layers"), float64::size_of(setup, "width", 256), float64::size_of(setup, "tokens", 128)},
        bucket_layers_{std::min(setup.size("bucket_layers"), network_.layers)},
        ctas_{static_cast<int>(setup.size("ctas"))},
        weights_{setup.input<bf16>(network_.layers * network_.weights(),
                                   normal(0, 1 / std::sqrt(static_cast<float>(network_.width))),
                                   {.name = "weights", .constant = true})},
        copied_sums_{setup, gpus_, bucket_layers_ * network_.weights()},
        nccl_{setup, gpus_.ordinals(), gpus_.count()},
        limited_{setup, gpus_.ordinals(), gpus_.count(), ctas_} {
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) {
      replicas_.add(std::make_unique<Replica>(setup, gpu, gpus_.ordinal(gpu), network_));
      if (gpu > 0) copies_.add(setup.scratch<bf16>(weights_.size(), {.name = "copy of the weights", .device = gpu}));
      links_.push_back(setup.stream(gpu, true));
    }
  }

  Cost cost() const override { return cost_of(true, true); }
  Cost variant_cost(std::string_view variant) const override {
    return cost_of(variant != "collectives_alone", variant != "gemms_alone");
  }

  void compute_reference(Launch&) override {
    const auto& [layers, width, tokens] = network_;
    dy_.clear();
    for (const auto& replica : replicas_) {
      std::vector<Matrix> of_layers(layers);
      of_layers.back() = float64::values(replica->dy(), 0, network_.values());
      for (std::size_t layer = layers - 1; layer > 0; --layer)
        of_layers[layer - 1] = float64::product(of_layers[layer], float64::values(weights_, layer * width * width, width * width),
                                                tokens, width, width);
      dy_.push_back(std::move(of_layers));
    }
  }
  double expected_output(int, std::size_t index) const override {
    const std::size_t width = network_.width, layer = index / network_.weights(), row = index / width % width;
    double sum = 0;
    for (int gpu = 0; gpu < gpus_.count(); ++gpu)
      for (std::size_t token = 0; token < network_.tokens; ++token)
        sum += dy_[static_cast<std::size_t>(gpu)][layer][token * width + row] *
               replicas_[gpu]->host_x(layer * network_.values() + token * width + index % width);
    return sum;
  }
  void validate(std::string_view) override {
    demand_equal_copies(gpus_, gradients(0), network_.layers * network_.weights() * sizeof(bf16));
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant != "collectives_alone")
      metrics.report_rate("tokens_per_second", static_cast<double>(network_.tokens) * gpus_.count(), "tokens/s");
  }

  void copy_weights(Launch& launch) {
    for (int gpu = 1; gpu < gpus_.count(); ++gpu)
      check(
          cudaMemcpyPeerAsync(copies_[gpu - 1], gpus_.ordinal(gpu), weights_, gpus_.ordinal(0), weights_.bytes(), launch.stream));
  }

  void backward_then_reduce(Launch& launch) {
    gemms_alone(launch);
    collectives_alone(launch);
  }
  void bucketed_overlap(Launch& launch) { overlap_with_nccl(launch, *nccl_); }
  void limited_ctas(Launch& launch) { overlap_with_nccl(launch, *limited_); }
  void fitted_gemms(Launch& launch) {
    const int sms = std::max(1, static_cast<int>(multiprocessors()) - ctas_);
    for (const auto& replica : replicas_) replica->leave_sms(sms);
    limited_ctas(launch);
    for (const auto& replica : replicas_) replica->leave_sms(0);
  }
  void copy_engine(Launch& launch) {
    overlap(launch,
            [&](std::size_t layer) { copied_sums_.sum(gradients(layer), bucket_layers(layer) * network_.weights(), links_); });
  }
  void gemms_alone(Launch& launch) {
    backward(launch.streams, [](std::size_t) {});
  }
  void collectives_alone(Launch& launch) {
    for (std::size_t layer = network_.layers; layer-- > 0;)
      if (layer % bucket_layers_ == 0) reduce(*nccl_, layer, bucket_layers(layer), launch.streams);
  }
  void reduced_in_one_call(Launch& launch) {
    gemms_alone(launch);
    reduce(*nccl_, 0, network_.layers, launch.streams);
  }

 private:
  Cost cost_of(bool products, bool reduction) const {
    const double count = static_cast<double>(2 * network_.layers - 1), gpus = gpus_.count();
    const double gradient_bytes = static_cast<double>(network_.layers * network_.weights() * sizeof(bf16));
    Cost cost{.math = Math::bf16, .bytes = 2 * gradient_bytes};
    if (products) {
      cost.flops = count * 2 * static_cast<double>(network_.values() * network_.width);
      cost.bytes = replicas_[0]->bytes() + static_cast<double>(weights_.bytes());
    }
    if (reduction) cost.peer_bytes = 2 * gradient_bytes * (gpus - 1) / gpus;
    return cost;
  }
  const bf16* weights(int gpu) const { return gpu == 0 ? weights_.get() : copies_[gpu - 1].get(); }
  OnGpus<bf16> gradients(std::size_t layer) const {
    OnGpus<bf16> result{};
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) result.at[gpu] = replicas_[gpu]->gradients(layer);
    return result;
  }
  // Returns how many layers the bucket has that ends with this one.
  std::size_t bucket_layers(std::size_t layer) const { return std::min(bucket_layers_, network_.layers - layer); }

  // Queues the products from the last layer to the first, and calls `ready(layer)` when a bucket ends with this layer.
  template <class Ready>
  void backward(Streams streams, const Ready& ready) const {
    for (std::size_t layer = network_.layers; layer-- > 0;) {
      on_each([&](int gpu) { replicas_[gpu]->weight_gradient(streams[gpu], layer); });
      if (layer % bucket_layers_ == 0) ready(layer);
      if (layer > 0) on_each([&](int gpu) { replicas_[gpu]->input_gradient(streams[gpu], layer, weights(gpu)); });
    }
  }
  template <class Queue>
  void on_each(const Queue& queue) const {
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) {
      const SelectedGpu selected{gpus_.ordinal(gpu)};
      queue(gpu);
    }
  }

  void reduce(const Nccl& nccl, std::size_t layer, std::size_t layers, Streams streams) const {
    nccl.together([&] {
      for (int gpu = 0; gpu < gpus_.count(); ++gpu) {
        bf16* const bucket = replicas_[gpu]->gradients(layer);
        nccl.all_reduce(gpu, bucket, bucket, layers * network_.weights(), nccl::Type::bf16, streams[gpu]);
      }
    });
  }
  // Calls reduce_bucket(layer) for each bucket, for which the links' streams wait by then.
  template <class Reduce>
  void overlap(Launch& launch, const Reduce& reduce_bucket) const {
    backward(launch.streams, [&](std::size_t layer) {
      for (int gpu = 0; gpu < gpus_.count(); ++gpu) gpus_.order(gpu, launch.streams[gpu], link(gpu));
      reduce_bucket(layer);
    });
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) gpus_.order(gpu, link(gpu), launch.streams[gpu]);
  }
  void overlap_with_nccl(Launch& launch, const Nccl& nccl) const {
    overlap(launch, [&](std::size_t layer) { reduce(nccl, layer, bucket_layers(layer), links_); });
  }
  cudaStream_t link(int gpu) const { return links_[static_cast<std::size_t>(gpu)]; }

  Gpus gpus_;
  Network network_;
  std::size_t bucket_layers_;
  int ctas_;
  Input<bf16> weights_;
  CopiedSums copied_sums_;
  Opened<Nccl> nccl_, limited_;
  Each<std::unique_ptr<Replica>> replicas_;
  Each<Scratch<bf16>> copies_;  // of all GPUs but the first
  std::vector<cudaStream_t> links_;
  std::vector<std::vector<Matrix>> dy_;  // gradients of outputs: GPUs, layers
};

constexpr Needs both{.libraries = {Library::cublas, Library::nccl}}, cublas{.libraries = {Library::cublas}};

}  // namespace

extern constinit const Pair no_overlap{
    .teaches = "gradients of late layers are ready early: reduced bucket by bucket, they cross the link under the backward pass",
    .lesson = "bucketed_overlap",
    .make = make<NoOverlap>,
    .baseline = {.name = "backward_then_reduce",
                 .run = call<&NoOverlap::backward_then_reduce>,
                 .prepare = call<&NoOverlap::copy_weights>,
                 .needs = both},
    .optimized = variants({{.name = "bucketed_overlap",
                            .run = call<&NoOverlap::bucketed_overlap>,
                            .prepare = call<&NoOverlap::copy_weights>,
                            .needs = both},
                           {.name = "fitted_gemms",
                            .run = call<&NoOverlap::fitted_gemms>,
                            .prepare = call<&NoOverlap::copy_weights>,
                            .needs = both},
                           {.name = "copy_engine",
                            .run = call<&NoOverlap::copy_engine>,
                            .prepare = call<&NoOverlap::copy_weights>,
                            .needs = cublas}}),
    .controls = variants({{.name = "limited_ctas",
                           .run = call<&NoOverlap::limited_ctas>,
                           .prepare = call<&NoOverlap::copy_weights>,
                           .needs = both},
                          {.name = "reduced_in_one_call",
                           .run = call<&NoOverlap::reduced_in_one_call>,
                           .prepare = call<&NoOverlap::copy_weights>,
                           .needs = both},
                          {.name = "gemms_alone",
                           .run = call<&NoOverlap::gemms_alone>,
                           .prepare = call<&NoOverlap::copy_weights>,
                           .needs = cublas,
                           .outputs = no_outputs},
                          {.name = "collectives_alone",
                           .run = call<&NoOverlap::collectives_alone>,
                           .needs = {.libraries = {Library::nccl}},
                           .outputs = no_outputs}}),
    .bound = Bound::compute,
    // A gradient has passed up to 23 products, whose results are rounded to bf16 by 1.6e-3 each, and is rounded twice itself:
    // 8e-3, told from 170 samples of its layer.
    .tolerance = within(1.2e-2),
    .needs = {.gpus = 2, .peer_access = true},
    .verification = Verification::small_shape,
    .timeline = true,
    .overrides = {.iterations = 10},
    .sizes = sizes({{.name = "layers", .full = 24, .most = 24},
                    {.name = "width", .full = 4096, .multiple = 64, .most = 8192, .scales = false},
                    {.name = "tokens", .full = 2048, .multiple = 64},
                    {.name = "bucket_layers", .full = 2, .most = 64, .scales = false},
                    {.name = "ctas", .full = 24, .most = 64, .scales = false}}),
    .sweep = cases({{"ctas_8", "ctas=8"},
                    {"ctas_16", "ctas=16"},
                    {"ctas_24", "ctas=24"},
                    {"ctas_32", "ctas=32"},
                    {"bucket_1", "bucket_layers=1"},
                    {"bucket_2", "bucket_layers=2"},
                    {"bucket_4", "bucket_layers=4"},
                    {"bucket_8", "bucket_layers=8"},
                    {"tokens_1024", "tokens=1024"},
                    {"tokens_2048", "tokens=2048"},
                    {"tokens_4096", "tokens=4096"}}),
    .edges = cases({{"one_layer", "layers=1,width=64,tokens=64"}, {"uneven_buckets", "layers=5,width=192,tokens=192"}}),
};

}  // namespace aisp::ch04
