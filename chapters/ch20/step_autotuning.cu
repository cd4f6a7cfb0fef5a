// SPDX-License-Identifier: Apache-2.0
// A decoding step of eight sequences on four layers of an 8B model: four products a layer, each with some 24 ways to compute it,
// attention in 1 to 16 pieces, residuals with their norms or apart, kernels that begin early or not. What does the step gain by
// the best setting of each kernel by itself, by the clock of the whole step, and by fusion and early launches?
#include <aisp/device_attribute.hpp>
#include <aisp/graph.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "decode_step_reference.hpp"
#include "decoder/model.hpp"
#include "product_settings.hpp"
#include "step_search.hpp"

namespace aisp::ch20 {
namespace {

using attention::ContiguousCache;

using step::head_size, step::products, step::Settings;

// In the order of the variants.
enum Way : int { heuristics, per_kernel, end_to_end, joint_space, fused_untuned, random_search };
constexpr std::array<std::string_view, 6> names_of_ways{"heuristics",  "per_kernel",    "end_to_end",
                                                        "joint_space", "fused_untuned", "random_search"};

class StepAutotuning final : public Workload {
 public:
  explicit StepAutotuning(Setup& setup)
      : is_full_{setup.shape(1, 0) == 1},
        // Four query heads to a KV head in the small shape, too.
        s_{is_full_ ? decoder::layers_of_8b(4) : decoder::Shape{512, 8, 2, head_size, 768, 2}},
        batch_{static_cast<int>(setup.shape(setup.size("batch"), std::min<std::size_t>(setup.size("batch"), 5)))},
        context_{static_cast<int>(is_full_ ? setup.size("context") : std::min<std::size_t>(setup.size("context"), 100))},
        in_{setup.input<bf16>(rows_of(s_.hidden), normal(0, 0.3f), {.name = "rows"})},
        norms_{setup.input<bf16>(static_cast<std::size_t>((2 * s_.layers + 1) * s_.hidden), normal(1, 0.1f),
                                 {.name = "norms", .constant = true})},
        weights_{matrix(setup, "qkv", s_.qkv_columns(), s_.hidden, 1),
                 matrix(setup, "o", s_.hidden, s_.q_columns(), 2 * s_.layers),
                 matrix(setup, "gate and up", 2 * s_.ffn, s_.hidden, 1), matrix(setup, "down", s_.hidden, s_.ffn, 2 * s_.layers)},
        angles_{setup.input<float>(static_cast<std::size_t>(positions() * head_size), decoder::angles(head_size),
                                   {.name = "angles", .constant = true})},
        keys_{setup.input<bf16>(cached_elements(), normal(0, 1), {.name = "cached keys", .constant = true})},
        values_{setup.input<bf16>(cached_elements(), normal(0, 1), {.name = "cached values", .constant = true})},
        lengths_{setup.input<int>(static_cast<std::size_t>(batch_), HostFill<int>{[this](std::span<int> to, std::uint64_t) {
                                    for (int r = 0; r < batch_; ++r) to[static_cast<std::size_t>(r)] = context(r) + 1;
                                  }},
                                  {.name = "lengths", .constant = true})},
        states_{setup.output<bf16>(rows_of(s_.hidden), {.name = "states"})},
        k_{setup.scratch<bf16>(cached_elements())},
        v_{setup.scratch<bf16>(cached_elements())},
        x_{setup.scratch<bf16>(rows_of(s_.hidden))},
        normed_{setup.scratch<bf16>(rows_of(s_.hidden))},
        projected_{setup.scratch<bf16>(rows_of(s_.qkv_columns()))},
        q_{setup.scratch<bf16>(rows_of(s_.q_columns()))},
        attended_{setup.scratch<bf16>(rows_of(s_.q_columns()))},
        delta_{setup.scratch<bf16>(rows_of(s_.hidden))},
        gate_up_rows_{setup.scratch<bf16>(rows_of(2 * s_.ffn))},
        active_{setup.scratch<bf16>(rows_of(s_.ffn))},
        parts_{setup.scratch<float>(step::most_splits * rows_of(s_.q_columns()))},
        log_sums_{setup.scratch<float>(step::most_splits * rows_of(s_.heads))},
        tickets_{setup.scratch<unsigned>(rows_of(s_.heads))},
        numbers_{setup.scratch<int>(static_cast<std::size_t>(batch_))},
        lt_{setup},
        reproducible_{setup.reproducible()} {
    for (std::size_t p = 0; p < products; ++p)
      settings_of_[p] =
          std::make_unique<ProductSettings>(decoder::Matrices{weights_[p], outputs(p), inputs(p), s_.layers}, batch_);
  }

  Cost cost() const override {
    double keys = 0;
    for (int r = 0; r < batch_; ++r) keys += context(r) + 1;
    return {.flops = 2.0 * batch_ * s_.weights() + 4 * keys * s_.q_columns() * s_.layers,
            .math = Math::bf16,
            .bytes = 2 * s_.weights() + keys * s_.kv_bytes() * s_.layers};
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    const auto way = static_cast<std::size_t>(std::ranges::find(names_of_ways, variant) - names_of_ways.begin());
    const Settings& now = ways_.at(way).settings;
    int own = 0;
    for (std::size_t p = 0; p < products; ++p) own += !settings_of_[p]->is_library(now.product[p]);
    metrics.report_rate("tokens_per_second", batch_, "tokens/s");
    metrics.report("own_products", own, "of 4", Metrics::Better::higher);
    metrics.report("pieces", now.splits, "pieces", Metrics::Better::lower);
  }
  void compute_reference(Launch&) override {
    expected_.clear();
    for (int r = 0; r < batch_; ++r) {
      const std::vector<double> row =
          expected_state({s_, static_cast<std::size_t>(r), static_cast<std::size_t>(context(r)),
                          static_cast<std::size_t>(positions()), norms_, weights_[step::of_qkv], weights_[step::of_o],
                          weights_[step::of_gate_up], weights_[step::of_down], keys_, values_, in_});
      expected_.insert(expected_.end(), row.begin(), row.end());
    }
  }
  double expected(std::size_t i) const override { return expected_[i]; }

  template <Way way>
  void prepare(Launch& launch) {
    fill(launch.stream);
    auto& [settings, graph] = ways_[way];
    settings = chosen(way, launch.stream);
    queue(launch.stream, settings);  // kernels are loaded at their first launch
    graph.capture(launch.stream, [&](cudaStream_t stream) { queue(stream, settings); });
  }
  template <Way way>
  void run(Launch& launch) {
    ways_[way].graph.launch(launch.stream);
  }
  // The rows that the step writes are NaN before it.
  void reset(Launch& launch) {
    const std::size_t row = head_size * sizeof(bf16), pitch = static_cast<std::size_t>(positions()) * row;
    for (int r = 0; r < batch_; ++r)
      for (bf16* const cache : {k_.get(), v_.get()})
        check(cudaMemset2DAsync(
            cache + static_cast<std::size_t>(r) * sequence_elements() + static_cast<std::size_t>(context(r)) * head_size, pitch,
            0xFF, row, static_cast<std::size_t>(s_.layers * s_.kv_heads), launch.stream));
  }

 private:
  int positions() const { return context_ + context_ / 5 + 1; }
  // Ragged by 10 %.
  int context(int sequence) const { return context_ - context_ / 10 + sequence * 37 % 11 * context_ / 50; }
  std::size_t rows_of(int columns) const { return static_cast<std::size_t>(batch_) * static_cast<std::size_t>(columns); }
  std::size_t sequence_elements() const {
    return static_cast<std::size_t>(s_.layers * s_.kv_heads) * static_cast<std::size_t>(positions()) * head_size;
  }
  std::size_t cached_elements() const { return static_cast<std::size_t>(batch_) * sequence_elements(); }
  Input<bf16> matrix(Setup& setup, const char* name, int outputs, int inputs, int divided) const {
    return setup.input<bf16>(
        static_cast<std::size_t>(s_.layers) * static_cast<std::size_t>(outputs) * static_cast<std::size_t>(inputs),
        normal(0, 1 / std::sqrt(static_cast<float>(inputs) * static_cast<float>(divided))), {.name = name, .constant = true});
  }
  int outputs(std::size_t product) const {
    return product == step::of_qkv ? s_.qkv_columns() : product == step::of_gate_up ? 2 * s_.ffn : s_.hidden;
  }
  int inputs(std::size_t product) const {
    return product == step::of_o ? s_.q_columns() : product == step::of_down ? s_.ffn : s_.hidden;
  }

  // The kernels of a step.
  void multiply(cudaStream_t stream, const Settings& by, step::Kind product, int layer) const {
    const bf16* const from = product == step::of_o ? attended_.get() : product == step::of_down ? active_.get() : normed_.get();
    bf16* const to = product == step::of_qkv       ? projected_.get()
                     : product == step::of_gate_up ? gate_up_rows_.get()
                                                   : delta_.get();
    settings_of_[product]->run(stream, by.product[product], layer, from, to, by.begins_early);
  }
  ContiguousCache cache(int layer) const {
    const std::size_t head = static_cast<std::size_t>(positions()) * head_size,
                      first = static_cast<std::size_t>(layer * s_.kv_heads) * head;
    return {k_ + first, v_ + first, head_size, head, sequence_elements()};
  }
  void attend(cudaStream_t stream, const Settings& by, int layer) const {
    const float scale = 1.4426950408889634f / std::sqrt(static_cast<float>(head_size));
    Grid grid = attention::decode_grid<head_size, step::group>(s_.kv_heads, batch_ * by.splits);
    grid.overlapping = by.begins_early;
    if (by.splits == 1)
      launch_kernel(stream, step::attend_kernel<step::LastPiece>, grid,
                    step::LastPiece{q_, cache(layer), {lengths_, 1}, s_.heads, scale, attended_, nullptr});
    else
      launch_kernel(
          stream, step::attend_kernel<step::Attention>, grid,
          step::Attention{
              q_, cache(layer), {{lengths_, by.splits}, tickets_, attended_, nullptr}, s_.heads, scale, parts_, log_sums_});
  }
  Grid grid(bool early, dim3 blocks, unsigned threads) const {
    return {.blocks = blocks, .threads = threads, .overlapping = early};
  }
  // The norm with this number, of x + delta; the first is that of the rows that come in.
  void norm(cudaStream_t stream, const Settings& by, int which, bf16* to) const {
    const bool is_first = which == 0, adds = !is_first && by.is_fused;
    if (!is_first && !by.is_fused)
      map_rows<Plus>(stream, static_cast<std::size_t>(batch_), static_cast<std::size_t>(s_.hidden),
                     packets_of(x_, static_cast<std::size_t>(s_.hidden)), packets_of(delta_, static_cast<std::size_t>(s_.hidden)),
                     packets_of(x_, static_cast<std::size_t>(s_.hidden)));
    launch_kernel(stream, decoder::norm_kernel, grid(by.begins_early, static_cast<unsigned>(batch_), decoder::norm_threads),
                  decoder::Norm{is_first ? numbers_.get() : nullptr, in_, adds ? delta_.get() : nullptr, x_, to,
                                norms_ + which * s_.hidden, nullptr, s_.hidden});
  }
  void queue(cudaStream_t stream, const Settings& by) const {
    norm(stream, by, 0, normed_);
    for (int layer = 0; layer < s_.layers; ++layer) {
      multiply(stream, by, step::of_qkv, layer);
      launch_kernel(stream, step::place_kernel, grid(by.begins_early, static_cast<unsigned>(batch_), step::place_threads),
                    reinterpret_cast<const uint4*>(projected_.get()), reinterpret_cast<uint4*>(q_.get()), cache(layer), lengths_,
                    angles_, s_.kv_heads);
      attend(stream, by, layer);
      multiply(stream, by, step::of_o, layer);
      norm(stream, by, 2 * layer + 1, normed_);
      multiply(stream, by, step::of_gate_up, layer);
      const dim3 blocks{static_cast<unsigned>((s_.ffn / packet + decoder::swiglu_threads - 1) / decoder::swiglu_threads),
                        static_cast<unsigned>(batch_)};
      launch_kernel(stream, decoder::swiglu_kernel, grid(by.begins_early, blocks, decoder::swiglu_threads), gate_up_rows_,
                    active_, s_.ffn);
      multiply(stream, by, step::of_down, layer);
      norm(stream, by, 2 * layer + 2, layer + 1 < s_.layers ? normed_.get() : states_.get());
    }
  }

  void fill(cudaStream_t stream) {
    std::vector<int> numbers(static_cast<std::size_t>(batch_));
    std::iota(numbers.begin(), numbers.end(), 0);
    check(cudaMemcpyAsync(numbers_, numbers.data(), numbers_.bytes(), cudaMemcpyHostToDevice, stream));
    check(cudaMemcpyAsync(k_, keys_, k_.bytes(), cudaMemcpyDeviceToDevice, stream));
    check(cudaMemcpyAsync(v_, values_, v_.bytes(), cudaMemcpyDeviceToDevice, stream));
    check(cudaMemsetAsync(tickets_, 0, tickets_.bytes(), stream));
    check(cudaStreamSynchronize(stream));
    for (const auto& of : settings_of_) of->propose(*lt_);
  }

  // Chooses by the clock once in a process.
  Settings chosen(Way way, cudaStream_t stream) {
    if (way == heuristics) return by_heuristics();
    if (reproducible_) throw Unsupported{not_reproducible};
    static std::map<std::array<int, 5>, std::pair<Settings, int>> known;
    int device = 0;
    check(cudaGetDevice(&device));
    const auto [entry, is_new] = known.try_emplace({way, device, batch_, context_, s_.hidden});
    if (!is_new) return entry->second.first;
    std::array<int, products> counts{};
    for (std::size_t p = 0; p < products; ++p) counts[p] = settings_of_[p]->count();
    step::Search search{stream, counts, [this](cudaStream_t on, const Settings& by) { queue(on, by); }};
    Settings settings = way == per_kernel ? each_alone(stream) : chosen(per_kernel, stream);
    if (way == fused_untuned) settings.is_fused = settings.begins_early = true;
    if (way == end_to_end) settings = search.descend(settings);
    if (way == joint_space) settings = search.joint(settings);
    if (way == random_search) {
      chosen(joint_space, stream);
      settings = search.drawn(known[{joint_space, device, batch_, context_, s_.hidden}].second);
    }
    known[{way, device, batch_, context_, s_.hidden}] = {settings, search.measured()};
    return settings;
  }
  // The library's first proposals, and as few pieces as fill the places that blocks have to at least 85 % of the best.
  Settings by_heuristics() const {
    const auto filled = [&](int splits) {
      const double waves = batch_ * s_.kv_heads * splits / (2.0 * multiprocessors());
      return waves / std::ceil(waves);
    };
    double best = 0;
    for (const int splits : step::split_choices) best = std::max(best, filled(splits));
    Settings settings;
    settings.splits = *std::ranges::find_if(step::split_choices, [&](int splits) { return filled(splits) >= 0.85 * best; });
    return settings;
  }
  // Each kernel in a loop of its own, on layers in turn, so that weights and keys are in no cache.
  Settings each_alone(cudaStream_t stream) {
    Settings settings = by_heuristics();
    queue(stream, settings);  // rows to multiply
    int turn = 0;
    const auto next_layer = [&] { return turn = (turn + 1) % s_.layers; };
    for (const step::Kind product : {step::of_qkv, step::of_o, step::of_gate_up, step::of_down})
      settings.product[product] =
          step::best_of(stream, static_cast<std::size_t>(settings_of_[product]->count()), settings.product[product], [&](int i) {
            Settings with = settings;
            with.product[product] = i;
            multiply(stream, with, product, next_layer());
          });
    const int best = step::best_of(stream, step::split_choices.size(), 0, [&](int i) {
      Settings with = settings;
      with.splits = step::split_choices[static_cast<std::size_t>(i)];
      attend(stream, with, next_layer());
    });
    settings.splits = step::split_choices[static_cast<std::size_t>(best)];
    return settings;
  }

  bool is_full_;
  decoder::Shape s_;
  int batch_, context_;
  Input<bf16> in_, norms_;
  std::array<Input<bf16>, products> weights_;
  Input<float> angles_;
  Input<bf16> keys_, values_;
  Input<int> lengths_;
  Output<bf16> states_;
  Scratch<bf16> k_, v_, x_, normed_, projected_, q_, attended_, delta_, gate_up_rows_, active_;
  Scratch<float> parts_, log_sums_;
  Scratch<unsigned> tickets_;
  Scratch<int> numbers_;
  Opened<CublasLt> lt_;
  bool reproducible_;
  std::array<std::unique_ptr<ProductSettings>, products> settings_of_;
  struct Chosen {
    Settings settings;
    Graph graph;
  };
  std::array<Chosen, 6> ways_;
  std::vector<double> expected_;
};

}  // namespace

extern constinit const Pair step_autotuning{
    .teaches =
        "what a tuned decode step gains comes from fusion and dependent launches; kernels chosen by the clock, alone or in "
        "the step, give a few percent",
    .lesson = "joint_space",
    .make = make<StepAutotuning>,
    .baseline = {.name = "heuristics",
                 .run = call<&StepAutotuning::run<heuristics>>,
                 .prepare = call<&StepAutotuning::prepare<heuristics>>,
                 .reset = call<&StepAutotuning::reset>},
    .optimized = variants({{.name = "per_kernel",
                            .run = call<&StepAutotuning::run<per_kernel>>,
                            .prepare = call<&StepAutotuning::prepare<per_kernel>>,
                            .reset = call<&StepAutotuning::reset>},
                           {.name = "end_to_end",
                            .run = call<&StepAutotuning::run<end_to_end>>,
                            .prepare = call<&StepAutotuning::prepare<end_to_end>>,
                            .reset = call<&StepAutotuning::reset>,
                            .best_of = {"heuristics", "per_kernel"}},
                           {.name = "joint_space",
                            .run = call<&StepAutotuning::run<joint_space>>,
                            .prepare = call<&StepAutotuning::prepare<joint_space>>,
                            .reset = call<&StepAutotuning::reset>,
                            .best_of = {"heuristics", "per_kernel", "end_to_end", "fused_untuned"}}}),
    // Fusion and dependent launches with the settings of per_kernel, so that what is left is their interaction; and as many
    // measurements of the step with settings at random.
    .controls = variants({{.name = "fused_untuned",
                           .run = call<&StepAutotuning::run<fused_untuned>>,
                           .prepare = call<&StepAutotuning::prepare<fused_untuned>>,
                           .reset = call<&StepAutotuning::reset>},
                          {.name = "random_search",
                           .run = call<&StepAutotuning::run<random_search>>,
                           .prepare = call<&StepAutotuning::prepare<random_search>>,
                           .reset = call<&StepAutotuning::reset>}}),
    .bound = Bound::memory,
    // States are rounded to bf16 some ten times a layer on their way.
    .tolerance = within(1.2e-2),
    .needs = {.min_sm = 90, .libraries = {Library::cublaslt}},
    .verification = Verification::small_shape,
    .overrides = {.setup_seconds = 120},
    .sizes = sizes({{.name = "batch", .full = 8, .most = 32, .scales = false},
                    {.name = "context", .full = 4096, .least = 10, .most = 8192, .scales = false}}),
    .sweep = cases({{"batch_1", "batch=1"}, {"batch_4", "batch=4"}, {"batch_16", "batch=16"}, {"batch_32", "batch=32"}}),
    .edges = cases({{"one_sequence", "batch=1,context=15"}, {"short", "batch=3,context=63"}}),
};

}  // namespace aisp::ch20
