// SPDX-License-Identifier: Apache-2.0
// Decoding on two GPUs. Two replicas each read all weights for half of the requests. Split by heads and columns, each GPU reads
// half of the weights for all requests, and the halves' partial sums are exchanged twice a layer: by NCCL, by a kernel that reads
// the other GPU's sums where they lie, or by that kernel with the norm that follows in it (chapters/shared/all_reduce.cuh).
#include <aisp/libraries/nccl.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "all_reduce.cuh"
#include "decode_parts.cuh"
#include "decoder/arrange.hpp"
#include "equal_copies.cuh"
#include "graph_pair.hpp"

namespace aisp::ch17 {
namespace {

using attention::ContiguousCache, decoder::BatchMemory, shared::Each, shared::Gpus, shared::OnGpu, shared::Streams;

constexpr int gpus = 2, layers = 2;
constexpr Shape layers_of_70b{8192, 64, 8, head_size, 28672, layers}, narrow{512, 4, 2, head_size, 1024, layers};

enum Kind { replica, half };
enum class Exchange { none, nccl, one_shot, with_norm };
enum Tensor { embedding, norms, qkv, o, gate_up, down };

class TensorParallelDecode final : public Workload {
 public:
  explicit TensorParallelDecode(Setup& setup)
      : gpus_{setup},
        shapes_{setup.shape(1, 0) == 1 ? layers_of_70b : narrow},
        requests_{static_cast<int>(setup.size("requests"))},
        context_{static_cast<int>(setup.shape(512, 70))},
        cache_{shapes_[replica].kv_heads, context_, requests_},
        meeting_place_{setup},
        angles_{setup.input<float>(static_cast<std::size_t>(context_) * head_size, decoder::angles(head_size),
                                   {.name = "angles", .constant = true})},
        angles_copy_{setup.scratch<float>(angles_.size(), {.device = 1})},
        tokens_{setup.input<int>(static_cast<std::size_t>(requests_), integers(0, shapes_[replica].hidden - 1),
                                 {.name = "tokens of the step before"})},
        nccl_{setup, gpus_.ordinals(), gpus} {
    if (gpus_.count() != gpus) throw Unsupported{"this pair is written for two GPUs; choose them with --gpus"};
    Shape& split = shapes_[half] = shapes_[replica];
    split.heads /= gpus, split.kv_heads /= gpus, split.ffn /= gpus;
    const Shape& whole = shapes_[replica];
    add_tensor(setup, "embedding", whole.hidden, whole.hidden, normal(0, 0.3f));
    add_tensor(setup, "norms", 2 * layers + 1, whole.hidden, normal(1, 0.1f));
    add_matrix(setup, "qkv", whole.qkv_columns(), whole.hidden, 1);
    add_matrix(setup, "o", whole.hidden, whole.q_columns(), 2 * layers);
    add_matrix(setup, "gate and up", 2 * whole.ffn, whole.hidden, 1);
    add_matrix(setup, "down", whole.hidden, whole.ffn, 2 * layers);
    const auto rows = static_cast<std::size_t>(requests_), hidden = static_cast<std::size_t>(whole.hidden);
    for (int gpu = 0; gpu < gpus; ++gpu) {
      for (const Tensor tensor : {qkv, o, gate_up, down})
        halves_[static_cast<std::size_t>(gpu)].push_back(
            setup.scratch<bf16>(inputs_[tensor].size() / gpus, {.name = "half of a matrix", .device = gpu}));
      states_.add(setup.output<bf16>(rows / gpus * hidden, {.name = "states", .device = gpu}));
      // A replica has twice the columns for half of the rows.
      const std::size_t columns = 5 * hidden + static_cast<std::size_t>(split.qkv_columns() + split.q_columns() + 3 * split.ffn);
      workspace_.add(setup.scratch<bf16>(rows * columns, {.name = "workspace", .device = gpu}));
      values_.add(setup.scratch<float>(rows * static_cast<std::size_t>(whole.q_columns()), {.device = gpu}));
      sums_.add(setup.scratch<float>(2 * rows * static_cast<std::size_t>(whole.heads), {.device = gpu}));
      tickets_.add(setup.scratch<unsigned>(2 * rows * static_cast<std::size_t>(whole.kv_heads), {.device = gpu}));
      next_.add(setup.scratch<int>(rows, {.device = gpu}));
      for (const Kind kind : {replica, half}) {
        kv_[kind].add(setup.scratch<bf16>(2 * layers * layer_elements(kind), {.name = "keys and values", .device = gpu}));
        integers_[kind].add(setup.scratch<int>(BatchMemory::words(requests_), {.device = gpu}));
        products_[kind].push_back(std::make_unique<decoder::Products>(shapes_[kind]));
      }
      lt_.add(Opened<OnGpu<CublasLt>>{setup, gpus_.ordinal(gpu)});
    }
  }

  // Counts for each GPU half of the weights, or all of them in a replica, and half of the keys and values.
  Cost cost() const override { return cost_of(gpus); }
  Cost variant_cost(std::string_view variant) const override { return cost_of(variant == "replicas" ? 1 : gpus); }

  void compute_reference(Launch&) override {
    HostWeights weights;
    std::vector<float>* const to[] = {&weights.embedding, &weights.norms,   &weights.qkv,
                                      &weights.o,         &weights.gate_up, &weights.down};
    for (const Tensor tensor : {embedding, norms, qkv, o, gate_up, down})
      for (std::size_t i = 0; i < inputs_[tensor].size(); ++i) to[tensor]->push_back(static_cast<float>(inputs_[tensor].host(i)));
    reference_.clear();
    for (int r = 0; r < requests_; ++r) {
      const std::vector<double> state =
          decoded_state(shapes_[replica], weights, cache_, r, tokens_.host(static_cast<std::size_t>(r)), position(r));
      reference_.insert(reference_.end(), state.begin(), state.end());
    }
  }
  double expected_output(int output, std::size_t index) const override {
    return reference_[static_cast<std::size_t>(output) * reference_.size() / gpus + index];
  }
  // Both GPUs must go on with the same sums.
  void validate(std::string_view variant) override {
    if (!variant.starts_with("tp2_") || variant == "tp2_no_exchange") return;
    shared::OnGpus<bf16> normed{};
    for (int gpu = 0; gpu < gpus; ++gpu) normed.at[gpu] = row_buffer(gpu, 1);
    demand_equal_copies(gpus_, normed, row_elements() * sizeof(bf16));
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens", static_cast<double>(requests_), "tokens/s");
  }

  void prepare_replicas(Launch& launch) { prepare(launch, replica, Exchange::none, graphs_[0]); }
  void replicas(Launch& launch) { graphs_[0].launch(launch.streams); }
  void prepare_nccl(Launch& launch) { prepare(launch, half, Exchange::nccl, graphs_[1]); }
  void tp2_nccl(Launch& launch) { graphs_[1].launch(launch.streams); }
  void prepare_one_shot(Launch& launch) { prepare(launch, half, Exchange::one_shot, graphs_[2]); }
  void tp2_one_shot(Launch& launch) { graphs_[2].launch(launch.streams); }
  void prepare_fused_norm(Launch& launch) { prepare(launch, half, Exchange::with_norm, graphs_[3]); }
  void tp2_fused_norm(Launch& launch) { graphs_[3].launch(launch.streams); }
  void prepare_no_exchange(Launch& launch) { prepare(launch, half, Exchange::none, graphs_[4]); }
  void tp2_no_exchange(Launch& launch) { graphs_[4].launch(launch.streams); }

 private:
  Cost cost_of(double weights_shared_by) const {
    const Shape& s = shapes_[replica];
    const double keys = static_cast<double>(requests_ - 1) * context_ + 1;
    return {.flops = (2 * requests_ * s.weights() + 4 * keys * s.q_columns() * layers) / gpus,
            .math = Math::bf16,
            .bytes = 2 * s.weights() / weights_shared_by + keys * s.kv_bytes() * layers / gpus,
            .peer_bytes = weights_shared_by > 1 ? 2.0 * layers * requests_ * s.hidden * sizeof(bf16) : 0};
  }
  void add_tensor(Setup& setup, const char* name, int rows, int columns, const Pattern& pattern) {
    const std::size_t count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
    inputs_.push_back(setup.input<bf16>(count, pattern, {.name = name, .constant = true}));
    copies_.push_back(setup.scratch<bf16>(count, {.name = name, .device = 1}));
  }
  void add_matrix(Setup& setup, const char* name, int outputs, int inputs, int divided) {
    add_tensor(setup, name, layers * outputs, inputs, normal(0, 1 / std::sqrt(static_cast<float>(inputs * divided))));
  }

  // All requests have the same context but the second, which is at its first token.
  int position(int request) const { return request == 1 ? 0 : context_ - 1; }
  int rows_of(Kind kind) const { return kind == replica ? requests_ / gpus : requests_; }
  std::size_t layer_elements(Kind kind) const {
    return static_cast<std::size_t>(rows_of(kind)) * static_cast<std::size_t>(shapes_[kind].kv_columns() * context_);
  }
  std::size_t row_elements() const {
    return static_cast<std::size_t>(requests_) * static_cast<std::size_t>(shapes_[replica].hidden);
  }
  // x, normed, the partial sums of both halves of a layer in turn, and what they come to.
  bf16* row_buffer(int gpu, int number) const { return workspace_[gpu] + static_cast<std::size_t>(number) * row_elements(); }
  bf16* partial(int gpu, int half_of_layer) const { return row_buffer(gpu, 2 + half_of_layer); }
  bf16* sum(int gpu) const { return row_buffer(gpu, 4); }

  const bf16* whole(int gpu, Tensor tensor) const { return gpu == 0 ? inputs_[tensor].get() : copies_[tensor].get(); }
  decoder::Weights weights(Kind kind, int gpu) const {
    const auto of = [&](Tensor tensor) -> const bf16* {
      return kind == replica ? whole(gpu, tensor) : halves_[static_cast<std::size_t>(gpu)][tensor - qkv].get();
    };
    return {whole(gpu, embedding), whole(gpu, norms), of(qkv), of(o),
            of(gate_up),           of(down),          nullptr, gpu == 0 ? angles_.get() : angles_copy_.get()};
  }
  ContiguousCache cache(Kind kind, int gpu) const {
    const auto head = static_cast<std::size_t>(context_ * head_size);
    return {kv_[kind][gpu], kv_[kind][gpu] + layers * layer_elements(kind), head_size, head,
            head * static_cast<std::size_t>(shapes_[kind].kv_heads)};
  }
  Parts parts(Kind kind, int gpu) const {
    const Shape& s = shapes_[kind];
    const auto rows = static_cast<std::size_t>(rows_of(kind));
    bf16* const of_qkv = row_buffer(gpu, 5);
    bf16* const attended = of_qkv + rows * static_cast<std::size_t>(s.qkv_columns());
    bf16* const of_gate_up = attended + rows * static_cast<std::size_t>(s.q_columns());
    bf16* const active = of_gate_up + rows * static_cast<std::size_t>(2 * s.ffn);
    const decoder::Partials pieces{values_[gpu], reinterpret_cast<float2*>(sums_[gpu].get()), tickets_[gpu], 1, requests_};
    const decoder::Workspace workspace{row_buffer(gpu, 0),
                                       row_buffer(gpu, 1),
                                       of_qkv,
                                       attended,
                                       partial(gpu, 0),
                                       of_gate_up,
                                       active,
                                       states_[gpu],
                                       nullptr,
                                       pieces,
                                       tickets_[gpu].get() + tickets_[gpu].size() / 2};
    Parts parts;
    static_cast<decoder::Step<ContiguousCache>&>(parts) = {
        {s, weights(kind, gpu), workspace, products_[kind][static_cast<std::size_t>(gpu)].get()},
        batches_[kind][static_cast<std::size_t>(gpu)],
        cache(kind, gpu),
        layer_elements(kind),
        next_[gpu].get()};
    return parts;
  }

  void prepare(Launch& launch, Kind kind, Exchange exchange, shared::GraphPair& graphs) {
    copy_to_second(launch.streams[1]);
    meeting_place_.prepare(gpus_, launch.streams);
    for (int gpu = 0; gpu < gpus; ++gpu) {
      const SelectedGpu selected{gpus_.ordinal(gpu)};
      const cudaStream_t stream = launch.streams[gpu];
      check(cudaMemsetAsync(tickets_[gpu], 0, tickets_[gpu].bytes(), stream));
      if (kind == half) split(gpu, stream);
      const dim3 blocks{static_cast<unsigned>(context_), static_cast<unsigned>(rows_of(kind)), 2 * layers};
      launch_kernel(stream, fill_cache_kernel, {blocks, 256}, cache_, cache(kind, gpu), layer_elements(kind),
                    shapes_[kind].kv_heads, kind == half ? gpu * shapes_[half].kv_heads : 0,
                    kind == replica ? gpu * rows_of(replica) : 0);
      upload(kind, gpu, stream);
      products_[kind][static_cast<std::size_t>(gpu)]->tune(**lt_[gpu], stream, weights(kind, gpu), rows_of(kind), 0);
    }
    gpus_.meet(launch.streams);
    graphs.capture(launch.streams, [&](Streams streams) { queue(kind, exchange, streams); });
  }
  void copy_to_second(cudaStream_t stream) const {
    const auto copy = [&](const auto& from, const auto& to) {
      check(cudaMemcpyPeerAsync(to, gpus_.ordinal(1), from, gpus_.ordinal(0), from.bytes(), stream));
    };
    for (const Tensor tensor : {embedding, norms, qkv, o, gate_up, down}) copy(inputs_[tensor], copies_[tensor]);
    copy(angles_, angles_copy_);
  }
  // Rows of what is split by outputs, columns of what is split by inputs.
  void split(int gpu, cudaStream_t stream) const {
    const Shape &all = shapes_[replica], &own = shapes_[half];
    const auto& to = halves_[static_cast<std::size_t>(gpu)];
    const auto rows = [&](Tensor tensor, int layer, int of_all, int first, int of_own, int place, int count) {
      const auto hidden = static_cast<std::size_t>(all.hidden), from_row = static_cast<std::size_t>(layer * of_all + first),
                 to_row = static_cast<std::size_t>(layer * of_own + place);
      check(cudaMemcpyAsync(to[tensor - qkv] + to_row * hidden, whole(gpu, tensor) + from_row * hidden,
                            static_cast<std::size_t>(count) * hidden * sizeof(bf16), cudaMemcpyDeviceToDevice, stream));
    };
    const auto columns = [&](Tensor tensor, int of_own) {
      const std::size_t width = static_cast<std::size_t>(of_own) * sizeof(bf16);
      check(cudaMemcpy2DAsync(to[tensor - qkv], width, whole(gpu, tensor) + gpu * of_own, gpus * width, width,
                              static_cast<std::size_t>(layers * all.hidden), cudaMemcpyDeviceToDevice, stream));
    };
    for (int layer = 0; layer < layers; ++layer) {
      const int q = own.q_columns(), kv = own.kv_columns();
      rows(qkv, layer, all.qkv_columns(), gpu * q, own.qkv_columns(), 0, q);
      rows(qkv, layer, all.qkv_columns(), all.q_columns() + gpu * kv, own.qkv_columns(), q, kv);
      rows(qkv, layer, all.qkv_columns(), all.q_columns() + all.kv_columns() + gpu * kv, own.qkv_columns(), q + kv, kv);
      rows(gate_up, layer, 2 * all.ffn, gpu * own.ffn, 2 * own.ffn, 0, own.ffn);
      rows(gate_up, layer, 2 * all.ffn, all.ffn + gpu * own.ffn, 2 * own.ffn, own.ffn, own.ffn);
    }
    columns(o, own.q_columns());
    columns(down, own.ffn);
  }
  // A replica has half of the requests; a half has all of them, and chooses the tokens of as many.
  void upload(Kind kind, int gpu, cudaStream_t stream) {
    const int count = requests_ / gpus, first = kind == replica ? gpu * count : 0;
    std::vector<decoder::Span> spans;
    for (int i = 0; i < rows_of(kind); ++i) spans.push_back({i, position(first + i), 1, (first + i) / count == gpu});
    batches_[kind][static_cast<std::size_t>(gpu)] =
        BatchMemory::upload(stream, shapes_[kind], decoder::Arranged{shapes_[kind], spans}, integers_[kind][gpu], requests_);
    check(cudaStreamSynchronize(stream));
  }

  void queue(Kind kind, Exchange exchange, Streams streams) const {
    const std::array<Parts, gpus> step{parts(kind, 0), parts(kind, 1)};
    const auto on_each = [&](const auto& act) {
      for (int gpu = 0; gpu < gpus; ++gpu) {
        const SelectedGpu selected{gpus_.ordinal(gpu)};
        act(gpu, step[static_cast<std::size_t>(gpu)], streams[gpu]);
      }
    };
    const auto exchanged_and_normed = [&](int norm, int half_of_layer) {
      if (exchange == Exchange::with_norm) {
        on_each([&](int gpu, const Parts& of, cudaStream_t stream) { sum_and_norm(gpu, of, norm, half_of_layer, stream); });
        return;
      }
      add_up(exchange, half_of_layer, streams);
      on_each([&](int gpu, const Parts& of, cudaStream_t stream) {
        after(of, exchange).add_and_norm(stream, norm, exchange == Exchange::none ? partial(gpu, half_of_layer) : sum(gpu));
      });
    };
    on_each([&](int gpu, const Parts& of, cudaStream_t stream) {
      check(cudaMemcpyAsync(of.batch.tokens, tokens_ + (kind == replica ? gpu * rows_of(kind) : 0),
                            static_cast<std::size_t>(rows_of(kind)) * sizeof(int), cudaMemcpyDefault, stream));
      of.embed(stream);
    });
    for (int layer = 0; layer < layers; ++layer) {
      on_each([&](int gpu, const Parts& of, cudaStream_t stream) { of.attention_half(stream, layer, partial(gpu, 0)); });
      exchanged_and_normed(2 * layer + 1, 0);
      on_each([&](int gpu, const Parts& of, cudaStream_t stream) { of.feed_forward_half(stream, layer, partial(gpu, 1)); });
      if (layer + 1 < layers) exchanged_and_normed(2 * layer + 2, 1);
    }
    // The last norm is of the rows alone that a token is chosen for.
    add_up(exchange == Exchange::with_norm ? Exchange::one_shot : exchange, 1, streams);
    on_each([&](int gpu, const Parts& of, cudaStream_t stream) {
      after(of, exchange).last(stream, exchange == Exchange::none ? partial(gpu, 1) : sum(gpu));
    });
  }
  // A kernel after NCCL's is launched plainly: NCCL's lets none begin before it has ended.
  static Parts after(Parts of, Exchange exchange) {
    of.overlapping = exchange != Exchange::nccl;
    return of;
  }
  shared::Exchange meet(int gpu, int half_of_layer) const {
    return meeting_place_.exchange(gpu, partial(gpu, half_of_layer), partial(1 - gpu, half_of_layer));
  }
  void add_up(Exchange exchange, int half_of_layer, Streams streams) const {
    if (exchange == Exchange::nccl)
      nccl_->together([&] {
        for (int gpu = 0; gpu < gpus; ++gpu)
          nccl_->all_reduce(gpu, partial(gpu, half_of_layer), sum(gpu), row_elements(), nccl::Type::bf16, streams[gpu]);
      });
    if (exchange != Exchange::one_shot) return;
    const std::size_t packets = row_elements() / shared::packet;
    const unsigned blocks = shared::exchange_blocks((packets + shared::exchange_threads - 1) / shared::exchange_threads);
    for (int gpu = 0; gpu < gpus; ++gpu)
      gpus_.launch(gpu, streams[gpu], shared::one_shot_kernel,
                   {.blocks = blocks, .threads = shared::exchange_threads, .overlapping = true}, meet(gpu, half_of_layer),
                   sum(gpu), packets);
  }
  void sum_and_norm(int gpu, const Parts& of, int norm, int half_of_layer, cudaStream_t stream) const {
    const decoder::Workspace& w = of.model.workspace;
    launch_kernel(stream, shared::one_shot_norm_kernel,
                  {.blocks = shared::exchange_blocks(static_cast<std::size_t>(requests_)),
                   .threads = shared::exchange_threads,
                   .overlapping = true},
                  meet(gpu, half_of_layer),
                  shared::AddNorm{w.x, w.x, w.normed, of.norm_weight(norm), of.model.shape.hidden / shared::packet}, requests_);
  }

  Gpus gpus_;
  std::array<Shape, 2> shapes_;
  int requests_, context_;
  CacheContent cache_;
  shared::MeetingPlace meeting_place_;
  std::vector<Input<bf16>> inputs_;
  std::vector<Scratch<bf16>> copies_;  // of all of them, on the second GPU
  std::array<std::vector<Scratch<bf16>>, gpus> halves_;
  Input<float> angles_;
  Scratch<float> angles_copy_;
  Input<int> tokens_;
  Each<Output<bf16>> states_;
  Each<Scratch<bf16>> workspace_;
  Each<Scratch<float>> values_, sums_;
  Each<Scratch<unsigned>> tickets_;
  Each<Scratch<int>> next_;
  std::array<Each<Scratch<bf16>>, 2> kv_;
  std::array<Each<Scratch<int>>, 2> integers_;
  std::array<std::vector<std::unique_ptr<decoder::Products>>, 2> products_;
  std::array<std::array<decoder::Batch, gpus>, 2> batches_;
  Each<Opened<OnGpu<CublasLt>>> lt_;
  Opened<Nccl> nccl_;
  std::array<shared::GraphPair, 5> graphs_;
  std::vector<double> reference_;
};

}  // namespace

extern constinit const Pair tensor_parallel_decode{
    .teaches =
        "two replicas read all weights twice for a step; tensor parallelism reads them once, for two small exchanges a layer",
    .lesson = "tp2_nccl",
    .make = make<TensorParallelDecode>,
    .baseline = {.name = "replicas",
                 .run = call<&TensorParallelDecode::replicas>,
                 .prepare = call<&TensorParallelDecode::prepare_replicas>},
    .optimized = variants({{.name = "tp2_nccl",
                            .run = call<&TensorParallelDecode::tp2_nccl>,
                            .prepare = call<&TensorParallelDecode::prepare_nccl>,
                            .needs = {.libraries = {Library::nccl}}},
                           {.name = "tp2_one_shot",
                            .run = call<&TensorParallelDecode::tp2_one_shot>,
                            .prepare = call<&TensorParallelDecode::prepare_one_shot>,
                            .same_bits_as = "tp2_nccl"},
                           {.name = "tp2_fused_norm",
                            .run = call<&TensorParallelDecode::tp2_fused_norm>,
                            .prepare = call<&TensorParallelDecode::prepare_fused_norm>}}),
    .controls = variants({{.name = "tp2_no_exchange",
                           .run = call<&TensorParallelDecode::tp2_no_exchange>,
                           .prepare = call<&TensorParallelDecode::prepare_no_exchange>,
                           .outputs = no_outputs}}),
    .bound = Bound::memory,
    // A half of a layer rounds to bf16 five or six times on its way, 1.6e-3 each, and the residual once more; four halves that
    // add about as much as there is come to 5e-3 to 8e-3. A partial sum that is missing is a tenth and more.
    .tolerance = within(1.2e-2),
    .needs = {.min_sm = 90, .gpus = 2, .peer_access = true, .libraries = {Library::cublaslt}},
    .verification = Verification::small_shape,
    .sizes = sizes({{.name = "requests", .full = 32, .multiple = gpus, .most = 256, .scales = false}}),
    .sweep = cases({{"requests_2", "requests=2"},
                    {"requests_8", "requests=8"},
                    {"requests_32", "requests=32"},
                    {"requests_64", "requests=64"},
                    {"requests_128", "requests=128"},
                    {"requests_256", "requests=256"}}),
    .edges = cases({{"one_each", "requests=2"}, {"six", "requests=6"}}),
};

}  // namespace aisp::ch17
