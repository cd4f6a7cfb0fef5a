// SPDX-License-Identifier: Apache-2.0
// Between two decode steps the host reads the tokens, makes text of them, looks for strings that end a request, gives pages and
// launches. A step whose tokens stay on the GPU needs none of this, so the host can be a step behind: it handles the last step
// while the next one runs, and drops the token that a request got before its end was known.
#include <aisp/graph.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "decoder/alone.hpp"
#include "decoder/cache_rows.cuh"
#include "decoder/model.hpp"
#include "decoder/pages.hpp"
#include "decoder/trace.hpp"
#include "host_clock.hpp"
#include "served_text.hpp"

namespace aisp::ch16 {
namespace {

using namespace decoder;
using Pages = attention::PagedCache<page_rows>;

constexpr int steps = 64, longest_prompt = 128, stride = pages_for(longest_prompt + steps), prefill_rows = 2048;
constexpr int most_text = steps * word_bytes;

// After a step: its tokens go to the host, which reads them when it has time.
__global__ void tell_kernel(const int* tokens, int* step, int* told) {
  told[*step * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)] = tokens[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) ++*step;
}

class RuntimeScheduler final : public Workload {
 public:
  explicit RuntimeScheduler(Setup& setup)
      : requests_{static_cast<int>(setup.size("requests"))},
        extra_{static_cast<int>(setup.size("extra_us"))},
        contexts_{contexts(requests_, setup.size("equal_contexts") == 1)},
        model_{setup,
               setup.size("narrow") == 1 ? narrow(2) : layers_of_1_7b(2),
               {.rows = prefill_rows, .chosen = requests_, .positions = longest_prompt + steps, .split_rows = requests_}},
        vocabulary_{model_.shape().vocabulary()},
        lt_{setup},
        alone_{setup, prefill_rows},
        memory_{setup, requests_},
        prompts_{setup.input<int>(static_cast<std::size_t>(requests_ * (longest_prompt + 1)),
                                  integers(0, model_.shape().vocabulary() - 1), {.name = "prompts", .constant = true})},
        tokens_{setup.output<int>(static_cast<std::size_t>(requests_ * steps), {.name = "tokens", .memory = Memory::pinned})},
        text_{setup.output<unsigned char>(static_cast<std::size_t>(requests_ * most_text),
                                          {.name = "text", .memory = Memory::pinned})},
        pages_{pages_in_all(), 16},
        table_{pages_, requests_, stride},
        k_{setup.scratch<bf16>(layer_elements() * static_cast<std::size_t>(model_.shape().layers), {.name = "keys"})},
        v_{setup.scratch<bf16>(k_.size(), {.name = "values"})},
        first_{setup.scratch<int>(3 * static_cast<std::size_t>(requests_))},
        next_{setup.scratch<int>(1)},
        step_number_{setup.scratch<int>(1)},
        image_{setup.scratch<int>(image_words())},
        images_{setup.scratch<int>(2 * image_words(), {.memory = Memory::pinned})},
        told_{setup.scratch<int>(static_cast<std::size_t>(steps * requests_), {.memory = Memory::pinned})},
        streams_(static_cast<std::size_t>(requests_)),
        produced_(static_cast<std::size_t>(requests_)),
        is_done_(static_cast<std::size_t>(requests_)),
        events_{setup.event(), setup.event()} {}

  // The weights in each step.
  Cost cost() const override {
    return {
        .flops = 2.0 * requests_ * model_.shape().weights(), .math = Math::bf16, .bytes = steps * 2 * model_.shape().weights()};
  }
  void metrics(std::string_view, Metrics& metrics) override {
    double tokens = 0;
    for (const int produced : produced_) tokens += produced;
    metrics.report_rate("tokens_per_second", tokens, "tokens/s");
    metrics.report("host_work", host_us_ / steps, "us a step", Metrics::Better::lower);
    metrics.report("surplus", surplus_, "tokens", Metrics::Better::lower);
  }

  // Each request alone, and its text from all of its tokens at once.
  void compute_reference(Launch& launch) override {
    expected_tokens_.assign(tokens_.size(), -1);
    expected_text_.assign(text_.size(), 0);
    own_pages(launch);
    const auto make = [this](const Batch& batch) { return step(batch, next_); };
    for (int r = 0; r < requests_; ++r) {
      const std::vector<int> prompt = prompt_of(r, context(r) + 1);
      const std::vector<int> all = generate_alone(launch.stream, model_.shape(), alone_, next_, make, r, prompt, steps);
      const auto made = std::span{all}.subspan(prompt.size());
      const auto [tokens, text] = ended(vocabulary_, made, ends_at(r, made));
      std::ranges::copy(tokens, expected_tokens_.begin() + r * steps);
      std::ranges::copy(text, expected_text_.begin() + r * most_text);
    }
  }
  double expected_output(int output, std::size_t i) const override {
    return output == 0 ? expected_tokens_[i] : expected_text_[i];
  }

  // Prompts go into the cache. What ends a request is chosen by the tokens that it makes if nothing ends it.
  void prepare(Launch& launch) {
    const cudaStream_t stream = launch.stream;
    const Shape& s = model_.shape();
    model_.clear(stream);
    model_.tune(*lt_, stream, prefill_rows, 1);
    model_.tune(*lt_, stream, requests_, requests_);
    own_pages(launch);
    for (int first = 0; first < requests_;) {
      std::vector<Span> spans;
      std::vector<int> tokens;
      for (; first < requests_ && static_cast<int>(tokens.size()) + context(first) <= prefill_rows; ++first) {
        spans.push_back({first, 0, context(first), false});
        const std::vector<int> own = prompt_of(first, context(first));
        tokens.insert(tokens.end(), own.begin(), own.end());
      }
      const Batch batch = alone_.upload(stream, s, Arranged{s, spans});
      check(cudaMemcpyAsync(batch.tokens, tokens.data(), tokens.size() * sizeof(int), cudaMemcpyHostToDevice, stream));
      run(step(batch, next_), stream);
    }
    std::vector<Span> rows;
    for (int r = 0; r < requests_; ++r) rows.push_back({r, longest_prompt + steps - 1, 1});
    decode_ = memory_.upload(stream, s, Arranged{s, rows});
    decode_.tokens = image_, decode_.sequences = image_ + requests_;
    std::vector<int> first = contexts_;
    for (int r = 0; r < requests_; ++r) first.push_back(prompt_of(r, context(r) + 1).back());
    first.insert(first.end(), static_cast<std::size_t>(requests_), steps);
    check(cudaMemcpyAsync(first_, first.data(), first_.bytes(), cudaMemcpyHostToDevice, stream));
    graph_.capture(stream, [&](cudaStream_t captured) {
      Step<Pages> all = step(decode_, decode_.tokens);
      all.advances = true;
      run(all, captured);
      launch_kernel(captured, tell_kernel, {1, static_cast<unsigned>(requests_)}, decode_.tokens, step_number_.get(),
                    told_.get());
    });
    begin_steps(launch);
    for (int i = 0; i < steps; ++i) graph_.launch(stream);
    check(cudaStreamSynchronize(stream));
    ends_.clear();
    for (int r = 0; r < requests_; ++r) {
      std::vector<int> made;
      for (int i = 0; i < steps; ++i) made.push_back(told(i, r));
      ends_.push_back(ends_at(r, made));
    }
  }
  // NaN where a run writes the cache. Requests give back their pages but those of their prompts.
  void reset(Launch& launch) {
    own_pages(launch);
    launch(poison_kernel<Pages>, {dim3{steps, static_cast<unsigned>(requests_)}, 256}, step({}, nullptr), first_.get(),
           first_ + 2 * requests_);
    check(cudaStreamSynchronize(launch.stream));
    for (int r = 0; r < requests_; ++r) table_.shrink(r, context(r));
  }

  // Step, wait, work, upload, launch.
  void synchronous(Launch& launch) { one_by_one(launch, true); }
  void no_text(Launch& launch) { one_by_one(launch, false); }
  // The next step is launched as soon as this one is seen to have ended; its tables were made before.
  void tokens_on_device(Launch& launch) {
    begin(launch);
    give_pages(0);
    launch_step(launch, 0, false);
    give_pages(1);
    for (int i = 0; i < steps; ++i) {
      wait(i);
      if (i + 1 < steps) launch_step(launch, i + 1, false);
      handle(i, true);
      if (i + 2 < steps) give_pages(i + 2);
    }
    end();
  }
  // The next step is launched before this one has ended.
  void async(Launch& launch) {
    begin(launch);
    give_pages(0);
    launch_step(launch, 0, false);
    for (int i = 0; i < steps; ++i) {
      if (i + 1 < steps) {
        give_pages(i + 1);
        launch_step(launch, i + 1, false);
      }
      wait(i);
      handle(i, true);
    }
    end();
  }

 private:
  static std::vector<int> contexts(int requests, bool equal) {
    std::vector<int> all;
    for (int r = 0; r < requests; ++r)
      all.push_back(equal ? 64 : Trace{{60, 0.5, 16, longest_prompt}}.request(Trace::planted + r).prompt);
    return all;
  }
  int context(int request) const { return contexts_[static_cast<std::size_t>(request)]; }
  std::vector<int> prompt_of(int request, int tokens) const {
    std::vector<int> prompt;
    for (int i = 0; i < tokens; ++i)
      prompt.push_back(prompts_.host(static_cast<std::size_t>(request * (longest_prompt + 1) + i)));
    return prompt;
  }
  // By the request's number: after all steps; earlier; at a string that three of its tokens make; and a string that only begins
  // there.
  EndsAt ends_at(int request, std::span<const int> made) const {
    if (request % 4 == 0) return {steps, "\n\nUser:"};
    if (request % 4 == 1) return {1 + request % steps, "\n\nUser:"};
    const auto first = static_cast<std::size_t>(2 + request * 7 % (steps - 8));
    const std::size_t begin = text_of(vocabulary_, made.first(first), false).size() + request % 2;
    const std::string text = text_of(vocabulary_, made.first(first + 3), false);
    const std::string stop = begin < text.size() ? text.substr(begin) : "\n";
    return {steps, request % 4 == 2 ? stop : stop + "\n"};
  }
  int pages_in_all() const {
    int pages = 0;
    for (const int context : contexts_) pages += pages_for(context + steps);
    return pages;
  }
  std::size_t layer_elements() const {
    return static_cast<std::size_t>(pages_in_all() * page_rows) * static_cast<std::size_t>(model_.shape().kv_columns());
  }
  // A step's tokens, its sequences and the page table.
  std::size_t image_words() const { return static_cast<std::size_t>(requests_ * (2 + stride)); }
  int told(int step, int request) const { return told_.get()[step * requests_ + request]; }
  Step<Pages> step(const Batch& batch, int* next) const {
    const Shape& s = model_.shape();
    const auto head = static_cast<std::size_t>(s.head_size * page_rows);
    return {model_.model(),
            batch,
            {k_, v_, static_cast<std::size_t>(s.head_size), head, head * static_cast<std::size_t>(s.kv_heads),
             image_ + 2 * requests_, stride},
            layer_elements(),
            next};
  }
  int* image(int step) const { return images_ + static_cast<std::size_t>(step % 2) * image_words(); }
  // All pages that a request may come to need, in the device's table.
  void own_pages(Launch& launch) {
    std::ranges::fill(is_done_, false);
    for (int r = 0; r < requests_; ++r) table_.grow(r, context(r) + steps);
    give_pages(0);
    upload(launch, 0, 0);
    check(cudaStreamSynchronize(launch.stream));
  }
  void begin_steps(Launch& launch) {
    const auto bytes = static_cast<std::size_t>(requests_) * sizeof(int);
    check(cudaMemcpyAsync(decode_.positions, first_, bytes, cudaMemcpyDeviceToDevice, launch.stream));
    check(cudaMemcpyAsync(decode_.tokens, first_ + requests_, bytes, cudaMemcpyDeviceToDevice, launch.stream));
    check(cudaMemsetAsync(step_number_, 0, sizeof(int), launch.stream));
  }
  void begin(Launch& launch) {
    begin_steps(launch);
    std::fill_n(tokens_.get(), tokens_.size(), -1);
    std::fill_n(text_.get(), text_.size(), static_cast<unsigned char>(0));
    for (int r = 0; r < requests_; ++r) streams_[static_cast<std::size_t>(r)].begin(text_.get() + r * most_text);
    std::ranges::fill(produced_, 0);
    std::ranges::fill(is_done_, false);
    host_us_ = 0, surplus_ = 0;
  }
  void end() {
    for (int r = 0; r < requests_; ++r) table_.shrink(r, context(r));
  }
  void one_by_one(Launch& launch, bool with_text) {
    begin(launch);
    for (int i = 0; i < steps; ++i) {
      give_pages(i);
      for (int r = 0; i > 0 && r < requests_; ++r) image(i)[r] = told(i - 1, r);
      launch_step(launch, i, i > 0);
      wait(i);
      handle(i, with_text);
    }
    end();
  }
  // Rows and table of a step, as far as the host knows who has ended.
  void give_pages(int step) {
    const HostClock clock{host_us_};
    int* const to = image(step);
    for (int r = 0; r < requests_; ++r) {
      const bool is_done = is_done_[static_cast<std::size_t>(r)];
      if (!is_done) table_.grow(r, context(r) + step + 1);
      to[requests_ + r] = is_done ? -1 : r;
    }
    std::ranges::copy(table_.entries(), to + 2 * requests_);
  }
  void upload(Launch& launch, int step, int from) {
    check(cudaMemcpyAsync(image_ + from, image(step) + from, (image_words() - static_cast<std::size_t>(from)) * sizeof(int),
                          cudaMemcpyHostToDevice, launch.stream));
  }
  void launch_step(Launch& launch, int step, bool with_tokens) {
    upload(launch, step, with_tokens ? 0 : requests_);
    graph_.launch(launch.stream);
    check(cudaEventRecord(events_[static_cast<std::size_t>(step % 2)], launch.stream));
  }
  void wait(int step) { check(cudaEventSynchronize(events_[static_cast<std::size_t>(step % 2)])); }
  // Handles the output of a step: tokens, text, and which requests have ended.
  void handle(int step, bool with_text) {
    const HostClock clock{host_us_, extra_};
    for (int r = 0; r < requests_; ++r) {
      const auto at = static_cast<std::size_t>(r);
      if (is_done_[at]) {
        surplus_ += image(step)[requests_ + r] >= 0;
        continue;
      }
      const int token = told(step, r);
      tokens_[r * steps + produced_[at]++] = token;
      const bool ends = Vocabulary::ends(token);
      const bool goes_on = ends || !with_text || streams_[at].append(vocabulary_[token], ends_[at].stop);
      if (goes_on && !ends && produced_[at] < ends_[at].tokens) continue;
      if (goes_on) streams_[at].finish();
      is_done_[at] = true;
      table_.shrink(r, context(r));
    }
  }

  int requests_, extra_;
  std::vector<int> contexts_;
  Buffers model_;
  Vocabulary vocabulary_;
  Opened<CublasLt> lt_;
  BatchMemory alone_, memory_;
  Input<int> prompts_;
  Output<int> tokens_;
  Output<unsigned char> text_;
  PageAllocator pages_;
  PageTable table_;
  Scratch<bf16> k_, v_;
  Scratch<int> first_, next_, step_number_, image_, images_, told_;
  Batch decode_;
  Graph graph_;
  std::vector<TextStream> streams_;
  std::vector<EndsAt> ends_;
  std::vector<int> produced_;
  std::vector<char> is_done_;
  std::array<cudaEvent_t, 2> events_;
  double host_us_ = 0, surplus_ = 0;
  std::vector<int> expected_tokens_;
  std::vector<unsigned char> expected_text_;
};

}  // namespace

extern constinit const Pair runtime_scheduler{
    .teaches = "tokens that stay on the GPU let the next step begin before the host has read the last one",
    .lesson = "async",
    .make = make<RuntimeScheduler>,
    .baseline = {.name = "synchronous",
                 .run = call<&RuntimeScheduler::synchronous>,
                 .prepare = call<&RuntimeScheduler::prepare>,
                 .reset = call<&RuntimeScheduler::reset>},
    .optimized = variants({{.name = "tokens_on_device",
                            .run = call<&RuntimeScheduler::tokens_on_device>,
                            .prepare = call<&RuntimeScheduler::prepare>,
                            .reset = call<&RuntimeScheduler::reset>,
                            .same_bits_as = "synchronous"},
                           {.name = "async",
                            .run = call<&RuntimeScheduler::async>,
                            .prepare = call<&RuntimeScheduler::prepare>,
                            .reset = call<&RuntimeScheduler::reset>,
                            .same_bits_as = "synchronous"}}),
    // The baseline without text and strings that end a request: how long the GPU waits without them. Its requests go on longer.
    .controls = variants({{.name = "no_text",
                           .run = call<&RuntimeScheduler::no_text>,
                           .prepare = call<&RuntimeScheduler::prepare>,
                           .reset = call<&RuntimeScheduler::reset>,
                           .outputs = no_outputs}}),
    .bound = Bound::host,
    .tolerance = exact,
    .needs = {.min_sm = 90, .libraries = {Library::cublaslt}},
    .start = Start::immediate,  // the host between two steps is the subject
    .timeline = true,
    .sizes = sizes({{.name = "requests", .full = 128, .most = 512, .scales = false},
                    // More work of the host in each step.
                    {.name = "extra_us", .full = 0, .least = 0, .most = 1000, .scales = false},
                    option("narrow"),
                    option("equal_contexts")}),
    .sweep = cases({{"extra_0", "extra_us=0"},
                    {"extra_30", "extra_us=30"},
                    {"extra_60", "extra_us=60"},
                    {"extra_100", "extra_us=100"},
                    {"extra_200", "extra_us=200"},
                    {"extra_300", "extra_us=300"},
                    {"requests_8", "requests=8"},
                    {"requests_32", "requests=32"},
                    {"requests_512", "requests=512"}}),
    // All tables grow in the same step.
    .edges = cases({{"equal_contexts", "narrow=1,equal_contexts=1,requests=32"}, {"one_request", "narrow=1,requests=1"}}),
};

}  // namespace aisp::ch16
