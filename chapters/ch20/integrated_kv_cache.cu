// SPDX-License-Identifier: Apache-2.0
// Generating eight tokens for 32 sequences. The simple loop concatenates each step's keys and values to the cache, which copies
// all of it, launches kernel by kernel and asks the device after every token whether all sequences have ended.
#include <aisp/graph.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <vector>

#include "decoder/alone.hpp"
#include "decoder/cache_rows.cuh"
#include "decoder/model.hpp"
#include "decoder/pages.hpp"
#include "generate_loop.cuh"

namespace aisp::ch20 {
namespace {

using namespace decoder;
using attention::ContiguousCache;

constexpr int steps = 8;

// The rows of each head of each sequence (blockIdx.y), `past` pieces of 16 bytes at a distance of `from_pitch`, to another one.
constexpr unsigned copy_threads = 256, pieces_per_thread = 4, copy_block = copy_threads * pieces_per_thread;
__global__ __launch_bounds__(copy_threads) void grow_kernel(const uint4* from, uint4* to, unsigned past, unsigned from_pitch,
                                                            unsigned to_pitch) {
  const uint4* const source = from + std::size_t{blockIdx.y} * from_pitch;
  uint4* const target = to + std::size_t{blockIdx.y} * to_pitch;
  const unsigned first = blockIdx.x * copy_block + threadIdx.x;
  uint4 pieces[pieces_per_thread];
#pragma unroll
  for (unsigned k = 0; k < pieces_per_thread; ++k)
    if (first + k * copy_threads < past) pieces[k] = source[first + k * copy_threads];
#pragma unroll
  for (unsigned k = 0; k < pieces_per_thread; ++k)
    if (first + k * copy_threads < past) target[first + k * copy_threads] = pieces[k];
}
class IntegratedKvCache final : public Workload {
 public:
  explicit IntegratedKvCache(Setup& setup)
      : batch_{static_cast<int>(setup.shape(setup.size("batch"), std::min<std::size_t>(setup.size("batch"), 6)))},
        context_{static_cast<int>(setup.shape(setup.size("context"), std::min<std::size_t>(setup.size("context"), 100)))},
        longest_{static_cast<int>(setup.size("longest"))},
        model_{setup,
               setup.shape(1, 0) == 1 ? layers_of_8b(4, 32000) : narrow(2, 128, 1000),
               {.rows = prefill_rows + batch_, .chosen = batch_, .positions = capacity(), .split_rows = batch_ + prefill_rows}},
        lt_{setup},
        cublas_{setup},
        memory_{setup, prefill_rows + batch_},
        alone_{setup, context_ + 1 + prefill_rows},
        prompts_{setup.input<int>(static_cast<std::size_t>(batch_ * (context_ + 1)), integers(0, model_.shape().vocabulary() - 1),
                                  {.name = "prompts", .constant = true})},
        contexts_{setup.input<int>(static_cast<std::size_t>(batch_), HostFill<int>{[this](std::span<int> to, std::uint64_t) {
                                     for (int s = 0; s < batch_; ++s) to[static_cast<std::size_t>(s)] = context(s);
                                   }},
                                   {.name = "contexts", .constant = true})},
        lengths_{setup.input<int>(static_cast<std::size_t>(batch_), HostFill<int>{[this](std::span<int> to, std::uint64_t) {
                                    for (int s = 0; s < batch_; ++s) to[static_cast<std::size_t>(s)] = length(s);
                                  }},
                                  {.name = "output lengths", .constant = true})},
        first_inputs_{setup.input<int>(static_cast<std::size_t>(batch_), integers(0, model_.shape().vocabulary() - 1),
                                       {.name = "first inputs"})},
        tokens_{setup.output<int>(static_cast<std::size_t>(steps * batch_), {.name = "tokens"})},
        states_{setup.output<bf16>(static_cast<std::size_t>(steps * batch_) * static_cast<std::size_t>(model_.shape().hidden),
                                   {.name = "states"})},
        k_{setup.scratch<bf16>(layer_elements(capacity()) * layers(), {.name = "keys"})},
        v_{setup.scratch<bf16>(k_.size(), {.name = "values"})},
        pages_k_{setup.scratch<bf16>(static_cast<std::size_t>(batch_ * pages_for(capacity()) * page_rows) * columns() * layers(),
                                     {.name = "pages of keys"})},
        pages_v_{setup.scratch<bf16>(pages_k_.size(), {.name = "pages of values"})},
        allocator_{batch_ * pages_for(capacity()), 20},
        table_{allocator_, batch_, pages_for(capacity())},
        entries_{setup.input<int>(table_.entries().size(), HostFill<int>{[this](std::span<int> to, std::uint64_t) {
                                    for (int s = 0; s < batch_; ++s) table_.grow(s, capacity());
                                    std::ranges::copy(table_.entries(), to.begin());
                                  }},
                                  {.name = "page table", .constant = true})},
        next_{setup.scratch<int>(static_cast<std::size_t>(batch_))},
        first_positions_{setup.scratch<int>(static_cast<std::size_t>(batch_))},
        written_{setup.scratch<int>(static_cast<std::size_t>(2 * batch_))},
        left_{setup.scratch<int>(1)},
        flag_{setup.scratch<int>(2, {.memory = Memory::pinned})},
        events_{setup.event(), setup.event()} {
    keep_freed_memory(setup.device_ordinal(0));
  }

  // Weights and each sequence's keys and values, every step.
  Cost cost() const override {
    const Shape& s = model_.shape();
    double keys = 0;
    for (int r = 0; r < batch_; ++r)
      for (int step = 0; step < longest_; ++step) keys += context(r) + step + 1;
    return {.flops = 2.0 * longest_ * batch_ * s.weights() + 4 * keys * s.q_columns() * s.layers,
            .math = Math::bf16,
            .bytes = longest_ * 2.0 * s.weights() + keys * s.kv_bytes() * s.layers};
  }

  // At the check shape: each sequence alone, and float64 on the tokens that it then chooses.
  void compute_reference(Launch& launch) override {
    const Shape& s = model_.shape();
    expected_tokens_.assign(tokens_.size(), -1);
    expected_states_.assign(states_.size(), 0);
    for (int r = 0; r < batch_; ++r) {
      std::vector<int> prompt;
      for (int i = 0; i < context(r); ++i) prompt.push_back(prompts_.host(static_cast<std::size_t>(r * (context_ + 1) + i)));
      prompt.push_back(first_inputs_.host(static_cast<std::size_t>(r)));
      std::vector<int> all = generate_alone(
          launch.stream, s, alone_, next_, [this](const Batch& batch) { return step(batch); }, r, std::move(prompt), length(r));
      for (int i = 0; i < length(r); ++i)
        expected_tokens_[static_cast<std::size_t>(i * batch_ + r)] = all[static_cast<std::size_t>(context(r) + 1 + i)];
      all.pop_back();
      const int count = static_cast<int>(all.size());
      const auto results = reference::forward(*cublas_, launch.stream, s, model_.weights(), all, {&count, 1});
      for (int i = 0; i < length(r); ++i)
        std::copy_n(results.normed.begin() + static_cast<std::ptrdiff_t>(context(r) + i) * s.hidden, s.hidden,
                    expected_states_.begin() + static_cast<std::ptrdiff_t>(i * batch_ + r) * s.hidden);
    }
  }
  double expected_output(int output, std::size_t i) const override {
    return output == 0 ? expected_tokens_[i] : expected_states_[i];
  }

  void prepare(Launch& launch) {
    model_.clear(launch.stream);
    model_.tune(*lt_, launch.stream, batch_, batch_);
    model_.tune(*lt_, launch.stream, prefill_rows, 1);
    prefill(launch.stream);
  }
  void prepare_graph(Launch& launch) {
    prepare(launch);
    graph_.capture(launch.stream, [this](cudaStream_t stream) { queue_step(stream, step(decode_)); });
  }
  void prepare_pages(Launch& launch) {
    prepare(launch);
    const Step<attention::PagedCache<page_rows>> to = paged_step(decode_);
    launch(copy_rows_kernel<ContiguousCache, attention::PagedCache<page_rows>>,
           {dim3{static_cast<unsigned>(context_ + 1), static_cast<unsigned>(batch_)}, 256}, step(decode_), to, contexts_.get());
    paged_graph_.capture(launch.stream, [&](cudaStream_t stream) { queue_step(stream, to); });
  }
  // Before each execution: the sequences end where their prompts do, and what is to be written is NaN.
  void reset(Launch& launch) {
    launch(poison_kernel<ContiguousCache>, {dim3{steps, static_cast<unsigned>(batch_)}, 256}, step(decode_), written_.get(),
           written_ + batch_);
    rewind(launch.stream);
  }
  void reset_pages(Launch& launch) {
    launch(poison_kernel<attention::PagedCache<page_rows>>, {dim3{steps, static_cast<unsigned>(batch_)}, 256},
           paged_step(decode_), written_.get(), written_ + batch_);
    rewind(launch.stream);
  }

  void concatenate(Launch& launch) { grow_by_copies(launch, true); }
  void no_questions(Launch& launch) { grow_by_copies(launch, false); }
  void in_place(Launch& launch) {
    begin(launch);
    for (int i = 0; i < steps; ++i) {
      queue_step(launch.stream, step(decode_));
      launch.tokens(running(i));
      if (ask(launch.stream)) return;
    }
  }
  void device_stop(Launch& launch) {
    begin(launch);
    ask_late(launch, [&] { queue_step(launch.stream, step(decode_)); });
  }
  void step_graph(Launch& launch) {
    begin(launch);
    ask_late(launch, [&] { graph_.launch(launch.stream); });
  }
  void paged_graph(Launch& launch) {
    begin(launch);
    ask_late(launch, [&] { paged_graph_.launch(launch.stream); });
  }

 private:
  static constexpr int prefill_rows = 512;
  int capacity() const { return context_ + 1 + steps; }
  // Around a page's border.
  int context(int sequence) const { return std::max(context_ - 1 + sequence % 3, 1); }
  // The first sequence ends at its first token, the last one at the last, two more in the same step; others anywhere.
  int length(int sequence) const {
    if (sequence == batch_ - 1) return longest_;
    const std::array planted{1, 3, 3};
    return std::min(longest_, sequence < 3
                                  ? planted.at(static_cast<std::size_t>(sequence))
                                  : 1 + static_cast<int>(random_bits(0x15A3, static_cast<std::uint64_t>(sequence)) % steps));
  }
  std::size_t columns() const { return static_cast<std::size_t>(model_.shape().kv_columns()); }
  std::size_t layers() const { return static_cast<std::size_t>(model_.shape().layers); }
  std::size_t layer_elements(int rows) const {
    return static_cast<std::size_t>(batch_) * static_cast<std::size_t>(rows) * columns();
  }
  std::vector<int> running(int step) const {
    std::vector<int> sequences;
    for (int s = 0; s < batch_; ++s)
      if (step < length(s)) sequences.push_back(s);
    return sequences;
  }
  ContiguousCache cache(const bf16* k, const bf16* v, int rows) const {
    const auto head_size = static_cast<std::size_t>(model_.shape().head_size), head = head_size * static_cast<std::size_t>(rows);
    return {k, v, head_size, head, head * static_cast<std::size_t>(model_.shape().kv_heads)};
  }
  // Without early starts: none of the steps is about these.
  Step<ContiguousCache> step(const Batch& batch) const {
    return {model_.model(), batch, cache(k_, v_, capacity()), layer_elements(capacity()), next_, false, false};
  }
  Step<attention::PagedCache<page_rows>> paged_step(const Batch& batch) const {
    const auto head_size = static_cast<std::size_t>(model_.shape().head_size), head = head_size * page_rows;
    return {model_.model(),
            batch,
            {pages_k_, pages_v_, head_size, head, head * static_cast<std::size_t>(model_.shape().kv_heads), entries_,
             table_.stride()},
            pages_k_.size() / layers(),
            next_,
            false,
            false};
  }

  void prefill(cudaStream_t stream) {
    const Shape& s = model_.shape();
    std::vector<int> positions, written;
    std::vector<Span> spans;
    for (int r = 0; r < batch_; ++r) {
      for (int first = 0; first < context(r); first += prefill_rows) {
        const std::array span{Span{r, first, std::min(prefill_rows, context(r) - first)}};
        const Batch batch = memory_.upload(stream, s, Arranged{s, span});
        check(cudaMemcpyAsync(batch.tokens, prompts_.get() + r * (context_ + 1) + first,
                              static_cast<std::size_t>(span[0].tokens) * sizeof(int), cudaMemcpyDeviceToDevice, stream));
        run(step(batch), stream);
      }
      spans.push_back({r, context(r), 1});
      written.push_back(context(r));
    }
    written.insert(written.end(), static_cast<std::size_t>(batch_), steps);
    check(cudaMemcpyAsync(written_, written.data(), written_.bytes(), cudaMemcpyHostToDevice, stream));
    decode_ = memory_.upload(stream, s, Arranged{s, spans});
    decode_.most_pieces = (capacity() + piece_keys - 1) / piece_keys;
    check(cudaMemcpyAsync(first_positions_, decode_.positions, first_positions_.bytes(), cudaMemcpyDeviceToDevice, stream));
    check(cudaStreamSynchronize(stream));
  }
  void rewind(cudaStream_t stream) {
    check(cudaMemcpyAsync(decode_.positions, first_positions_, first_positions_.bytes(), cudaMemcpyDeviceToDevice, stream));
    left_of_ = batch_;
    check(cudaMemcpyAsync(left_, &left_of_, sizeof(int), cudaMemcpyHostToDevice, stream));
    check(cudaStreamSynchronize(stream));
  }
  void begin(Launch& launch) {
    flag_[0] = 0;
    check(cudaMemsetAsync(tokens_, 0xff, tokens_.bytes(), launch.stream));  // after a sequence's end there is none
    check(cudaMemsetAsync(states_, 0, states_.bytes(), launch.stream));
    check(cudaMemcpyAsync(decode_.tokens, first_inputs_, first_inputs_.bytes(), cudaMemcpyDeviceToDevice, launch.stream));
  }

  void keep(cudaStream_t stream) const {
    launch_kernel(stream, keep_kernel, {static_cast<unsigned>(batch_), keep_threads},
                  Kept{decode_.tokens, decode_.positions, next_, contexts_, lengths_, model_.model().workspace.chosen, tokens_,
                       states_, left_, model_.shape().hidden, flag_});
  }
  template <class AnyStep>
  void queue_step(cudaStream_t stream, const AnyStep& of) const {
    run(of, stream);
    keep(stream);
  }
  // The host waits for the step and reads whether all have ended.
  bool ask(cudaStream_t stream) {
    check(cudaMemcpyAsync(flag_ + 1, left_, sizeof(int), cudaMemcpyDeviceToHost, stream));
    check(cudaStreamSynchronize(stream));
    return static_cast<volatile int*>(flag_.get())[1] == 0;
  }
  // The host reads the flag of the step before the one that runs.
  template <class Queue>
  void ask_late(Launch& launch, const Queue& queue) {
    for (int i = 0; i < steps; ++i) {
      queue();
      launch.tokens(running(i));
      check(cudaEventRecord(events_.at(static_cast<std::size_t>(i % 2)), launch.stream));
      if (i > 0) check(cudaEventSynchronize(events_.at(static_cast<std::size_t>((i - 1) % 2))));
      if (static_cast<volatile int*>(flag_.get())[0] == 1) return;
    }
  }
  // As torch.cat does for each layer: room for one row more, the rows so far, the new one.
  void grow_by_copies(Launch& launch, bool asks) {
    begin(launch);
    const Shape& s = model_.shape();
    std::vector<std::array<bf16*, 2>> grown(layers());
    const auto row_pieces = static_cast<unsigned>(s.head_size / 8);
    for (int i = 0; i < steps; ++i) {
      const int rows = context_ + 1 + i;  // of the longest sequence
      Step<ContiguousCache> now = step(decode_);
      now.layer_elements = 0;
      now.embed(launch.stream);
      for (int layer = 0; layer < s.layers; ++layer) {
        std::array<bf16*, 2>& own = grown[static_cast<std::size_t>(layer)];
        std::array<bf16*, 2> longer{};
        now.project(launch.stream, layer);
        for (std::size_t side = 0; side < 2; ++side) {
          check(cudaMallocAsync(&longer[side], layer_elements(rows + 1) * sizeof(bf16), launch.stream));
          const bf16* const from =
              i > 0 ? own[side] : (side == 0 ? k_ : v_).get() + static_cast<std::size_t>(layer) * layer_elements(capacity());
          const unsigned past = row_pieces * static_cast<unsigned>(rows);
          launch(grow_kernel,
                 {dim3{(past + copy_block - 1) / copy_block, static_cast<unsigned>(batch_ * s.kv_heads)}, copy_threads},
                 reinterpret_cast<const uint4*>(from), reinterpret_cast<uint4*>(longer[side]), past,
                 i > 0 ? past : row_pieces * static_cast<unsigned>(capacity()), past + row_pieces);
          if (i > 0) check(cudaFreeAsync(own[side], launch.stream));
        }
        own = longer;
        now.cache = cache(own[0], own[1], rows + 1);
        now.append(launch.stream, layer);
        now.attend(launch.stream, layer);
        now.finish(launch.stream, layer);
      }
      now.choose(launch.stream);
      keep(launch.stream);
      launch.tokens(running(i));
      if (asks && ask(launch.stream)) break;
    }
    for (const auto& own : grown)
      for (bf16* side : own) check(cudaFreeAsync(side, launch.stream));
  }

  int batch_, context_, longest_;
  Buffers model_;
  Opened<CublasLt> lt_;
  Opened<Cublas> cublas_;
  BatchMemory memory_, alone_;
  Input<int> prompts_, contexts_, lengths_, first_inputs_;
  Output<int> tokens_;
  Output<bf16> states_;
  Scratch<bf16> k_, v_, pages_k_, pages_v_;
  PageAllocator allocator_;
  PageTable table_;
  Input<int> entries_;
  Scratch<int> next_, first_positions_, written_, left_, flag_;
  std::array<cudaEvent_t, 2> events_;
  Graph graph_, paged_graph_;
  Batch decode_;
  int left_of_ = 0;
  std::vector<int> expected_tokens_;
  std::vector<double> expected_states_;
};

}  // namespace

extern constinit const Pair integrated_kv_cache{
    .teaches = "a cache that grows by copying costs a generate loop far more than asking the host after every token",
    .lesson = "in_place",
    .make = make<IntegratedKvCache>,
    .baseline = {.name = "concatenate",
                 .run = call<&IntegratedKvCache::concatenate>,
                 .prepare = call<&IntegratedKvCache::prepare>,
                 .reset = call<&IntegratedKvCache::reset>},
    .optimized = variants({{.name = "in_place",
                            .run = call<&IntegratedKvCache::in_place>,
                            .prepare = call<&IntegratedKvCache::prepare>,
                            .reset = call<&IntegratedKvCache::reset>,
                            .same_bits_as = "concatenate"},
                           {.name = "device_stop",
                            .run = call<&IntegratedKvCache::device_stop>,
                            .prepare = call<&IntegratedKvCache::prepare>,
                            .reset = call<&IntegratedKvCache::reset>,
                            .same_bits_as = "concatenate"},
                           {.name = "step_graph",
                            .run = call<&IntegratedKvCache::step_graph>,
                            .prepare = call<&IntegratedKvCache::prepare_graph>,
                            .reset = call<&IntegratedKvCache::reset>,
                            .same_bits_as = "concatenate"}}),
    // The copies without the questions; and what pages cost beside contiguous keys.
    .controls = variants({{.name = "no_questions",
                           .run = call<&IntegratedKvCache::no_questions>,
                           .prepare = call<&IntegratedKvCache::prepare>,
                           .reset = call<&IntegratedKvCache::reset>,
                           .same_bits_as = "concatenate"},
                          {.name = "paged_graph",
                           .run = call<&IntegratedKvCache::paged_graph>,
                           .prepare = call<&IntegratedKvCache::prepare_pages>,
                           .reset = call<&IntegratedKvCache::reset_pages>,
                           .same_bits_as = "concatenate"}}),
    .bound = Bound::memory,
    // Tokens are those of each sequence alone. States are rounded to bf16 some ten times on their way.
    .tolerance = per_output({exact, within(1.2e-2)}),
    .needs = {.min_sm = 90, .libraries = {Library::cublas, Library::cublaslt}, .attributes = {cudaDevAttrMemoryPoolsSupported}},
    .start = Start::immediate,  // the host decides between steps
    .verification = Verification::small_shape,
    .sizes = sizes({{.name = "batch", .full = 32, .most = 64, .scales = false},
                    {.name = "context", .full = 2048, .most = 8192, .scales = false},
                    {.name = "longest", .full = 8, .most = steps, .scales = false}}),
    .sweep = cases({{"context_128", "context=128"},
                    {"context_2048", "context=2048"},
                    {"context_8192", "context=8192"},
                    {"one_sequence", "batch=1"}}),
    .edges = cases({{"ends_early", "longest=3,context=40,batch=5"}, {"one_token", "longest=1,context=15,batch=3"}}),
};

}  // namespace aisp::ch20
