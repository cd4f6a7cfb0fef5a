// SPDX-License-Identifier: Apache-2.0
// Follow-up requests of 32 conversations, whose histories lie in the caches of two GPUs. Dealt out in turn, half of them come to
// the GPU that does not have their history, which is then computed again. A router that looks up the hashes of a prompt's blocks
// sends each request to where most of it is. Where that leaves a GPU idle, requests move, and their pages with them, over NVLink.
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "conversations.hpp"
#include "decoder/alone.hpp"
#include "decoder/pull_pages.cuh"
#include "decoder/replica.hpp"
#include "decoder/serving_gpu.hpp"
#include "prefix_index.hpp"

namespace aisp::ch17 {
namespace {

constexpr int most_rows = 4096, most_steps = 40, split_rows = 1024;

// The tokens that a step chose, and the states after them. A block to each of its requests.
struct Finished {
  int request[requests];
};
__global__ void keep_kernel(Finished finished, const int* next, const bf16* chosen, int* tokens, bf16* states, int hidden) {
  const std::size_t request = static_cast<std::size_t>(finished.request[blockIdx.x]);
  if (threadIdx.x == 0) tokens[request] = next[blockIdx.x];
  for (int i = static_cast<int>(threadIdx.x); i < hidden; i += static_cast<int>(blockDim.x))
    states[request * hidden + i] = chosen[static_cast<std::size_t>(blockIdx.x) * hidden + i];
}

class PrefixAwareRouting final : public Workload {
 public:
  explicit PrefixAwareRouting(Setup& setup)
      : conversations_{static_cast<int>(setup.size("cached")), static_cast<int>(setup.size("histories_on_second"))},
        ordinals_{setup.device_ordinal(0), setup.device_ordinal(1)},
        access_{PeerAccess{ordinals_[0], ordinals_[1]}, PeerAccess{ordinals_[1], ordinals_[0]}},
        model_{setup, setup.size("narrow") == 1 ? narrow(2) : layers_of_8b(2), capacity()},
        replica_{setup, model_.shape(), capacity(), 1},
        sides_{ServingGpu{setup, model_.shape(), room(), 0}, ServingGpu{setup, model_.shape(), room(), 1}},
        lt_{setup},
        lt_of_second_{setup, ordinals_[1]},
        cublas_{setup},
        alone_{setup, prompt_tokens()},
        histories_{setup.input<int>(
            size(requests * history_stride()), HostFill<int>{[this](std::span<int> to, std::uint64_t seed) {
              for (int i = 0; i < requests * history_stride(); ++i)
                to[size(i)] =
                    conversations_.history_token(seed, i / history_stride(), i % history_stride(), model_.shape().vocabulary());
            }},
            {.name = "histories", .constant = true})},
        own_{setup.input<int>(size(requests * (own_tokens + shorter_by)), integers(0, model_.shape().vocabulary() - 1),
                              {.name = "tokens of the last turn", .memory = Memory::pinned})},
        tokens_{setup.output<int>(requests, {.name = "first tokens"})},
        states_{setup.output<bf16>(size(requests * model_.shape().hidden), {.name = "last states"})},
        alone_k_{setup.scratch<bf16>(size(2 * prompt_tokens() * model_.shape().kv_columns()))},
        alone_v_{setup.scratch<bf16>(alone_k_.size())},
        next_{setup.scratch<int>(1)},
        pull_pairs_{setup.scratch<int>(size(2 * requests * pages_for(prompt_tokens())), {.device = 1})},
        pull_staged_{setup.scratch<int>(pull_pairs_.size(), {.memory = Memory::pinned})},
        compute_{setup.stream(0), setup.stream(1)},
        forked_{setup.event()} {
    for (int i = 0; i < most_steps; ++i) done_[0][size(i)] = setup.event(0), done_[1][size(i)] = setup.event(1);
  }

  // Each of the two GPUs computes half of the new tokens, and reads the weights.
  Cost cost() const override {
    const Shape& s = model_.shape();
    double rows = 0, keys = 0;
    for (int r = 0; r < requests; ++r) {
      const double of_request = prompt_tokens() - conversations_.common(r);
      rows += of_request;
      keys += of_request * (conversations_.common(r) + (of_request + 1) / 2);
    }
    return {.flops = (2 * rows * s.weights() + 4 * keys * s.q_columns() * s.layers) / gpus,
            .math = Math::bf16,
            .bytes = 2 * s.weights()};
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report("computed_tokens", computed_[0] + computed_[1], "tokens", Metrics::Better::lower);
    metrics.report("busier_gpu", std::max(computed_[0], computed_[1]), "tokens", Metrics::Better::lower);
    metrics.report("pulled", pulled_bytes_ / 1e6, "MB", Metrics::Better::lower);
  }

  // Each request alone, and float64 on its prompt.
  void compute_reference(Launch& launch) override {
    const Shape& s = model_.shape();
    std::vector<std::vector<int>> sequences;
    expected_tokens_.clear();
    const std::size_t head = size(s.head_size) * size(prompt_tokens());
    const auto make = [&](const Batch& batch) {
      return Step<attention::ContiguousCache>{
          model_.model(), batch, {alone_k_, alone_v_, size(s.head_size), head, 0}, alone_k_.size() / 2, next_};
    };
    for (int r = 0; r < requests; ++r) {
      sequences.push_back(prompt(r));
      expected_tokens_.push_back(generate_alone(launch.stream, s, alone_, next_, make, 0, sequences.back(), 1).back());
    }
    expected_states_ = reference::last_states(*cublas_, launch.stream, s, model_.weights(), sequences);
  }
  double expected_output(int output, std::size_t i) const override {
    return output == 0 ? expected_tokens_[i] : expected_states_[i];
  }

  // Histories are computed where they lie. Then the schedule of the variant runs once, for the sizes of its steps.
  void prepare_round_robin(Launch& launch) { prepare(launch, &Conversations::in_turn); }
  void prepare_affinity(Launch& launch) { prepare(launch, &Conversations::by_prefix); }
  void prepare_balanced(Launch& launch) { prepare(launch, &Conversations::by_prefix_and_load); }
  void prepare_blind(Launch& launch) { prepare(launch, &Conversations::equal_misses); }
  void round_robin(Launch& launch) { serve(launch, &Conversations::in_turn, false); }
  void affinity(Launch& launch) { serve(launch, &Conversations::by_prefix, false); }
  void affinity_balanced(Launch& launch) { serve(launch, &Conversations::by_prefix_and_load, false); }
  void balanced_blind(Launch& launch) { serve(launch, &Conversations::equal_misses, false); }
  // Runs do not follow one another without an end: copies of one read pinned memory that the next one fills.
  void reset(Launch&) {}

 private:
  using Policy = Assignment (Conversations::*)(const Matches&) const;

  int prompt_tokens() const { return conversations_.prompt_tokens(); }
  int history_stride() const { return conversations_.history_stride(); }
  Capacity capacity() const {
    const int rows = std::max(most_rows, (prompt_tokens() + row_multiple) / row_multiple * row_multiple);
    return {.rows = rows, .chosen = requests, .positions = prompt_tokens() + page_rows, .split_rows = split_rows, .blocks = rows};
  }
  ServingGpu::Room room() const {
    return {.pages = requests * (pages_for(history_stride()) + pages_for(prompt_tokens())),
            .sequences = 2 * requests,
            .pages_of_sequence = pages_for(prompt_tokens() + page_rows),
            .steps = most_steps,
            .rows = capacity().rows};
  }
  std::vector<int> prompt(int r) const {
    const std::vector<int>& history = history_of_[size(r)];
    std::vector<int> tokens(history.begin(), history.begin() + conversations_.common(r));
    for (int i = 0; static_cast<int>(tokens.size()) < prompt_tokens(); ++i)
      tokens.push_back(own_.get()[r * (own_tokens + shorter_by) + i]);
    return tokens;
  }
  Model model_on(int gpu) const { return gpu == 0 ? model_.model() : replica_.model(); }

  Step<ServingGpu::Pages> send(int gpu, PlannedStep& step) {
    step.pad();
    return sides_[size(gpu)].send(compute_[size(gpu)], model_on(gpu), Arranged{model_.shape(), step.spans}, step.tokens);
  }
  void tune(int gpu, int rows) {
    const SelectedGpu selected{ordinals_[size(gpu)]};
    if (gpu == 0) model_.tune(*lt_, compute_[0], rows, 1);
    else replica_.tune(*lt_of_second_, compute_[1], rows, 1);
    check(cudaStreamSynchronize(compute_[size(gpu)]));
  }

  void prepare(Launch& launch, Policy policy) {
    check(cudaStreamSynchronize(launch.stream));
    model_.clear(compute_[0]);
    check(cudaStreamSynchronize(compute_[0]));
    history_of_.clear();
    for (int r = 0; r < requests; ++r) {
      history_of_.emplace_back();
      for (int i = 0; i < conversations_.history_tokens(r); ++i)
        history_of_.back().push_back(histories_.host(size(r * history_stride() + i)));
    }
    for (int gpu = 0; gpu < gpus; ++gpu) {
      const SelectedGpu selected{ordinals_[size(gpu)]};
      if (gpu == 1) replica_.copy(compute_[1], model_.weights());
      ServingGpu& side = sides_[size(gpu)];
      side.clear(), side.begin();
      std::vector<PlannedStep> plan;
      for (int r = 0; r < requests; ++r) {
        if (conversations_.home(r) != gpu) continue;
        side.table().grow(r, conversations_.history_tokens(r));
        pack(plan, capacity().rows, r, 0, history_of_[size(r)], -1);
      }
      side.send_table(compute_[size(gpu)]);
      for (PlannedStep& step : plan) {
        if (&step == &plan.front()) tune(gpu, static_cast<int>(capacity().rows));
        run(send(gpu, step), compute_[size(gpu)]);
      }
      index_[size(gpu)] = PrefixIndex{size(requests * pages_for(history_stride()))};
      for (int r = 0; r < requests; ++r) {
        if (conversations_.home(r) != gpu) continue;
        const auto hashes = block_hashes(history_of_[size(r)], page_rows);
        for (std::size_t i = 0; i < hashes.size(); ++i)
          index_[size(gpu)].add(hashes[i], side.table().page(r, static_cast<int>(i)));
      }
      check(cudaStreamSynchronize(compute_[size(gpu)]));
    }
    serve(launch, policy, true);
  }

  // With `tunes`, the products of the steps are tuned, and nothing else happens.
  void serve(Launch& launch, Policy policy, bool tunes) {
    // The router: where is how much of each prompt?
    Matches matches;
    std::vector<std::vector<int>> prompts;
    for (int r = 0; r < requests; ++r) {
      std::vector<int> tokens = prompt(r);
      const auto hashes = block_hashes(tokens, page_rows);
      for (std::size_t gpu = 0; gpu < gpus; ++gpu) matches[size(r)][gpu] = index_[gpu].match(hashes);
      prompts.push_back(std::move(tokens));
    }
    const Assignment to = (conversations_.*policy)(matches);

    check(cudaEventRecord(forked_, launch.stream));
    std::array<std::vector<PlannedStep>, gpus> plans;
    pulled_bytes_ = 0;
    for (int gpu = 0; gpu < gpus; ++gpu) {
      const SelectedGpu selected{ordinals_[size(gpu)]};
      const cudaStream_t stream = compute_[size(gpu)];
      ServingGpu& side = sides_[size(gpu)];
      side.begin();
      std::vector<PlannedStep>& plan = plans[size(gpu)];
      int pairs = 0;
      for (const bool is_pulled : {false, true})
        for (int r = 0; r < requests; ++r) {
          const int from = to.pulled_from[size(r)];
          if (to.gpu[size(r)] != gpu || (from >= 0) != is_pulled) continue;
          const std::vector<int>& pages = matches[size(r)][size(is_pulled ? from : gpu)];
          for (const int page : is_pulled ? std::vector<int>{} : pages) {
            side.pages().share(page);
            side.table().append(requests + r, page);
          }
          side.table().grow(requests + r, prompt_tokens());
          for (std::size_t i = 0; is_pulled && i < pages.size(); ++i) {
            pull_staged_[2 * pairs] = pages[i];
            pull_staged_[2 * pairs++ + 1] = side.table().page(requests + r, static_cast<int>(i));
          }
          if (is_pulled && (plan.empty() || !plan.back().is_pulled)) plan.push_back({{}, {}, {}, true});
          pack(plan, capacity().rows, requests + r, static_cast<int>(pages.size()) * page_rows, prompts[size(r)], r);
        }
      computed_[size(gpu)] = 0;
      for (const PlannedStep& step : plan) computed_[size(gpu)] += step.rows();
      if (!tunes) {
        check(cudaStreamWaitEvent(stream, forked_));
        side.send_table(stream);
      }
      for (std::size_t i = 0; i < plan.size(); ++i) {
        if (tunes) {
          plan[i].pad();
          tune(gpu, plan[i].rows());
          continue;
        }
        if (plan[i].is_pulled && pairs > 0) pull(stream, std::exchange(pairs, 0));
        const Step<ServingGpu::Pages> step = send(gpu, plan[i]);
        run(step, stream);
        keep(stream, plan[i], step);
        check(cudaEventRecord(done_[size(gpu)][i], stream));
      }
      for (int r = 0; r < requests; ++r) side.table().release(requests + r);
    }
    if (!tunes) tell_tokens(launch, plans);
  }
  void pull(cudaStream_t stream, int pairs) {
    check(cudaMemcpyAsync(pull_pairs_, pull_staged_, size(2 * pairs) * sizeof(int), cudaMemcpyHostToDevice, stream));
    pull_pages(stream, sides_[0], sides_[1], pull_pairs_, pairs);
    pulled_bytes_ = pairs * page_rows * model_.shape().kv_bytes() * model_.shape().layers;
  }
  void keep(cudaStream_t stream, const PlannedStep& planned, const Step<ServingGpu::Pages>& step) {
    if (planned.finished.empty()) return;
    Finished finished{};
    std::ranges::copy(planned.finished, finished.request);
    launch_kernel(stream, keep_kernel, {static_cast<unsigned>(planned.finished.size()), 256}, finished, step.next,
                  step.model.workspace.chosen, tokens_.get(), states_.get(), model_.shape().hidden);
  }
  // The harness takes times on one stream: steps of both GPUs in the order in which they end, by the rows up to them.
  void tell_tokens(Launch& launch, const std::array<std::vector<PlannedStep>, gpus>& plans) {
    struct End {
      std::size_t rows;
      cudaEvent_t event;
      const std::vector<int>* finished;
    };
    std::vector<End> ends;
    for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
      std::size_t rows = 0;
      for (std::size_t i = 0; i < plans[gpu].size(); ++i)
        ends.push_back({rows += plans[gpu][i].tokens.size(), done_[gpu][i], &plans[gpu][i].finished});
    }
    std::ranges::stable_sort(ends, {}, &End::rows);
    for (const End& end : ends) {
      check(cudaStreamWaitEvent(launch.stream, end.event));
      if (!end.finished->empty()) launch.tokens(*end.finished);
    }
  }

  Conversations conversations_;
  std::array<int, gpus> ordinals_;
  PeerAccess access_[gpus];
  Buffers model_;
  Replica replica_;
  std::array<ServingGpu, gpus> sides_;
  Opened<CublasLt> lt_;
  Opened<CublasLtOn> lt_of_second_;
  Opened<Cublas> cublas_;
  BatchMemory alone_;
  Input<int> histories_, own_;
  Output<int> tokens_;
  Output<bf16> states_;
  Scratch<bf16> alone_k_, alone_v_;
  Scratch<int> next_, pull_pairs_, pull_staged_;
  std::array<cudaStream_t, gpus> compute_;
  cudaEvent_t forked_;
  std::array<std::array<cudaEvent_t, most_steps>, gpus> done_{};
  std::array<PrefixIndex, gpus> index_{PrefixIndex{1}, PrefixIndex{1}};
  std::vector<std::vector<int>> history_of_;
  std::array<double, gpus> computed_{};
  double pulled_bytes_ = 0;
  std::vector<int> expected_tokens_;
  std::vector<double> expected_states_;
};

}  // namespace

extern constinit const Pair prefix_aware_routing{
    .teaches = "a request that goes where its history lies computes its last turn only",
    .lesson = "affinity",
    .make = make<PrefixAwareRouting>,
    .baseline = {.name = "round_robin",
                 .run = call<&PrefixAwareRouting::round_robin>,
                 .prepare = call<&PrefixAwareRouting::prepare_round_robin>,
                 .reset = call<&PrefixAwareRouting::reset>},
    .optimized = variants({{.name = "affinity",
                            .run = call<&PrefixAwareRouting::affinity>,
                            .prepare = call<&PrefixAwareRouting::prepare_affinity>,
                            .reset = call<&PrefixAwareRouting::reset>,
                            .same_bits_as = "round_robin"},
                           {.name = "affinity_balanced",
                            .run = call<&PrefixAwareRouting::affinity_balanced>,
                            .prepare = call<&PrefixAwareRouting::prepare_balanced>,
                            .reset = call<&PrefixAwareRouting::reset>,
                            .same_bits_as = "round_robin"}}),
    // As many tokens on both GPUs, and no look at prefixes.
    .controls = variants({{.name = "balanced_blind",
                           .run = call<&PrefixAwareRouting::balanced_blind>,
                           .prepare = call<&PrefixAwareRouting::prepare_blind>,
                           .reset = call<&PrefixAwareRouting::reset>,
                           .same_bits_as = "round_robin"}}),
    .bound = Bound::compute,
    // Tokens are those of each request alone. States are rounded to bf16 some ten times on their way.
    .tolerance = per_output({exact, within(1.2e-2)}),
    .needs = {.min_sm = 90, .gpus = 2, .peer_access = true, .libraries = {Library::cublas, Library::cublaslt}},
    .start = Start::immediate,  // the host routes
    .timeline = true,
    .sizes = sizes({{.name = "cached", .full = 1024, .multiple = 16, .least = 16, .most = 8192, .scales = false},
                    {.name = "histories_on_second", .full = 8, .multiple = 2, .least = 0, .most = 16, .scales = false},
                    option("narrow")}),
    .sweep = cases({{"cached_64", "cached=64"},
                    {"cached_1024", "cached=1024"},
                    {"cached_4096", "cached=4096"},
                    {"histories_32_0", "histories_on_second=0"},
                    {"histories_16_16", "histories_on_second=16"}}),
    .edges = cases({{"one_page", "cached=16,narrow=1"}, {"all_on_first", "cached=80,histories_on_second=0,narrow=1"}}),
    .reference_samples = 2048,
};

}  // namespace aisp::ch17
