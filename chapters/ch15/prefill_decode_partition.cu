// SPDX-License-Identifier: Apache-2.0
// A prompt arrives while 64 requests decode. In one queue the next decode step waits for the whole prefill. On streams of their
// own both get SMs as blocks end, and the prefill has more blocks. Two cures bound the wait: SMs that are set apart for decoding
// (green contexts), and chunks of the prompt that ride along in decode steps. Each SM that decodes is one that does not compute
// the prompt; chunks share the products, and the weights that these read, with the decode rows.
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "decoder/alone.hpp"
#include "decoder/cache_rows.cuh"
#include "decoder/model.hpp"
#include "serving_rows.cuh"

namespace aisp::ch15 {
namespace {

constexpr int steps = 6, chunk = 512;

// Keeps what a step has chosen, and after the last one the states. A block to each request.
__global__ void keep_kernel(const int* chosen_tokens, const bf16* chosen, int* tokens, bf16* states, int hidden) {
  if (threadIdx.x == 0) tokens[blockIdx.x] = chosen_tokens[blockIdx.x];
  for (int i = static_cast<int>(threadIdx.x); states != nullptr && i < hidden; i += static_cast<int>(blockDim.x))
    states[static_cast<std::size_t>(blockIdx.x) * hidden + i] = chosen[static_cast<std::size_t>(blockIdx.x) * hidden + i];
}

class PrefillDecodePartition final : public Workload {
 public:
  explicit PrefillDecodePartition(Setup& setup)
      : requests_{static_cast<int>(setup.shape(setup.size("requests"), std::min<std::size_t>(setup.size("requests"), 10)))},
        context_{static_cast<int>(setup.shape(setup.size("context"), std::min<std::size_t>(setup.size("context"), 600)))},
        prompt_{static_cast<int>(setup.shape(setup.size("prompt"), std::min<std::size_t>(setup.size("prompt"), 1100)))},
        is_planted_{setup.size("planted") == 1},
        model_{setup,
               setup.size("narrow") == 1 ? narrow(2) : layers_of_8b(2),
               {.rows = most_rows(), .chosen = requests_ + 1, .positions = most_rows(), .split_rows = requests_ + 640}},
        decode_workspaces_{
            setup, model_.shape(), {.rows = requests_, .chosen = requests_, .positions = most_rows(), .split_rows = requests_}},
        lt_{setup},
        decode_lt_{setup},
        cublas_{setup},
        memory_{setup, most_rows()},
        prompt_memory_{setup, prompt_},
        decode_memory_{setup, requests_},
        mixed_memory_{setup.scratch<int>(size(mixed_steps()) * BatchMemory::words(chunk + requests_))},
        contexts_{setup.input<int>(size(distinct_contexts() * context_),
                                   traced_tokens(Trace::planted, context_, model_.shape().vocabulary()),
                                   {.name = "contexts", .constant = true})},
        prompt_tokens_{setup.input<int>(size(prompt_),
                                        traced_tokens(Trace::planted + contexts_in_all, prompt_, model_.shape().vocabulary()),
                                        {.name = "prompt"})},
        first_inputs_{setup.input<int>(size(requests_), integers(0, model_.shape().vocabulary() - 1), {.name = "first inputs"})},
        lengths_{setup.input<int>(size(requests_), HostFill<int>{[this](std::span<int> to, std::uint64_t) {
                                    for (int r = 0; r < requests_; ++r) to[size(r)] = length(r);
                                  }},
                                  {.name = "contexts' lengths", .constant = true})},
        allocator_{pages_in_all(), 15},
        table_{allocator_, requests_ + 1, pages_for(most_rows())},
        entries_{setup.input<int>(table_.entries().size(),
                                  HostFill<int>{[this](std::span<int> to, std::uint64_t) { fill_table(to); }},
                                  {.name = "page table", .constant = true})},
        tokens_{setup.output<int>(size(steps * requests_), {.name = "tokens"})},
        states_{setup.output<bf16>(size(requests_ * model_.shape().hidden), {.name = "last states"})},
        first_token_{setup.output<int>(1, {.name = "first token of the prompt"})},
        prompt_state_{setup.output<bf16>(size(model_.shape().hidden), {.name = "last state of the prompt"})},
        k_{setup.scratch<bf16>(2 * layer_elements(), {.name = "pages of keys"})},
        v_{setup.scratch<bf16>(2 * layer_elements(), {.name = "pages of values"})},
        next_{setup.scratch<int>(size(requests_ + 1))},
        current_{setup.scratch<int>(size(requests_))},
        written_{setup.scratch<int>(size(2 * (requests_ + 1)))},
        decode_part_{setup.stream_on(static_cast<int>(setup.size("decode_sms")))},
        prefill_part_{setup.stream_on(static_cast<int>(multiprocessors()) - decode_part_.sms)},
        prefill_stream_{setup.stream()},
        decode_stream_{setup.stream()},
        urgent_stream_{setup.stream(0, true)},
        forked_{setup.event()},
        stepped_{setup.event()},
        prefilled_{setup.event()},
        decode_products_{model_.shape()},
        part_decode_products_{model_.shape(), decode_part_.sms},
        part_prefill_products_{model_.shape(), prefill_part_.sms} {}

  // The prompt's products and attention; weights once for it and once a step, and each step's contexts.
  Cost cost() const override { return cost_of(true); }
  Cost variant_cost(std::string_view variant) const override { return cost_of(variant != "decode_alone"); }

  // Each request alone, and float64 on the tokens that it then chooses.
  void compute_reference(Launch& launch) override {
    const Shape& s = model_.shape();
    expected_tokens_.assign(tokens_.size(), 0);
    std::vector<std::vector<int>> sequences;
    const auto make = [this](const Batch& batch) { return step(model_.model(), batch, next_); };
    for (int r = 0; r <= requests_; ++r) {
      const bool decodes = r < requests_;
      std::vector<int> tokens;
      for (int i = 0; i < (decodes ? length(r) : prompt_); ++i)
        tokens.push_back(decodes ? contexts_.host(size(r % contexts_in_all * context_ + i)) : prompt_tokens_.host(size(i)));
      if (decodes) tokens.push_back(first_inputs_.host(size(r)));
      std::vector<int> all = generate_alone(launch.stream, s, memory_, next_, make, r, std::move(tokens), decodes ? steps : 1);
      if (!decodes) expected_first_ = all.back();
      for (int i = 0; decodes && i < steps; ++i) expected_tokens_[size(i * requests_ + r)] = all[all.size() - size(steps - i)];
      all.pop_back();
      sequences.push_back(std::move(all));
    }
    expected_states_ = reference::last_states(*cublas_, launch.stream, s, model_.weights(), sequences);
  }
  double expected_output(int output, std::size_t i) const override {
    if (output == 0) return expected_tokens_[i];
    if (output == 1) return expected_states_[i];
    if (output == 2) return expected_first_;
    return expected_states_[size(requests_ * model_.shape().hidden) + i];
  }

  void prepare(Launch& launch) {
    prefill_contexts(launch);
    tune(decode_products_, *decode_lt_, launch.stream, requests_, requests_);
  }
  void prepare_part(Launch& launch) {
    prefill_contexts(launch);
    check(cudaStreamSynchronize(launch.stream));
    tune(part_prefill_products_, *lt_, prefill_part_.stream, prompt_, 1);
    tune(part_decode_products_, *decode_lt_, decode_part_.stream, requests_, requests_);
  }
  void prepare_mixed(Launch& launch) {
    prefill_contexts(launch);
    const Shape& s = model_.shape();
    mixed_.clear();
    for (int i = 0; i < mixed_steps(); ++i) {
      std::vector<Span> spans;
      for (int r = 0; i < steps && r < requests_; ++r) spans.push_back({r, length(r) + i, 1});
      if (const int first = i * chunk; first < prompt_) {
        const int count = std::min(chunk, prompt_ - first);
        spans.push_back({requests_, first, count, first + count == prompt_});
      }
      int* const memory = mixed_memory_ + size(i) * BatchMemory::words(chunk + requests_);
      mixed_.push_back(BatchMemory::upload(launch.stream, s, Arranged{s, spans}, memory, chunk + requests_));
      model_.tune(*lt_, launch.stream, mixed_.back().rows, mixed_.back().chosen);
    }
  }
  void reset(Launch& launch) {
    std::vector<int> written(size(2 * (requests_ + 1)), 0);
    for (int r = 0; r < requests_; ++r) written[size(r)] = length(r), written[size(requests_ + 1 + r)] = steps;
    written.back() = prompt_;
    check(cudaMemcpyAsync(written_, written.data(), written_.bytes(), cudaMemcpyHostToDevice, launch.stream));
    launch(poison_kernel<Pages>,
           {dim3{static_cast<unsigned>(std::max(prompt_, steps)), static_cast<unsigned>(requests_ + 1)}, 256},
           step(model_.model(), {}, next_), written_.get(), written_ + requests_ + 1);
  }

  void prompt_first(Launch& launch) {
    prefill(launch, launch.stream, model_.model().products);
    for (int i = 0; i < steps; ++i) decode(launch, launch.stream, decode_products_, i);
  }
  void two_streams(Launch& launch) { both(launch, prefill_stream_, decode_stream_, *model_.model().products, decode_products_); }
  void priority_stream(Launch& launch) {
    both(launch, prefill_stream_, urgent_stream_, *model_.model().products, decode_products_);
  }
  void sm_partition(Launch& launch) {
    both(launch, prefill_part_.stream, decode_part_.stream, part_prefill_products_, part_decode_products_);
  }
  void decode_alone(Launch& launch) {
    both(launch, prefill_part_.stream, decode_part_.stream, part_prefill_products_, part_decode_products_, false);
  }
  // Chunks of the prompt and decode rows in the same products.
  void mixed_512(Launch& launch) {
    const cudaStream_t stream = launch.stream;
    check(cudaMemcpyAsync(current_, first_inputs_, current_.bytes(), cudaMemcpyDeviceToDevice, stream));
    for (int i = 0; i < mixed_steps(); ++i) {
      const Batch& batch = mixed_[size(i)];
      const int decodes = i < steps ? requests_ : 0, first = i * chunk, count = std::clamp(prompt_ - first, 0, chunk);
      copy_ints(batch.tokens, current_, decodes, stream);
      copy_ints(batch.tokens + decodes, prompt_tokens_ + std::min(first, prompt_), count, stream);
      run(step(model_.model(), batch, next_), stream);
      if (decodes > 0) {
        copy_ints(current_, next_, decodes, stream);
        keep(stream, next_, model_.model().workspace.chosen, i);
        launch.tokens(all_requests());
        if (i == 0) launch.mark("first_gap");
      }
      if (count > 0 && first + count == prompt_) keep_prompt(launch, stream, decodes);
    }
  }

 private:
  int most_rows() const { return std::max(prompt_, context_ + steps) + requests_; }
  int mixed_steps() const { return std::max((prompt_ + chunk - 1) / chunk, steps); }
  int distinct_contexts() const { return std::min(requests_, contexts_in_all); }
  // Returns a request's length, another one where contexts are the same.
  int length(int request) const {
    if (is_planted_ && request < 2) return request == 0 ? 1 : context_ - 1;
    return std::max(context_ - request / contexts_in_all, 1);
  }
  int pages_in_all() const { return requests_ * pages_for(context_ + steps) + pages_for(prompt_); }
  void fill_table(std::span<int> to) {
    for (int r = 0; r <= requests_; ++r) table_.release(r);
    for (int r = 0; r <= requests_; ++r) table_.grow(r, r < requests_ ? context_ + steps : prompt_);
    std::ranges::copy(table_.entries(), to.begin());
  }
  std::size_t layer_elements() const { return size(pages_in_all() * page_rows) * size(model_.shape().kv_columns()); }
  Cost cost_of(bool prefills) const {
    double keys = 0;
    for (int r = 0; r < requests_; ++r) keys += steps * (length(r) + (steps + 1) / 2.0);
    const Cost prompt = prefill_cost(model_.shape(), prompt_),
               others = decode_cost(model_.shape(), steps, steps * requests_, keys);
    return {.flops = prefills * prompt.flops + others.flops, .math = Math::bf16, .bytes = prefills * prompt.bytes + others.bytes};
  }
  std::vector<int> all_requests() const {
    std::vector<int> all(size(requests_));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  Step<Pages> step(const Model& model, const Batch& batch, int* next) const {
    const std::size_t head_size = size(model.shape.head_size), head = head_size * page_rows;
    return {.model = model,
            .batch = batch,
            .cache = {k_, v_, head_size, head, head * size(model.shape.kv_heads), entries_, table_.stride()},
            .layer_elements = layer_elements(),
            .next = next,
            .overlapping = false};
  }
  void tune(Products& products, const CublasLt& lt, cudaStream_t stream, int rows, int chosen) const {
    products.tune(lt, stream, model_.weights(), rows, chosen);
    check(cudaStreamSynchronize(stream));
  }

  void prefill_contexts(Launch& launch) {
    const Shape& s = model_.shape();
    const cudaStream_t stream = launch.stream;
    model_.clear(stream), decode_workspaces_.clear(stream);
    model_.tune(*lt_, stream, prompt_, 1);
    for (int c = 0; c < distinct_contexts(); ++c) {
      const Span span{c, 0, context_, false};
      const Batch batch = memory_.upload(stream, s, Arranged{s, std::array{span}});
      copy_ints(batch.tokens, contexts_ + c * context_, context_, stream);
      run(step(model_.model(), batch, next_), stream);
    }
    const int pages = pages_for(context_);
    if (requests_ > contexts_in_all)
      launch(repeat_contexts_kernel,
             {dim3{static_cast<unsigned>(pages), static_cast<unsigned>(requests_ - contexts_in_all), 2}, 256},
             step(model_.model(), {}, next_), pages);
    std::vector<Span> spans;
    for (int r = 0; r < requests_; ++r) spans.push_back({r, length(r) + steps - 1, 1});  // the longest that a step sees
    decode_batch_ = decode_memory_.upload(stream, s, Arranged{s, spans});
    prompt_batch_ = prompt_memory_.upload(stream, s, Arranged{s, std::array{Span{requests_, 0, prompt_}}});
  }
  void prefill(Launch& launch, cudaStream_t stream, const Products* products) {
    Model model = model_.model();
    model.products = products;
    copy_ints(prompt_batch_.tokens, prompt_tokens_, prompt_, stream);
    run(step(model, prompt_batch_, next_), stream);
    keep_prompt(launch, stream, 0);
  }
  void keep_prompt(Launch& launch, cudaStream_t stream, int chosen) {
    copy_ints(first_token_, next_ + chosen, 1, stream);
    check(cudaMemcpyAsync(prompt_state_, model_.model().workspace.chosen + size(chosen * model_.shape().hidden),
                          prompt_state_.bytes(), cudaMemcpyDeviceToDevice, stream));
    launch.mark("prompt_done", stream);
  }
  void keep(cudaStream_t stream, const int* chosen_tokens, const bf16* chosen, int i) {
    launch_kernel(stream, keep_kernel, {static_cast<unsigned>(requests_), 256}, chosen_tokens, chosen, tokens_ + i * requests_,
                  i + 1 == steps ? states_.get() : nullptr, model_.shape().hidden);
  }
  void decode(Launch& launch, cudaStream_t stream, const Products& products, int i) {
    const Model model{model_.shape(), model_.weights(), decode_workspaces_.view(), &products};
    if (i == 0)
      launch_kernel(stream, begin_kernel, {static_cast<unsigned>(requests_ + 127) / 128, 128}, decode_batch_, first_inputs_.get(),
                    lengths_.get());
    Step<Pages> decode_step = step(model, decode_batch_, decode_batch_.tokens);
    decode_step.advances = true;
    run(decode_step, stream);
    keep(stream, decode_batch_.tokens, model.workspace.chosen, i);
    if (i == 0) launch.mark("first_gap", stream);
    if (stream != launch.stream) {
      check(cudaEventRecord(stepped_, stream));
      check(cudaStreamWaitEvent(launch.stream, stepped_));
    }
    launch.tokens(all_requests());
  }
  void both(Launch& launch, cudaStream_t of_prefill, cudaStream_t of_decode, const Products& prefill_products,
            const Products& decode_products, bool prefills = true) {
    check(cudaEventRecord(forked_, launch.stream));
    check(cudaStreamWaitEvent(of_prefill, forked_));
    check(cudaStreamWaitEvent(of_decode, forked_));
    if (prefills) prefill(launch, of_prefill, &prefill_products);
    for (int i = 0; i < steps; ++i) decode(launch, of_decode, decode_products, i);
    check(cudaEventRecord(prefilled_, of_prefill));
    check(cudaStreamWaitEvent(launch.stream, prefilled_));
  }

  int requests_, context_, prompt_;
  bool is_planted_;
  Buffers model_;
  Workspaces decode_workspaces_;
  Opened<CublasLt> lt_, decode_lt_;
  Opened<Cublas> cublas_;
  BatchMemory memory_, prompt_memory_, decode_memory_;
  Scratch<int> mixed_memory_;
  Input<int> contexts_, prompt_tokens_, first_inputs_, lengths_;
  PageAllocator allocator_;
  PageTable table_;
  Input<int> entries_;
  Output<int> tokens_;
  Output<bf16> states_;
  Output<int> first_token_;
  Output<bf16> prompt_state_;
  Scratch<bf16> k_, v_;
  Scratch<int> next_, current_, written_;
  SmStream decode_part_, prefill_part_;
  cudaStream_t prefill_stream_, decode_stream_, urgent_stream_;
  cudaEvent_t forked_, stepped_, prefilled_;
  Products decode_products_, part_decode_products_, part_prefill_products_;
  Batch decode_batch_, prompt_batch_;
  std::vector<Batch> mixed_;
  std::vector<int> expected_tokens_;
  std::vector<double> expected_states_;
  int expected_first_ = 0;
};

}  // namespace

extern constinit const Pair prefill_decode_partition{
    .teaches =
        "decode steps that a prompt would hold up wait least when chunks of it ride along in them; SMs set apart for decoding "
        "bound the wait, too, but the whole takes longer",
    .lesson = "mixed_512",
    .make = make<PrefillDecodePartition>,
    .baseline = {.name = "prompt_first",
                 .run = call<&PrefillDecodePartition::prompt_first>,
                 .prepare = call<&PrefillDecodePartition::prepare>,
                 .reset = call<&PrefillDecodePartition::reset>},
    .optimized = variants({{.name = "two_streams",
                            .run = call<&PrefillDecodePartition::two_streams>,
                            .prepare = call<&PrefillDecodePartition::prepare>,
                            .reset = call<&PrefillDecodePartition::reset>,
                            .same_bits_as = "prompt_first"},
                           {.name = "priority_stream",
                            .run = call<&PrefillDecodePartition::priority_stream>,
                            .prepare = call<&PrefillDecodePartition::prepare>,
                            .reset = call<&PrefillDecodePartition::reset>,
                            .same_bits_as = "prompt_first"},
                           {.name = "sm_partition",
                            .run = call<&PrefillDecodePartition::sm_partition>,
                            .prepare = call<&PrefillDecodePartition::prepare_part>,
                            .reset = call<&PrefillDecodePartition::reset>,
                            .same_bits_as = "prompt_first"},
                           {.name = "mixed_512",
                            .run = call<&PrefillDecodePartition::mixed_512>,
                            .prepare = call<&PrefillDecodePartition::prepare_mixed>,
                            .reset = call<&PrefillDecodePartition::reset>,
                            .same_bits_as = "prompt_first",
                            .gains_over = "prompt_first"}}),
    .controls = variants({{.name = "decode_alone",
                           .run = call<&PrefillDecodePartition::decode_alone>,
                           .prepare = call<&PrefillDecodePartition::prepare_part>,
                           .outputs = no_outputs}}),
    .bound = Bound::compute,
    // Tokens are those of each request alone. States are rounded to bf16 some ten times on their way.
    .tolerance = per_output({exact, within(1.2e-2), exact, within(1.2e-2)}),
    .needs = {.min_sm = 90, .driver = 12050, .libraries = {Library::cublas, Library::cublaslt}},
    .start = Start::immediate,  // prompt and steps are queued as they come
    .verification = Verification::small_shape,
    .judged_by = "first_gap",  // the wait for the next tokens when the prompt has arrived
    .timeline = true,
    .sizes = sizes({{.name = "decode_sms", .full = 40, .multiple = 8, .most = 96, .scales = false},
                    {.name = "requests", .full = 64, .most = 64, .scales = false},
                    {.name = "context", .full = 4090, .least = 2, .most = 8192, .scales = false},
                    {.name = "prompt", .full = 4096, .most = 8192, .scales = false},
                    option("narrow"),
                    option("planted")}),
    .sweep = cases({{"sms_16", "decode_sms=16"},
                    {"sms_24", "decode_sms=24"},
                    {"sms_32", "decode_sms=32"},
                    {"sms_40", "decode_sms=40"},
                    {"sms_56", "decode_sms=56"},
                    {"sms_72", "decode_sms=72"}}),
    .edges = cases({{"contexts_1_and_last", "requests=9,context=1040,prompt=17,planted=1,narrow=1"},
                    {"one_request", "requests=1,context=2,prompt=1,narrow=1"}}),
    .reference_samples = 2048,
};

}  // namespace aisp::ch15
