// SPDX-License-Identifier: Apache-2.0
// Sixteen prompts of 64 to 2048 tokens come at once; how long does a user wait for the first token? In one batch all wait for the
// whole of it, and a plain forward call computes logits of every position though only the last one of a prompt is asked for.
// In groups of some 2048 tokens all of it takes longer, but a user waits only until the own group is done: the shortest prompts
// first.
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "decoder/alone.hpp"
#include "decoder/model.hpp"
#include "prompt_burst.hpp"
#include "prompt_rows.cuh"

namespace aisp::ch20 {
namespace {

using namespace decoder;

constexpr int requests = 16, head_rows = 2048;  // head_rows: of logits that are computed at once where all are

// Keys and values of all prompts one after the other.
struct PackedCache {
  const bf16 *k, *v;
  std::size_t row, head;
  const int* first;  // [sequence]
  __device__ __forceinline__ std::size_t at(int of_sequence, int of_head, int of_row) const {
    return static_cast<std::size_t>(first[of_sequence] + of_row) * row + of_head * head;
  }
};

// to[i] = from[rows[i]]. blockIdx: the packets, i.
__global__ __launch_bounds__(row_threads) void gather_rows_kernel(PacketRows from, const int* rows, PacketRows to,
                                                                  unsigned packets) {
  const unsigned i = blockIdx.x * row_threads + threadIdx.x;
  if (i < packets) to.at(blockIdx.y, i) = from.at(static_cast<unsigned>(rows[blockIdx.y]), i);
}
// Puts a group's choices into its requests' places. A block to each of them.
__global__ __launch_bounds__(row_threads) void keep_kernel(Batch batch, const int* next, PacketRows chosen, int* tokens,
                                                           PacketRows states, unsigned packets) {
  const int request = batch.sequences[batch.chosen_rows[blockIdx.x]];
  for (unsigned i = threadIdx.x; i < packets; i += row_threads)
    states.at(static_cast<unsigned>(request), i) = chosen.at(blockIdx.x, i);
  if (threadIdx.x == 0) tokens[request] = next[blockIdx.x];
}

// A forward pass whose head gives logits in bf16, of all rows or of the last ones of the prompts.
struct PromptStep : Step<PackedCache> {
  const Product<bf16>* head;
  bf16 *logits, *last_logits;  // [row][word], [prompt][word]
  bool computes_all;

  void choose(cudaStream_t stream) const {
    const Workspace& w = model.workspace;
    const auto hidden = static_cast<std::size_t>(model.shape.hidden), words = static_cast<std::size_t>(model.shape.words),
               chosen = static_cast<std::size_t>(batch.chosen);
    const Norm last{nullptr,
                    nullptr,
                    w.delta,
                    w.x,
                    computes_all ? w.normed : w.chosen,
                    model.weights.norms + static_cast<std::size_t>(2 * model.shape.layers) * hidden,
                    computes_all ? nullptr : batch.chosen_rows,
                    model.shape.hidden};
    launch_kernel(stream, norm_kernel, grid(static_cast<unsigned>(computes_all ? batch.rows : batch.chosen), norm_threads), last);
    if (computes_all) {
      for (int row = 0; row < batch.rows; row += head_rows)
        head->run(stream, model.weights.head, 0, w.normed + static_cast<std::size_t>(row) * hidden,
                  logits + static_cast<std::size_t>(row) * words, std::min(head_rows, batch.rows - row), overlapping);
      gather(stream, chosen, hidden, w.normed, w.chosen);
      gather(stream, chosen, words, logits, last_logits);
    } else head->run(stream, model.weights.head, 0, w.chosen, last_logits, batch.chosen, overlapping);
    launch_kernel(stream, choose_kernel<bf16>, grid(static_cast<unsigned>(batch.chosen), choose_threads), last_logits, words,
                  Choice{next, nullptr, nullptr});
  }
  void gather(cudaStream_t stream, std::size_t rows, std::size_t columns, const bf16* from, const bf16* to) const {
    launch_kernel(stream, gather_rows_kernel, grid_of_rows(rows, columns), packets_of(from, columns), batch.chosen_rows,
                  packets_of(to, columns), columns / packet);
  }
};

// In the order of the variants.
enum Way : int { all_logits, last_logits, arrival_groups, shortest_first, longest_first, group_per_prompt };
constexpr std::array<std::string_view, 6> names_of_ways{"all_logits",     "last_logits",   "arrival_groups",
                                                        "shortest_first", "longest_first", "group_per_prompt"};

class FirstToken final : public Workload {
 public:
  explicit FirstToken(Setup& setup)
      : is_full_{setup.shape(1, 0) == 1},
        lengths_{burst_of_prompts(
            static_cast<int>(is_full_ ? setup.size("mean_prompt") : std::min<std::size_t>(setup.size("mean_prompt"), 48)),
            requests, setup.size("one_word") == 1)},
        group_tokens_{is_full_ ? static_cast<int>(setup.size("group_tokens")) : 192},
        model_{setup,
               is_full_ ? layers_of_1b(16, 128256) : narrow(2, 64, 1000),
               {.rows = tokens(), .chosen = requests, .positions = longest(), .split_rows = std::min(tokens(), 1024)}},
        head_{model_.shape().words, model_.shape().hidden, 1},
        lt_{setup},
        cublas_{setup},
        alone_{setup, longest()},
        prompts_{
            setup.input<int>(static_cast<std::size_t>(tokens()), integers(0, model_.shape().words - 1), {.name = "prompts"})},
        first_{setup.input<int>(requests, HostFill<int>{[this](std::span<int> to, std::uint64_t) {
                                  std::exclusive_scan(lengths_.begin(), lengths_.end(), to.begin(), 0);
                                }},
                                {.name = "first rows", .constant = true})},
        chosen_{setup.output<int>(requests, {.name = "tokens"})},
        states_{setup.output<bf16>(requests * hidden(), {.name = "last states"})},
        k_{setup.scratch<bf16>(layer_elements() * static_cast<std::size_t>(model_.shape().layers), {.name = "keys"})},
        v_{setup.scratch<bf16>(k_.size(), {.name = "values"})},
        logits_{setup.scratch<bf16>(static_cast<std::size_t>(tokens()) * words(), {.name = "logits of all rows"})},
        last_logits_{setup.scratch<bf16>(requests * words(), {.name = "logits of the last rows"})},
        next_{setup.scratch<int>(requests)},
        memory_{setup.scratch<int>(names_of_ways.size() * BatchMemory::words(tokens()))} {}

  // Logits of the prompts' last rows alone.
  Cost cost() const override {
    const Shape& s = model_.shape();
    double keys = 0;
    for (const int length : lengths_) keys += 0.5 * length * (length + 1);
    return {.flops = 2 * (tokens() * s.layers * s.layer_weights() + requests * static_cast<double>(s.words) * s.hidden) +
                     4 * keys * s.q_columns() * s.layers,
            .math = Math::bf16,
            .bytes = 2 * s.weights()};
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    const auto way = static_cast<std::size_t>(std::ranges::find(names_of_ways, variant) - names_of_ways.begin());
    const Plan& plan = plans_.at(way);
    double sum = 0, last = 0;
    for (std::size_t g = 0; g < plan.groups.size(); ++g) {
      last = plan.times.since_begin_ms(g);
      sum += last * static_cast<double>(plan.groups[g].requests.size());
    }
    metrics.report("mean_ttft", sum / requests, "ms", Metrics::Better::lower);
    metrics.report("last_ttft", last, "ms", Metrics::Better::lower);
    metrics.report_rate("tokens_per_second", tokens(), "tokens/s");
  }

  // At the small shape: each prompt alone, and float64.
  void compute_reference(Launch& launch) override {
    expected_tokens_.clear();
    std::vector<std::vector<int>> sequences;
    for (int r = 0; r < requests; ++r) {
      std::vector<int> prompt;
      for (int i = 0; i < lengths_[static_cast<std::size_t>(r)]; ++i)
        prompt.push_back(prompts_.host(static_cast<std::size_t>(first_.host(static_cast<std::size_t>(r)) + i)));
      const std::vector<int> all = generate_alone(
          launch.stream, model_.shape(), alone_, next_, [this](const Batch& batch) { return step(batch, false); }, r, prompt, 1);
      expected_tokens_.push_back(all.back());
      sequences.push_back(std::move(prompt));
    }
    expected_states_ = reference::last_states(*cublas_, launch.stream, model_.shape(), model_.weights(), sequences);
  }
  double expected_output(int output, std::size_t i) const override {
    return output == 0 ? expected_tokens_[i] : expected_states_[i];
  }

  template <Way way>
  void prepare(Launch& launch) {
    if (way == all_logits) head_.tune(*lt_, launch.stream, model_.weights().head, head_rows);
    std::vector<int> order(lengths_.size());
    std::iota(order.begin(), order.end(), 0);
    if (way >= shortest_first)
      std::ranges::stable_sort(order, {}, [this](int r) { return lengths_[static_cast<std::size_t>(r)]; });
    if (way == longest_first) std::ranges::reverse(order);
    arrange(launch.stream, way,
            groups_of(order, lengths_,
                      way <= last_logits        ? tokens()
                      : way == group_per_prompt ? 1
                                                : group_tokens_));
  }
  template <Way way>
  void serve(Launch& launch) {
    Plan& plan = plans_[way];
    plan.times.begin(launch.stream);
    for (std::size_t g = 0; g < plan.groups.size(); ++g) {
      const Group& group = plan.groups[g];
      copy_prompts(launch.stream, group);
      run(step(group.batch, way == all_logits), launch.stream);
      launch(keep_kernel, {static_cast<unsigned>(group.batch.chosen), row_threads}, group.batch, next_.get(),
             packets_of(model_.model().workspace.chosen, hidden()), chosen_.get(), packets_of(states_, hidden()),
             hidden() / packet);
      plan.times.done(launch.stream, g);
      launch.tokens(group.requests);
    }
  }

 private:
  struct Group {
    Batch batch;
    std::vector<int> requests;
  };
  struct Plan {
    std::vector<Group> groups;
    GroupTimes times;
  };

  int tokens() const { return std::accumulate(lengths_.begin(), lengths_.end(), 0); }
  int longest() const { return std::ranges::max(lengths_); }
  std::size_t hidden() const { return static_cast<std::size_t>(model_.shape().hidden); }
  std::size_t words() const { return static_cast<std::size_t>(model_.shape().words); }
  std::size_t layer_elements() const {
    return static_cast<std::size_t>(tokens()) * static_cast<std::size_t>(model_.shape().kv_columns());
  }
  PromptStep step(const Batch& batch, bool computes_all) const {
    const Shape& s = model_.shape();
    return {{model_.model(),
             batch,
             {k_, v_, static_cast<std::size_t>(s.kv_columns()), static_cast<std::size_t>(s.head_size), first_},
             layer_elements(),
             next_},
            &head_,
            logits_,
            last_logits_,
            computes_all};
  }
  // The groups' rows in device memory. Numbers of rows in between take the way of the next larger one.
  void arrange(cudaStream_t stream, Way way, const std::vector<std::vector<int>>& groups) {
    model_.clear(stream);
    for (const int rows : {128, 512, 1024, 2048, 4096}) model_.tune(*lt_, stream, rows, 0);
    model_.tune(*lt_, stream, tokens(), 0);
    head_.tune(*lt_, stream, model_.weights().head, requests);
    Plan& plan = plans_[way];
    plan.groups.clear();
    int* memory = memory_ + static_cast<std::size_t>(way) * BatchMemory::words(tokens());
    for (const std::vector<int>& group : groups) {
      std::vector<Span> spans;
      int rows = 0;
      for (const int r : group) {
        spans.push_back({r, 0, lengths_[static_cast<std::size_t>(r)]});
        rows += spans.back().tokens;
      }
      const Batch batch = BatchMemory::upload(stream, model_.shape(), Arranged{model_.shape(), spans}, memory, rows);
      plan.groups.push_back({batch, group});
      memory += BatchMemory::words(rows);
    }
    plan.times.make(groups.size());
  }
  void copy_prompts(cudaStream_t stream, const Group& group) const {
    int* to = group.batch.tokens;
    for (const int r : group.requests) {
      const auto request = static_cast<std::size_t>(r);
      check(cudaMemcpyAsync(to, prompts_.get() + first_.host(request), static_cast<std::size_t>(lengths_[request]) * sizeof(int),
                            cudaMemcpyDeviceToDevice, stream));
      to += lengths_[request];
    }
  }

  bool is_full_;
  std::vector<int> lengths_;
  int group_tokens_;
  Buffers model_;
  Product<bf16> head_;
  Opened<CublasLt> lt_;
  Opened<Cublas> cublas_;
  BatchMemory alone_;
  Input<int> prompts_, first_;
  Output<int> chosen_;
  Output<bf16> states_;
  Scratch<bf16> k_, v_, logits_, last_logits_;
  Scratch<int> next_, memory_;
  std::array<Plan, names_of_ways.size()> plans_;
  std::vector<int> expected_tokens_;
  std::vector<double> expected_states_;
};

}  // namespace

extern constinit const Pair first_token{
    .teaches =
        "in one batch everybody waits for all prompts; in groups, the shortest first, most users wait for a part of them, "
        "and the last one longer",
    .lesson = "shortest_first",
    .make = make<FirstToken>,
    .baseline = {.name = "all_logits",
                 .run = call<&FirstToken::serve<all_logits>>,
                 .prepare = call<&FirstToken::prepare<all_logits>>},
    .optimized = variants({{.name = "last_logits",
                            .run = call<&FirstToken::serve<last_logits>>,
                            .prepare = call<&FirstToken::prepare<last_logits>>,
                            .same_bits_as = "all_logits"},
                           {.name = "arrival_groups",
                            .run = call<&FirstToken::serve<arrival_groups>>,
                            .prepare = call<&FirstToken::prepare<arrival_groups>>,
                            .same_bits_as = "all_logits"},
                           {.name = "shortest_first",
                            .run = call<&FirstToken::serve<shortest_first>>,
                            .prepare = call<&FirstToken::prepare<shortest_first>>,
                            .same_bits_as = "all_logits"}}),
    // The same groups the other way round, so that it is the order that gains; and a group to each prompt: how far splitting
    // carries before products are too small.
    .controls = variants({{.name = "longest_first",
                           .run = call<&FirstToken::serve<longest_first>>,
                           .prepare = call<&FirstToken::prepare<longest_first>>,
                           .same_bits_as = "all_logits"},
                          {.name = "group_per_prompt",
                           .run = call<&FirstToken::serve<group_per_prompt>>,
                           .prepare = call<&FirstToken::prepare<group_per_prompt>>,
                           .same_bits_as = "all_logits"}}),
    .bound = Bound::compute,
    // Tokens are those of each prompt alone. States are rounded to bf16 some ten times a layer on their way.
    .tolerance = per_output({exact, within(1.2e-2)}),
    .needs = {.min_sm = 90, .libraries = {Library::cublas, Library::cublaslt}},
    .start = Start::immediate,  // users wait for the first launches, too
    .verification = Verification::small_shape,
    .judged_by = "mean_ttft",
    .sizes = sizes({{.name = "mean_prompt", .full = 512, .least = 16, .most = 1024, .scales = false},
                    {.name = "group_tokens", .full = 2048, .most = 16384, .scales = false},
                    option("one_word")}),
    .sweep = cases({{"prompts_of_64", "mean_prompt=64"},
                    {"prompts_of_256", "mean_prompt=256"},
                    {"prompts_of_1024", "mean_prompt=1024"},
                    {"groups_of_1024", "group_tokens=1024"},
                    {"groups_of_2048", "group_tokens=2048"},
                    {"groups_of_4096", "group_tokens=4096"}}),
    .edges = cases({{"one_word", "mean_prompt=16,one_word=1"}}),
};

}  // namespace aisp::ch20
