// SPDX-License-Identifier: Apache-2.0
// Thirty-two greedy tokens of one request. A step of one row reads all weights, and so does a step of five, in about the same
// time. So a small draft model guesses four tokens, one step of the target takes the last token and the four, and of what it
// chooses for them counts all up to the first that the draft did not guess. The tokens are those of the target alone.
#include <aisp/graph.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "decoder/alone.hpp"
#include "decoder/cache_rows.cuh"
#include "draft_and_target.cuh"
#include "library_step.hpp"

namespace aisp::ch16 {
namespace {

using namespace decoder;

constexpr int most_drafts = 7, most_outputs = 128, most_row = most_drafts + 2;

// A round's rows are the token before the last one, the last one and the guesses that follow it.
struct Round {
  int *tokens, *verified, *positions;  // [most_row]; verified: what the target chooses after the last token and each guess
  int *produced, *number;              // outputs there are, and rounds
  int* outputs;                        // [count]
  const float* target_logits;          // [1 + drafts][words]
  float* logits;                       // [words]: those of the last output
  int drafts, count, words;
};
// Outputs the accepted part of a round and sets up the next round's rows. `given`: how much counts, by the host, or -1. `told`:
// pinned, [round]: the outputs there are after it; or null.
constexpr int accept_threads = 1024;
__global__ __launch_bounds__(accept_threads) void accept_kernel(Round round, int given, volatile int* told) {
  const int i = static_cast<int>(threadIdx.x), before = *round.produced;
  int good = given;
  if (given < 0)
    for (good = 1; good <= round.drafts && round.verified[good - 1] == round.tokens[1 + good];) ++good;
  good = min(good, round.count - before);
  const int last = round.verified[good - 1], before_last = good > 1 ? round.verified[good - 2] : round.tokens[1];
  if (before + good == round.count)
    for (int word = i; word < round.words; word += accept_threads)
      round.logits[word] = round.target_logits[static_cast<std::size_t>(good - 1) * round.words + word];
  __syncthreads();  // all have read the round
  if (i < good) round.outputs[before + i] = round.verified[i];
  if (i < most_row) round.positions[i] += good;
  if (i > 0) return;
  round.tokens[0] = before_last, round.tokens[1] = last;
  *round.produced = before + good;
  if (told != nullptr) told[*round.number] = before + good;
  ++*round.number;
}
// Before a run: the prompt's last two tokens.
__global__ void begin_kernel(Round round, const int* prompt, int length) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < 2) round.tokens[i] = prompt[length - 2 + i];
  if (i < most_row) round.positions[i] = length - 2 + i;
  if (i == 0) *round.produced = *round.number = 0;
}
// Guesses of an oracle, which are all right.
__global__ void oracle_kernel(Round round, const int* oracle) {
  const int i = static_cast<int>(threadIdx.x), at = *round.produced + i;
  if (i < round.drafts) round.tokens[2 + i] = at < round.count ? oracle[at] : 0;
}
// In each round another guess is made wrong, or none is.
__global__ void spoil_kernel(Round round, int guess) {
  if (*round.number % (round.drafts + 1) == guess) round.tokens[2 + guess] = (round.tokens[2 + guess] + 1) % round.words;
}

class SpeculativeDecoding final : public Workload {
  using Cache = attention::ContiguousCache;

 public:
  explicit SpeculativeDecoding(Setup& setup)
      : outputs_{static_cast<int>(setup.size("outputs"))},
        prompt_{static_cast<int>(setup.size("prompt"))},
        drafts_{static_cast<int>(setup.size("drafts"))},
        planted_{setup.size("planted") == 1},
        target_{setup, setup.size("narrow") == 1 ? narrow(2, 128, 512) : layers_of_8b(4, 32000), std::max(prompt_, most_row),
                positions()},
        draft_{setup, setup.size("narrow") == 1 ? Shape{256, 2, 1, 128, 256, 1, 512} : Shape{1024, 8, 2, 128, 3584, 2, 32000},
               std::max(prompt_, most_row), positions()},
        weights_{setup,    target_.shape(), draft_.shape(), static_cast<float>(setup.size("rest_permille")) / 1000,
                 planted_, positions()},
        library_{setup, target_.shape(), 1},
        lt_{setup},
        cublas_{setup},
        memory_{setup, std::max(prompt_, most_row)},
        prompt_tokens_{setup.input<int>(static_cast<std::size_t>(prompt_), integers(0, target_.shape().words - 1),
                                        {.name = "prompt", .constant = true})},
        tokens_{setup.output<int>(static_cast<std::size_t>(outputs_), {.name = "tokens"})},
        logits_{setup.output<float>(static_cast<std::size_t>(target_.shape().words), {.name = "logits of the last token"})},
        state_{setup.scratch<int>(3 * most_row + 2)},
        rows_{setup.scratch<int>(3 * BatchMemory::words(most_row))},
        oracle_{setup.scratch<int>(static_cast<std::size_t>(outputs_))},
        written_{setup.scratch<int>(2)},
        told_{setup.scratch<int>(most_outputs, {.memory = Memory::pinned})},
        seen_{setup.scratch<int>(2 * most_row, {.memory = Memory::pinned})} {}

  // As many reads of the target as with guesses that are all right.
  Cost cost() const override { return cost_of((outputs_ + drafts_) / (drafts_ + 1), drafts_); }
  Cost variant_cost(std::string_view variant) const override {
    return variant == "one_token_steps" || variant == "library_products" ? cost_of(outputs_, 0)
           : variant == "oracle_draft"                                   ? cost_of((outputs_ + drafts_) / (drafts_ + 1), 0)
                                                                         : cost();
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", outputs_, "tokens/s");
    metrics.report("target_steps", rounds_, "steps", Metrics::Better::lower);
    if (variant == "one_token_steps" || variant == "library_products") return;
    metrics.report("tokens_per_step", outputs_ / static_cast<double>(rounds_), "tokens", Metrics::Better::higher);
    // The share of right guesses among those compared: the right ones and the one that ended a round.
    metrics.report("acceptance", 100.0 * right_ / std::max(right_ + wrong_, 1), "%", Metrics::Better::higher);
  }

  // The target alone, and in float64 the logits of what it chose last.
  void compute_reference(Launch& launch) override {
    std::vector<int> tokens;
    for (int i = 0; i < prompt_; ++i) tokens.push_back(prompt_tokens_.host(static_cast<std::size_t>(i)));
    const auto make = [this](const Batch& batch) { return target_.step(weights_.target(), batch, round().verified); };
    tokens = generate_alone(launch.stream, target_.shape(), memory_, round().verified, make, 0, std::move(tokens), outputs_);
    expected_.assign(tokens.end() - outputs_, tokens.end());
    tokens.pop_back();
    state_of_last_ = reference::last_states(*cublas_, launch.stream, target_.shape(), weights_.target(), {tokens});
  }
  double expected_output(int output, std::size_t i) const override {
    if (output == 0) return expected_[i];
    double logit = 0;
    for (std::size_t k = 0; k < state_of_last_.size(); ++k)
      logit += state_of_last_[k] * weights_.head_at(i * state_of_last_.size() + k);
    return logit;
  }

  void prepare(Launch& launch) {
    const cudaStream_t stream = launch.stream;
    weights_.extract_draft(stream);
    target_.prepare(*lt_, stream, weights_.target(), drafts_ + 1);
    draft_.prepare(*lt_, stream, weights_.draft(), 2);
    const std::array span{Span{0, 0, prompt_, false}};
    for (const bool is_target : {true, false}) {
      const SmallBatch& of = is_target ? target_ : draft_;
      const Batch batch = memory_.upload(stream, of.shape(), Arranged{of.shape(), span});
      check(cudaMemcpyAsync(batch.tokens, prompt_tokens_, prompt_tokens_.bytes(), cudaMemcpyDeviceToDevice, stream));
      run(of.step(is_target ? weights_.target() : weights_.draft(), batch, round().verified), stream);
    }
    first_guess_ = rows(stream, 0, 0, 2, false);
    one_row_ = rows(stream, 1, 1, 1, false);
    all_rows_ = rows(stream, 2, 1, drafts_ + 1, true);
    const std::array written{prompt_ - 1, positions() - prompt_ + 1};
    check(cudaMemcpyAsync(written_, written.data(), written_.bytes(), cudaMemcpyHostToDevice, stream));
    check(cudaStreamSynchronize(stream));
  }
  void prepare_tokens(Launch& launch) {
    prepare(launch);
    capture_tokens(launch, token_step_, round(0));
  }
  void prepare_host_verify(Launch& launch) {
    prepare(launch);
    guesses_.capture(launch.stream, [&](cudaStream_t stream) { guess(stream); });
    verification_.capture(launch.stream, [&](cudaStream_t stream) { verify(stream); });
  }
  void prepare_device_verify(Launch& launch) {
    prepare(launch);
    capture_round(launch, round_, [&](cudaStream_t stream) { guess(stream); });
  }
  void prepare_oracle(Launch& launch) {
    prepare(launch);
    Graph token_step;
    Round apart = round(0);
    apart.outputs = oracle_, apart.logits = const_cast<float*>(target_.logits());
    capture_tokens(launch, token_step, apart);
    begin(launch);
    for (int i = 0; i < outputs_; ++i) token_step.launch(launch.stream);
    check(cudaStreamSynchronize(launch.stream));
    capture_round(launch, oracle_round_, [&](cudaStream_t stream) {
      launch_kernel(stream, oracle_kernel, {1, 32}, round(), oracle_.get());
    });
  }
  void prepare_library(Launch& launch) {
    prepare(launch);
    LibraryStep<Cache> step;
    static_cast<Step<Cache>&>(step) = target_.step(weights_.target(), one_row_, round().verified);
    step.launch = &launch, step.products = &library_;
    library_.tune(launch, step.model.weights, step.model.workspace);
    library_step_.capture(launch.stream, [&](cudaStream_t stream) {
      run(step, stream);
      launch_kernel(stream, accept_kernel, {1, accept_threads}, round(0), -1, nullptr);
    });
  }
  // NaN where a run writes the caches.
  void reset(Launch& launch) {
    const Grid grid{dim3{static_cast<unsigned>(positions())}, 256};
    launch(poison_kernel<Cache>, grid, target_.step(weights_.target(), {}, nullptr), written_.get(), written_ + 1);
    launch(poison_kernel<Cache>, grid, draft_.step(weights_.draft(), {}, nullptr), written_.get(), written_ + 1);
  }

  void one_token_steps(Launch& launch) { repeat(launch, token_step_); }
  void library_products(Launch& launch) { repeat(launch, library_step_); }
  void host_verify(Launch& launch) {
    begin(launch);
    const int* const guesses = seen_.get() + 2;
    const int* const chosen = seen_.get() + most_row;
    for (int produced = 0; produced < outputs_;) {
      guesses_.launch(launch.stream);
      verification_.launch(launch.stream);
      check(cudaMemcpyAsync(seen_, round().tokens, seen_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
      check(cudaStreamSynchronize(launch.stream));
      int good = 1;
      while (good <= drafts_ && guesses[good - 1] == chosen[good - 1]) ++good;
      launch(accept_kernel, {1, accept_threads}, round(), good, nullptr);
      produced += count(good, outputs_ - produced);
    }
  }
  void device_verify(Launch& launch) { serve(launch, round_); }
  void oracle_draft(Launch& launch) { serve(launch, oracle_round_); }

 private:
  int positions() const { return prompt_ + outputs_ + most_row; }
  Round round(int drafts) const {
    int* const state = state_;
    return {state,
            state + most_row,
            state + 2 * most_row,
            state + 3 * most_row,
            state + 3 * most_row + 1,
            tokens_,
            target_.logits(),
            logits_,
            drafts,
            outputs_,
            target_.shape().words};
  }
  Round round() const { return round(drafts_); }
  Cost cost_of(int reads, int guesses) const {
    const double target = target_.shape().weights(), draft = draft_.shape().weights();
    return {.flops = 2 * reads * ((guesses + 1) * target + guesses * draft),
            .math = Math::bf16,
            .bytes = 2 * reads * (target + guesses * draft)};
  }
  // The rows of a round from `first` on, of which the last gets a token, or each does.
  Batch rows(cudaStream_t stream, int place, int first, int count, bool all_chosen) const {
    const std::array span{Span{0, 0, count}};
    Arranged arranged{target_.shape(), span};
    if (all_chosen) {
      arranged.chosen_rows.resize(static_cast<std::size_t>(count));
      std::iota(arranged.chosen_rows.begin(), arranged.chosen_rows.end(), 0);
    }
    Batch batch = BatchMemory::upload(stream, target_.shape(), arranged,
                                      rows_ + static_cast<std::size_t>(place) * BatchMemory::words(most_row), most_row);
    batch.tokens = round().tokens + first, batch.positions = round().positions + first;
    return batch;
  }
  // The draft's first step has the last two tokens: after a round whose guesses were all right, it has not seen the last guess.
  void guess(cudaStream_t stream) const {
    for (int i = 0; i < drafts_; ++i) {
      Batch batch = i == 0 ? first_guess_ : one_row_;
      if (i > 0) batch.tokens = round().tokens + 1 + i, batch.positions = round().positions + 1 + i;
      run(draft_.step(weights_.draft(), batch, round().tokens + 2 + i), stream);
      if (planted_) launch_kernel(stream, spoil_kernel, {1, 1}, round(), i);
    }
  }
  void verify(cudaStream_t stream) const { run(target_.step(weights_.target(), all_rows_, round().verified), stream); }
  void capture_tokens(Launch& launch, Graph& graph, const Round& round) const {
    graph.capture(launch.stream, [&](cudaStream_t stream) {
      run(target_.step(weights_.target(), one_row_, round.verified), stream);
      launch_kernel(stream, accept_kernel, {1, accept_threads}, round, -1, nullptr);
    });
  }
  template <class Guess>
  void capture_round(Launch& launch, Graph& graph, const Guess& guess) const {
    graph.capture(launch.stream, [&](cudaStream_t stream) {
      guess(stream);
      verify(stream);
      launch_kernel(stream, accept_kernel, {1, accept_threads}, round(), -1, told_.get());
    });
  }
  void begin(Launch& launch) {
    launch(begin_kernel, {1, 32}, round(), prompt_tokens_.get(), prompt_);
    rounds_ = right_ = wrong_ = 0;
  }
  void repeat(Launch& launch, const Graph& step) {
    begin(launch);
    for (int i = 0; i < outputs_; ++i) step.launch(launch.stream);
    rounds_ = outputs_;
  }
  // For the record: a round's tokens, of which no more than `wanted` count.
  int count(int good, int wanted) {
    ++rounds_;
    wrong_ += good <= drafts_ && good < wanted;
    right_ += std::min(good, wanted) - 1;
    return std::min(good, wanted);
  }
  // Rounds that are certainly needed are queued at once; for others the host looks at what came out of those.
  void serve(Launch& launch, const Graph& graph) {
    begin(launch);
    volatile int* const told = told_.get();
    std::fill_n(told_.get(), most_outputs, 0);
    for (int queued = 0, seen = 0, produced = 0; produced < outputs_;) {
      if (produced + (queued - seen) * (drafts_ + 1) < outputs_) {
        graph.launch(launch.stream);
        ++queued;
        continue;
      }
      while (told[seen] == 0) {
      }
      produced += count(told[seen] - produced, outputs_ - produced);
      ++seen;
    }
  }

  int outputs_, prompt_, drafts_;
  bool planted_;
  SmallBatch target_, draft_;
  DraftAndTarget weights_;
  LibraryProducts library_;
  Opened<CublasLt> lt_;
  Opened<Cublas> cublas_;
  BatchMemory memory_;
  Input<int> prompt_tokens_;
  Output<int> tokens_;
  Output<float> logits_;
  Scratch<int> state_, rows_, oracle_, written_, told_, seen_;
  Batch first_guess_, one_row_, all_rows_;
  Graph token_step_, library_step_, guesses_, verification_, round_, oracle_round_;
  int rounds_ = 1, right_ = 0, wrong_ = 0;
  std::vector<int> expected_;
  std::vector<double> state_of_last_;
};

}  // namespace

extern constinit const Pair speculative_decoding{
    .teaches = "a step that verifies five guessed tokens reads the same weights as one that makes a token: acceptance decides",
    .lesson = "host_verify",
    .make = make<SpeculativeDecoding>,
    .baseline = {.name = "one_token_steps",
                 .run = call<&SpeculativeDecoding::one_token_steps>,
                 .prepare = call<&SpeculativeDecoding::prepare_tokens>,
                 .reset = call<&SpeculativeDecoding::reset>},
    .optimized = variants({{.name = "host_verify",
                            .run = call<&SpeculativeDecoding::host_verify>,
                            .prepare = call<&SpeculativeDecoding::prepare_host_verify>,
                            .reset = call<&SpeculativeDecoding::reset>,
                            .same_bits_as = "one_token_steps"},
                           {.name = "device_verify",
                            .run = call<&SpeculativeDecoding::device_verify>,
                            .prepare = call<&SpeculativeDecoding::prepare_device_verify>,
                            .reset = call<&SpeculativeDecoding::reset>,
                            .same_bits_as = "one_token_steps"}}),
    // Guesses that cost nothing and are all right: the limit.
    .controls = variants({{.name = "oracle_draft",
                           .run = call<&SpeculativeDecoding::oracle_draft>,
                           .prepare = call<&SpeculativeDecoding::prepare_oracle>,
                           .reset = call<&SpeculativeDecoding::reset>,
                           .same_bits_as = "one_token_steps"},
                          // The baseline with cuBLASLt's products: what it would be without equal bits for any number of rows.
                          {.name = "library_products",
                           .run = call<&SpeculativeDecoding::library_products>,
                           .prepare = call<&SpeculativeDecoding::prepare_library>,
                           .reset = call<&SpeculativeDecoding::reset>,
                           .outputs = no_outputs}}),
    .bound = Bound::memory,
    // Tokens are those of the target alone. Logits come from states that are rounded to bf16 some ten times a layer.
    .tolerance = per_output({exact, within(1.5e-2)}),
    .needs = {.min_sm = 90, .libraries = {Library::cublas, Library::cublaslt}},
    .start = Start::immediate,  // the host decides between rounds
    .sizes = sizes({{.name = "outputs", .full = 32, .most = most_outputs, .scales = false},
                    {.name = "prompt", .full = 64, .least = 2, .most = 256, .scales = false},
                    {.name = "drafts", .full = 4, .most = most_drafts, .scales = false},
                    // The target's rest beyond the draft, in thousandths: more of it, and fewer guesses are right.
                    {.name = "rest_permille", .full = 17, .least = 0, .most = 1000, .scales = false},
                    option("narrow"),
                    option("planted")}),
    .sweep = cases({{"rest_0", "rest_permille=0"},
                    {"rest_10", "rest_permille=10"},
                    {"rest_20", "rest_permille=20"},
                    {"rest_40", "rest_permille=40"},
                    {"rest_80", "rest_permille=80"},
                    {"rest_160", "rest_permille=160"},
                    {"drafts_1", "drafts=1"},
                    {"drafts_2", "drafts=2"},
                    {"drafts_4", "drafts=4"},
                    {"drafts_7", "drafts=7"}}),
    .edges = cases({{"each_place_wrong", "narrow=1,planted=1,prompt=5"},
                    {"one_output", "narrow=1,outputs=1,prompt=2"},
                    {"one_guess", "narrow=1,planted=1,drafts=1,outputs=9"},
                    {"seven_guesses", "narrow=1,planted=1,drafts=7"}}),
};

}  // namespace aisp::ch16
