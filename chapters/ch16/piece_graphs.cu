// SPDX-License-Identifier: Apache-2.0
// Eight steps of a server, five of decode rows alone and three with a chunk of a prompt: about 150 short kernels each, between
// which the GPU waits. A graph of a step freezes its number of rows and the grid of attention; graphs of what stands between two
// attentions freeze the number of rows alone, which is padded to a bucket.
#include <aisp/graph.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <vector>

#include "decoder/alone.hpp"
#include "decoder/cache_rows.cuh"
#include "decoder/model.hpp"
#include "decoder/pages.hpp"
#include "decoder/trace.hpp"
#include "host_clock.hpp"
#include "pinned_rows.hpp"

namespace aisp::ch16 {
namespace {

using namespace decoder;
using Pages = attention::PagedCache<page_rows>;

constexpr int most_rows = 64, sequences = 61, prompt = sequences - 1;  // of a step; the last sequence is the prompt
constexpr int longest = 4080, positions = 4096, before_chunks = 480;   // tokens in the cache; of the prompt
// Decode rows, those of sequences 0 to decodes - 1, and tokens of the prompt's next chunk.
struct StepRows {
  int decodes, chunk;
  int rows() const { return decodes + chunk; }
};
// Totals at the borders of buckets of 16.
constexpr StepRows served[] = {{5, 0}, {16, 0}, {17, 0}, {33, 0}, {60, 0}, {25, 7}, {9, 24}, {12, 48}};
constexpr StepRows smallest[] = {{1, 0}, {0, 1}, {3, 13}, {0, 33}, {2, 62}};

// Keeps what a step has chosen, a block to each row.
__global__ void keep_kernel(const bf16* chosen, const int* next, bf16* states, int* tokens, int hidden) {
  for (int i = static_cast<int>(threadIdx.x); i < hidden; i += static_cast<int>(blockDim.x))
    states[static_cast<std::size_t>(blockIdx.x) * hidden + i] = chosen[static_cast<std::size_t>(blockIdx.x) * hidden + i];
  if (threadIdx.x == 0) tokens[blockIdx.x] = next[blockIdx.x];
}

class PieceGraphs final : public Workload {
 public:
  explicit PieceGraphs(Setup& setup)
      : bucket_{static_cast<int>(setup.size("bucket"))},
        steps_{setup.size("smallest") == 1 ? std::vector<StepRows>(std::begin(smallest), std::end(smallest))
                                           : std::vector<StepRows>(std::begin(served), std::end(served))},
        contexts_{contexts(setup.size("smallest") == 1)},
        model_{setup, shape(setup), {.rows = positions, .chosen = most_rows, .positions = positions, .split_rows = most_rows}},
        lt_{setup},
        cublas_{setup},
        alone_{setup, positions},
        memory_{setup, most_rows},
        cached_{setup.input<int>(sequences * positions, integers(0, model_.shape().vocabulary() - 1),
                                 {.name = "tokens in the cache", .constant = true})},
        fresh_{setup.input<int>(cached_.size(), integers(0, model_.shape().vocabulary() - 1),
                                {.name = "tokens of the steps", .memory = Memory::pinned})},
        pages_{cache_rows() / page_rows, 16},
        table_{pages_, sequences, pages_for(positions)},
        entries_{setup.scratch<int>(table_.entries().size())},
        k_{setup.scratch<bf16>(layer_elements() * static_cast<std::size_t>(model_.shape().layers), {.name = "keys"})},
        v_{setup.scratch<bf16>(k_.size(), {.name = "values"})},
        tokens_{setup.output<int>(chosen(), {.name = "chosen tokens"})},
        states_{setup.output<bf16>(tokens_.size() * static_cast<std::size_t>(model_.shape().hidden), {.name = "last states"})},
        next_{setup.scratch<int>(most_rows)},
        written_{setup.scratch<int>(2 * sequences)},
        images_{setup.scratch<int>(steps_.size() * BatchMemory::words(most_rows), {.memory = Memory::pinned})},
        uploaded_{setup.event()} {}

  Cost cost() const override {
    const Shape& s = model_.shape();
    double rows = 0, keys = 0, read = 0;
    for (std::size_t i = 0; i < steps_.size(); ++i)
      for (const Span& span : spans(i)) {
        const double first = span.first_position, tokens = span.tokens;
        rows += tokens;
        keys += tokens * first + tokens * (tokens + 1) / 2;
        read += first + tokens;
      }
    return {.flops = 2 * rows * s.weights() + 4 * keys * s.q_columns() * s.layers,
            .math = Math::bf16,
            .bytes = static_cast<double>(steps_.size()) * 2 * s.weights() + read * s.kv_bytes() * s.layers};
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    const auto graphs = graphs_.find(variant);
    if (graphs == graphs_.end()) return;
    metrics.report("graphs", graphs->second.count, "graphs", Metrics::Better::lower);
    metrics.report("capture_time", graphs->second.capture_us / 1e3, "ms", Metrics::Better::lower);
  }

  // Each row's token as its sequence alone chooses it, and in float64 the state that it is chosen from.
  void compute_reference(Launch& launch) override {
    const Shape& s = model_.shape();
    expected_tokens_.clear(), expected_states_.clear();
    const auto make = [this](const Batch& batch) { return step(batch, true); };
    std::map<int, std::vector<double>> states;  // of the sequences, from the first position on that a step computes
    for (std::size_t i = 0; i < steps_.size(); ++i)
      for (const Span& span : spans(i)) {
        const int r = span.sequence, end = span.first_position + span.tokens;
        const std::vector<int> tokens = first_tokens(r, length(r));
        expected_tokens_.push_back(
            generate_alone(launch.stream, s, alone_, next_, make, r, {tokens.begin(), tokens.begin() + end}, 1).back());
        std::vector<double>& of = states[r];
        if (of.empty()) {
          const int all = length(r);
          const reference::Results results = reference::forward(*cublas_, launch.stream, s, model_.weights(), tokens, {&all, 1});
          of.assign(results.normed.begin() + context(r) * s.hidden, results.normed.end());
        }
        const auto from = of.begin() + (end - 1 - context(r)) * s.hidden;
        expected_states_.insert(expected_states_.end(), from, from + s.hidden);
      }
  }
  double expected_output(int output, std::size_t i) const override {
    return output == 0 ? expected_tokens_[i] : expected_states_[i];
  }

  void prepare(Launch& launch) {
    model_.clear(launch.stream);
    prefill(launch);
    plan_.clear();
    for (std::size_t i = 0; i < steps_.size(); ++i) plan(i);
    for (int rows = bucket_; rows < most_rows + bucket_; rows += bucket_) model_.tune(*lt_, launch.stream, rows, rows);
  }
  void prepare_pieces(Launch& launch) { capture(launch, graphs_["piecewise"], Whole::none, false); }
  void prepare_pieces_pdl(Launch& launch) { capture(launch, graphs_["piecewise_pdl"], Whole::none, true); }
  void prepare_full_for_decode(Launch& launch) { capture(launch, graphs_["full_for_decode"], Whole::decode_steps, true); }
  void prepare_full(Launch& launch) { capture(launch, graphs_["full_graph"], Whole::all_steps, false); }

  void launched(Launch& launch) {
    serve(launch, [&](std::size_t i) { run(step(plan_[i].live, false), launch.stream); });
  }
  void piecewise(Launch& launch) { replay(launch, graphs_.at("piecewise")); }
  void piecewise_pdl(Launch& launch) { replay(launch, graphs_.at("piecewise_pdl")); }
  void full_for_decode(Launch& launch) { replay(launch, graphs_.at("full_for_decode")); }
  void full_graph(Launch& launch) { replay(launch, graphs_.at("full_graph")); }

  // NaN where a run is to write the cache, and as results of attention, which rows of padding begin with.
  void reset(Launch& launch) {
    launch(poison_kernel<Pages>, {dim3{most_rows * 2, sequences}, 256}, step({}, false), written_.get(), written_ + sequences);
    const std::size_t elements = static_cast<std::size_t>(most_rows * model_.shape().q_columns());
    check(cudaMemsetAsync(model_.model().workspace.attended, 0xff, elements * sizeof(bf16), launch.stream));
  }

 private:
  enum class Whole { none, decode_steps, all_steps };
  struct Graphs {
    Whole has_whole = Whole::none;
    std::map<int, std::vector<std::unique_ptr<Graph>>> pieces;
    std::map<int, Graph> whole;
    int count = 0;
    double capture_us = 0;
  };

  struct Planned {
    Batch live;
    std::vector<int> fresh;
  };

  static Shape shape(Setup& setup) {
    if (setup.size("narrow") == 1) return narrow(3);
    constexpr std::array<Shape, 3> shapes{layers_of_0_6b(16), layers_of_1_7b(16), layers_of_8b(4)};
    return shapes[setup.size("model")];
  }
  // Tokens in the cache before the first step: few, a single one, and nearly as many as there may be.
  static std::vector<int> contexts(bool smallest_steps) {
    std::vector<int> all;
    for (int r = 0; r < prompt; ++r) all.push_back(Trace{{96, 0.8, 1, 1024}}.request(Trace::planted + r).prompt);
    all.push_back(smallest_steps ? 0 : before_chunks);
    all[2] = 1, all[40] = longest;
    return all;
  }
  int context(int sequence) const { return contexts_[static_cast<std::size_t>(sequence)]; }
  // Positions of a sequence that the steps before `step` compute.
  int computed(int sequence, std::size_t step) const {
    int count = 0;
    for (std::size_t i = 0; i < step; ++i) count += sequence == prompt ? steps_[i].chunk : sequence < steps_[i].decodes ? 1 : 0;
    return count;
  }
  int length(int sequence) const { return context(sequence) + computed(sequence, steps_.size()); }
  int cache_rows() const {
    int rows = 0;
    for (int r = 0; r < sequences; ++r) rows += pages_for(length(r)) * page_rows;
    return rows;
  }
  std::vector<Span> spans(std::size_t step) const {
    std::vector<Span> all;
    for (int r = 0; r < steps_[step].decodes; ++r) all.push_back({r, context(r) + computed(r, step), 1});
    if (steps_[step].chunk > 0) all.push_back({prompt, context(prompt) + computed(prompt, step), steps_[step].chunk});
    return all;
  }
  std::size_t chosen() const {
    std::size_t count = 0;
    for (std::size_t i = 0; i < steps_.size(); ++i) count += spans(i).size();
    return count;
  }
  std::vector<int> first_tokens(int sequence, int count) const {
    std::vector<int> tokens;
    for (int i = 0; i < count; ++i)
      tokens.push_back((i < context(sequence) ? cached_ : fresh_).host(static_cast<std::size_t>(sequence * positions + i)));
    return tokens;
  }
  std::size_t layer_elements() const {
    return static_cast<std::size_t>(cache_rows()) * static_cast<std::size_t>(model_.shape().kv_columns());
  }
  Step<Pages> step(const Batch& batch, bool overlapping) const {
    const Shape& s = model_.shape();
    const auto head = static_cast<std::size_t>(s.head_size * page_rows);
    return {model_.model(),
            batch,
            {k_, v_, static_cast<std::size_t>(s.head_size), head, head * static_cast<std::size_t>(s.kv_heads), entries_,
             table_.stride()},
            layer_elements(),
            next_,
            false,
            overlapping};
  }

  void prefill(Launch& launch) {
    const Shape& s = model_.shape();
    model_.tune(*lt_, launch.stream, positions, 1);
    for (int r = 0; r < sequences; ++r) table_.grow(r, length(r));
    check(cudaMemcpyAsync(entries_, table_.entries().data(), entries_.bytes(), cudaMemcpyHostToDevice, launch.stream));
    for (int first = 0; first < sequences;) {
      std::vector<Span> spans;
      std::vector<int> tokens;
      for (; first < sequences && static_cast<int>(tokens.size()) + context(first) <= positions; ++first) {
        if (context(first) == 0) continue;
        spans.push_back({first, 0, context(first), false});
        const std::vector<int> own = first_tokens(first, context(first));
        tokens.insert(tokens.end(), own.begin(), own.end());
      }
      const Batch batch = alone_.upload(launch.stream, s, Arranged{s, spans});
      check(cudaMemcpyAsync(batch.tokens, tokens.data(), tokens.size() * sizeof(int), cudaMemcpyHostToDevice, launch.stream));
      run(step(batch, true), launch.stream);
    }
    std::vector<int> written = contexts_;
    for (int r = 0; r < sequences; ++r) written.push_back(computed(r, steps_.size()));
    check(cudaMemcpyAsync(written_, written.data(), written_.bytes(), cudaMemcpyHostToDevice, launch.stream));
  }
  // A step's rows: padding belongs to no sequence and chooses the rows left, and blocks that are not needed have no rows.
  int* image(std::size_t step) const { return images_ + step * BatchMemory::words(most_rows); }
  void plan(std::size_t i) {
    const Arranged arranged{model_.shape(), spans(i)};
    std::fill_n(image(i), BatchMemory::words(most_rows), 0);
    std::fill_n(BatchMemory::over(image(i), most_rows).sequences, most_rows, -1);
    write_rows(image(i), most_rows, arranged);
    int* other = const_cast<int*>(BatchMemory::over(image(i), most_rows).chosen_rows) + arranged.chosen_rows.size();
    for (int row = 0; row < most_rows; ++row)
      if (std::ranges::find(arranged.chosen_rows, row) == arranged.chosen_rows.end()) *other++ = row;
    Planned& planned = plan_.emplace_back();
    for (const Span& span : spans(i))
      for (int t = 0; t < span.tokens; ++t) planned.fresh.push_back(span.sequence * positions + span.first_position + t);
    planned.live = memory_.batch();
    BatchMemory::describe(planned.live, model_.shape(), arranged);
  }

  static void run_piece(const Step<Pages>& step, cudaStream_t stream, int piece) {
    if (piece == 0) step.embed(stream);
    else step.finish(stream, piece - 1);
    if (piece == step.model.shape.layers) return step.choose(stream);
    step.project(stream, piece);
    step.append(stream, piece);
  }
  // A step of `rows` rows, and attention for whatever may be among them.
  Batch frozen(int rows, bool with_chunks) const {
    Batch batch = memory_.batch();
    batch.rows = batch.chosen = batch.shorts = rows;
    const int tokens = long_rows / model_.shape().group();  // of a long block
    batch.longs = with_chunks ? (rows + tokens - 1) / tokens : 0;
    batch.most_pieces = positions / piece_keys;
    batch.split_longs = true;
    return batch;
  }
  void capture(Launch& launch, Graphs& to, Whole whole, bool overlapping) {
    prepare(launch);
    to.pieces.clear(), to.whole.clear();
    to.has_whole = whole, to.count = 0, to.capture_us = 0;
    const HostClock clock{to.capture_us};
    for (int rows = bucket_; rows < most_rows + bucket_; rows += bucket_) {
      if (whole != Whole::none) {
        const Step<Pages> all = step(frozen(rows, whole == Whole::all_steps), overlapping);
        to.whole[rows].capture(launch.stream, [&](cudaStream_t stream) { run(all, stream); });
        ++to.count;
      }
      for (int piece = 0; whole != Whole::all_steps && piece <= model_.shape().layers; ++piece, ++to.count) {
        to.pieces[rows].push_back(std::make_unique<Graph>());
        to.pieces[rows].back()->capture(
            launch.stream, [&](cudaStream_t stream) { run_piece(step(frozen(rows, false), overlapping), stream, piece); });
      }
    }
  }
  void replay(Launch& launch, const Graphs& graphs) {
    serve(launch, [&](std::size_t i) {
      const int rows = (steps_[i].rows() + bucket_ - 1) / bucket_ * bucket_;
      const bool is_whole =
          graphs.has_whole == Whole::all_steps || (graphs.has_whole == Whole::decode_steps && steps_[i].chunk == 0);
      if (is_whole) return graphs.whole.at(rows).launch(launch.stream);
      const Step<Pages> live = step(plan_[i].live, false);
      int layer = 0;
      for (const auto& piece : graphs.pieces.at(rows)) {
        piece->launch(launch.stream);
        if (layer < model_.shape().layers) live.attend(launch.stream, layer++);
      }
    });
  }
  template <class RunStep>
  void serve(Launch& launch, const RunStep& run_step) {
    check(cudaEventSynchronize(uploaded_));  // then the images may be written again
    std::size_t chosen = 0;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if (steps_[i].chunk > 0 && (i == 0 || steps_[i - 1].chunk == 0)) launch.mark("decode_steps");
      std::ranges::transform(plan_[i].fresh, image(i), [this](int place) { return fresh_.get()[place]; });
      check(cudaMemcpyAsync(memory_.batch().tokens, image(i), BatchMemory::words(most_rows) * sizeof(int), cudaMemcpyHostToDevice,
                            launch.stream));
      run_step(i);
      launch(keep_kernel, {static_cast<unsigned>(plan_[i].live.chosen), 256}, model_.model().workspace.chosen, next_.get(),
             states_ + chosen * static_cast<std::size_t>(model_.shape().hidden), tokens_ + chosen, model_.shape().hidden);
      chosen += static_cast<std::size_t>(plan_[i].live.chosen);
    }
    check(cudaEventRecord(uploaded_, launch.stream));
  }

  int bucket_;
  std::vector<StepRows> steps_;
  std::vector<int> contexts_;
  Buffers model_;
  Opened<CublasLt> lt_;
  Opened<Cublas> cublas_;
  BatchMemory alone_, memory_;
  Input<int> cached_, fresh_;
  PageAllocator pages_;
  PageTable table_;
  Scratch<int> entries_;
  Scratch<bf16> k_, v_;
  Output<int> tokens_;
  Output<bf16> states_;
  Scratch<int> next_, written_, images_;
  std::vector<Planned> plan_;
  cudaEvent_t uploaded_;
  std::map<std::string_view, Graphs> graphs_;
  std::vector<int> expected_tokens_;
  std::vector<double> expected_states_;
};

}  // namespace

extern constinit const Pair piece_graphs{
    .teaches = "graphs of the pieces between attentions cost a launch for eight kernels, and freeze only the number of rows",
    .lesson = "piecewise",
    .make = make<PieceGraphs>,
    .baseline = {.name = "launched",
                 .run = call<&PieceGraphs::launched>,
                 .prepare = call<&PieceGraphs::prepare>,
                 .reset = call<&PieceGraphs::reset>},
    .optimized = variants({{.name = "piecewise",
                            .run = call<&PieceGraphs::piecewise>,
                            .prepare = call<&PieceGraphs::prepare_pieces>,
                            .reset = call<&PieceGraphs::reset>,
                            .same_bits_as = "launched"},
                           {.name = "piecewise_pdl",
                            .run = call<&PieceGraphs::piecewise_pdl>,
                            .prepare = call<&PieceGraphs::prepare_pieces_pdl>,
                            .reset = call<&PieceGraphs::reset>,
                            .same_bits_as = "launched"},
                           {.name = "full_for_decode",
                            .run = call<&PieceGraphs::full_for_decode>,
                            .prepare = call<&PieceGraphs::prepare_full_for_decode>,
                            .reset = call<&PieceGraphs::reset>,
                            .same_bits_as = "launched"}}),
    .controls = variants({{.name = "full_graph",
                           .run = call<&PieceGraphs::full_graph>,
                           .prepare = call<&PieceGraphs::prepare_full>,
                           .reset = call<&PieceGraphs::reset>,
                           .same_bits_as = "launched"}}),
    .bound = Bound::latency,
    // Tokens are those of each sequence alone. States are rounded to bf16 some ten times a layer on their way.
    .tolerance = per_output({exact, within(2e-2)}),
    .needs = {.min_sm = 90, .libraries = {Library::cublas, Library::cublaslt}},
    .start = Start::immediate,  // launches are the subject
    .timeline = true,
    .sizes = sizes({{.name = "bucket", .full = 16, .multiple = 8, .most = most_rows, .scales = false},
                    {.name = "model", .full = 0, .least = 0, .most = 2, .scales = false},
                    option("narrow"),
                    option("smallest")}),
    .sweep = cases({{"bucket_8", "bucket=8"},
                    {"bucket_16", "bucket=16"},
                    {"bucket_32", "bucket=32"},
                    {"bucket_64", "bucket=64"},
                    {"model_1_7b", "model=1"},
                    {"model_8b", "model=2"}}),
    .edges = cases({{"smallest_steps", "narrow=1,smallest=1"}, {"narrow_buckets", "narrow=1,bucket=8"}}),
    .reference_samples = 2048,
};

}  // namespace aisp::ch16
