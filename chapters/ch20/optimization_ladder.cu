// SPDX-License-Identifier: Apache-2.0
// Eight requests with some 512 tokens in the cache get four more each, on four layers of an 8B model. The simple way serves one
// after the other and launches kernel by kernel. Techniques are added one at a time: a graph, fused kernels, all requests in one
// step, weights in e4m3. A step reads all weights, so that what counts most is how many tokens share a read.
#include <aisp/graph.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <vector>

#include "decoder/arrange.hpp"
#include "decoder/cache_rows.cuh"
#include "decoder/model.hpp"
#include "decoder/reference.cuh"
#include "ladder_passes.cuh"
#include "ladder_products.hpp"

namespace aisp::ch20 {
namespace {

using attention::ContiguousCache;
using decoder::Arranged, decoder::Batch, decoder::BatchMemory, decoder::Shape, decoder::Span;

constexpr int steps = 4, spread = 64, prompt_rows = 512;

class OptimizationLadder final : public Workload {
 public:
  explicit OptimizationLadder(Setup& setup)
      : is_full_{setup.shape(1, 0) == 1},
        requests_{static_cast<int>(setup.size("requests"))},
        context_{is_full_ ? static_cast<int>(setup.size("context")) : 100},
        model_{setup,
               is_full_ ? decoder::layers_of_8b(4) : decoder::narrow(2),
               {.rows = prompt_rows, .chosen = requests_, .positions = capacity(), .split_rows = prompt_rows}},
        lt_{setup},
        cublas_{setup},
        one_{setup, cublas_, model_.shape(), 1},
        all_{setup, cublas_, model_.shape(), requests_},
        codes_{setup, model_.shape()},
        prompts_{setup.input<int>(static_cast<std::size_t>(requests_ * capacity()), integers(0, model_.shape().vocabulary() - 1),
                                  {.name = "prompts", .constant = true})},
        forced_{setup.input<int>(static_cast<std::size_t>(steps * requests_), integers(0, model_.shape().vocabulary() - 1),
                                 {.name = "forced tokens"})},
        states_{setup.output<bf16>(static_cast<std::size_t>(steps * requests_) * hidden(), {.name = "states"})},
        // The second half is of the model with quantized weights.
        k_{setup.scratch<bf16>(2 * cache_elements(), {.name = "keys"})},
        v_{setup.scratch<bf16>(k_.size(), {.name = "values"})},
        prompt_memory_{setup, prompt_rows},
        memory_{setup.scratch<int>(2 * BatchMemory::words(steps * requests_))},
        written_{setup.scratch<int>(static_cast<std::size_t>(2 * requests_))} {}

  // Each pass reads the weights, each token its context. A pass of `together` requests.
  Cost cost() const override { return cost_of(1, 2); }
  Cost variant_cost(std::string_view variant) const override {
    if (variant == "fp8_weights") return cost_of(requests_, 1);
    return variant.starts_with("batched") ? cost_of(requests_, 2) : cost();
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", steps * requests_, "tokens/s");
  }

  // Float64 over each request's tokens, with the weights as they are and as e4m3 says them.
  void compute_reference(Launch& launch) override {
    codes_.make(launch.stream, model_.weights());
    for (const bool is_quantized : {false, true}) {
      std::vector<double>& to = is_quantized ? expected_quantized_ : expected_;
      to.assign(states_.size(), 0);
      for (int r = 0; r < requests_; ++r) {
        std::vector<int> tokens;
        for (int i = 0; i < context(r); ++i) tokens.push_back(prompts_.host(static_cast<std::size_t>(r * capacity() + i)));
        for (int i = 0; i < steps; ++i) tokens.push_back(forced_.host(static_cast<std::size_t>(i * requests_ + r)));
        const int count = static_cast<int>(tokens.size());
        const auto results = decoder::reference::forward(*cublas_, launch.stream, model_.shape(), model(is_quantized).weights,
                                                         tokens, {&count, 1});
        for (int i = 0; i < steps; ++i)
          std::copy_n(results.normed.begin() + static_cast<std::ptrdiff_t>(context(r) + i) * model_.shape().hidden, hidden(),
                      to.begin() + static_cast<std::ptrdiff_t>(i * requests_ + r) * model_.shape().hidden);
      }
    }
  }
  double expected(std::size_t i) const override { return expected_[i]; }
  double expected_quantized(std::string_view, int, std::size_t i) const override { return expected_quantized_[i]; }

  void prepare(Launch& launch) {
    one_.choose(launch.stream, model_.model());
    all_.choose(launch.stream, model_.model());
    fill_cache(launch.stream, false);
  }
  void prepare_graph(Launch& launch) {
    prepare(launch);
    capture(launch, graphs_[0], alone_, [this](const LadderStep& step, bf16* states, cudaStream_t stream) {
      one_operation_per_kernel(stream, step, by_library(one_, model_.model(), stream), states);
    });
  }
  void prepare_fused(Launch& launch) {
    prepare(launch);
    capture(launch, graphs_[1], alone_, [this](const LadderStep& step, bf16* states, cudaStream_t stream) {
      fused_kernels(stream, step, by_library(one_, model_.model(), stream), states);
    });
  }
  void prepare_batched(Launch& launch) {
    prepare(launch);
    capture(launch, graphs_[2], together_, [this](const LadderStep& step, bf16* states, cudaStream_t stream) {
      fused_kernels(stream, step, by_library(all_, model_.model(), stream), states);
    });
  }
  // As a server of such weights, which has no others: the prompts saw them, too.
  void prepare_fp8(Launch& launch) {
    codes_.make(launch.stream, model_.weights());
    fill_cache(launch.stream, true);
    capture(
        launch, graphs_[3], together_,
        [this](const LadderStep& step, bf16* states, cudaStream_t stream) {
          fused_kernels(stream, step, by_codes(codes_, requests_, stream), states);
        },
        true);
  }
  // Sets all outputs to NaN before each run.
  void reset(Launch& launch) {
    for (const bool is_quantized : {false, true})
      launch(decoder::poison_kernel<ContiguousCache>, {dim3{steps, static_cast<unsigned>(requests_)}, 256},
             step(Batch{}, is_quantized), written_.get(), written_ + requests_);
  }

  void one_by_one(Launch& launch) {
    for_each_pass(alone_, [&](const Pass& pass, std::size_t) {
      one_operation_per_kernel(launch.stream, step(pass.batch), by_library(one_, model_.model(), launch.stream), pass.states);
      launch.tokens(pass.requests);
    });
  }
  void batched_first(Launch& launch) {
    for_each_pass(together_, [&](const Pass& pass, std::size_t) {
      one_operation_per_kernel(launch.stream, step(pass.batch), by_library(all_, model_.model(), launch.stream), pass.states);
      launch.tokens(pass.requests);
    });
  }
  void graph(Launch& launch) { replay(launch, graphs_[0], alone_); }
  void graph_fused(Launch& launch) { replay(launch, graphs_[1], alone_); }
  void batched(Launch& launch) { replay(launch, graphs_[2], together_); }
  void fp8_weights(Launch& launch) { replay(launch, graphs_[3], together_); }

 private:
  // A step of one request, or of all.
  struct Pass {
    Batch batch;
    bf16* states;
    std::vector<int> requests;
  };
  using Graphs = std::vector<std::unique_ptr<Graph>>;

  int capacity() const { return context_ + spread + steps; }
  int context(int request) const {
    const std::array planted{0, -spread, spread, -1, 1};
    return context_ + (request < 5 ? planted.at(static_cast<std::size_t>(request)) : request * 37 % (2 * spread) - spread);
  }
  std::size_t hidden() const { return static_cast<std::size_t>(model_.shape().hidden); }
  std::size_t cache_elements() const { return layer_elements() * static_cast<std::size_t>(model_.shape().layers); }
  std::size_t layer_elements() const {
    return static_cast<std::size_t>(requests_ * capacity()) * static_cast<std::size_t>(model_.shape().kv_columns());
  }
  Cost cost_of(int together, double weight_bytes) const {
    const Shape& s = model_.shape();
    double keys = 0;
    for (int r = 0; r < requests_; ++r)
      for (int i = 0; i < steps; ++i) keys += context(r) + i + 1;
    const double passes = static_cast<double>(steps * requests_) / together;
    return {.flops = 2.0 * steps * requests_ * s.weights() + 4 * keys * s.q_columns() * s.layers,
            .math = Math::bf16,
            .bytes = passes * weight_bytes * s.weights() + keys * s.kv_bytes() * s.layers};
  }
  decoder::Model model(bool is_quantized) const {
    decoder::Model model = model_.model();
    if (is_quantized) codes_.say(model.weights);
    return model;
  }
  LadderStep step(const Batch& batch, bool is_quantized = false) const {
    const Shape& s = model_.shape();
    const auto size = static_cast<std::size_t>(s.head_size), head = size * static_cast<std::size_t>(capacity()),
               of_cache = is_quantized ? cache_elements() : 0;
    return {model(is_quantized),
            batch,
            {k_ + of_cache, v_ + of_cache, size, head, head * static_cast<std::size_t>(s.kv_heads)},
            layer_elements(),
            nullptr,
            false,
            false};
  }
  // The prompts, and the batches of all passes.
  void fill_cache(cudaStream_t stream, bool is_quantized) {
    const Shape& s = model_.shape();
    model_.clear(stream);
    model_.tune(*lt_, stream, prompt_rows, 1);
    std::vector<int> written;
    for (int r = 0; r < requests_; ++r) {
      for (int first = 0; first < context(r); first += prompt_rows) {
        const std::array span{Span{r, first, std::min(prompt_rows, context(r) - first), false}};
        const Batch batch = prompt_memory_.upload(stream, s, Arranged{s, span});
        check(cudaMemcpyAsync(batch.tokens, prompts_.get() + r * capacity() + first,
                              static_cast<std::size_t>(span[0].tokens) * sizeof(int), cudaMemcpyDeviceToDevice, stream));
        decoder::run(step(batch, is_quantized), stream);
      }
      written.push_back(context(r));
    }
    written.insert(written.end(), static_cast<std::size_t>(requests_), steps);
    check(cudaMemcpyAsync(written_, written.data(), written_.bytes(), cudaMemcpyHostToDevice, stream));
    check(cudaStreamSynchronize(stream));
    alone_.clear(), together_.clear();
    std::vector<int> all(static_cast<std::size_t>(requests_));
    std::iota(all.begin(), all.end(), 0);
    int* memory = memory_;
    for (const int r : all)
      for (int i = 0; i < steps; ++i) memory = add_pass(stream, alone_, memory, {r}, i);
    for (int i = 0; i < steps; ++i) memory = add_pass(stream, together_, memory, all, i);
  }
  // The step of these requests that computes their i-th token; returns the memory after its own.
  int* add_pass(cudaStream_t stream, std::vector<Pass>& to, int* memory, const std::vector<int>& requests, int i) const {
    const Shape& s = model_.shape();
    const auto rows = static_cast<int>(requests.size());
    std::vector<Span> spans;
    for (const int r : requests) spans.push_back({r, context(r) + i, 1, false});
    Batch batch = BatchMemory::upload(stream, s, Arranged{s, spans}, memory, rows);
    batch.tokens = const_cast<int*>(forced_.get()) + i * requests_ + requests[0];  // only read
    to.push_back({batch, states_ + static_cast<std::size_t>(i * requests_ + requests[0]) * hidden(), requests});
    return memory + BatchMemory::words(rows);
  }
  template <class Run>
  static void for_each_pass(const std::vector<Pass>& passes, const Run& run) {
    for (std::size_t i = 0; i < passes.size(); ++i) run(passes[i], i);
  }
  template <class Queue>
  void capture(Launch& launch, Graphs& graphs, const std::vector<Pass>& passes, const Queue& queue,
               bool is_quantized = false) const {
    graphs.clear();
    for_each_pass(passes, [&](const Pass& pass, std::size_t i) {
      const auto work = [&](cudaStream_t stream) { queue(step(pass.batch, is_quantized), pass.states, stream); };
      if (i == 0) work(launch.stream);  // kernels are loaded at their first launch
      graphs.push_back(std::make_unique<Graph>());
      graphs.back()->capture(launch.stream, work);
    });
  }
  static void replay(Launch& launch, const Graphs& graphs, const std::vector<Pass>& passes) {
    for_each_pass(passes, [&](const Pass& pass, std::size_t i) {
      graphs[i]->launch(launch.stream);
      launch.tokens(pass.requests);
    });
  }

  bool is_full_;
  int requests_, context_;
  decoder::Buffers model_;
  Opened<CublasLt> lt_;
  Opened<Cublas> cublas_;
  Products one_, all_;
  QuantizedWeights codes_;
  Input<int> prompts_, forced_;
  Output<bf16> states_;
  Scratch<bf16> k_, v_;
  BatchMemory prompt_memory_;
  Scratch<int> memory_, written_;
  std::vector<Pass> alone_, together_;
  std::array<Graphs, 4> graphs_;
  std::vector<double> expected_, expected_quantized_;
};

}  // namespace

extern constinit const Pair optimization_ladder{
    .teaches =
        "gains multiply, but they are not alike: a step that serves eight requests reads the weights once, and no kernel "
        "can save that",
    .lesson = "batched",
    .make = make<OptimizationLadder>,
    .baseline = {.name = "one_by_one",
                 .run = call<&OptimizationLadder::one_by_one>,
                 .prepare = call<&OptimizationLadder::prepare>,
                 .reset = call<&OptimizationLadder::reset>},
    .optimized = variants({{.name = "graph",
                            .run = call<&OptimizationLadder::graph>,
                            .prepare = call<&OptimizationLadder::prepare_graph>,
                            .reset = call<&OptimizationLadder::reset>,
                            .same_bits_as = "one_by_one"},
                           {.name = "graph_fused",
                            .run = call<&OptimizationLadder::graph_fused>,
                            .prepare = call<&OptimizationLadder::prepare_fused>,
                            .reset = call<&OptimizationLadder::reset>},
                           {.name = "batched",
                            .run = call<&OptimizationLadder::batched>,
                            .prepare = call<&OptimizationLadder::prepare_batched>,
                            .reset = call<&OptimizationLadder::reset>},
                           {.name = "fp8_weights",
                            .run = call<&OptimizationLadder::fp8_weights>,
                            .prepare = call<&OptimizationLadder::prepare_fp8>,
                            .reset = call<&OptimizationLadder::reset>,
                            .changes_precision = true}}),
    // The batch without graph and fusion: whether it gains as much when it comes first.
    .controls = variants({{.name = "batched_first",
                           .run = call<&OptimizationLadder::batched_first>,
                           .prepare = call<&OptimizationLadder::prepare>,
                           .reset = call<&OptimizationLadder::reset>}}),
    .bound = Bound::memory,
    // States are rounded to bf16 some ten times a layer on their way.
    .tolerance = within(1.2e-2),
    .needs = {.min_sm = 90, .libraries = {Library::cublas, Library::cublaslt}},
    .start = Start::immediate,  // launches are a part of it
    .verification = Verification::small_shape,
    .timeline = true,
    .sizes = sizes({{.name = "requests", .full = 8, .most = 32, .scales = false},
                    {.name = "context", .full = 512, .least = 65, .most = 4096, .scales = false}}),
    .sweep = cases({{"one_request", "requests=1"},
                    {"four_requests", "requests=4"},
                    {"eight_requests", "requests=8"},
                    {"sixteen_requests", "requests=16"},
                    {"thirty_two_requests", "requests=32"}}),
    .edges = cases({{"one_request", "requests=1"}, {"odd", "requests=3"}, {"several_groups", "requests=17"}}),
};

}  // namespace aisp::ch20
