// SPDX-License-Identifier: Apache-2.0
// Two GPUs serve prompts that arrive while 64 requests decode. As replicas, each has half of both: prompts go first, so that
// every one of them stops all tokens, and both GPUs read all weights in each step. Disaggregated, one GPU computes prompts and
// the other decodes all requests; a prompt's keys and values cross NVLink when it is done. A third way puts pieces of prompts
// into the replicas' decode steps.
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include "decoder/alone.hpp"
#include "decoder/cache_rows.cuh"
#include "decoder/pull_pages.cuh"
#include "decoder/replica.hpp"
#include "gpu_in_run.hpp"

namespace aisp::ch15 {
namespace {

class DisaggregatedInference final : public Workload {
 public:
  explicit DisaggregatedInference(Setup& setup)
      : plan_{static_cast<int>(setup.shape(setup.size("requests"), std::min<std::size_t>(setup.size("requests"), 10))),
              static_cast<int>(setup.size("context")),
              static_cast<int>(setup.shape(setup.size("prompts"), std::min<std::size_t>(setup.size("prompts"), 4))),
              static_cast<int>(setup.size("prompt")),
              setup.size("spaced") == 1,
              setup.size("planted") == 1},
        ordinals_{setup.device_ordinal(0), setup.device_ordinal(1)},
        access_{PeerAccess{ordinals_[0], ordinals_[1]}, PeerAccess{ordinals_[1], ordinals_[0]}},
        model_{setup, setup.size("narrow") == 1 ? narrow(2) : layers_of_8b(2), capacity()},
        replica_{setup, model_.shape(), capacity(), 1},
        sides_{ServingGpu{setup, model_.shape(), room(), 0}, ServingGpu{setup, model_.shape(), room(), 1}},
        lt_{setup},
        lt_of_second_{setup, ordinals_[1]},
        cublas_{setup},
        alone_{setup, std::max(plan_.prompt, plan_.context + 1)},
        contexts_{setup.input<int>(size(contexts_in_all * plan_.context),
                                   traced_tokens(Trace::planted, plan_.context, model_.shape().vocabulary()),
                                   {.name = "contexts", .constant = true})},
        prompt_tokens_{
            setup.input<int>(size(plan_.prompts * plan_.prompt),
                             traced_tokens(Trace::planted + contexts_in_all, plan_.prompt, model_.shape().vocabulary()),
                             {.name = "prompts", .memory = Memory::pinned})},
        first_inputs_{
            setup.input<int>(size(plan_.requests), integers(0, model_.shape().vocabulary() - 1), {.name = "first inputs"})},
        tokens_{setup.output<int>(size(steps * plan_.requests), {.name = "tokens"})},
        states_{setup.output<bf16>(size(plan_.requests * model_.shape().hidden), {.name = "last states"})},
        first_tokens_{setup.output<int>(size(plan_.prompts), {.name = "first tokens of the prompts"})},
        kv_{setup.output<bf16>(kv_of_prompt(plan_.prompts - 1), {.name = "keys and values of the last prompt"})},
        alone_k_{setup.scratch<bf16>(size(2 * capacity().positions * model_.shape().kv_columns()))},
        alone_v_{setup.scratch<bf16>(alone_k_.size())},
        next_{setup.scratch<int>(1)},
        times_{setup.scratch<unsigned char>(gpus * sizeof(Times), {.memory = Memory::pinned})},
        of_gpu_{GpuInRun{setup, plan_, 0}, GpuInRun{setup, plan_, 1}},
        forked_{setup.event()} {}

  Cost cost() const override { return plan_.cost_of_first(model_.shape(), Policy::prompts_first); }
  Cost variant_cost(std::string_view variant) const override { return plan_.cost_of_first(model_.shape(), policy_of(variant)); }
  void metrics(std::string_view variant, Metrics& metrics) override { plan_.report(policy_of(variant), times_on(0), metrics); }

  // Each request alone, and float64 on the tokens that it then chooses.
  void compute_reference(Launch& launch) override {
    const Shape& s = model_.shape();
    const std::size_t head = size(s.head_size * capacity().positions);
    const auto make = [&](const Batch& batch) {
      return Step<attention::ContiguousCache>{
          model_.model(), batch, {alone_k_, alone_v_, size(s.head_size), head, 0}, alone_k_.size() / 2, next_};
    };
    expected_tokens_.assign(tokens_.size(), 0), expected_firsts_.clear();
    std::vector<std::vector<int>> sequences;
    for (int r = 0; r < plan_.requests; ++r) {
      std::vector<int> tokens;
      for (int i = 0; i < plan_.length(r); ++i) tokens.push_back(contexts_.host(size(r % contexts_in_all * plan_.context + i)));
      tokens.push_back(first_inputs_.host(size(r)));
      std::vector<int> all = generate_alone(launch.stream, s, alone_, next_, make, 0, std::move(tokens), steps);
      for (int i = 0; i < steps; ++i) expected_tokens_[size(i * plan_.requests + r)] = all[all.size() - size(steps - i)];
      all.pop_back();
      sequences.push_back(std::move(all));
    }
    expected_states_ = reference::last_states(*cublas_, launch.stream, s, model_.weights(), sequences);
    for (int p = 0; p < plan_.prompts; ++p)
      expected_firsts_.push_back(generate_alone(launch.stream, s, alone_, next_, make, 0, prompt(p), 1).back());
    const std::vector<int> last = prompt(plan_.prompts - 1);
    expected_kv_ =
        reference::forward(*cublas_, launch.stream, s, model_.weights(), last, std::array{static_cast<int>(last.size())}, true)
            .qkv;
  }
  double expected_output(int output, std::size_t i) const override {
    if (output == 0) return expected_tokens_[i];
    if (output == 1) return expected_states_[i];
    if (output == 2) return expected_firsts_[i];
    const Shape& s = model_.shape();
    const std::size_t columns = size(s.kv_columns()), rows = size(plan_.prompt_length(plan_.prompts - 1)),
                      kind = i / columns / rows;
    return expected_kv_[kind / 2]
                       [i / columns % rows * size(s.qkv_columns()) + size(s.q_columns()) + kind % 2 * columns + i % columns];
  }

  void prepare_prompts_first(Launch& launch) { prepare(launch, Policy::prompts_first); }
  void prepare_disaggregated(Launch& launch) { prepare(launch, Policy::disaggregated); }
  void prepare_chunked(Launch& launch) { prepare(launch, Policy::chunked); }
  void reset(Launch&) {
    for (int gpu = 0; gpu < gpus; ++gpu) {
      const SelectedGpu selected{ordinals_[size(gpu)]};
      const cudaStream_t stream = of_gpu_[size(gpu)].stream;
      launch_kernel(
          stream, poison_kernel<Pages>,
          {dim3{static_cast<unsigned>(std::max(plan_.prompt, steps)), static_cast<unsigned>(plan_.requests + plan_.prompts)},
           256},
          sides_[size(gpu)].step(model_on(gpu), {}), of_gpu_[size(gpu)].lengths.get(),
          of_gpu_[size(gpu)].lengths + plan_.requests + plan_.prompts);
      check(cudaStreamSynchronize(stream));
    }
  }
  void prompts_first(Launch& launch) { serve(launch, Policy::prompts_first); }
  void disaggregated(Launch& launch) { serve(launch, Policy::disaggregated); }
  void chunked_replicas(Launch& launch) { serve(launch, Policy::chunked); }

 private:
  std::vector<int> prompt(int p) const {
    std::vector<int> tokens;
    for (int i = 0; i < plan_.prompt_length(p); ++i) tokens.push_back(prompt_tokens_.host(size(p * plan_.prompt + i)));
    return tokens;
  }
  std::size_t kv_of_prompt(int p) const {
    return size(2 * model_.shape().layers) * size(plan_.prompt_length(p)) * size(model_.shape().kv_columns());
  }
  Capacity capacity() const {
    return {.rows = std::max(most_prefill_rows, plan_.context),
            .chosen = plan_.requests + plan_.prompts,
            .positions = std::max(plan_.prompt, plan_.context + steps + 1),
            .split_rows = 1024,
            .blocks = most_prefill_rows};
  }
  ServingGpu::Room room() const {
    const int pages = pages_for(plan_.context + steps), of_prompt = pages_for(plan_.prompt);
    return {.pages = plan_.requests * pages + plan_.prompts * of_prompt,
            .sequences = plan_.requests + plan_.prompts,
            .pages_of_sequence = std::max(pages, of_prompt),
            .steps = most_steps,
            .rows = capacity().rows};
  }
  Model model_on(int gpu) const { return gpu == 0 ? model_.model() : replica_.model(); }
  Times* times_on(int gpu) const { return reinterpret_cast<Times*>(times_.get()) + gpu; }
  void tune(int gpu, int rows) {
    const cudaStream_t stream = of_gpu_[size(gpu)].stream;
    if (gpu == 0) model_.tune(*lt_, stream, rows, 1);
    else replica_.tune(*lt_of_second_, stream, rows, 1);
    check(cudaStreamSynchronize(stream));
  }

  void prepare(Launch& launch, Policy policy) {
    check(cudaStreamSynchronize(launch.stream));
    for (int gpu = 0; gpu < gpus; ++gpu) {
      const SelectedGpu selected{ordinals_[size(gpu)]};
      GpuInRun& of = of_gpu_[size(gpu)];
      ServingGpu& side = sides_[size(gpu)];
      if (gpu == 0) model_.clear(of.stream);
      else replica_.copy(of.stream, model_.weights());
      side.clear(), side.begin();
      for (int i = 0; i < plan_.requests + plan_.prompts; ++i)
        side.table().grow(i, i < plan_.requests ? plan_.context + steps : plan_.prompt);
      side.send_table(of.stream);
      const std::vector<int> lengths = plan_.lengths_and_writes();
      check(cudaMemcpyAsync(of.lengths, lengths.data(), of.lengths.bytes(), cudaMemcpyHostToDevice, of.stream));
      check(cudaStreamSynchronize(of.stream));
      for (const int rows : plan_.numbers_of_rows(policy, gpu)) tune(gpu, rows);
      prefill_contexts(gpu);
      if (const int rows = plan_.decode_rows(policy, gpu); rows > 0) {
        DecodeRows& decoding = of.rows(policy);
        decoding.batch =
            BatchMemory::upload(of.stream, model_.shape(), Arranged{model_.shape(), plan_.decode_spans(policy, gpu, steps - 1)},
                                decoding.memory, plan_.requests);
        Step<Pages> step = side.step(model_on(gpu), decoding.batch);
        step.next = decoding.batch.tokens, step.advances = true;
        decoding.step.capture(of.stream, [&](cudaStream_t stream) {
          run(step, stream);
          keep_decoded(gpu, stream, decoding.batch, step.next, rows, 1);
        });
      }
    }
    const SelectedGpu selected{ordinals_[1]};
    std::vector<int> pairs;
    for (int p = 0; p < plan_.prompts; ++p)
      for (int i = 0; i < pages_for(plan_.prompt); ++i) {
        pairs.push_back(sides_[0].table().page(plan_.requests + p, i));
        pairs.push_back(sides_[1].table().page(plan_.requests + p, i));
      }
    check(cudaMemcpyAsync(of_gpu_[1].pull_pairs, pairs.data(), pairs.size() * sizeof(int), cudaMemcpyHostToDevice,
                          of_gpu_[1].stream));
    check(cudaStreamSynchronize(of_gpu_[1].stream));
  }
  void prefill_contexts(int gpu) {
    GpuInRun& of = of_gpu_[size(gpu)];
    for (int c = 0; c < std::min(plan_.requests, contexts_in_all); ++c) {
      std::vector<int> tokens;
      for (int i = 0; i < plan_.context; ++i) tokens.push_back(contexts_.host(size(c * plan_.context + i)));
      run(sides_[size(gpu)].send(of.stream, model_on(gpu), Arranged{model_.shape(), std::array{Span{c, 0, plan_.context, false}}},
                                 tokens),
          of.stream);
    }
    if (plan_.requests <= contexts_in_all) return;
    const int pages = pages_for(plan_.context);
    launch_kernel(of.stream, repeat_contexts_kernel,
                  {dim3{static_cast<unsigned>(pages), static_cast<unsigned>(plan_.requests - contexts_in_all), 2}, 256},
                  sides_[size(gpu)].step(model_on(gpu), {}), pages);
  }
  void keep_decoded(int gpu, cudaStream_t stream, const Batch& batch, const int* next, int rows, int moved_on) const {
    launch_kernel(stream, keep_decoded_kernel, {static_cast<unsigned>(rows), 256},
                  Decoded{batch, next, of_gpu_[size(gpu)].lengths, model_on(gpu).workspace.chosen, tokens_, states_,
                          plan_.requests, model_.shape().hidden, moved_on, times_on(gpu)});
  }

  // Each GPU has two steps queued; what the next one holds is decided when one has ended, by the prompts that have come.
  void serve(Launch& launch, Policy policy) {
    using Clock = std::chrono::steady_clock;
    check(cudaEventRecord(forked_, launch.stream));
    for (int gpu = 0; gpu < gpus; ++gpu) {
      const SelectedGpu selected{ordinals_[size(gpu)]};
      GpuInRun& of = of_gpu_[size(gpu)];
      sides_[size(gpu)].begin();
      of.begin();
      check(cudaStreamWaitEvent(of.stream, forked_));
      launch_kernel(of.stream, start_clock_kernel, {1, 1}, times_on(gpu));
      if (const int rows = plan_.decode_rows(policy, gpu); rows > 0) {
        const Batch& decoding = of.rows(policy).batch;
        launch_kernel(of.stream, begin_kernel, {1, 1024}, decoding, first_inputs_.get(), of.lengths.get());
        copy_ints(of.current, decoding.tokens, rows, of.stream);
      }
    }
    const auto start = Clock::now();
    int come = 0;
    for (bool is_done = false; !is_done;) {
      const double elapsed = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
      for (; come < plan_.prompts && plan_.arrival_ms(come) <= elapsed; ++come)
        of_gpu_[size(plan_.gpu_of_prompt(policy, come))].waiting.push_back(come);
      is_done = come == plan_.prompts;
      for (int gpu = 0; gpu < gpus; ++gpu) {
        GpuInRun& of = of_gpu_[size(gpu)];
        while (of.finished < of.queued && cudaEventQuery(of.ended[size(of.finished)]) == cudaSuccess) ++of.finished;
        hand_over(of_gpu_[0].finished);
        const SelectedGpu selected{ordinals_[size(gpu)]};
        if (of.queued - of.finished < 2 && queue_next(policy, gpu))
          check(cudaEventRecord(of.ended[size(of.queued++)], of.stream));
        is_done = is_done && of.waiting.empty() && (of.decoded == steps || plan_.decode_rows(policy, gpu) == 0);
      }
    }
    cudaGetLastError();  // "not ready" of a query
    hand_over(of_gpu_[0].queued);
    const int last = plan_.prompts - 1, gpu = plan_.gpu_that_decodes(policy, last);
    {
      const SelectedGpu selected{ordinals_[size(gpu)]};
      launch_kernel(
          of_gpu_[size(gpu)].stream, gather_kernel,
          {dim3{static_cast<unsigned>(plan_.prompt_length(last)), static_cast<unsigned>(2 * model_.shape().layers)}, 128},
          sides_[size(gpu)].step(model_on(gpu), {}), plan_.requests + last, kv_.get());
    }
    for (GpuInRun& of : of_gpu_) {
      check(cudaEventRecord(of.ended[size(of.queued)], of.stream));
      check(cudaStreamWaitEvent(launch.stream, of.ended[size(of.queued)]));
    }
  }
  // False: there is nothing to do now.
  bool queue_next(Policy policy, int gpu) {
    GpuInRun& of = of_gpu_[size(gpu)];
    const bool decodes = plan_.decode_rows(policy, gpu) > 0 && of.decoded < steps;
    if (!of.waiting.empty()) {
      const int most = policy == Policy::chunked ? chunk : policy == Policy::disaggregated ? plan_.prompt : most_prefill_rows;
      queue_rows(policy, gpu, policy == Policy::chunked && decodes, most);
      return true;
    }
    if (!decodes) return false;
    if (policy == Policy::chunked) queue_rows(policy, gpu, true, 0);
    else of.rows(policy).step.launch(of.stream), ++of.decoded;
    return true;
  }
  // A step of up to `most` tokens of waiting prompts, and of decode rows with `decodes`.
  void queue_rows(Policy policy, int gpu, bool decodes, int most) {
    GpuInRun& of = of_gpu_[size(gpu)];
    const int rows = decodes ? plan_.decode_rows(policy, gpu) : 0;
    std::vector<Span> spans = decodes ? plan_.decode_spans(policy, gpu, of.decoded) : std::vector<Span>{};
    std::vector<int> tokens(size(rows), 0);
    Prompts ended{};
    while (most > 0 && !of.waiting.empty()) {
      const int p = of.waiting.front(), now = std::min(most, plan_.prompt_length(p) - of.first);
      const bool ends = of.first + now == plan_.prompt_length(p);
      spans.push_back({plan_.requests + p, of.first, now, ends});
      for (int i = 0; i < now; ++i) tokens.push_back(prompt_tokens_.get()[p * plan_.prompt + of.first + i]);
      most -= now, of.first += now;
      if (!ends) continue;
      ended.number[ended.count++] = p;
      of.waiting.pop_front(), of.first = 0;
    }
    const Step<Pages> step = sides_[size(gpu)].send(of.stream, model_on(gpu), Arranged{model_.shape(), spans}, tokens);
    copy_ints(step.batch.tokens, of.current, rows, of.stream);
    run(step, of.stream);
    if (rows > 0) {
      copy_ints(of.current, step.next, rows, of.stream);
      keep_decoded(gpu, of.stream, step.batch, step.next, rows, 0);
      ++of.decoded;
    }
    if (ended.count == 0) return;
    launch_kernel(of.stream, keep_prompts_kernel, {1, most_prompts}, ended, step.next + rows, first_tokens_.get(), times_on(gpu));
    if (policy == Policy::disaggregated) of.computed.push_back({of.queued, ended});
  }
  // The decoding GPU fetches what steps of the other one before number `end` have computed.
  void hand_over(int end) {
    const SelectedGpu selected{ordinals_[1]};
    for (auto& computed = of_gpu_[0].computed; !computed.empty() && computed.front().first < end; computed.pop_front()) {
      const auto& [step, prompts] = computed.front();
      check(cudaStreamWaitEvent(of_gpu_[1].stream, of_gpu_[0].ended[size(step)]));
      for (int i = 0; i < prompts.count; ++i)
        pull_pages(of_gpu_[1].stream, sides_[0], sides_[1],
                   of_gpu_[1].pull_pairs + 2 * prompts.number[i] * pages_for(plan_.prompt), pages_for(plan_.prompt));
    }
  }

  PromptSchedule plan_;
  std::array<int, gpus> ordinals_;
  PeerAccess access_[gpus];
  Buffers model_;
  Replica replica_;
  std::array<ServingGpu, gpus> sides_;
  Opened<CublasLt> lt_;
  Opened<CublasLtOn> lt_of_second_;
  Opened<Cublas> cublas_;
  BatchMemory alone_;
  Input<int> contexts_, prompt_tokens_, first_inputs_;
  Output<int> tokens_;
  Output<bf16> states_;
  Output<int> first_tokens_;
  Output<bf16> kv_;
  Scratch<bf16> alone_k_, alone_v_;
  Scratch<int> next_;
  Scratch<unsigned char> times_;
  std::array<GpuInRun, gpus> of_gpu_;
  cudaEvent_t forked_;
  std::vector<int> expected_tokens_, expected_firsts_;
  std::vector<double> expected_states_;
  std::vector<std::vector<double>> expected_kv_;
};

}  // namespace

extern constinit const Pair disaggregated_inference{
    .teaches =
        "replicas that compute prompts first stop all tokens for each prompt; a GPU for prompts and one for tokens keep "
        "the longest gap near a decode step",
    .lesson = "disaggregated",
    .make = make<DisaggregatedInference>,
    .baseline = {.name = "prompts_first",
                 .run = call<&DisaggregatedInference::prompts_first>,
                 .prepare = call<&DisaggregatedInference::prepare_prompts_first>,
                 .reset = call<&DisaggregatedInference::reset>},
    .optimized = variants({{.name = "disaggregated",
                            .run = call<&DisaggregatedInference::disaggregated>,
                            .prepare = call<&DisaggregatedInference::prepare_disaggregated>,
                            .reset = call<&DisaggregatedInference::reset>,
                            .same_bits_as = "prompts_first"}}),
    // The other cure: prompts ride along in the replicas' decode steps.
    .controls = variants({{.name = "chunked_replicas",
                           .run = call<&DisaggregatedInference::chunked_replicas>,
                           .prepare = call<&DisaggregatedInference::prepare_chunked>,
                           .reset = call<&DisaggregatedInference::reset>,
                           .same_bits_as = "prompts_first"}}),
    .bound = Bound::compute,
    // Tokens are those of each request alone. States, keys and values are rounded to bf16 some ten times on their way.
    .tolerance = per_output({exact, within(1.2e-2), exact, within(1.2e-2)}),
    .needs = {.min_sm = 90, .gpus = 2, .peer_access = true, .libraries = {Library::cublas, Library::cublaslt}},
    .start = Start::immediate,  // the host decides between steps
    .verification = Verification::small_shape,
    .timeline = true,
    .sizes = sizes({{.name = "prompts", .full = 10, .most = most_prompts, .scales = false},
                    {.name = "prompt", .full = 1024, .most = 1024, .scales = false},
                    {.name = "requests", .full = 64, .least = 2, .most = 64, .scales = false},
                    {.name = "context", .full = 1024, .most = 4096, .scales = false},
                    option("spaced"),
                    option("planted"),
                    option("narrow")}),
    .sweep = cases({{"prompts_4", "prompts=4"},
                    {"prompts_8", "prompts=8"},
                    {"prompts_10", "prompts=10"},
                    {"prompts_12", "prompts=12"},
                    {"prompts_16", "prompts=16"}}),
    .edges = cases({{"prompts_1_and_last", "requests=5,context=70,prompts=3,prompt=96,planted=1,narrow=1"},
                    {"spaced", "requests=9,context=40,prompts=4,prompt=33,spaced=1,narrow=1"}}),
    .reference_samples = 2048,
};

}  // namespace aisp::ch15
