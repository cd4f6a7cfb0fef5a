// SPDX-License-Identifier: Apache-2.0
// A prompt arrives while 64 requests decode. Computed first, it makes all of them wait. Cut into chunks that join the decode rows
// in the same products, it rides along: a step reads its weights once for both, and no request waits for more than a chunk. Every
// step is a graph whose rows, positions and page tables lie in device memory.
#include <aisp/graph.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "decoder/alone.hpp"
#include "decoder/cache_rows.cuh"
#include "decoder/model.hpp"
#include "decoder/pages.hpp"
#include "decoder/trace.hpp"

namespace aisp::ch16 {
namespace {

using namespace decoder;

constexpr int decode_steps = 32, most_context = 511;
constexpr int most_split = 640;  // rows of a chunk whose attention is split: more fill the GPU

// The places of steps' rows: a page table, and which positions a run writes.
struct Places {
  bf16 *k, *v;
  const int* table;
  int stride, kv_heads, head_size, layers;
  std::size_t layer_elements;
};
// The last layer's keys and values of a sequence, to [k and v][position][head][head_size]. blockIdx.x: the position.
__global__ void gather_kernel(Places at, int sequence, bf16* to) {
  const int position = static_cast<int>(blockIdx.x), columns = at.kv_heads * at.head_size;
  const int page = at.table[sequence * at.stride + position / page_rows];
  for (int e = static_cast<int>(threadIdx.x); e < columns; e += static_cast<int>(blockDim.x)) {
    const std::size_t from =
        (at.layers - 1) * at.layer_elements +
        ((static_cast<std::size_t>(page) * at.kv_heads + e / at.head_size) * page_rows + position % page_rows) * at.head_size +
        e % at.head_size;
    to[static_cast<std::size_t>(position) * columns + e] = at.k[from];
    to[(static_cast<std::size_t>(gridDim.x) + position) * columns + e] = at.v[from];
  }
}
// Before a step: its decode rows take what was chosen last, the others their tokens of the prompt.
__global__ void take_kernel(const int* current, int decodes, const int* prompt, int* tokens, int rows) {
  for (int i = static_cast<int>(threadIdx.x); i < rows; i += static_cast<int>(blockDim.x))
    tokens[i] = i < decodes ? current[i] : prompt[i - decodes];
}
// After it: what was chosen is kept, and is taken by the next step; the prompt's first token is kept when it is there.
__global__ void keep_kernel(const int* next, int* current, int* tokens, int requests, int* first_token, int prompt_at) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < requests) tokens[i] = current[i] = next[i];
  if (i == 0 && prompt_at >= 0) *first_token = next[prompt_at];
}

class ChunkedPrefill final : public Workload {
  using Cache = attention::PagedCache<page_rows>;

 public:
  explicit ChunkedPrefill(Setup& setup)
      : requests_{static_cast<int>(setup.size("requests"))},
        prompt_{static_cast<int>(setup.size("prompt"))},
        chunk_{static_cast<int>(setup.size("chunk"))},
        model_{setup,
               setup.size("narrow") == 1 ? narrow(2) : layers_of_8b(2),
               {.rows = std::max(prompt_, 2048) + requests_,
                .chosen = requests_ + 1,
                .positions = std::max(prompt_, most_context + decode_steps + 1),
                .split_rows = requests_ + most_split}},
        lt_{setup},
        cublas_{setup},
        alone_{setup, std::max(prompt_, 2048) + requests_},
        trace_{traced(setup.size("planted") == 1 ? 0 : Trace::planted)},
        prompts_{setup.input<int>(first_of(requests_), HostFill<int>{[this](std::span<int> tokens, std::uint64_t seed) {
                                    fill(tokens, seed, 0, requests_);
                                  }},
                                  {.name = "prompts that are cached", .constant = true})},
        prompt_tokens_{setup.input<int>(
            static_cast<std::size_t>(prompt_),
            HostFill<int>{[this](std::span<int> tokens, std::uint64_t seed) { fill(tokens, seed, requests_, requests_ + 1); }},
            {.name = "prompt"})},
        pages_{pages_in_all(), 16},
        table_{pages_, requests_ + 1, pages_for(std::max(prompt_, most_context + decode_steps))},
        entries_{setup.input<int>(table_.entries().size(),
                                  HostFill<int>{[this](std::span<int> entries, std::uint64_t) { fill_table(entries); }},
                                  {.name = "page table", .constant = true})},
        k_{setup.scratch<bf16>(layer_elements() * static_cast<std::size_t>(model_.shape().layers), {.name = "keys"})},
        v_{setup.scratch<bf16>(k_.size(), {.name = "values"})},
        tokens_{setup.output<int>(static_cast<std::size_t>(decode_steps * requests_), {.name = "tokens"})},
        states_{setup.output<bf16>(static_cast<std::size_t>(requests_ * model_.shape().hidden), {.name = "last states"})},
        first_token_{setup.output<int>(1, {.name = "first token of the prompt"})},
        kv_{setup.output<bf16>(static_cast<std::size_t>(2 * prompt_ * model_.shape().kv_columns()),
                               {.name = "keys and values of the prompt"})},
        next_{setup.scratch<int>(static_cast<std::size_t>(requests_ + 1))},
        first_inputs_{setup.scratch<int>(static_cast<std::size_t>(requests_))},
        current_{setup.scratch<int>(static_cast<std::size_t>(requests_))},
        written_{setup.scratch<int>(static_cast<std::size_t>(2 * (requests_ + 1)))},
        step_memory_{setup.scratch<int>(static_cast<std::size_t>(plans * most_steps()) * BatchMemory::words(most_rows()))} {}

  // All weights once a step, each decode row's context, and the products.
  Cost cost() const override { return cost_with(prompt_); }
  Cost variant_cost(std::string_view variant) const override { return cost_with(variant == "decode_alone" ? 0 : prompt_); }
  Cost cost_with(double prompt) const {
    const Shape& s = model_.shape();
    double keys = 0;
    for (int r = 0; r < requests_; ++r) keys += decode_steps * (length(r) + (decode_steps + 1) / 2.0);
    const double rows = prompt + decode_steps * static_cast<double>(requests_);
    return {.flops = 2 * rows * s.weights() + 4 * (keys + prompt * (prompt + 1) / 2) * s.q_columns() * s.layers,
            .math = Math::bf16,
            .bytes = decode_steps * 2 * s.weights() + keys * s.kv_bytes() * s.layers};
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    const double prompt = variant == "decode_alone" ? 0 : prompt_;
    metrics.report_rate("row_rate", prompt + decode_steps * static_cast<double>(requests_), "tokens/s");
  }

  // Each request alone, and float64 on the tokens that it then chooses; the prompt's keys and values in float64.
  void compute_reference(Launch& launch) override {
    const Shape& s = model_.shape();
    expected_tokens_.assign(tokens_.size(), 0);
    std::vector<std::vector<int>> sequences;
    const auto make = [this](const Batch& batch) { return step(batch); };
    for (int r = 0; r < requests_; ++r) {
      std::vector<int> all = generate_alone(launch.stream, s, alone_, next_, make, r, prompt_of(r), 1 + decode_steps);
      for (int i = 0; i < decode_steps; ++i)
        expected_tokens_[static_cast<std::size_t>(i * requests_ + r)] =
            all[all.size() - static_cast<std::size_t>(decode_steps - i)];
      all.pop_back();
      sequences.push_back(std::move(all));
    }
    expected_states_ = reference::last_states(*cublas_, launch.stream, s, model_.weights(), sequences);
    const std::vector<int> prompt = prompt_of(requests_);
    expected_first_ = generate_alone(launch.stream, s, alone_, next_, make, requests_, prompt, 1).back();
    expected_kv_ = reference::forward(*cublas_, launch.stream, s, model_.weights(), prompt, {&prompt_, 1}, true).qkv.back();
  }
  double expected_output(int output, std::size_t i) const override {
    if (output == 0) return expected_tokens_[i];
    if (output == 1) return expected_states_[i];
    if (output == 2) return expected_first_;
    const Shape& s = model_.shape();
    const auto columns = static_cast<std::size_t>(s.kv_columns()), half = static_cast<std::size_t>(prompt_) * columns;
    const std::size_t column = static_cast<std::size_t>(s.q_columns()) + i / half * columns + i % columns;
    return expected_kv_[i % half / columns * static_cast<std::size_t>(s.qkv_columns()) + column];
  }

  void prepare_first(Launch& launch) { prepare(launch, prompt_first, prompt_); }
  void prepare_chunks(Launch& launch) { prepare(launch, riding, chunk_); }
  void prepare_larger(Launch& launch) { prepare(launch, larger, 3 * chunk_); }
  void prepare_apart(Launch& launch) { prepare(launch, apart, chunk_); }
  void prepare_alone(Launch& launch) { prepare(launch, alone, 0); }
  void prompt_before(Launch& launch) { serve(launch, prompt_first); }
  void riding_chunks(Launch& launch) { serve(launch, riding); }
  void larger_chunks(Launch& launch) { serve(launch, larger); }
  void chunks_apart(Launch& launch) { serve(launch, apart); }
  void decode_alone(Launch& launch) { serve(launch, alone); }

  void reset(Launch& launch) {
    launch(poison_kernel<Cache>,
           {dim3{static_cast<unsigned>(std::max(prompt_, decode_steps)), static_cast<unsigned>(requests_ + 1)}, 256}, step({}),
           written_.get(), written_ + requests_ + 1);
    check(cudaMemcpyAsync(current_, first_inputs_, current_.bytes(), cudaMemcpyDeviceToDevice, launch.stream));
  }

 private:
  enum Plan { prompt_first, riding, larger, apart, alone, plans };
  struct PlannedStep {
    Graph graph;
    bool decodes, ends_prompt;
  };

  std::vector<Request> traced(int first) const {
    std::vector<Request> all;
    for (int i = 0; i < requests_; ++i) all.push_back(Trace{{220, 0.6, 1, most_context}}.request(first + i));
    all.push_back(Trace{{static_cast<double>(prompt_), 0, prompt_, prompt_}}.request(Trace::planted + requests_));
    return all;
  }
  int length(int sequence) const { return trace_[static_cast<std::size_t>(sequence)].prompt; }
  // Place of a sequence's prompt among all.
  std::size_t first_of(int sequence) const {
    std::size_t tokens = 0;
    for (int r = 0; r < sequence; ++r) tokens += static_cast<std::size_t>(length(r));
    return tokens;
  }
  std::vector<int> prompt_of(int sequence) const {
    std::vector<int> tokens;
    for (int i = 0; i < length(sequence); ++i) {
      const auto at = static_cast<std::size_t>(i);
      tokens.push_back(sequence < requests_ ? prompts_.host(first_of(sequence) + at) : prompt_tokens_.host(at));
    }
    return tokens;
  }
  void fill(std::span<int> tokens, std::uint64_t seed, int first, int end) const {
    std::size_t at = 0;
    for (int r = first; r < end; ++r)
      for (int i = 0; i < length(r); ++i)
        tokens[at++] = Trace::token(seed, trace_[static_cast<std::size_t>(r)], i, model_.shape().vocabulary());
  }
  int pages_in_all() const {
    int pages = pages_for(prompt_);
    for (int r = 0; r < requests_; ++r) pages += pages_for(length(r) + decode_steps);
    return pages;
  }
  void fill_table(std::span<int> entries) {
    for (int r = 0; r <= requests_; ++r) table_.grow(r, r < requests_ ? length(r) + decode_steps : prompt_);
    std::ranges::copy(table_.entries(), entries.begin());
  }
  std::size_t layer_elements() const {
    return static_cast<std::size_t>(pages_in_all() * page_rows) * static_cast<std::size_t>(model_.shape().kv_columns());
  }
  Places places() const {
    const Shape& s = model_.shape();
    return {k_, v_, entries_, table_.stride(), s.kv_heads, s.head_size, s.layers, layer_elements()};
  }
  Step<Cache> step(const Batch& batch) const {
    const Shape& s = model_.shape();
    const auto head = static_cast<std::size_t>(s.head_size * page_rows);
    return {model_.model(),
            batch,
            {k_, v_, static_cast<std::size_t>(s.head_size), head, head * static_cast<std::size_t>(s.kv_heads), entries_,
             table_.stride()},
            layer_elements(),
            next_};
  }
  int most_steps() const { return decode_steps + 2 + (prompt_ + chunk_ - 1) / chunk_; }
  int most_rows() const { return prompt_ + requests_; }

  void serve(Launch& launch, Plan plan) {
    std::vector<int> all(static_cast<std::size_t>(requests_));
    std::iota(all.begin(), all.end(), 0);
    launch.tokens(all);  // of the step before this run: what follows is a gap
    bool waits = true;
    for (const auto& planned : steps_.at(plan)) {
      planned->graph.launch(launch.stream);
      if (planned->decodes) {
        launch.tokens(all);
        if (std::exchange(waits, false)) launch.mark("first_gap");
      }
      if (!planned->ends_prompt) continue;
      launch.token(requests_);
      launch.mark("prompt_first_token");
    }
    if (plan != alone) launch(gather_kernel, {static_cast<unsigned>(prompt_), 256}, places(), requests_, kv_.get());
  }
  // Prefills the decoding requests, in steps of at most 2048 rows.
  void prefill(Launch& launch) {
    const Shape& s = model_.shape();
    for (int first = 0; first < requests_;) {
      std::vector<Span> spans;
      int rows = 0, begin = first;
      for (; first < requests_ && rows + length(first) <= 2048; rows += length(first++))
        spans.push_back({first, 0, length(first)});
      const Batch batch = alone_.upload(launch.stream, s, Arranged{s, spans});
      check(cudaMemcpyAsync(batch.tokens, prompts_.get() + first_of(begin), static_cast<std::size_t>(rows) * sizeof(int),
                            cudaMemcpyDeviceToDevice, launch.stream));
      run(step(batch), launch.stream);
      check(cudaMemcpyAsync(first_inputs_ + begin, next_, static_cast<std::size_t>(first - begin) * sizeof(int),
                            cudaMemcpyDeviceToDevice, launch.stream));
    }
  }
  // A step of a plan: the decode rows and `tokens` of the prompt; either may be left out (-1, 0).
  void add_step(Launch& launch, Plan plan, int decode_step, int first, int tokens) {
    const Shape& s = model_.shape();
    std::vector<Span> spans;
    const int decodes = decode_step >= 0 ? requests_ : 0;
    for (int r = 0; r < decodes; ++r) spans.push_back({r, length(r) + decode_step, 1});
    const bool ends = tokens > 0 && first + tokens == prompt_;
    if (tokens > 0) spans.push_back({requests_, first, tokens, ends});
    const Arranged arranged{s, spans};
    // Each step has rows of its own in device memory.
    auto& steps = steps_.at(plan);
    int* const memory =
        step_memory_ + (static_cast<std::size_t>(plan * most_steps()) + steps.size()) * BatchMemory::words(most_rows());
    const Batch batch = BatchMemory::upload(launch.stream, s, arranged, memory, most_rows());
    model_.tune(*lt_, launch.stream, batch.rows, std::max(batch.chosen, 1));
    auto planned = std::make_unique<PlannedStep>();
    planned->decodes = decodes > 0, planned->ends_prompt = ends;
    planned->graph.capture(launch.stream, [&](cudaStream_t stream) {
      launch_kernel(stream, take_kernel, {1, 1024}, current_.get(), decodes, prompt_tokens_.get() + first, batch.tokens,
                    batch.rows);
      run(step(batch), stream);
      launch_kernel(stream, keep_kernel, {1, 1024}, next_.get(), current_.get(), tokens_ + std::max(decode_step, 0) * requests_,
                    decodes, first_token_.get(), ends ? decodes : -1);
      if (decode_step == decode_steps - 1)
        check(cudaMemcpyAsync(states_, model_.model().workspace.chosen, states_.bytes(), cudaMemcpyDeviceToDevice, stream));
    });
    steps.push_back(std::move(planned));
  }
  // Decode steps, and the prompt in chunks: before them, in them, between them or not at all.
  void prepare(Launch& launch, Plan plan, int chunk) {
    model_.clear(launch.stream);
    std::vector<int> written;
    for (int r = 0; r <= requests_; ++r) written.push_back(r < requests_ ? length(r) : 0);
    for (int r = 0; r <= requests_; ++r) written.push_back(r < requests_ ? decode_steps : prompt_);
    check(cudaMemcpyAsync(written_, written.data(), written_.bytes(), cudaMemcpyHostToDevice, launch.stream));
    prefill(launch);
    check(cudaStreamSynchronize(launch.stream));
    steps_.at(plan).clear();
    int done = chunk > 0 ? 0 : prompt_;
    const auto add = [&](int decode_step, bool with_prompt) {
      const int tokens = with_prompt ? std::min(chunk, prompt_ - done) : 0;
      add_step(launch, plan, decode_step, done, tokens);
      done += tokens;
    };
    if (plan == prompt_first) add(-1, true);
    for (int i = 0; i < decode_steps; ++i) {
      if (plan == apart && done < prompt_) add(-1, true);
      add(i, plan != apart && done < prompt_);
    }
    while (done < prompt_) add(-1, true);
  }

  int requests_, prompt_, chunk_;
  Buffers model_;
  Opened<CublasLt> lt_;
  Opened<Cublas> cublas_;
  BatchMemory alone_;
  std::vector<Request> trace_;  // after the decoding requests the one whose prompt is to be computed
  Input<int> prompts_, prompt_tokens_;
  PageAllocator pages_;
  PageTable table_;
  Input<int> entries_;
  Scratch<bf16> k_, v_;
  Output<int> tokens_;
  Output<bf16> states_;
  Output<int> first_token_;
  Output<bf16> kv_;
  Scratch<int> next_, first_inputs_, current_, written_, step_memory_;
  std::array<std::vector<std::unique_ptr<PlannedStep>>, plans> steps_;
  std::vector<int> expected_tokens_;
  std::vector<double> expected_states_, expected_kv_;
  int expected_first_ = 0;
};

}  // namespace

extern constinit const Pair chunked_prefill{
    .teaches =
        "chunks of a prompt that join the decode rows use weights that are read anyway, and no request waits for a whole prompt",
    .lesson = "riding_chunks",
    .make = make<ChunkedPrefill>,
    .baseline = {.name = "prompt_first",
                 .run = call<&ChunkedPrefill::prompt_before>,
                 .prepare = call<&ChunkedPrefill::prepare_first>,
                 .reset = call<&ChunkedPrefill::reset>},
    .optimized = variants({{.name = "riding_chunks",
                            .run = call<&ChunkedPrefill::riding_chunks>,
                            .prepare = call<&ChunkedPrefill::prepare_chunks>,
                            .reset = call<&ChunkedPrefill::reset>,
                            .same_bits_as = "prompt_first"},
                           {.name = "larger_chunks",
                            .run = call<&ChunkedPrefill::larger_chunks>,
                            .prepare = call<&ChunkedPrefill::prepare_larger>,
                            .reset = call<&ChunkedPrefill::reset>,
                            .same_bits_as = "prompt_first"}}),
    // Chunks without riding along; and decoding without a prompt: what the ride costs.
    .controls = variants({{.name = "chunks_apart",
                           .run = call<&ChunkedPrefill::chunks_apart>,
                           .prepare = call<&ChunkedPrefill::prepare_apart>,
                           .reset = call<&ChunkedPrefill::reset>,
                           .same_bits_as = "prompt_first"},
                          {.name = "decode_alone",
                           .run = call<&ChunkedPrefill::decode_alone>,
                           .prepare = call<&ChunkedPrefill::prepare_alone>,
                           .reset = call<&ChunkedPrefill::reset>,
                           .outputs = no_outputs}}),
    .bound = Bound::memory,
    // Tokens are those of each request alone. States, keys and values are rounded to bf16 some ten times on their way.
    .tolerance = per_output({exact, within(1.2e-2), exact, within(8e-3)}),
    .needs = {.min_sm = 90, .libraries = {Library::cublas, Library::cublaslt}},
    .judged_by = "first_gap",  // the wait for the next tokens when the prompt has arrived
    .sizes = sizes({{.name = "requests", .full = 64, .most = 256, .scales = false},
                    {.name = "prompt", .full = 2048, .most = 4096, .scales = false},
                    {.name = "chunk", .full = 64, .most = 4096, .scales = false},
                    option("narrow"),
                    option("planted")}),
    .sweep = cases({{"chunk_16", "chunk=16"},
                    {"chunk_64", "chunk=64"},
                    {"chunk_192", "chunk=192"},
                    {"chunk_448", "chunk=448"},
                    {"chunk_960", "chunk=960"},
                    {"chunk_2048", "chunk=2048"}}),
    .edges = cases({{"last_chunk_of_one", "prompt=257,requests=5,narrow=1"},
                    {"chunk_ends_in_page", "prompt=300,chunk=37,requests=16,narrow=1,planted=1"}}),
    .reference_samples = 2048,
};

}  // namespace aisp::ch16
