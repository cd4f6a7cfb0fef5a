// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism over two GPUs ends each half of a layer with an all-reduce, the residual and RMSNorm. Small rounds are paced
// by how soon the GPUs agree that their partial sums are there, large ones by the link. A kernel that reads the other GPU's
// partial sums where they lie needs one agreement (one_shot), and goes on with the row while it is in registers
// (one_shot_fused): chapters/shared/all_reduce.cuh.
#include <aisp/libraries/nccl.hpp>
#include <aisp/pair.hpp>

#include <array>
#include <cmath>
#include <vector>

#include "all_reduce.cuh"
#include "equal_copies.cuh"
#include "graph_pair.hpp"
#include "row_cache.hpp"

namespace aisp::ch15 {
namespace {

using shared::bf16, shared::Each, shared::Gpus, shared::Streams;

constexpr std::size_t width = 8192, packets = width / shared::packet;
constexpr int gpus = 2;

class AllreduceRmsnorm final : public Workload {
 public:
  explicit AllreduceRmsnorm(Setup& setup)
      : gpus_{setup},
        classes_{rounds_of(setup.size("small_tokens"), setup.size("small_rounds")),
                 rounds_of(setup.size("large_tokens"), setup.size("large_rounds"))},
        meeting_place_{setup},
        weight_{setup.input<bf16>(width, normal(1, 0.1f), {.name = "weight", .constant = true})},
        residual_{setup.input<bf16>((classes_[0].tokens + classes_[1].tokens) * width, normal(0, 1),
                                    {.name = "residual", .constant = true})},
        weight_copy_{setup.scratch<bf16>(weight_.size(), {.name = "copy of the weight", .device = 1})},
        residual_copy_{setup.scratch<bf16>(residual_.size(), {.name = "copy of the residual", .device = 1})},
        nccl_{setup, gpus_.ordinals(), gpus} {
    if (gpus_.count() != gpus) throw Unsupported{"this pair is written for two GPUs; choose them with --gpus"};
    classes_[1].first_row = classes_[0].rows(), classes_[1].first_token = classes_[0].tokens;
    const std::size_t rows = classes_[0].rows() + classes_[1].rows(), tokens = classes_[0].tokens + classes_[1].tokens;
    for (int gpu = 0; gpu < gpus; ++gpu) {
      // Some columns are large and cancel.
      const Pattern pattern = normal(0, 0.25f).plus_steps(gpu == 0 ? 3.0f : -3.0f, 1, at(Axis{1, width}, 99, 33));
      partials_.add(setup.input<bf16>(rows * width, pattern, {.name = "partial sums", .device = gpu}));
      normed_.add(setup.output<bf16>(rows * width, {.name = "normed", .device = gpu}));
      x_.add(setup.output<bf16>(tokens * width, {.name = "residual after all rounds", .device = gpu}));
      for (auto& sums : sums_)
        sums.add(setup.scratch<bf16>(std::max(classes_[0].tokens, classes_[1].tokens) * width, {.name = "sums", .device = gpu}));
      side_.add(setup.stream(gpu));
    }
  }

  // Every round needs the one before it.
  Cost cost() const override {
    const auto of = [](const Rounds& rounds) -> Cost {
      const double partials = static_cast<double>(rounds.rows() * width * sizeof(bf16));
      return {.bytes = 2 * partials + 2 * static_cast<double>(rounds.tokens * width * sizeof(bf16)),
              .peer_bytes = partials,
              .dependent_kernels = static_cast<double>(rounds.count)};
    };
    return classes_[1].count > 0 ? in_turn({of(classes_[0]), of(classes_[1])}) : of(classes_[0]);
  }

  void compute_reference(Launch&) override { scales_.forget(classes_[0].tokens + classes_[1].tokens); }
  // Sums and residuals are bf16 by definition, so that they have one value; norms are in float64.
  double expected_output(int output, std::size_t index) const override {
    const std::size_t row = index / width, column = index % width;
    if (output % 2 == 1) {
      const Rounds& rounds = classes_[row >= classes_[1].first_token];
      return static_cast<double>(x_after(rounds, row - rounds.first_token, rounds.count, column, [](std::size_t, float) {}));
    }
    const Rounds& rounds = classes_[row >= classes_[0].rows()];
    const std::size_t in_class = row - rounds.first_row, round = in_class / rounds.tokens, token = in_class % rounds.tokens;
    const std::vector<double>& scales = scales_.of(rounds.first_token + token, [&] { return scales_of(rounds, token); });
    const auto x = static_cast<double>(x_after(rounds, token, round + 1, column, [](std::size_t, float) {}));
    return x * scales[round] * weight_.host(column);
  }
  void validate(std::string_view) override {
    demand_equal_copies(gpus_, normed_.pointers<bf16>(), normed_[0].bytes());
    demand_equal_copies(gpus_, x_.pointers<bf16>(), x_[0].bytes());
  }

  void capture_nccl(Launch& launch) { capture(launch, nccl_graphs_, &AllreduceRmsnorm::queue_nccl); }
  void nccl(Launch& launch) { replay(launch, nccl_graphs_); }
  void capture_one_shot(Launch& launch) { capture(launch, one_shot_graphs_, &AllreduceRmsnorm::queue_one_shot); }
  void one_shot(Launch& launch) { replay(launch, one_shot_graphs_); }
  void capture_fused(Launch& launch) { capture(launch, fused_graphs_, &AllreduceRmsnorm::queue_fused); }
  void one_shot_fused(Launch& launch) { replay(launch, fused_graphs_); }
  void capture_beside(Launch& launch) { capture(launch, beside_graphs_, &AllreduceRmsnorm::queue_beside); }
  void norm_beside(Launch& launch) { replay(launch, beside_graphs_); }

 private:
  // Rounds of as many tokens: each adds to the residual that the one before left.
  struct Rounds {
    std::size_t tokens, count;
    std::size_t first_row = 0;    // of partial sums and normed rows
    std::size_t first_token = 0;  // of the residual

    std::size_t rows() const { return tokens * count; }
    std::size_t elements() const { return tokens * width; }
    std::size_t at(std::size_t round) const { return (first_row + round * tokens) * width; }
  };
  using Graphs = std::array<shared::GraphPair, 2>;  // of the small rounds and of the large ones
  using Queue = void (AllreduceRmsnorm::*)(const Rounds&, Streams) const;

  static Rounds rounds_of(std::size_t tokens, std::size_t count) { return {count > 0 ? tokens : 0, count}; }
  static float rounded(float value) { return __bfloat162float(__float2bfloat16_rn(value)); }
  // One element of a token's residual after so many rounds; use(round, value) for each.
  template <class Use>
  float x_after(const Rounds& rounds, std::size_t token, std::size_t count, std::size_t column, const Use& use) const {
    auto x = static_cast<float>(residual_.host((rounds.first_token + token) * width + column));
    for (std::size_t round = 0; round < count; ++round) {
      const std::size_t at = rounds.at(round) + token * width + column;
      x = rounded(x + rounded(static_cast<float>(partials_[0].host(at)) + static_cast<float>(partials_[1].host(at))));
      use(round, x);
    }
    return x;
  }
  // 1 / rms of the token's row in each round.
  std::vector<double> scales_of(const Rounds& rounds, std::size_t token) const {
    std::vector<double> scales(rounds.count);
    for (std::size_t column = 0; column < width; ++column)
      x_after(rounds, token, rounds.count, column,
              [&](std::size_t round, float x) { scales[round] += static_cast<double>(x) * static_cast<double>(x) / width; });
    for (double& scale : scales) scale = 1 / std::sqrt(scale + 1e-5);
    return scales;
  }

  void capture(Launch& launch, Graphs& graphs, Queue queue) {
    const int ordinal = gpus_.ordinal(1);
    check(cudaMemcpyPeerAsync(weight_copy_, ordinal, weight_, gpus_.ordinal(0), weight_.bytes(), launch.stream));
    check(cudaMemcpyPeerAsync(residual_copy_, ordinal, residual_, gpus_.ordinal(0), residual_.bytes(), launch.stream));
    meeting_place_.prepare(gpus_, launch.streams);
    gpus_.meet(launch.streams);
    for (std::size_t c = 0; c < classes_.size(); ++c)
      graphs[c].capture(launch.streams, [&](Streams streams) { (this->*queue)(classes_[c], streams); });
  }
  void replay(Launch& launch, const Graphs& graphs) const {
    for (std::size_t c = 0; c < classes_.size(); ++c) {
      graphs[c].launch(launch.streams);
      if (c == 0) launch.mark("small_rounds");
    }
  }

  shared::AddNorm add_norm(int gpu, const Rounds& rounds, std::size_t round) const {
    bf16* const x = x_[gpu] + rounds.first_token * width;
    const bf16* const first = (gpu == 0 ? residual_.get() : residual_copy_.get()) + rounds.first_token * width;
    return {round == 0 ? first : x, x, normed_[gpu] + rounds.at(round), gpu == 0 ? weight_.get() : weight_copy_.get(), packets};
  }
  shared::Exchange exchange(int gpu, const Rounds& rounds, std::size_t round) const {
    return meeting_place_.exchange(gpu, partials_[gpu] + rounds.at(round), partials_[1 - gpu] + rounds.at(round));
  }
  void reduce(const Rounds& rounds, std::size_t round, const Each<Scratch<bf16>>& sums, Streams streams) const {
    nccl_->together([&] {
      for (int gpu = 0; gpu < gpus; ++gpu)
        nccl_->all_reduce(gpu, partials_[gpu] + rounds.at(round), sums[gpu], rounds.elements(), nccl::Type::bf16, streams[gpu]);
    });
  }
  void norm(int gpu, const Rounds& rounds, std::size_t round, const bf16* sum, cudaStream_t stream) const {
    gpus_.launch(gpu, stream, shared::add_norm_kernel, {static_cast<unsigned>(rounds.tokens), shared::exchange_threads},
                 add_norm(gpu, rounds, round), sum);
  }

  void queue_nccl(const Rounds& rounds, Streams streams) const {
    for (std::size_t round = 0; round < rounds.count; ++round) {
      reduce(rounds, round, sums_[0], streams);
      for (int gpu = 0; gpu < gpus; ++gpu) norm(gpu, rounds, round, sums_[0][gpu], streams[gpu]);
    }
  }
  void queue_one_shot(const Rounds& rounds, Streams streams) const {
    const std::size_t all = rounds.tokens * packets, blocks = (all + shared::exchange_threads - 1) / shared::exchange_threads;
    for (std::size_t round = 0; round < rounds.count; ++round) {
      for (int gpu = 0; gpu < gpus; ++gpu)
        gpus_.launch(gpu, streams[gpu], shared::one_shot_kernel, {shared::exchange_blocks(blocks), shared::exchange_threads},
                     exchange(gpu, rounds, round), sums_[0][gpu].get(), all);
      for (int gpu = 0; gpu < gpus; ++gpu) norm(gpu, rounds, round, sums_[0][gpu], streams[gpu]);
    }
  }
  void queue_fused(const Rounds& rounds, Streams streams) const {
    for (std::size_t round = 0; round < rounds.count; ++round)
      for (int gpu = 0; gpu < gpus; ++gpu)
        gpus_.launch(gpu, streams[gpu], shared::one_shot_norm_kernel,
                     {shared::exchange_blocks(rounds.tokens), shared::exchange_threads}, exchange(gpu, rounds, round),
                     add_norm(gpu, rounds, round), rounds.tokens);
  }
  // The norm of each round next to the all-reduce of the following one, which in a model it would come before.
  void queue_beside(const Rounds& rounds, Streams streams) const {
    for (std::size_t round = 0; round <= rounds.count; ++round) {
      for (int gpu = 0; gpu < gpus && round > 0; ++gpu) {
        gpus_.order(gpu, streams[gpu], side_[gpu]);
        norm(gpu, rounds, round - 1, sums_[(round - 1) % 2][gpu], side_[gpu]);
      }
      if (round < rounds.count) reduce(rounds, round, sums_[round % 2], streams);
      for (int gpu = 0; gpu < gpus && round > 0; ++gpu) gpus_.order(gpu, side_[gpu], streams[gpu]);
    }
  }

  Gpus gpus_;
  std::array<Rounds, 2> classes_;
  shared::MeetingPlace meeting_place_;
  Input<bf16> weight_, residual_;
  Scratch<bf16> weight_copy_, residual_copy_;
  Each<Input<bf16>> partials_;
  Each<Output<bf16>> normed_, x_;
  std::array<Each<Scratch<bf16>>, 2> sums_;
  Each<cudaStream_t> side_;
  Opened<Nccl> nccl_;
  Graphs nccl_graphs_, one_shot_graphs_, fused_graphs_, beside_graphs_;
  shared::RowCache<std::vector<double>> scales_;
};

}  // namespace

extern constinit const Pair allreduce_rmsnorm{
    .teaches =
        "an all-reduce and the norm after it are two kernels with a sum in memory between them; where GPUs read each "
        "other's memory they are one",
    .lesson = "one_shot_fused",
    .make = make<AllreduceRmsnorm>,
    .baseline = {.name = "nccl",
                 .run = call<&AllreduceRmsnorm::nccl>,
                 .prepare = call<&AllreduceRmsnorm::capture_nccl>,
                 .needs = {.libraries = {Library::nccl}}},
    .optimized = variants({{.name = "one_shot",
                            .run = call<&AllreduceRmsnorm::one_shot>,
                            .prepare = call<&AllreduceRmsnorm::capture_one_shot>,
                            .same_bits_as = "nccl"},
                           {.name = "one_shot_fused",
                            .run = call<&AllreduceRmsnorm::one_shot_fused>,
                            .prepare = call<&AllreduceRmsnorm::capture_fused>,
                            .same_bits_as = "nccl"}}),
    .controls = variants({{.name = "norm_beside",
                           .run = call<&AllreduceRmsnorm::norm_beside>,
                           .prepare = call<&AllreduceRmsnorm::capture_beside>,
                           .needs = {.libraries = {Library::nccl}},
                           .outputs = no_outputs}}),
    .bound = Bound::latency,
    .tolerance = per_output({rounded_to_bf16, exact, rounded_to_bf16, exact}),
    .needs = {.min_sm = 90, .gpus = 2, .peer_access = true},
    .sizes = sizes({{.name = "small_tokens", .full = 64, .scales = false},
                    {.name = "small_rounds", .full = 32, .most = 1024, .scales = false},
                    {.name = "large_tokens", .full = 2048, .most = 8192, .scales = false},
                    {.name = "large_rounds", .full = 8, .least = 0, .most = 64, .scales = false}}),
    .sweep = cases({{"tokens_1", "small_tokens=1,large_rounds=0"},
                    {"tokens_16", "small_tokens=16,large_rounds=0"},
                    {"tokens_64", "small_tokens=64,large_rounds=0"},
                    {"tokens_128", "small_tokens=128,large_rounds=0"},
                    {"tokens_256", "small_tokens=256,large_rounds=0"},
                    {"tokens_512", "small_tokens=512,large_rounds=0"},
                    {"tokens_1024", "small_tokens=1024,large_rounds=0"},
                    {"tokens_2048", "small_tokens=2048,large_rounds=0"}}),
    // More rounds in a row than a wrong order of flags survives, and numbers of rows around that of blocks.
    .edges = cases({{"thousand_rounds", "small_tokens=1,small_rounds=1000,large_rounds=0"},
                    {"below_and_above", "small_tokens=63,small_rounds=4,large_tokens=265,large_rounds=2"},
                    {"tail", "small_tokens=65,small_rounds=3,large_tokens=2047,large_rounds=1"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch15
