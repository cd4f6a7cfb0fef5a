// SPDX-License-Identifier: Apache-2.0
// Fully sharded parameters: each of two GPUs keeps half of every layer, and gathers the whole just before it computes with it.
// Queued one after the other, all-gathers and products take turns. With a second buffer the gather of the next layer runs while
// this one computes; copies by the copy engines take no SMs from the products.
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/libraries/nccl.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "peer_gpus.hpp"
#include "training/row_kernels.cuh"

namespace aisp::ch13 {
namespace {

using shared::Each, shared::Gpus, shared::OnGpu, shared::packet, training::bf16;

constexpr int gpus = 2, layers = 6, buffers = 2;

// A layer's products on one GPU: [tokens][width] -> [tokens][gates, ups] and [tokens][hidden] -> [tokens][width].
struct LayerProducts {
  static constexpr Library library = Library::cublaslt;
  CublasLt lt;
  MatmulPlan up, down;
  LayerProducts(std::size_t tokens, std::size_t width, std::size_t hidden)
      : up{lt, {.m = tokens, .n = 2 * hidden, .k = width, .b_is_transposed = true}},
        down{lt, {.m = tokens, .n = width, .k = hidden, .b_is_transposed = true}} {}
};

class Fsdp final : public Workload {
 public:
  explicit Fsdp(Setup& setup)
      : gpus_{setup},
        tokens_{setup.shape(setup.size("tokens"), 56)},
        width_{setup.shape(4096, 256)},
        hidden_{setup.shape(14336, 512)},
        reproducible_{setup.reproducible()},
        nccl_{setup, gpus_.ordinals(), gpus_.count(), static_cast<int>(setup.size("ctas"))} {
    if (gpus_.count() != gpus) throw Unsupported{"this pair is written for two GPUs; choose them with --gpus"};
    for (int gpu = 0; gpu < gpus; ++gpu) {
      // A norm's weights are the first of each layer's.
      Pattern weights = normal(0, 1.0f / 64);
      if (gpu == 0) weights = weights.times(64, at(Axis{1, shard()}, 0, width_));
      shards_.add(setup.input<bf16>(layers * shard(), weights, {.name = "half of each layer", .device = gpu, .constant = true}));
      x_.add(setup.input<bf16>(tokens_ * width_, normal(0, 1), {.name = "x", .device = gpu}));
      y_.add(setup.output<bf16>(tokens_ * width_, {.name = "y", .device = gpu}));
      gathered_.add(setup.scratch<bf16>(buffers * 2 * shard(), {.name = "gathered layers", .device = gpu}));
      normed_.add(setup.scratch<bf16>(tokens_ * width_, {.device = gpu}));
      inverse_rms_.add(setup.scratch<float>(tokens_, {.device = gpu}));
      gate_up_.add(setup.scratch<bf16>(tokens_ * 2 * hidden_, {.device = gpu}));
      product_.add(setup.scratch<bf16>(tokens_ * hidden_, {.device = gpu}));
      products_.add(Opened<OnGpu<LayerProducts>>{setup, gpus_.ordinal(gpu), tokens_, width_, hidden_});
      gathering_.add(setup.stream(gpu));
      for (int b = 0; b < buffers; ++b) {
        full_.add(setup.event(gpu));
        free_.add(setup.event(gpu));
      }
    }
  }

  // The cost of each GPU: the products of its tokens, and the other half of each layer.
  Cost cost() const override {
    return {.flops = 6.0 * layers * static_cast<double>(tokens_ * width_ * hidden_),
            .math = Math::bf16,
            .peer_bytes = static_cast<double>(shards_[0].bytes())};
  }

  void compute_reference(Launch&) override {
    for (std::vector<double>& rows : reference_) rows.clear();
    for (int gpu = 0; gpu < gpus; ++gpu)
      for (std::size_t i = 0; i < tokens_ * width_; ++i) reference_[static_cast<std::size_t>(gpu)].push_back(x_[gpu].host(i));
    std::vector<double> layer(2 * shard());
    for (std::size_t l = 0; l < layers; ++l) {
      for (std::size_t i = 0; i < layer.size(); ++i)
        layer[i] = shards_[static_cast<int>(i / shard())].host(l * shard() + i % shard());
      for (std::vector<double>& rows : reference_)
        for (std::size_t row = 0; row < tokens_; ++row) reference_layer(layer, &rows[row * width_]);
    }
  }
  double expected_output(int output, std::size_t index) const override {
    return reference_[static_cast<std::size_t>(output)][index];
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens", static_cast<double>(gpus * tokens_), "tokens/s");
  }

  // Products are tuned over weights as they will be: numbers, not poison.
  void tune(Launch& launch) {
    gather_first(launch);
    for (int gpu = 0; gpu < gpus && !reproducible_; ++gpu) {
      const SelectedGpu selected{gpus_.ordinal(gpu)};
      check(cudaMemcpyAsync(normed_[gpu], x_[gpu], x_[gpu].bytes(), cudaMemcpyDeviceToDevice, launch.streams[gpu]));
      LayerProducts& of = **products_[gpu];
      of.up.tune(launch.streams[gpu], normed_[gpu], gate_up_of(gpu, 0), gate_up_[gpu]);
      gate(gpu, launch.streams[gpu]);
      of.down.tune(launch.streams[gpu], product_[gpu], down_of(gpu, 0), y_[gpu], 1);
    }
  }
  // Poisons the weights with NaN, so that none is used before it has been gathered.
  void forget(Launch& launch) {
    for (int gpu = 0; gpu < gpus; ++gpu)
      check(cudaMemsetAsync(gathered_[gpu], 0xFF, gathered_[gpu].bytes(), launch.streams[gpu]));
  }
  // For controls, which compute with the first layer's weights alone.
  void gather_first(Launch& launch) {
    for (int buffer = 0; buffer < buffers; ++buffer) all_gather(0, buffer, launch.streams);
  }

  void gather_then_compute(Launch& launch) {
    start(launch);
    for (int l = 0; l < layers; ++l) {
      all_gather(l, 0, launch.streams);
      for (int gpu = 0; gpu < gpus; ++gpu) compute(gpu, 0, launch.streams[gpu]);
    }
  }
  void prefetch(Launch& launch) {
    gather_ahead(launch, [this](int layer, int buffer) { all_gather(layer, buffer, streams_of(gathering_)); });
  }
  void copy_engine(Launch& launch) {
    gather_ahead(launch, [this](int layer, int buffer) {
      for (int gpu = 0; gpu < gpus; ++gpu)
        for (int owner = 0; owner < gpus; ++owner)
          check(cudaMemcpyPeerAsync(buffer_of(gpu, buffer) + static_cast<std::size_t>(owner) * shard(), gpus_.ordinal(gpu),
                                    shard_of(owner, layer), gpus_.ordinal(owner), shard() * sizeof(bf16), gathering_[gpu]));
    });
  }
  void unsharded(Launch& launch) {
    start(launch);
    for (int l = 0; l < layers; ++l)
      for (int gpu = 0; gpu < gpus; ++gpu) compute(gpu, 0, launch.streams[gpu]);
  }
  void gathers_beside(Launch& launch) {
    for (int gpu = 0; gpu < gpus; ++gpu) gpus_.order(gpu, launch.streams[gpu], gathering_[gpu]);
    for (int l = 0; l < layers; ++l) all_gather(l, 1, streams_of(gathering_));
    unsharded(launch);
    for (int gpu = 0; gpu < gpus; ++gpu) gpus_.order(gpu, gathering_[gpu], launch.streams[gpu]);
  }

 private:
  std::size_t shard() const { return (width_ + 3 * width_ * hidden_) / gpus; }
  const bf16* shard_of(int gpu, int layer) const { return shards_[gpu] + static_cast<std::size_t>(layer) * shard(); }
  bf16* buffer_of(int gpu, int buffer) const { return gathered_[gpu] + static_cast<std::size_t>(buffer) * gpus * shard(); }
  const bf16* gate_up_of(int gpu, int buffer) const { return buffer_of(gpu, buffer) + width_; }
  const bf16* down_of(int gpu, int buffer) const { return gate_up_of(gpu, buffer) + 2 * width_ * hidden_; }
  static std::array<cudaStream_t, gpus> streams_of(const Each<cudaStream_t>& each) { return {each[0], each[1]}; }
  cudaEvent_t full(int gpu, int buffer) const { return full_[gpu * buffers + buffer]; }
  cudaEvent_t free(int gpu, int buffer) const { return free_[gpu * buffers + buffer]; }

  void all_gather(int layer, int buffer, shared::Streams streams) const {
    nccl_->together([&] {
      for (int gpu = 0; gpu < gpus; ++gpu)
        nccl_->all_gather(gpu, shard_of(gpu, layer), buffer_of(gpu, buffer), shard(), nccl::Type::bf16, streams[gpu]);
    });
  }

  void start(Launch& launch) const {
    for (int gpu = 0; gpu < gpus; ++gpu)
      check(cudaMemcpyAsync(y_[gpu], x_[gpu], x_[gpu].bytes(), cudaMemcpyDeviceToDevice, launch.streams[gpu]));
  }
  void gate(int gpu, cudaStream_t stream) const {
    const std::size_t packets = tokens_ * hidden_ / packet;
    gpus_.launch(gpu, stream, training::swiglu_kernel,
                 {static_cast<unsigned>((packets + training::row_threads - 1) / training::row_threads), training::row_threads},
                 reinterpret_cast<const uint4*>(gate_up_[gpu].get()), reinterpret_cast<uint4*>(product_[gpu].get()),
                 hidden_ / packet, packets);
  }
  // y += W_down swiglu(W_gate_up rms_norm(y)).
  void compute(int gpu, int buffer, cudaStream_t stream) const {
    gpus_.launch(gpu, stream, training::rms_norm_kernel, {static_cast<unsigned>(tokens_), training::row_threads},
                 reinterpret_cast<const uint4*>(y_[gpu].get()), reinterpret_cast<const uint4*>(buffer_of(gpu, buffer)),
                 reinterpret_cast<uint4*>(normed_[gpu].get()), inverse_rms_[gpu].get(), width_ / packet);
    const SelectedGpu selected{gpus_.ordinal(gpu)};
    const LayerProducts& of = **products_[gpu];
    of.up.run(stream, normed_[gpu], gate_up_of(gpu, buffer), gate_up_[gpu]);
    gate(gpu, stream);
    of.down.run(stream, product_[gpu], down_of(gpu, buffer), y_[gpu], 1, 1);
  }
  // The next layer is asked for before this one is computed; its buffer is free when the layer before this one has been.
  template <class Gather>
  void gather_ahead(Launch& launch, const Gather& gather) const {
    start(launch);
    for (int gpu = 0; gpu < gpus; ++gpu) gpus_.order(gpu, launch.streams[gpu], gathering_[gpu]);
    const auto ask = [&](int layer) {
      const int buffer = layer % buffers;
      for (int gpu = 0; gpu < gpus && layer >= buffers; ++gpu) check(cudaStreamWaitEvent(gathering_[gpu], free(gpu, buffer)));
      gather(layer, buffer);
      for (int gpu = 0; gpu < gpus; ++gpu) check(cudaEventRecord(full(gpu, buffer), gathering_[gpu]));
    };
    ask(0);
    for (int l = 0; l < layers; ++l) {
      if (l + 1 < layers) ask(l + 1);
      const int buffer = l % buffers;
      for (int gpu = 0; gpu < gpus; ++gpu) {
        check(cudaStreamWaitEvent(launch.streams[gpu], full(gpu, buffer)));
        compute(gpu, buffer, launch.streams[gpu]);
        check(cudaEventRecord(free(gpu, buffer), launch.streams[gpu]));
      }
    }
  }

  void reference_layer(const std::vector<double>& layer, double* row) const {
    const double* const up = layer.data() + width_;
    const double* const down = up + 2 * width_ * hidden_;
    double squares = 0;
    for (std::size_t i = 0; i < width_; ++i) squares += row[i] * row[i];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(width_) + static_cast<double>(training::norm_epsilon));
    std::vector<double> normed(width_), product(hidden_);
    for (std::size_t i = 0; i < width_; ++i) normed[i] = row[i] * scale * layer[i];
    const auto dot = [](const double* a, const std::vector<double>& b) {
      double sum = 0;
      for (std::size_t i = 0; i < b.size(); ++i) sum += a[i] * b[i];
      return sum;
    };
    for (std::size_t i = 0; i < hidden_; ++i) {
      const double of_gate = dot(up + i * width_, normed);
      product[i] = of_gate / (1 + std::exp(-of_gate)) * dot(up + (hidden_ + i) * width_, normed);
    }
    for (std::size_t i = 0; i < width_; ++i) row[i] += dot(down + i * hidden_, product);
  }

  Gpus gpus_;
  std::size_t tokens_, width_, hidden_;
  bool reproducible_;
  Each<Input<bf16>> shards_, x_;
  Each<Output<bf16>> y_;
  Each<Scratch<bf16>> gathered_, normed_, gate_up_, product_;
  Each<Scratch<float>> inverse_rms_;
  Each<Opened<OnGpu<LayerProducts>>> products_;
  Each<cudaStream_t> gathering_;
  Each<cudaEvent_t> full_, free_;
  Opened<Nccl> nccl_;
  std::array<std::vector<double>, gpus> reference_;
};

}  // namespace

extern constinit const Pair fsdp{
    .teaches =
        "sharded layers are gathered before they are used: gathered one layer early, the exchange hides under the products",
    .lesson = "prefetch",
    .make = make<Fsdp>,
    .baseline = {.name = "gather_then_compute",
                 .run = call<&Fsdp::gather_then_compute>,
                 .prepare = call<&Fsdp::tune>,
                 .reset = call<&Fsdp::forget>},
    .optimized = variants({{.name = "prefetch",
                            .run = call<&Fsdp::prefetch>,
                            .prepare = call<&Fsdp::tune>,
                            .reset = call<&Fsdp::forget>,
                            .same_bits_as = "gather_then_compute"},
                           {.name = "copy_engine",
                            .run = call<&Fsdp::copy_engine>,
                            .prepare = call<&Fsdp::tune>,
                            .reset = call<&Fsdp::forget>,
                            .same_bits_as = "gather_then_compute"}}),
    .controls = variants({{.name = "unsharded",
                           .run = call<&Fsdp::unsharded>,
                           .prepare = call<&Fsdp::tune>,
                           .reset = call<&Fsdp::gather_first>,
                           .outputs = no_outputs},
                          {.name = "gathers_beside",
                           .run = call<&Fsdp::gathers_beside>,
                           .prepare = call<&Fsdp::tune>,
                           .reset = call<&Fsdp::gather_first>,
                           .outputs = no_outputs}}),
    .bound = Bound::compute,
    // In each of six layers the residual, the normed rows, gates and ups and their product are rounded to bf16, 1.6e-3 each.
    .tolerance = within(1e-2),
    .needs = {.gpus = 2, .peer_access = true, .libraries = {Library::cublaslt, Library::nccl}},
    .start = Start::immediate,
    .verification = Verification::small_shape,
    .timeline = true,
    .sizes = sizes({{.name = "tokens", .full = 2048, .multiple = 8, .most = 16384},
                    {.name = "ctas", .full = 0, .least = 0, .most = 32, .scales = false}}),
    .sweep = cases({{"tokens_256", "tokens=256"},
                    {"tokens_512", "tokens=512"},
                    {"tokens_1024", "tokens=1024"},
                    {"tokens_2048", "tokens=2048"},
                    {"tokens_4096", "tokens=4096"},
                    {"tokens_8192", "tokens=8192"},
                    {"ctas_2", "ctas=2"},
                    {"ctas_4", "ctas=4"},
                    {"ctas_8", "ctas=8"},
                    {"ctas_16", "ctas=16"},
                    {"ctas_32", "ctas=32"}}),
    .edges = cases({{"few_tokens", "tokens=8"}}),
};

}  // namespace aisp::ch13
