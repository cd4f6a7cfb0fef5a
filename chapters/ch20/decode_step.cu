// SPDX-License-Identifier: Apache-2.0
// One token of a 1B model at batch 1, sixteen layers and the head: a read of 2.5 GB of weights. As a framework runs it, some
// three hundred kernels are launched one by one. A graph launches them at once, fused kernels leave five a layer, dependent
// launches let a kernel request its first weights before the one before it has ended, and one persistent kernel has no borders at
// all.
#include <aisp/device_attribute.hpp>
#include <aisp/graph.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "decode_kernels.cuh"
#include "decode_step_reference.hpp"
#include "decoder/layer.cuh"
#include "decoder/model.hpp"
#include "library_product.hpp"
#include "prompt_rows.cuh"

namespace aisp::ch20 {
namespace {

using token::Activations, token::Network;

class DecodeStep final : public Workload {
 public:
  explicit DecodeStep(Setup& setup)
      : is_full_{setup.shape(1, 0) == 1},
        // The small shape has rows of whole parts, too: 1024 columns and more.
        s_{is_full_ ? decoder::layers_of_1b(16, 128256) : decoder::Shape{1024, 16, 4, 64, 2048, 2, 1000}},
        context_{setup.shape(setup.size("context"), std::min<std::size_t>(setup.size("context"), 300))},
        norms_{setup.input<bf16>(2 * layers() * hidden() + hidden(), normal(1, 0.1f), {.name = "norms", .constant = true})},
        qkv_{matrix(setup, "qkv", s_.layers, s_.qkv_columns(), s_.hidden)},
        o_{matrix(setup, "o", s_.layers, s_.hidden, s_.q_columns(), 2 * s_.layers)},
        gate_up_{matrix(setup, "gate and up", s_.layers, 2 * s_.ffn, s_.hidden)},
        down_{matrix(setup, "down", s_.layers, s_.hidden, s_.ffn, 2 * s_.layers)},
        head_{matrix(setup, "head", 1, s_.words, s_.hidden)},
        angles_{setup.input<float>((context_ + 1) * token::head_size, decoder::angles(token::head_size),
                                   {.name = "angles", .constant = true})},
        keys_{setup.input<bf16>(cached_rows() * token::head_size, normal(0, 1), {.name = "cached keys", .constant = true})},
        values_{setup.input<bf16>(cached_rows() * token::head_size, normal(0, 1), {.name = "cached values", .constant = true})},
        embedded_{setup.input<bf16>(hidden(), normal(0, 0.3f), {.name = "embedded token"})},
        position_{
            setup.input<int>(1, HostFill<int>{[this](std::span<int> to, std::uint64_t) { to[0] = static_cast<int>(context_); }},
                             {.name = "position", .constant = true})},
        logits_{setup.output<float>(static_cast<std::size_t>(s_.words), {.name = "logits"})},
        k_{setup.scratch<bf16>(keys_.size() + all_heads() * token::head_size)},
        v_{setup.scratch<bf16>(k_.size())},
        x_{setup.scratch<float>(hidden())},
        rows_{setup.scratch<bf16>(3 * hidden() + static_cast<std::size_t>(s_.qkv_columns() + s_.q_columns() + 3 * s_.ffn))},
        states_{setup.scratch<float>(static_cast<std::size_t>(s_.heads) * token::pieces * (token::head_size + 2))},
        tickets_{setup.scratch<unsigned>(static_cast<std::size_t>(s_.kv_heads) + 1)},
        arrived_{setup.scratch<unsigned>(layers() * token::meetings)},
        best_{setup.scratch<unsigned long long>(1)},
        next_{setup.scratch<int>(1)},
        cublas_{setup},
        q_{setup, cublas_, {1, s_.q_columns(), s_.hidden}},
        kv_{setup, cublas_, {1, s_.kv_columns(), s_.hidden}},
        of_o_{setup, cublas_, {1, s_.hidden, s_.q_columns()}},
        half_{setup, cublas_, {1, s_.ffn, s_.hidden}},
        of_down_{setup, cublas_, {1, s_.hidden, s_.ffn}},
        of_head_{setup, cublas_, {1, s_.words, s_.hidden}} {}

  Cost cost() const override {
    const auto cached = static_cast<double>((context_ + 1) * layers());
    return {.flops = 2 * s_.weights() + 4 * cached * s_.q_columns(),
            .math = Math::fp32,
            .bytes = 2 * s_.weights() + cached * s_.kv_bytes(),
            .dependent_kernels = 1};
  }
  Cost variant_cost(std::string_view variant) const override {
    if (variant != "weights_only") return cost();
    return {.bytes = 2 * s_.weights()};
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", 1, "tokens/s");
    metrics.report_rate("read", 1e-12 * cost().bytes, "TB/s");
  }

  void compute_reference(Launch&) override {
    expected_ =
        exact_product(head_, 0, static_cast<std::size_t>(s_.words),
                      expected_state({s_, 0, context_, context_, norms_, qkv_, o_, gate_up_, down_, keys_, values_, embedded_}));
  }
  double expected(std::size_t i) const override { return expected_[i]; }
  // The token is that of the largest logit.
  void validate(std::string_view variant) override {
    if (variant == "weights_only") return;
    std::vector<float> logits(logits_.size());
    int next = -1;
    check(cudaMemcpy(logits.data(), logits_, logits_.bytes(), cudaMemcpyDeviceToHost));
    check(cudaMemcpy(&next, next_, sizeof next, cudaMemcpyDeviceToHost));
    if (next != std::ranges::max_element(logits) - logits.begin())
      throw std::runtime_error{"the token is " + std::to_string(next) + ", which has not the largest logit"};
  }

  void prepare(Launch& launch) {
    const std::size_t row = token::head_size * sizeof(bf16), past = context_ * row;
    for (const bool is_key : {true, false})
      check(cudaMemcpy2DAsync(is_key ? k_ : v_, past + row, is_key ? keys_ : values_, past, past, all_heads(),
                              cudaMemcpyDeviceToDevice, launch.stream));
    check(cudaMemsetAsync(tickets_, 0, tickets_.bytes(), launch.stream));
    check(cudaMemsetAsync(best_, 0, best_.bytes(), launch.stream));
  }
  // The row that the step writes is NaN before it.
  void reset(Launch& launch) {
    const std::size_t row = token::head_size * sizeof(bf16), past = context_ * row;
    for (bf16* const cache : {k_.get(), v_.get()})
      check(cudaMemset2DAsync(reinterpret_cast<char*>(cache) + past, past + row, 0xFF, row, all_heads(), launch.stream));
  }
  void prepare_library(Launch& launch) {
    prepare(launch);
    const cudaStream_t stream = launch.stream;
    const std::size_t of_qkv = static_cast<std::size_t>(s_.qkv_columns()) * hidden(), of_half = ffn() * hidden();
    q_.choose(stream, qkv_, layers(), of_qkv, normed(), projected());
    kv_.choose(stream, qkv_, layers(), of_qkv, normed(), projected());
    of_o_.choose(stream, o_, layers(), hidden() * static_cast<std::size_t>(s_.q_columns()), attended(), delta());
    half_.choose(stream, gate_up_, 2 * layers(), of_half, normed(), gate());
    of_down_.choose(stream, down_, layers(), of_half, active(), delta());
    of_head_.choose(stream, head_, 1, 0, normed(), logits_);
  }
  void prepare_graph(Launch& launch) {
    prepare_library(launch);
    capture(launch, graph_, [this](cudaStream_t stream) { op_per_kernel(stream, by_library); });
  }
  void prepare_own_gemv(Launch& launch) {
    prepare(launch);
    capture(launch, own_gemv_, [this](cudaStream_t stream) { op_per_kernel(stream, by_kernel); });
  }
  template <bool early>
  void prepare_fused(Launch& launch) {
    prepare(launch);
    capture(launch, early ? early_ : fused_, [this](cudaStream_t stream) { fused_kernels(stream, early); });
  }

  void eager(Launch& launch) { op_per_kernel(launch.stream, by_library); }
  void graph(Launch& launch) { graph_.launch(launch.stream); }
  void own_gemv_graph(Launch& launch) { own_gemv_.launch(launch.stream); }
  void fused_graph(Launch& launch) { fused_.launch(launch.stream); }
  void fused_pdl(Launch& launch) { early_.launch(launch.stream); }
  void megakernel(Launch& launch) { persistent<true>(launch); }
  void no_prefetch(Launch& launch) { persistent<false>(launch); }
  void weights_only(Launch& launch) {
    const auto packets = [](const Input<bf16>& of) { return of.size() / packet; };
    const auto data = [](const Input<bf16>& of) { return reinterpret_cast<const uint4*>(of.get()); };
    launch(token::read_kernel, {8 * multiprocessors(), token::threads},
           token::AllWeights{{data(qkv_), data(o_), data(gate_up_), data(down_), data(head_)},
                             {packets(qkv_), packets(o_), packets(gate_up_), packets(down_), packets(head_)}},
           arrived_);
  }

 private:
  std::size_t hidden() const { return static_cast<std::size_t>(s_.hidden); }
  std::size_t layers() const { return static_cast<std::size_t>(s_.layers); }
  std::size_t ffn() const { return static_cast<std::size_t>(s_.ffn); }
  std::size_t all_heads() const { return layers() * static_cast<std::size_t>(s_.kv_heads); }
  std::size_t cached_rows() const { return all_heads() * context_; }
  static Input<bf16> matrix(Setup& setup, const char* name, int layers, int outputs, int inputs, int divided = 1) {
    return setup.input<bf16>(
        static_cast<std::size_t>(layers) * static_cast<std::size_t>(outputs) * static_cast<std::size_t>(inputs),
        normal(0, 1 / std::sqrt(static_cast<float>(inputs) * static_cast<float>(divided))), {.name = name, .constant = true});
  }
  // The parts of rows_.
  bf16* residual() const { return rows_; }
  bf16* normed() const { return rows_ + hidden(); }
  bf16* delta() const { return rows_ + 2 * hidden(); }
  bf16* projected() const { return rows_ + 3 * hidden(); }
  bf16* attended() const { return projected() + s_.qkv_columns(); }
  bf16* gate() const { return attended() + s_.q_columns(); }
  bf16* up() const { return gate() + ffn(); }
  bf16* active() const { return up() + ffn(); }

  Network network() const {
    const auto packets = [](const bf16* of) { return reinterpret_cast<const uint4*>(of); };
    return {norms_,
            packets(qkv_),
            packets(o_),
            packets(gate_up_),
            packets(down_),
            packets(head_),
            angles_,
            k_,
            v_,
            embedded_,
            s_.layers,
            s_.hidden,
            s_.kv_heads,
            s_.ffn,
            s_.words,
            static_cast<int>(context_)};
  }
  Activations activations() const {
    float* const values = states_;
    float* const sums = values + static_cast<std::size_t>(s_.heads) * token::pieces * token::head_size;
    return {x_, projected(), attended(), active(), values, reinterpret_cast<float2*>(sums), tickets_, logits_, best_, next_};
  }
  template <class Work>
  static void capture(Launch& launch, Graph& graph, const Work& work) {
    work(launch.stream);  // kernels are loaded at their first launch
    graph.capture(launch.stream, work);
  }

  // Products of rows that lie one after the other: the library's, or by a kernel of our own.
  struct Products {
    bool are_the_librarys;
    template <class Out>
    void operator()(cudaStream_t stream, const LibraryProduct<Out>& library, const bf16* weights, const bf16* x, Out* y) const {
      if (are_the_librarys) {
        library.run(stream, weights, x, y);
        return;
      }
      const int outputs = library.sizes().outputs;
      launch_kernel(stream, token::product_kernel<Out>, token::grid_of(outputs), reinterpret_cast<const uint4*>(weights), x, y,
                    library.sizes().inputs / packet, outputs);
    }
  };
  static constexpr Products by_library{true}, by_kernel{false};

  void op_per_kernel(cudaStream_t stream, const Products& multiply) const;
  void fused_kernels(cudaStream_t stream, bool early) const;
  template <bool across>
  void persistent(Launch& launch) {
    check(cudaMemsetAsync(arrived_, 0, arrived_.bytes(), launch.stream));
    launch(token::token_kernel<across>,
           {.blocks = multiprocessors(),
            .threads = token::ring_threads,
            .shared_bytes = sizeof(token::RingMemory) +
                            std::max(hidden(), std::max(ffn(), static_cast<std::size_t>(s_.q_columns()))) * sizeof(bf16),
            .cooperative = true},
           network(), activations(), arrived_);
  }

  bool is_full_;
  decoder::Shape s_;
  std::size_t context_;
  Input<bf16> norms_, qkv_, o_, gate_up_, down_, head_;
  Input<float> angles_;
  Input<bf16> keys_, values_;
  Input<bf16> embedded_;
  Input<int> position_;
  Output<float> logits_;
  Scratch<bf16> k_, v_;
  Scratch<float> x_;
  Scratch<bf16> rows_;
  Scratch<float> states_;
  Scratch<unsigned> tickets_, arrived_;
  Scratch<unsigned long long> best_;
  Scratch<int> next_;
  Opened<Cublas> cublas_;
  LibraryProduct<bf16> q_, kv_, of_o_, half_, of_down_;
  LibraryProduct<float> of_head_;
  Graph graph_, own_gemv_, fused_, early_;
  std::vector<double> expected_;
};

// As a framework does: one operation in a kernel, rows in bf16 between them.
void DecodeStep::op_per_kernel(cudaStream_t stream, const Products& multiply) const {
  const std::size_t size = token::head_size, kv = static_cast<std::size_t>(s_.kv_columns()),
                    queries = static_cast<std::size_t>(s_.q_columns());
  const auto row = [](const bf16* data, std::size_t columns) { return packets_of(data, columns); };
  const auto norm = [&](std::size_t which) {
    launch_kernel(stream, decoder::norm_kernel, {1, decoder::norm_threads},
                  decoder::Norm{nullptr, nullptr, nullptr, residual(), normed(), norms_ + which * hidden(), nullptr, s_.hidden});
  };
  const auto add = [&] {
    map_rows<Plus>(stream, 1, hidden(), row(residual(), hidden()), row(delta(), hidden()), row(residual(), hidden()));
  };
  const auto rotate = [&](bf16* of, std::size_t columns) {
    launch_kernel(stream, rotate_rows_kernel, grid_of_rows(1, columns), row(of, columns), row(of, columns), angles_, position_,
                  columns / packet, size / packet);
  };
  map_rows<Copy>(stream, 1, hidden(), row(embedded_, hidden()), PacketRows{}, row(residual(), hidden()));
  for (std::size_t l = 0; l < layers(); ++l) {
    const bf16* const weights = qkv_ + l * (queries + 2 * kv) * hidden();
    bf16 *const k = projected() + queries, *const v = k + kv;
    norm(2 * l);
    multiply(stream, q_, weights, normed(), projected());
    multiply(stream, kv_, weights + queries * hidden(), normed(), k);
    multiply(stream, kv_, weights + (queries + kv) * hidden(), normed(), v);
    rotate(projected(), queries);
    rotate(k, kv);
    const std::size_t pitch = (context_ + 1) * size, to = l * static_cast<std::size_t>(s_.kv_heads) * pitch + context_ * size;
    map_rows<Copy>(stream, static_cast<std::size_t>(s_.kv_heads), size, row(k, size), PacketRows{}, row(k_ + to, pitch));
    map_rows<Copy>(stream, static_cast<std::size_t>(s_.kv_heads), size, row(v, size), PacketRows{}, row(v_ + to, pitch));
    launch_kernel(stream, token::attend_kernel, {dim3{static_cast<unsigned>(s_.kv_heads), token::pieces}, token::threads},
                  network(), activations(), static_cast<int>(l));
    multiply(stream, of_o_, o_ + l * hidden() * queries, attended(), delta());
    add();
    norm(2 * l + 1);
    multiply(stream, half_, gate_up_ + 2 * l * ffn() * hidden(), normed(), gate());
    multiply(stream, half_, gate_up_ + (2 * l + 1) * ffn() * hidden(), normed(), up());
    map_rows<Silu>(stream, 1, ffn(), row(gate(), ffn()), PacketRows{}, row(gate(), ffn()));
    map_rows<Times>(stream, 1, ffn(), row(gate(), ffn()), row(up(), ffn()), row(active(), ffn()));
    multiply(stream, of_down_, down_ + l * hidden() * ffn(), active(), delta());
    add();
  }
  norm(2 * layers());
  multiply(stream, of_head_, head_, normed(), logits_.get());
  launch_kernel(stream, decoder::choose_kernel<float>, {1, decoder::choose_threads}, logits_, s_.words,
                decoder::Choice{next_, nullptr, nullptr});
}

void DecodeStep::fused_kernels(cudaStream_t stream, bool early) const {
  const Network n = network();
  const Activations a = activations();
  const auto grid = [&](int items, std::size_t shared_columns = 0) {
    return Grid{.blocks = static_cast<unsigned>((items + token::warps - 1) / token::warps),
                .threads = token::threads,
                .shared_bytes = shared_columns * sizeof(bf16),
                .overlapping = early};
  };
  for (int layer = 0; layer < s_.layers; ++layer) {
    const auto l = static_cast<std::size_t>(layer);
    launch_kernel(stream, token::qkv_kernel, grid(s_.qkv_columns() / 2, hidden()), n, a, layer);
    launch_kernel(
        stream, token::attend_kernel,
        {.blocks = dim3{static_cast<unsigned>(s_.kv_heads), token::pieces}, .threads = token::threads, .overlapping = early}, n,
        a, layer);
    launch_kernel(stream, token::residual_kernel, grid(s_.hidden), n, a,
                  n.o + l * hidden() * static_cast<std::size_t>(s_.q_columns()) / packet, attended(), s_.q_columns() / packet,
                  layer == 0);
    launch_kernel(stream, token::gate_up_kernel, grid(s_.ffn, hidden()), n, a, layer);
    launch_kernel(stream, token::residual_kernel, grid(s_.hidden), n, a, n.down + l * hidden() * ffn() / packet, active(),
                  s_.ffn / packet, false);
  }
  launch_kernel(stream, token::head_kernel, grid((s_.words + token::words_of_warp - 1) / token::words_of_warp, hidden()), n, a);
}

}  // namespace

extern constinit const Pair decode_step{
    .teaches =
        "at batch 1 a token is one read of the weights, and every kernel border is a hole in it: fewer kernels, and kernels "
        "that begin before the one before them has ended",
    .lesson = "fused_graph",
    .make = make<DecodeStep>,
    .baseline = {.name = "eager",
                 .run = call<&DecodeStep::eager>,
                 .prepare = call<&DecodeStep::prepare_library>,
                 .reset = call<&DecodeStep::reset>},
    .optimized = variants({{.name = "graph",
                            .run = call<&DecodeStep::graph>,
                            .prepare = call<&DecodeStep::prepare_graph>,
                            .reset = call<&DecodeStep::reset>,
                            .same_bits_as = "eager"},
                           {.name = "fused_graph",
                            .run = call<&DecodeStep::fused_graph>,
                            .prepare = call<&DecodeStep::prepare_fused<false>>,
                            .reset = call<&DecodeStep::reset>},
                           {.name = "fused_pdl",
                            .run = call<&DecodeStep::fused_pdl>,
                            .prepare = call<&DecodeStep::prepare_fused<true>>,
                            .reset = call<&DecodeStep::reset>,
                            .same_bits_as = "fused_graph"},
                           {.name = "megakernel",
                            .run = call<&DecodeStep::megakernel>,
                            .prepare = call<&DecodeStep::prepare>,
                            .reset = call<&DecodeStep::reset>,
                            .same_bits_as = "fused_graph"}}),
    // The graph with our products, so that none of their gain is the fusion's; the persistent kernel whose rings end with each
    // phase; and a read of all weights that nothing interrupts.
    .controls = variants({{.name = "own_gemv_graph",
                           .run = call<&DecodeStep::own_gemv_graph>,
                           .prepare = call<&DecodeStep::prepare_own_gemv>,
                           .reset = call<&DecodeStep::reset>},
                          {.name = "no_prefetch",
                           .run = call<&DecodeStep::no_prefetch>,
                           .prepare = call<&DecodeStep::prepare>,
                           .reset = call<&DecodeStep::reset>,
                           .same_bits_as = "fused_graph"},
                          {.name = "weights_only", .run = call<&DecodeStep::weights_only>, .outputs = no_outputs}}),
    .bound = Bound::memory,
    // The residual and what is added to it are rounded to bf16, 1.6e-3 each, twice a layer; 16 layers grow as the square root.
    .tolerance = within(1.5e-2),
    .needs = {.min_sm = 90, .libraries = {Library::cublas, Library::cublaslt}, .attributes = {cudaDevAttrCooperativeLaunch}},
    .start = Start::immediate,  // launches are a part of it
    .verification = Verification::small_shape,
    .timeline = true,
    .sizes = sizes({{.name = "context", .full = 1024, .most = 32768, .scales = false}}),
    .sweep = cases({{"context_128", "context=128"},
                    {"context_1024", "context=1024"},
                    {"context_8192", "context=8192"},
                    {"context_32768", "context=32768"}}),
    .edges = cases({{"one_key", "context=1"}, {"fewer_than_pieces", "context=14"}, {"one_less", "context=1023"}}),
};

}  // namespace aisp::ch20
