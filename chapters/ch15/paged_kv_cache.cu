// SPDX-License-Identifier: Apache-2.0
// How many requests decode together is decided by how their cache is reserved. Slots of the longest length that a request may
// have hold few of them, most of it empty, so that weights are read for few tokens; pages are taken as a sequence grows, and all
// requests fit. Prompts are in the cache already: each wave of slots has memory of its own, of which a run uses one wave at a
// time.
#include <aisp/graph.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <vector>

#include "decoder/alone.hpp"
#include "decoder/cache_rows.cuh"
#include "decoder/model.hpp"
#include "decoder/pages.hpp"
#include "decoder/trace.hpp"

namespace aisp::ch15 {
namespace {

using namespace decoder;
using attention::ContiguousCache;
using Pages = attention::PagedCache<page_rows>;

constexpr int outputs = 8, budget_tokens = 65536, most_requests = 128, prefill_rows = 2048;

// Slots of different lengths, one after the other: [head][rows][head_size] each.
struct ExactSlots {
  const bf16 *k, *v;
  const int *begins, *rows;  // of each sequence, in tokens
  int columns, head_size;
  __device__ __forceinline__ std::size_t at(int sequence, int head, int row) const {
    return static_cast<std::size_t>(begins[sequence]) * columns +
           (static_cast<std::size_t>(head) * rows[sequence] + row) * head_size;
  }
};

// Pages that sequences have been given since the last step.
struct Grown {
  int count, at[most_requests], page[most_requests];
};
__global__ void grow_kernel(Grown grown, int* table) {
  if (static_cast<int>(threadIdx.x) < grown.count) table[grown.at[threadIdx.x]] = grown.page[threadIdx.x];
}
// A wave begins: its rows take their first tokens and go back to the ends of their prompts.
__global__ void begin_kernel(Batch batch, const int* first_inputs, const int* contexts) {
  const int row = static_cast<int>(threadIdx.x), request = batch.sequences[row];
  batch.tokens[row] = first_inputs[request];
  batch.positions[row] = contexts[request];
}
// Behind a step, which has moved positions on: tokens are kept, and of the last step the states. A block to each row.
__global__ void keep_kernel(Batch batch, const bf16* chosen, const int* contexts, int* tokens, bf16* states, int hidden) {
  const int row = static_cast<int>(blockIdx.x), request = batch.sequences[row],
            step = batch.positions[row] - contexts[request] - 1;
  if (threadIdx.x == 0) tokens[request * outputs + step] = batch.tokens[row];
  if (step < outputs - 1) return;
  for (int i = static_cast<int>(threadIdx.x); i < hidden; i += static_cast<int>(blockDim.x))
    states[static_cast<std::size_t>(request) * hidden + i] = chosen[static_cast<std::size_t>(row) * hidden + i];
}

class PagedKvCache final : public Workload {
 public:
  explicit PagedKvCache(Setup& setup)
      : limit_{static_cast<int>(setup.size("limit"))},
        contexts_of_{contexts(static_cast<int>(setup.size("requests")), setup.size("planted") == 1 ? 0 : Trace::planted)},
        requests_{static_cast<int>(contexts_of_.size())},
        model_{setup,
               setup.size("narrow") == 1 ? narrow(2) : layers_of_8b(2),
               {.rows = prefill_rows, .chosen = requests_, .positions = limit_, .split_rows = 640}},
        lt_{setup},
        cublas_{setup},
        memory_{setup, prefill_rows},
        prompts_{setup.input<int>(static_cast<std::size_t>(first_of(requests_)),
                                  HostFill<int>{[this](std::span<int> tokens, std::uint64_t seed) { fill(tokens, seed); }},
                                  {.name = "prompts", .constant = true})},
        contexts_{setup.input<int>(static_cast<std::size_t>(requests_), HostFill<int>{[this](std::span<int> to, std::uint64_t) {
                                     std::ranges::copy(contexts_of_, to.begin());
                                   }},
                                   {.name = "contexts", .constant = true})},
        first_inputs_{setup.input<int>(static_cast<std::size_t>(requests_), integers(0, model_.shape().vocabulary() - 1),
                                       {.name = "first inputs"})},
        tokens_{setup.output<int>(static_cast<std::size_t>(requests_ * outputs), {.name = "tokens"})},
        states_{setup.output<bf16>(static_cast<std::size_t>(requests_ * model_.shape().hidden), {.name = "last states"})},
        slots_k_{setup.scratch<bf16>(2 * slot_elements(), {.name = "keys in slots"})},
        slots_v_{setup.scratch<bf16>(2 * slot_elements(), {.name = "values in slots"})},
        pages_k_{setup.scratch<bf16>(2 * budget_elements(), {.name = "pages of keys"})},
        pages_v_{setup.scratch<bf16>(2 * budget_elements(), {.name = "pages of values"})},
        exact_k_{setup.scratch<bf16>(2 * budget_elements(), {.name = "keys in exact slots"})},
        exact_v_{setup.scratch<bf16>(2 * budget_elements(), {.name = "values in exact slots"})},
        table_memory_{setup.scratch<int>(static_cast<std::size_t>(requests_ * pages_for(limit_)))},
        exact_{setup.scratch<int>(static_cast<std::size_t>(2 * requests_))},
        written_{setup.scratch<int>(static_cast<std::size_t>(2 * requests_))},
        next_{setup.scratch<int>(static_cast<std::size_t>(requests_))},
        wave_memory_{setup.scratch<int>(static_cast<std::size_t>(requests_ + 2) * BatchMemory::words(requests_))} {
    // Never fails after contexts(), but counts in the digest that is recorded.
    int tokens = 0;
    for (const int context : contexts_of_) tokens += pages_for(context + outputs) * page_rows;
    if (tokens > budget_tokens) throw Unsupported{"the requests' pages do not fit into the budget at once"};
  }

  // All requests in each step: their keys and values, and the weights once.
  Cost cost() const override {
    const Shape& s = model_.shape();
    double keys = 0;
    for (const int context : contexts_of_) keys += outputs * (context + (outputs + 1) / 2.0);
    return {.flops = 2.0 * requests_ * outputs * s.weights() + 4 * keys * s.q_columns() * s.layers,
            .math = Math::bf16,
            .bytes = outputs * 2.0 * s.weights() + keys * s.kv_bytes() * s.layers};
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    double used = 0, reserved = 0;
    for (const int context : contexts_of_) {
      used += context + outputs;
      reserved += variant == "slots_of_limit" ? limit_
                  : variant == "paged"        ? pages_for(context + outputs) * page_rows
                                              : context + outputs;
    }
    metrics.report("cache_use", 100 * used / reserved, "%", Metrics::Better::higher);
    metrics.report("together", variant == "slots_of_limit" ? slots() : requests_, "requests", Metrics::Better::higher);
  }

  // Each request alone, and float64 on the tokens that it then chooses.
  void compute_reference(Launch& launch) override {
    const Shape& s = model_.shape();
    expected_tokens_.clear();
    std::vector<std::vector<int>> sequences;
    for (int r = 0; r < requests_; ++r) {
      std::vector<int> prompt;
      for (int i = 0; i < context(r); ++i) prompt.push_back(prompts_.host(static_cast<std::size_t>(first_of(r) + i)));
      prompt.push_back(first_inputs_.host(static_cast<std::size_t>(r)));
      std::vector<int> all = generate_alone(
          launch.stream, s, memory_, next_, [this](const Batch& batch) { return in_slots(batch); }, r, std::move(prompt),
          outputs);
      expected_tokens_.insert(expected_tokens_.end(), all.end() - outputs, all.end());
      all.pop_back();
      sequences.push_back(std::move(all));
    }
    expected_states_ = reference::last_states(*cublas_, launch.stream, s, model_.weights(), sequences);
  }
  double expected_output(int output, std::size_t i) const override {
    return output == 0 ? expected_tokens_[i] : expected_states_[i];
  }

  void prepare_slots(Launch& launch) {
    prefill(launch);
    slot_waves_.clear();
    for (int first = 0; first < requests_; first += slots())
      add_wave(launch, slot_waves_, first, std::min(slots(), requests_ - first), 0,
               [this](const Batch& batch) { return in_slots(batch); });
  }
  void prepare_pages(Launch& launch) {
    prefill(launch);
    allocator_ = std::make_unique<PageAllocator>(budget_tokens / page_rows, 15);
    table_ = std::make_unique<PageTable>(*allocator_, requests_, pages_for(limit_));
    for (int r = 0; r < requests_; ++r) table_->grow(r, context(r));
    check(cudaMemcpyAsync(table_memory_, table_->entries().data(), table_->entries().size_bytes(), cudaMemcpyHostToDevice,
                          launch.stream));
    copy_prompts(launch, in_pages({}));
    page_wave_.clear();
    add_wave(launch, page_wave_, 0, requests_, requests_, [this](const Batch& batch) { return in_pages(batch); });
  }
  void prepare_exact(Launch& launch) {
    prefill(launch);
    std::vector<int> begins, rows;
    for (int r = 0; r < requests_; ++r) {
      begins.push_back(first_of(r) + r * outputs);
      rows.push_back(context(r) + outputs);
    }
    begins.insert(begins.end(), rows.begin(), rows.end());
    check(cudaMemcpyAsync(exact_, begins.data(), exact_.bytes(), cudaMemcpyHostToDevice, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
    copy_prompts(launch, in_exact_slots({}));
    exact_wave_.clear();
    add_wave(launch, exact_wave_, 0, requests_, requests_ + 1, [this](const Batch& batch) { return in_exact_slots(batch); });
  }
  // Sets what a run is to write to NaN; for pages, the rest of each sequence's last one.
  void reset_slots(Launch& launch) {
    poison(launch, in_slots({}), [](int) { return outputs; });
  }
  void reset_exact(Launch& launch) {
    poison(launch, in_exact_slots({}), [](int) { return outputs; });
  }
  void reset_pages(Launch& launch) {
    poison(launch, in_pages({}), [this](int r) { return std::min(outputs, pages_for(context(r)) * page_rows - context(r)); });
  }

  void slots_of_limit(Launch& launch) {
    for (const auto& wave : slot_waves_) serve(launch, *wave, [](int) {});
  }
  void exact_slots(Launch& launch) {
    serve(launch, *exact_wave_.front(), [](int) {});
  }
  // The host gives a page to each sequence that begins one, and takes them back in the end.
  void paged(Launch& launch) {
    serve(launch, *page_wave_.front(), [&](int step) {
      Grown grown{};
      for (int r = 0; r < requests_; ++r) {
        const int before = table_->count(r);
        table_->grow(r, context(r) + step + 1);
        if (table_->count(r) == before) continue;
        grown.at[grown.count] = r * table_->stride() + before;
        grown.page[grown.count++] = table_->page(r, before);
      }
      if (grown.count > 0) launch(grow_kernel, {1, most_requests}, grown, table_memory_.get());
    });
    for (int r = 0; r < requests_; ++r) table_->shrink(r, context(r));
  }

 private:
  struct Wave {
    Batch batch;
    Graph graph;
    std::vector<int> requests;
  };
  using Waves = std::vector<std::unique_ptr<Wave>>;

  static std::vector<int> contexts(int requests, int first) {
    const Trace trace{{512, 0.55, first == 0 ? 1 : 128, 1536}};
    std::vector<int> lengths;
    for (int i = 0; i < requests; ++i) lengths.push_back(std::min(trace.request(first + i).prompt, 1536));
    refuse_unless(Fit{lengths, outputs, budget_tokens / page_rows});
    return lengths;
  }
  int context(int request) const { return contexts_of_[static_cast<std::size_t>(request)]; }
  int first_of(int request) const { return std::accumulate(contexts_of_.begin(), contexts_of_.begin() + request, 0); }
  int slots() const { return std::min(budget_tokens / limit_, requests_); }
  std::size_t columns() const { return static_cast<std::size_t>(model_.shape().kv_columns()); }
  std::size_t slot_elements() const { return static_cast<std::size_t>(requests_ * limit_) * columns(); }
  std::size_t budget_elements() const { return budget_tokens * columns(); }
  void fill(std::span<int> tokens, std::uint64_t seed) const {
    for (int r = 0; r < requests_; ++r) {
      const Request request = Trace{{512, 0.55, 1, 1536}}.request(Trace::planted + r);
      for (int i = 0; i < context(r); ++i)
        tokens[static_cast<std::size_t>(first_of(r) + i)] = Trace::token(seed, request, i, model_.shape().vocabulary());
    }
  }

  template <class Cache>
  Step<Cache> step(const Batch& batch, const Cache& cache, std::size_t layer_elements) const {
    // Chosen tokens are the next step's, except of requests alone.
    return {model_.model(),
            batch,
            cache,
            layer_elements,
            batch.rows > 0 && batch.tokens != memory_.batch().tokens ? batch.tokens : next_.get(),
            batch.tokens != memory_.batch().tokens};
  }
  Step<ContiguousCache> in_slots(const Batch& batch) const {
    const auto head_size = static_cast<std::size_t>(model_.shape().head_size),
               head = head_size * static_cast<std::size_t>(limit_);
    return step(batch,
                ContiguousCache{slots_k_, slots_v_, head_size, head, head * static_cast<std::size_t>(model_.shape().kv_heads)},
                slot_elements());
  }
  Step<Pages> in_pages(const Batch& batch) const {
    const auto head_size = static_cast<std::size_t>(model_.shape().head_size), head = head_size * page_rows;
    return step(batch,
                Pages{pages_k_, pages_v_, head_size, head, head * static_cast<std::size_t>(model_.shape().kv_heads),
                      table_memory_, pages_for(limit_)},
                budget_elements());
  }
  Step<ExactSlots> in_exact_slots(const Batch& batch) const {
    return step(batch,
                ExactSlots{exact_k_, exact_v_, exact_, exact_ + requests_, model_.shape().kv_columns(), model_.shape().head_size},
                budget_elements());
  }

  void prefill(Launch& launch) {
    const Shape& s = model_.shape();
    model_.clear(launch.stream);
    model_.tune(*lt_, launch.stream, prefill_rows, 1);
    for (int first = 0; first < requests_;) {
      std::vector<Span> spans;
      int rows = 0;
      const int begin = first;
      for (; first < requests_ && rows + context(first) <= prefill_rows; rows += context(first++))
        spans.push_back({first, 0, context(first), false});
      const Batch batch = memory_.upload(launch.stream, s, Arranged{s, spans});
      check(cudaMemcpyAsync(batch.tokens, prompts_.get() + first_of(begin), static_cast<std::size_t>(rows) * sizeof(int),
                            cudaMemcpyDeviceToDevice, launch.stream));
      run(in_slots(batch), launch.stream);
    }
  }
  template <class Cache>
  void copy_prompts(Launch& launch, const Step<Cache>& to) {
    launch(copy_rows_kernel<ContiguousCache, Cache>, {dim3{1536, static_cast<unsigned>(requests_)}, 256}, in_slots({}), to,
           contexts_.get());
  }
  template <class Cache, class Count>
  void poison(Launch& launch, const Step<Cache>& step, const Count& count) {
    std::vector<int> written = contexts_of_;
    for (int r = 0; r < requests_; ++r) written.push_back(count(r));
    check(cudaMemcpyAsync(written_, written.data(), written_.bytes(), cudaMemcpyHostToDevice, launch.stream));
    launch(poison_kernel<Cache>, {dim3{outputs, static_cast<unsigned>(requests_)}, 256}, step, written_.get(),
           written_ + requests_);
  }
  // Requests that decode together, with rows at a place of their own in device memory.
  template <class Make>
  void add_wave(Launch& launch, Waves& waves, int first, int count, int place, const Make& make) {
    const Shape& s = model_.shape();
    std::vector<Span> spans;
    auto wave = std::make_unique<Wave>();
    for (int r = first; r < first + count; ++r) {
      spans.push_back({r, context(r) + outputs - 1, 1});  // the longest that its steps see
      wave->requests.push_back(r);
    }
    int* const memory =
        wave_memory_ + static_cast<std::size_t>(place + static_cast<int>(waves.size())) * BatchMemory::words(requests_);
    wave->batch = BatchMemory::upload(launch.stream, s, Arranged{s, spans}, memory, requests_);
    model_.tune(*lt_, launch.stream, count, count);
    wave->graph.capture(launch.stream, [&](cudaStream_t stream) {
      run(make(wave->batch), stream);
      launch_kernel(stream, keep_kernel, {static_cast<unsigned>(count), 256}, wave->batch, model_.model().workspace.chosen,
                    contexts_.get(), tokens_.get(), states_.get(), s.hidden);
    });
    waves.push_back(std::move(wave));
  }
  template <class Before>
  void serve(Launch& launch, const Wave& wave, const Before& before) {
    launch(begin_kernel, {1, static_cast<unsigned>(wave.requests.size())}, wave.batch, first_inputs_.get(), contexts_.get());
    for (int i = 0; i < outputs; ++i) {
      before(i);
      wave.graph.launch(launch.stream);
      launch.tokens(wave.requests);
    }
  }

  int limit_;
  std::vector<int> contexts_of_;
  int requests_;
  Buffers model_;
  Opened<CublasLt> lt_;
  Opened<Cublas> cublas_;
  BatchMemory memory_;
  Input<int> prompts_, contexts_, first_inputs_;
  Output<int> tokens_;
  Output<bf16> states_;
  Scratch<bf16> slots_k_, slots_v_, pages_k_, pages_v_, exact_k_, exact_v_;
  Scratch<int> table_memory_, exact_, written_, next_, wave_memory_;
  std::unique_ptr<PageAllocator> allocator_;
  std::unique_ptr<PageTable> table_;
  Waves slot_waves_, page_wave_, exact_wave_;
  std::vector<int> expected_tokens_;
  std::vector<double> expected_states_;
};

}  // namespace

extern constinit const Pair paged_kv_cache{
    .teaches =
        "slots of the limit stay mostly empty; pages admit more requests, and every read of the weights serves more tokens",
    .lesson = "paged",
    .make = make<PagedKvCache>,
    .baseline = {.name = "slots_of_limit",
                 .run = call<&PagedKvCache::slots_of_limit>,
                 .prepare = call<&PagedKvCache::prepare_slots>,
                 .reset = call<&PagedKvCache::reset_slots>},
    .optimized = variants({{.name = "paged",
                            .run = call<&PagedKvCache::paged>,
                            .prepare = call<&PagedKvCache::prepare_pages>,
                            .reset = call<&PagedKvCache::reset_pages>,
                            .same_bits_as = "slots_of_limit"}}),
    // Slots of the length that a request will have in the end, which only an oracle knows: as many requests, without pages.
    .controls = variants({{.name = "exact_slots",
                           .run = call<&PagedKvCache::exact_slots>,
                           .prepare = call<&PagedKvCache::prepare_exact>,
                           .reset = call<&PagedKvCache::reset_exact>,
                           .same_bits_as = "slots_of_limit"}}),
    .bound = Bound::memory,
    // Tokens are those of each request alone. States are rounded to bf16 some ten times on their way.
    .tolerance = per_output({exact, within(1.2e-2)}),
    .needs = {.min_sm = 90, .libraries = {Library::cublas, Library::cublaslt}},
    .start = Start::immediate,  // the host gives pages between steps
    .sizes = sizes({{.name = "limit", .full = 4096, .multiple = 16, .least = 1552, .most = 8192, .scales = false},
                    {.name = "requests", .full = 96, .most = most_requests, .scales = false},
                    option("narrow"),
                    option("planted")}),
    .sweep = cases(
        {{"limit_1552", "limit=1552"}, {"limit_2048", "limit=2048"}, {"limit_4096", "limit=4096"}, {"limit_8192", "limit=8192"}}),
    .edges = cases({{"around_pages", "requests=16,planted=1,narrow=1"}, {"one_request", "requests=1,narrow=1"}}),
    .reference_samples = 2048,
};

}  // namespace aisp::ch15
