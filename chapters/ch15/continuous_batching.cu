// SPDX-License-Identifier: Apache-2.0
// Requests of unknown length decode in a batch of 16 slots. A step reads all weights however many slots are still useful, and a
// static batch runs until its longest request ends. Refilled after every step, slots stay useful as long as requests wait. What
// has ended is read one step late in all variants, so that no step waits for the host; device_refill does not ask it at all.
#include <aisp/graph.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "decoder/alone.hpp"
#include "decoder/model.hpp"
#include "decoder/trace.hpp"

namespace aisp::ch15 {
namespace {

using namespace decoder;

constexpr int most_slots = 32, prompt_tokens = 32, most_outputs = 64, at_once = 8;  // at_once: prompts in a step of prefill

// The slots of a batch in device memory, and what becomes of their tokens.
struct Slots {
  int *tokens, *requests, *positions, *produced;  // [slot]: requests: -1 of one that idles
  const int *next, *lengths, *first_tokens;       // [slot], [request], [request]
  const bf16* chosen;                             // [slot][hidden]
  int* all_tokens;                                // [request][most_outputs]
  bf16* last_states;                              // [request][hidden]
  int hidden;
  volatile int* ended;  // pinned, [slot]: the request that ended there last
  // Of device_refill: the request that comes next and how many there are; of the others there is none.
  int *queue, *finished;
  volatile int* all_finished;  // pinned
  int count;
};
__device__ void admit(const Slots& slots, int slot, int request) {
  slots.requests[slot] = request;
  slots.positions[slot] = prompt_tokens;
  slots.produced[slot] = 0;
  slots.tokens[slot] = request >= 0 ? slots.first_tokens[request] : 0;
}
// Requests for slots; -2: the slot is left as it is.
struct Orders {
  int request[most_slots];
};
__global__ void admit_kernel(Slots slots, Orders orders) {
  if (threadIdx.x == 0 && blockIdx.x == 0 && slots.queue != nullptr)
    *slots.queue = static_cast<int>(blockDim.x), *slots.finished = 0;
  if (orders.request[threadIdx.x] != -2) admit(slots, static_cast<int>(threadIdx.x), orders.request[threadIdx.x]);
}
// Behind a step: each slot keeps its token and goes on, or ends.
constexpr int advance_threads = 256;
__global__ __launch_bounds__(advance_threads) void advance_kernel(Slots slots) {
  device::let_dependents_start();
  device::wait_for_previous_kernel();
  const int slot = static_cast<int>(blockIdx.x), request = slots.requests[slot], produced = slots.produced[slot];
  if (request < 0) return;
  const bool ends = produced + 1 == slots.lengths[request];
  if (ends)
    for (int i = static_cast<int>(threadIdx.x); i < slots.hidden; i += advance_threads)
      slots.last_states[static_cast<std::size_t>(request) * slots.hidden + i] =
          slots.chosen[static_cast<std::size_t>(slot) * slots.hidden + i];
  __syncthreads();  // all have read the slot
  if (threadIdx.x != 0) return;
  slots.all_tokens[request * most_outputs + produced] = slots.next[slot];
  if (!ends) {
    slots.tokens[slot] = slots.next[slot];
    slots.produced[slot] = produced + 1;
    ++slots.positions[slot];
    return;
  }
  if (slots.queue == nullptr) {
    slots.requests[slot] = -1;
    slots.ended[slot] = request;
    return;
  }
  const int following = atomicAdd(slots.queue, 1);
  admit(slots, slot, following < slots.count ? following : -1);
  if (atomicAdd(slots.finished, 1) + 1 == slots.count) *slots.all_finished = 1;
}

class ContinuousBatching final : public Workload {
  using Cache = attention::ContiguousCache;

 public:
  explicit ContinuousBatching(Setup& setup)
      : slots_{static_cast<int>(setup.size("slots"))},
        requests_{static_cast<int>(setup.size("requests"))},
        model_{
            setup, layers_of_1_7b(2), {.rows = rows(), .chosen = most_slots, .positions = positions, .split_rows = most_slots}},
        lt_{setup},
        cublas_{setup},
        memory_{setup, rows()},
        alone_{setup, rows()},
        trace_{LengthDistribution{32, 0, prompt_tokens, prompt_tokens},
               LengthDistribution{16, static_cast<double>(setup.size("sigma_percent")) / 100, 1, most_outputs}},
        first_request_{setup.size("planted") == 1 ? 0 : Trace::planted},
        length_(static_cast<std::size_t>(requests_)),
        prompts_{setup.input<int>(
            static_cast<std::size_t>(requests_ * prompt_tokens), HostFill<int>{[this](std::span<int> tokens, std::uint64_t seed) {
              for (std::size_t i = 0; i < tokens.size(); ++i)
                tokens[i] = Trace::token(seed, trace_.request(first_request_ + static_cast<int>(i) / prompt_tokens),
                                         static_cast<int>(i) % prompt_tokens, model_.shape().vocabulary());
            }},
            {.name = "prompts", .constant = true})},
        lengths_{setup.input<int>(
            static_cast<std::size_t>(requests_),
            HostFill<int>{[this](std::span<int> lengths, std::uint64_t) { std::ranges::copy(length_, lengths.begin()); }},
            {.name = "output lengths", .constant = true})},
        first_tokens_{setup.input<int>(static_cast<std::size_t>(requests_), integers(0, model_.shape().vocabulary() - 1),
                                       {.name = "first inputs"})},
        tokens_{setup.output<int>(static_cast<std::size_t>(requests_ * most_outputs), {.name = "tokens"})},
        states_{setup.output<bf16>(static_cast<std::size_t>(requests_) * hidden(), {.name = "last states"})},
        k_{setup.scratch<bf16>(2 * layer_elements())},
        v_{setup.scratch<bf16>(2 * layer_elements())},
        next_{setup.scratch<int>(most_slots)},
        produced_{setup.scratch<int>(most_slots)},
        counters_{setup.scratch<int>(2)},
        ended_{setup.scratch<int>(most_slots + 1, {.memory = Memory::pinned})},
        events_{setup.event(), setup.event()} {
    for (int i = 0; i < requests_; ++i) length_[static_cast<std::size_t>(i)] = trace_.request(first_request_ + i).output;
  }

  // As many steps as the tokens fill; each reads the weights, each token its context.
  Cost cost() const override {
    double tokens = 0, keys = 0;
    for (int i = 0; i < requests_; ++i) {
      tokens += length(i);
      keys += length(i) * (prompt_tokens + (length(i) + 1) / 2.0);
    }
    const Shape& s = model_.shape();
    return {.flops = 2 * tokens * s.weights() + 4 * keys * s.q_columns() * s.layers,
            .math = Math::bf16,
            .bytes = std::ceil(tokens / slots_) * 2 * s.weights() + keys * s.kv_bytes() * s.layers};
  }
  void metrics(std::string_view, Metrics& metrics) override {
    double tokens = 0, finish = 0;
    for (int i = 0; i < requests_; ++i) tokens += length(i), finish += ended_at_[static_cast<std::size_t>(i)];
    metrics.report("steps", steps_, "steps", Metrics::Better::lower);
    metrics.report("slot_use", 100 * tokens / (steps_ * slots_), "%", Metrics::Better::higher);
    metrics.report("mean_finish", finish / requests_, "steps", Metrics::Better::lower);
  }

  // Each request alone, and float64 on the tokens that it then chooses.
  void compute_reference(Launch& launch) override {
    const Shape& s = model_.shape();
    expected_tokens_.assign(tokens_.size(), -1);
    std::vector<std::vector<int>> sequences;
    for (int r = 0; r < requests_; ++r) {
      std::vector<int> prompt;
      for (int i = 0; i < prompt_tokens; ++i) prompt.push_back(prompts_.host(static_cast<std::size_t>(r * prompt_tokens + i)));
      prompt.push_back(first_tokens_.host(static_cast<std::size_t>(r)));
      std::vector<int> all = generate_alone(
          launch.stream, s, alone_, next_, [this](const Batch& batch) { return step(batch); }, r, std::move(prompt), length(r));
      std::copy_n(all.begin() + prompt_tokens + 1, length(r), expected_tokens_.begin() + r * most_outputs);
      all.pop_back();
      sequences.push_back(std::move(all));
    }
    expected_states_ = reference::last_states(*cublas_, launch.stream, s, model_.weights(), sequences);
  }
  double expected_output(int output, std::size_t i) const override {
    return output == 0 ? expected_tokens_[i] : expected_states_[i];
  }

  void prefill(Launch& launch) {
    const Shape& s = model_.shape();
    const cudaStream_t stream = launch.stream;
    model_.clear(stream);
    model_.tune(*lt_, stream, slots_, slots_);
    for (int first = 0; first < requests_; first += at_once) {
      const int count = std::min(at_once, requests_ - first);
      std::vector<Span> spans;
      for (int i = 0; i < count; ++i) spans.push_back({first + i, 0, prompt_tokens});
      Batch batch = memory_.upload(stream, s, Arranged{s, spans});
      check(cudaMemcpyAsync(batch.tokens, prompts_ + first * prompt_tokens,
                            static_cast<std::size_t>(count * prompt_tokens) * sizeof(int), cudaMemcpyDeviceToDevice, stream));
      run(step(batch), stream);
    }
    std::vector<Span> spans;
    for (int slot = 0; slot < slots_; ++slot) spans.push_back({-1, positions - 1, 1});
    decode_ = memory_.upload(stream, s, Arranged{s, spans});
  }
  void prepare(Launch& launch) {
    prefill(launch);
    capture(launch, graph_, false);
  }
  void prepare_refill(Launch& launch) {
    prefill(launch);
    capture(launch, refilling_graph_, true);
  }

  void static_batches(Launch& launch) { serve(launch, in_order(), false); }
  void continuous(Launch& launch) { serve(launch, in_order(), true); }
  void sorted_static(Launch& launch) {
    std::vector<int> order = in_order();
    std::ranges::stable_sort(order, {}, [this](int r) { return length(r); });
    serve(launch, order, false);
  }
  void device_refill(Launch& launch) {
    begin(launch);
    Orders orders;
    for (int slot = 0; slot < slots_; ++slot)
      orders.request[slot] = in_slot_[static_cast<std::size_t>(slot)] = slot < requests_ ? slot : -1;
    launch(admit_kernel, {1, static_cast<unsigned>(slots_)}, slots(true), orders);
    int following = slots_;
    while (static_cast<volatile int*>(ended_.get())[most_slots] == 0) {
      // Which request got its token, for the record: the device does the same.
      for (const int slot : run_step(launch, refilling_graph_)) {
        const auto at = static_cast<std::size_t>(slot);
        in_slot_[at] = following < requests_ ? following : -1;
        produced_by_[at] = 0;
        ++following;
      }
    }
  }

 private:
  static constexpr int positions = prompt_tokens + most_outputs;
  static int rows() { return at_once * prompt_tokens; }
  int length(int request) const { return length_[static_cast<std::size_t>(request)]; }
  std::size_t hidden() const { return static_cast<std::size_t>(model_.shape().hidden); }
  std::size_t layer_elements() const {
    return static_cast<std::size_t>(requests_) * positions * static_cast<std::size_t>(model_.shape().kv_columns());
  }
  std::vector<int> in_order() const {
    std::vector<int> order(static_cast<std::size_t>(requests_));
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  Step<Cache> step(const Batch& batch) const {
    const Shape& s = model_.shape();
    const auto head = static_cast<std::size_t>(s.head_size) * positions;
    return {model_.model(),
            batch,
            {k_, v_, static_cast<std::size_t>(s.head_size), head, head * static_cast<std::size_t>(s.kv_heads)},
            layer_elements(),
            next_};
  }
  Slots slots(bool from_queue) const {
    return {decode_.tokens,
            decode_.sequences,
            decode_.positions,
            produced_,
            next_,
            lengths_,
            first_tokens_,
            model_.model().workspace.chosen,
            tokens_,
            states_,
            model_.shape().hidden,
            ended_,
            from_queue ? counters_.get() : nullptr,
            counters_ + 1,
            ended_ + most_slots,
            requests_};
  }
  void capture(Launch& launch, Graph& graph, bool from_queue) {
    graph.capture(launch.stream, [&](cudaStream_t stream) {
      run(step(decode_), stream);
      launch_kernel(stream, advance_kernel,
                    {.blocks = static_cast<unsigned>(slots_), .threads = advance_threads, .overlapping = true},
                    slots(from_queue));
    });
  }

  void begin(Launch& launch) {
    check(cudaMemsetAsync(tokens_, 0xff, tokens_.bytes(), launch.stream));
    std::fill_n(ended_.get(), most_slots, -1);
    ended_[most_slots] = 0;
    in_slot_.fill(-1), produced_by_.fill(0);
    ended_at_.assign(static_cast<std::size_t>(requests_), 0);
    steps_ = 0;
  }
  // Queues a step and waits for the one before it. Slots whose request gets its last token: for the record alone.
  std::vector<int> run_step(Launch& launch, const Graph& graph) {
    graph.launch(launch.stream);
    ++steps_;
    std::vector<int> served, ending;
    for (int slot = 0; slot < slots_; ++slot) {
      const int request = in_slot_[static_cast<std::size_t>(slot)];
      if (request < 0 || produced_by_[static_cast<std::size_t>(slot)] == length_[static_cast<std::size_t>(request)]) continue;
      served.push_back(request);
      if (++produced_by_[static_cast<std::size_t>(slot)] < length_[static_cast<std::size_t>(request)]) continue;
      ending.push_back(slot);
      ended_at_[static_cast<std::size_t>(request)] = steps_;
    }
    launch.tokens(served);
    check(cudaEventRecord(events_[steps_ % 2], launch.stream));
    if (steps_ > 1) check(cudaEventSynchronize(events_[(steps_ - 1) % 2]));
    return ending;
  }
  // Serves all requests; the host knows which ended in the step before the one that runs; `refills`: its slot gets the next
  // request at once, else a batch begins when all of the last one have ended.
  void serve(Launch& launch, const std::vector<int>& order, bool refills) {
    begin(launch);
    const volatile int* const ended = ended_.get();
    std::size_t following = 0;
    for (;;) {
      int busy = 0;
      for (int slot = 0; slot < slots_; ++slot) {
        int& request = in_slot_[static_cast<std::size_t>(slot)];
        if (request >= 0 && ended[slot] == request) request = -1;
        busy += request >= 0;
      }
      if (busy == 0 && following == order.size()) return;
      Orders orders;
      bool any = false;
      for (int slot = 0; slot < slots_; ++slot) {
        int& request = in_slot_[static_cast<std::size_t>(slot)];
        orders.request[slot] = steps_ == 0 ? -1 : -2;
        if (request >= 0 || following == order.size() || (!refills && busy > 0)) continue;
        orders.request[slot] = request = order[following++];
        produced_by_[static_cast<std::size_t>(slot)] = 0;
        any = true;
      }
      if (any) launch(admit_kernel, {1, static_cast<unsigned>(slots_)}, slots(false), orders);
      run_step(launch, graph_);
    }
  }

  int slots_, requests_;
  Buffers model_;
  Opened<CublasLt> lt_;
  Opened<Cublas> cublas_;
  BatchMemory memory_, alone_;
  Trace trace_;
  int first_request_;
  std::vector<int> length_;
  Input<int> prompts_, lengths_, first_tokens_;
  Output<int> tokens_;
  Output<bf16> states_;
  Scratch<bf16> k_, v_;
  Scratch<int> next_, produced_, counters_, ended_;
  std::array<cudaEvent_t, 2> events_;
  Graph graph_, refilling_graph_;
  Batch decode_;
  std::array<int, most_slots> in_slot_{}, produced_by_{};
  std::vector<int> ended_at_, expected_tokens_;
  std::vector<double> expected_states_;
  int steps_ = 0;
};

}  // namespace

extern constinit const Pair continuous_batching{
    .teaches = "a step costs the same however many slots are useful, so a slot is refilled as soon as its request ends",
    .lesson = "continuous",
    .make = make<ContinuousBatching>,
    .baseline = {.name = "static_batches",
                 .run = call<&ContinuousBatching::static_batches>,
                 .prepare = call<&ContinuousBatching::prepare>},
    .optimized = variants({{.name = "continuous",
                            .run = call<&ContinuousBatching::continuous>,
                            .prepare = call<&ContinuousBatching::prepare>,
                            .same_bits_as = "static_batches"},
                           {.name = "device_refill",
                            .run = call<&ContinuousBatching::device_refill>,
                            .prepare = call<&ContinuousBatching::prepare_refill>,
                            .same_bits_as = "static_batches"}}),
    // Equal lengths are what a static batch lacks; only an oracle knows them.
    .controls = variants({{.name = "sorted_static",
                           .run = call<&ContinuousBatching::sorted_static>,
                           .prepare = call<&ContinuousBatching::prepare>,
                           .same_bits_as = "static_batches"}}),
    .bound = Bound::memory,
    // Tokens are those of each request alone. States are rounded to bf16 some ten times on their way.
    .tolerance = per_output({exact, within(1.2e-2)}),
    .needs = {.min_sm = 90, .libraries = {Library::cublas, Library::cublaslt}},
    .start = Start::immediate,  // the host decides between steps
    .sizes = sizes({{.name = "slots", .full = 16, .most = most_slots, .scales = false},
                    {.name = "requests", .full = 64, .most = 1024, .scales = false},
                    {.name = "sigma_percent", .full = 80, .least = 0, .most = 200, .scales = false},
                    option("planted")}),
    .sweep = cases({{"equal_lengths", "sigma_percent=0"},
                    {"sigma_0_4", "sigma_percent=40"},
                    {"sigma_0_8", "sigma_percent=80"},
                    {"sigma_1_2", "sigma_percent=120"},
                    {"slots_4", "slots=4"},
                    {"slots_8", "slots=8"},
                    {"slots_32", "slots=32"}}),
    .edges = cases({{"planted", "requests=16,planted=1"},
                    {"one_request", "requests=1"},
                    {"empty_slots", "requests=5"},
                    {"one_slot", "slots=1,requests=3"}}),
};

}  // namespace aisp::ch15
