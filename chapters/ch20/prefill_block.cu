// SPDX-License-Identifier: Apache-2.0
// One decoder block of an 8B model over a prompt of 8192 tokens. Its products and its attention are the libraries', tuned; what
// is left are element-wise passes over the rows. Two passes over the same rows become one, products of the same input become one,
// and the pass after the largest product goes into that product's epilogue. The block begins with the residual of the one before
// it.
#include <aisp/libraries/cublas.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "attention/forward.hpp"
#include "cudnn_prompt_attention.hpp"
#include "decoder/model.hpp"
#include "gemm/gemm.hpp"
#include "prefill_block_reference.cuh"
#include "prompt_rows.cuh"

namespace aisp::ch20 {
namespace {

using attention::ContiguousCache;

using Tile =
    gemm::Config<gemm::Operand<bf16>, gemm::Operand<bf16>, gemm::InTensorCores, gemm::Shape{.tile_n = 256, .cluster = 2}>;
using Product = gemm::Gemm<Tile>;
using WithSwiGlu = gemm::Gemm<Tile, gemm::Bands, gemm::SwiGlu>;
using Attention =
    attention::ForwardPass<128, 128, attention::Causal, attention::Dense, attention::Scaled, false, attention::LongestFirst>;

class PrefillBlock final : public Workload {
 public:
  explicit PrefillBlock(Setup& setup)
      : tokens_{setup.shape(setup.size("tokens"), std::min<std::size_t>(setup.size("tokens"), 1000))},
        s_{setup.shape(1, 0) == 1 ? decoder::layers_of_8b(1) : decoder::narrow(1)},
        in_{setup.input<bf16>(rows_of(hidden()), normal(0, 1), {.name = "rows"})},
        from_before_{setup.input<bf16>(rows_of(hidden()), normal(0, 0.7f), {.name = "results of the block before"})},
        norms_{setup.input<bf16>(2 * hidden(), normal(1, 0.1f), {.name = "norms", .constant = true})},
        qkv_{matrix(setup, "qkv", s_.qkv_columns(), s_.hidden)},
        o_{matrix(setup, "o", s_.hidden, s_.q_columns())},
        gate_up_{matrix(setup, "gate and up", 2 * s_.ffn, s_.hidden)},
        down_{matrix(setup, "down", s_.hidden, s_.ffn)},
        angles_{setup.input<float>(rows_of(static_cast<std::size_t>(s_.head_size)), decoder::angles(s_.head_size),
                                   {.name = "angles", .constant = true})},
        x_{setup.output<bf16>(rows_of(hidden()), {.name = "residual"})},
        out_{setup.output<bf16>(rows_of(hidden()), {.name = "results"})},
        k_{setup.output<bf16>(rows_of(kv_columns()), {.name = "keys"})},
        v_{setup.output<bf16>(rows_of(kv_columns()), {.name = "values"})},
        normed_{setup.scratch<bf16>(rows_of(hidden()))},
        projected_{setup.scratch<bf16>(rows_of(static_cast<std::size_t>(s_.qkv_columns())))},
        attended_{setup.scratch<bf16>(rows_of(static_cast<std::size_t>(s_.q_columns())))},
        delta_{setup.scratch<bf16>(rows_of(hidden()))},
        gate_up_rows_{setup.scratch<bf16>(rows_of(2 * ffn()))},
        active_{setup.scratch<bf16>(rows_of(ffn()))},
        interleaved_{setup.scratch<bf16>(gate_up_.size())},
        // For eager_norms: in turn the fp32 rows of the norms and the rows that RoPE goes through.
        wide_{setup.scratch<float>(rows_of(2 * hidden()))},
        roots_{setup.scratch<float>(tokens_)},
        numbers_{setup.scratch<int>(2 * tokens_)},
        taken_{setup.scratch<unsigned>(1)},
        cublas_{setup},
        q_product_{product(setup, s_.q_columns(), s_.hidden, s_.qkv_columns())},
        kv_product_{product(setup, s_.kv_columns(), s_.hidden, s_.qkv_columns())},
        qkv_product_{product(setup, s_.qkv_columns(), s_.hidden)},
        o_product_{product(setup, s_.hidden, s_.q_columns())},
        half_product_{product(setup, s_.ffn, s_.hidden, 2 * s_.ffn)},
        gate_up_product_{product(setup, 2 * s_.ffn, s_.hidden)},
        down_product_{product(setup, s_.hidden, s_.ffn)},
        cudnn_{setup, PromptSizes{tokens_, static_cast<std::size_t>(s_.heads), static_cast<std::size_t>(s_.kv_heads),
                                  static_cast<std::size_t>(s_.head_size), static_cast<std::size_t>(s_.qkv_columns())}},
        reproducible_{setup.reproducible()} {}

  // The cost of the products and of attention; rows, weights and the cache once.
  Cost cost() const override {
    const auto tokens = static_cast<double>(tokens_);
    return {
        .flops = 2 * tokens * s_.layer_weights() + 4 * tokens * (tokens + 1) / 2 * s_.q_columns(),
        .math = Math::bf16,
        .bytes = static_cast<double>(in_.bytes() + from_before_.bytes() + x_.bytes() + out_.bytes() + k_.bytes() + v_.bytes()) +
                 2 * s_.layer_weights()};
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(tokens_), "tokens/s");
  }

  void compute_reference(Launch& launch) override {
    number_rows(launch.stream);
    expected_ =
        exact_block(launch.stream, *cublas_, {s_, tokens_, in_, from_before_, norms_, qkv_, o_, gate_up_, down_, positions()});
  }
  double expected_output(int output, std::size_t i) const override {
    if (output < 2) return (output == 0 ? expected_.residual : expected_.results)[i];
    const std::size_t of_queries = static_cast<std::size_t>(s_.q_columns());
    return expected_.projected[i / kv_columns() * static_cast<std::size_t>(s_.qkv_columns()) + of_queries +
                               (output == 3 ? kv_columns() : 0) + i % kv_columns()];
  }

  void prepare(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    number_rows(launch.stream);
    check(cudaMemsetAsync(taken_, 0, taken_.bytes(), launch.stream));
    o_product_.tune(launch, attended_, o_, delta_);
    down_product_.tune(launch, active_, down_, out_);
    q_product_.tune(launch, normed_, qkv_, projected_);
    kv_product_.tune(launch, normed_, qkv_ + k_offset(), projected_ + s_.q_columns());
    half_product_.tune(launch, normed_, gate_up_, gate_up_rows_);
    qkv_product_.tune(launch, normed_, qkv_, projected_);
    gate_up_product_.tune(launch, normed_, gate_up_, gate_up_rows_);
    cudnn_->tune(launch.stream, projected_, k_, v_, attended_);
  }
  void prepare_epilogue(Launch& launch) {
    prepare(launch);
    launch(interleave_rows_kernel, grid_of_rows(2 * ffn(), hidden()), packets_of(gate_up_, hidden()),
           packets_of(interleaved_, hidden()), ffn(), hidden() / packet);
    if (!fused_)
      fused_.emplace(
          WithSwiGlu::Problem{.a = normed_, .b = interleaved_, .c = active_, .m = tokens_, .n = 2 * ffn(), .k = hidden()});
  }
  void prepare_engine(Launch& launch) {
    prepare(launch);
    if (!plain_)
      plain_.emplace(
          Product::Problem{.a = normed_, .b = gate_up_, .c = gate_up_rows_, .m = tokens_, .n = 2 * ffn(), .k = hidden()});
  }
  void prepare_attention(Launch& launch) {
    prepare_epilogue(launch);
    if (attention_) return;
    const auto heads = static_cast<std::size_t>(s_.heads), kv_heads = static_cast<std::size_t>(s_.kv_heads);
    const auto size = static_cast<std::size_t>(s_.head_size);
    const auto rows = static_cast<int>(tokens_);
    const float scale = 1.4426950408889634f / std::sqrt(static_cast<float>(s_.head_size));
    attention_.emplace(
        attention::Tensors{attention::rows_first(projected_, 1, tokens_, heads, size, heads + 2 * kv_heads),
                           attention::rows_first(k_, 1, tokens_, kv_heads, size),
                           attention::rows_first(v_, 1, tokens_, kv_heads, size),
                           attention::rows_first(attended_, 1, tokens_, heads, size)},
        Attention::Work{.mask = {},
                        .keys = {rows, rows},
                        .score = {scale},
                        .order = attention::longest_first(tokens_, tokens_, 2 * size, heads, s_.group(), 1, taken_.get())});
  }

  void op_per_kernel(Launch& launch) {
    const cudaStream_t stream = launch.stream;
    first_residual(stream);
    norm(stream, 0);
    project_apart(launch);
    const PacketRows q = packets_of(projected_, qkv_pitch()), k = packets_of(projected_ + s_.q_columns(), qkv_pitch());
    rotate(stream, static_cast<std::size_t>(s_.q_columns()), q, q);
    rotate(stream, kv_columns(), k, packets_of(k_, kv_columns()));
    append_values(stream);
    attend_by_library(launch);
    o_product_.run_tuned(launch, attended_, o_, delta_);
    add_to_residual(stream);
    norm(stream, 1);
    gate_and_up_apart(launch);
    silu_then_product(stream);
    down_product_.run_tuned(launch, active_, down_, out_);
  }
  void fused_rows(Launch& launch) {
    begin_fused(launch.stream);
    project_apart(launch);
    append_fused(launch.stream);
    attend_by_library(launch);
    middle_fused(launch);
    gate_and_up_apart(launch);
    swiglu(launch.stream);
    down_product_.run_tuned(launch, active_, down_, out_);
  }
  void packed_gemms(Launch& launch) {
    attention_half(launch, [&] { attend_by_library(launch); });
    gate_up_product_.run_tuned(launch, normed_, gate_up_, gate_up_rows_);
    swiglu(launch.stream);
    down_product_.run_tuned(launch, active_, down_, out_);
  }
  void engine_packed(Launch& launch) {
    attention_half(launch, [&] { attend_by_library(launch); });
    plain_->run(launch.stream);
    swiglu(launch.stream);
    down_product_.run_tuned(launch, active_, down_, out_);
  }
  void swiglu_epilogue(Launch& launch) {
    attention_half(launch, [&] { attend_by_library(launch); });
    fused_->run(launch.stream);
    down_product_.run_tuned(launch, active_, down_, out_);
  }
  void own_attention(Launch& launch) {
    attention_half(launch, [&] { attention_->run(launch); });
    fused_->run(launch.stream);
    down_product_.run_tuned(launch, active_, down_, out_);
  }
  void eager_norms(Launch& launch) {
    const cudaStream_t stream = launch.stream;
    first_residual(stream);
    norm_step_by_step(stream, 0);
    project_apart(launch);
    const PacketRows q = packets_of(projected_, qkv_pitch()), k = packets_of(projected_ + s_.q_columns(), qkv_pitch());
    rotate_step_by_step(stream, static_cast<std::size_t>(s_.q_columns()), q, q);
    rotate_step_by_step(stream, kv_columns(), k, packets_of(k_, kv_columns()));
    append_values(stream);
    attend_by_library(launch);
    o_product_.run_tuned(launch, attended_, o_, delta_);
    add_to_residual(stream);
    norm_step_by_step(stream, 1);
    gate_and_up_apart(launch);
    silu_then_product(stream);
    down_product_.run_tuned(launch, active_, down_, out_);
  }
  void products_alone(Launch& launch) {
    qkv_product_.run_tuned(launch, normed_, qkv_, projected_);
    attend_by_library(launch);
    o_product_.run_tuned(launch, attended_, o_, delta_);
    gate_up_product_.run_tuned(launch, normed_, gate_up_, gate_up_rows_);
    down_product_.run_tuned(launch, active_, down_, out_);
  }

 private:
  std::size_t hidden() const { return static_cast<std::size_t>(s_.hidden); }
  std::size_t ffn() const { return static_cast<std::size_t>(s_.ffn); }
  std::size_t kv_columns() const { return static_cast<std::size_t>(s_.kv_columns()); }
  std::size_t qkv_pitch() const { return static_cast<std::size_t>(s_.qkv_columns()); }
  std::size_t rows_of(std::size_t columns) const { return tokens_ * columns; }
  std::size_t k_offset() const { return static_cast<std::size_t>(s_.q_columns()) * hidden(); }
  Input<bf16> matrix(Setup& setup, const char* name, int outputs, int inputs) const {
    return setup.input<bf16>(static_cast<std::size_t>(outputs) * static_cast<std::size_t>(inputs),
                             normal(0, 1 / std::sqrt(static_cast<float>(inputs))), {.name = name, .constant = true});
  }
  LibraryMatmul product(Setup& setup, int outputs, int inputs, int pitch = 0) const {
    return {setup,
            {.m = tokens_,
             .n = static_cast<std::size_t>(outputs),
             .k = static_cast<std::size_t>(inputs),
             .b_is_transposed = true,
             .c_pitch = static_cast<std::size_t>(pitch)}};
  }
  // Rows' numbers, which are their positions, and their sequence, which is 0.
  void number_rows(cudaStream_t stream) {
    std::vector<int> numbers(2 * tokens_, 0);
    std::iota(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(tokens_), 0);
    check(cudaMemcpyAsync(numbers_, numbers.data(), numbers_.bytes(), cudaMemcpyHostToDevice, stream));
    check(cudaStreamSynchronize(stream));
  }
  const int* positions() const { return numbers_; }

  void project_apart(Launch& launch) {
    q_product_.run_tuned(launch, normed_, qkv_, projected_);
    for (std::size_t i = 0; i < 2; ++i)
      kv_product_.run_tuned(launch, normed_, qkv_ + k_offset() + i * kv_columns() * hidden(),
                            projected_ + static_cast<std::size_t>(s_.q_columns()) + i * kv_columns());
  }
  void gate_and_up_apart(Launch& launch) {
    half_product_.run_tuned(launch, normed_, gate_up_, gate_up_rows_);
    half_product_.run_tuned(launch, normed_, gate_up_ + ffn() * hidden(), gate_up_rows_ + ffn());
  }
  void attend_by_library(Launch& launch) { cudnn_->run(launch.stream, projected_, k_, v_, attended_); }

  // One operation each.
  void first_residual(cudaStream_t stream) const {
    map_rows<Plus>(stream, tokens_, hidden(), packets_of(in_, hidden()), packets_of(from_before_, hidden()),
                   packets_of(x_, hidden()));
  }
  void add_to_residual(cudaStream_t stream) const {
    map_rows<Plus>(stream, tokens_, hidden(), packets_of(x_, hidden()), packets_of(delta_, hidden()), packets_of(x_, hidden()));
  }
  void norm(cudaStream_t stream, std::size_t which) const { norm(stream, which, nullptr, nullptr); }
  void rotate(cudaStream_t stream, std::size_t columns, const PacketRows& from, const PacketRows& to) const {
    launch_kernel(stream, rotate_rows_kernel, grid_of_rows(tokens_, columns), from, to, angles_, positions(), columns / packet,
                  s_.head_size / packet);
  }
  void append_values(cudaStream_t stream) const {
    map_rows<Copy>(stream, tokens_, kv_columns(), packets_of(projected_ + s_.q_columns() + s_.kv_columns(), qkv_pitch()),
                   PacketRows{}, packets_of(v_, kv_columns()));
  }
  void silu_then_product(cudaStream_t stream) const {
    const PacketRows gate = packets_of(gate_up_rows_, 2 * ffn()), up = packets_of(gate_up_rows_ + ffn(), 2 * ffn());
    map_rows<Silu>(stream, tokens_, ffn(), gate, PacketRows{}, packets_of(active_, ffn()));
    map_rows<Times>(stream, tokens_, ffn(), packets_of(active_, ffn()), up, packets_of(active_, ffn()));
  }

  // Several at once.
  void begin_fused(cudaStream_t stream) const { norm(stream, 0, in_, from_before_); }
  void append_fused(cudaStream_t stream) const {
    const ContiguousCache cache{k_, v_, kv_columns(), static_cast<std::size_t>(s_.head_size), 0};
    launch_kernel(stream, decoder::append_kernel<ContiguousCache>, {static_cast<unsigned>(tokens_), decoder::append_threads},
                  decoder::Append<ContiguousCache>{projected_, cache, numbers_ + tokens_, positions(), angles_, s_.heads,
                                                   s_.kv_heads, s_.head_size});
  }
  void middle_fused(Launch& launch) {
    o_product_.run_tuned(launch, attended_, o_, delta_);
    norm(launch.stream, 1, nullptr, delta_);
  }
  void swiglu(cudaStream_t stream) const {
    map_rows<SiluTimes>(stream, tokens_, ffn(), packets_of(gate_up_rows_, 2 * ffn()),
                        packets_of(gate_up_rows_ + ffn(), 2 * ffn()), packets_of(active_, ffn()));
  }
  template <class Attend>
  void attention_half(Launch& launch, const Attend& attend) {
    begin_fused(launch.stream);
    qkv_product_.run_tuned(launch, normed_, qkv_, projected_);
    append_fused(launch.stream);
    attend();
    middle_fused(launch);
  }
  // `table`: where rows come from that are not in x yet; `delta`: what is added to them first.
  void norm(cudaStream_t stream, std::size_t which, const bf16* table, const bf16* delta) const {
    launch_kernel(stream, decoder::norm_kernel, {static_cast<unsigned>(tokens_), decoder::norm_threads},
                  decoder::Norm{table != nullptr ? positions() : nullptr, table, delta, x_, normed_, norms_ + which * hidden(),
                                nullptr, s_.hidden});
  }

  // As Transformers writes them.
  void norm_step_by_step(cudaStream_t stream, std::size_t which) const {
    ch20::norm_step_by_step(stream, tokens_, hidden(), x_, norms_ + which * hidden(), normed_, wide_, wide_ + rows_of(hidden()),
                            roots_, decoder::norm_epsilon);
  }
  void rotate_step_by_step(cudaStream_t stream, std::size_t columns, const PacketRows& from, const PacketRows& to) const {
    ch20::rotate_step_by_step(stream, tokens_, columns, static_cast<std::size_t>(s_.head_size), from, to, angles_,
                              reinterpret_cast<bf16*>(wide_.get()));
  }

  std::size_t tokens_;
  decoder::Shape s_;
  Input<bf16> in_, from_before_, norms_, qkv_, o_, gate_up_, down_;
  Input<float> angles_;
  Output<bf16> x_, out_, k_, v_;
  Scratch<bf16> normed_, projected_, attended_, delta_, gate_up_rows_, active_, interleaved_;
  Scratch<float> wide_, roots_;
  Scratch<int> numbers_;
  Scratch<unsigned> taken_;
  Opened<Cublas> cublas_;
  LibraryMatmul q_product_, kv_product_, qkv_product_, o_product_, half_product_, gate_up_product_, down_product_;
  Opened<CudnnPromptAttention> cudnn_;
  bool reproducible_;
  std::optional<WithSwiGlu> fused_;
  std::optional<Product> plain_;
  std::optional<Attention> attention_;
  ExactRows expected_;
};

}  // namespace

extern constinit const Pair prefill_block{
    .teaches =
        "in a decoder block over a long prompt the products and attention are nearly all; of the passes between them the "
        "largest goes into a product's epilogue",
    .lesson = "swiglu_epilogue",
    .make = make<PrefillBlock>,
    .baseline = {.name = "op_per_kernel", .run = call<&PrefillBlock::op_per_kernel>, .prepare = call<&PrefillBlock::prepare>},
    .optimized =
        variants({{.name = "fused_rows", .run = call<&PrefillBlock::fused_rows>, .prepare = call<&PrefillBlock::prepare>},
                  {.name = "packed_gemms", .run = call<&PrefillBlock::packed_gemms>, .prepare = call<&PrefillBlock::prepare>},
                  {.name = "swiglu_epilogue",
                   .run = call<&PrefillBlock::swiglu_epilogue>,
                   .prepare = call<&PrefillBlock::prepare_epilogue>,
                   .needs = WithSwiGlu::needs()},
                  {.name = "own_attention",
                   .run = call<&PrefillBlock::own_attention>,
                   .prepare = call<&PrefillBlock::prepare_attention>,
                   .needs = WithSwiGlu::needs()}}),
    // The cost of RMSNorm and RoPE as Transformers writes them; packed_gemms with the engine's product of gate and up, so that
    // the lesson's gain is not the product's; and the part that no fusion removes.
    .controls =
        variants({{.name = "eager_norms", .run = call<&PrefillBlock::eager_norms>, .prepare = call<&PrefillBlock::prepare>},
                  {.name = "engine_packed",
                   .run = call<&PrefillBlock::engine_packed>,
                   .prepare = call<&PrefillBlock::prepare_engine>,
                   .needs = Product::needs()},
                  {.name = "products_alone",
                   .run = call<&PrefillBlock::products_alone>,
                   .prepare = call<&PrefillBlock::prepare>,
                   .outputs = no_outputs}}),
    .bound = Bound::compute,
    // Limits of the residual, the results, keys and values. Rows are rounded to bf16 up to ten times on their way, 1.6e-3 each.
    .tolerance = per_output({within(4e-3), within(1e-2), within(6e-3), within(6e-3)}),
    .needs = {.min_sm = 90, .libraries = {Library::cublas, Library::cublaslt, Library::cudnn}},
    .verification = Verification::small_shape,
    .sizes = sizes({{.name = "tokens", .full = 8192, .most = 16384}}),
    .sweep = cases({{"tokens_128", "tokens=128"},
                    {"tokens_512", "tokens=512"},
                    {"tokens_2048", "tokens=2048"},
                    {"tokens_8192", "tokens=8192"},
                    {"tokens_16384", "tokens=16384"}}),
    .edges = cases({{"one_token", "tokens=1"}, {"tail", "tokens=127"}, {"one_more", "tokens=513"}}),
};

}  // namespace aisp::ch20
