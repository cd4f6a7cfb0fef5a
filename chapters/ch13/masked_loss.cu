// SPDX-License-Identifier: Apache-2.0
// Instruction tuning: most labels say "ignore", because they belong to the prompt. Run over all rows, the head of a model of
// 128256 words computes their logits all the same, and multiplies their gradients, which are zero, by all weights. Gathering the
// rows that have a label before the head, and scattering their gradients after it, leaves both products only what the loss reads.
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "head_reference.hpp"
#include "loss_rows.cuh"

namespace aisp::ch13 {
namespace {

using shared::bf16, shared::packet;

constexpr unsigned threads = 256;
constexpr std::size_t tile_rows = 128;  // of the library's kernels: what rows are rounded up to
constexpr std::size_t sequences = 8;

// A block copies a row: row i of `to` is row rows[i] of `from`. Rows that only fill the last tile are zeros.
__global__ __launch_bounds__(threads) void gather_kernel(const uint4* from, uint4* to, const unsigned* rows,
                                                         const unsigned* count, unsigned row_packets) {
  const bool exists = blockIdx.x < *count;
  const uint4* const row = from + (exists ? std::size_t{rows[blockIdx.x]} * row_packets : 0);
  for (unsigned i = threadIdx.x; i < row_packets; i += threads)
    to[std::size_t{blockIdx.x} * row_packets + i] = exists ? row[i] : uint4{};
}
// The other way round, to where all is zero.
__global__ __launch_bounds__(threads) void scatter_kernel(const uint4* from, uint4* to, const unsigned* rows,
                                                          unsigned row_packets) {
  for (unsigned i = threadIdx.x; i < row_packets; i += threads)
    to[std::size_t{rows[blockIdx.x]} * row_packets + i] = from[std::size_t{blockIdx.x} * row_packets + i];
}

// One block lists the rows that have a label, in their order.
__global__ __launch_bounds__(loss_threads) void list_rows_kernel(const int* labels, unsigned tokens, unsigned* rows,
                                                                 unsigned* count) {
  __shared__ unsigned of_warps[loss_threads / 32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned before = 0;
  for (unsigned first = 0; first < tokens; first += loss_threads) {
    const unsigned row = first + threadIdx.x;
    const bool is_labelled = row < tokens && labels[row] != ignored;
    const unsigned votes = __ballot_sync(device::whole_warp, is_labelled);
    if (lane == 0) of_warps[warp] = __popc(votes);
    __syncthreads();
    unsigned place = before + __popc(votes & ((1u << lane) - 1));
    for (unsigned w = 0; w < loss_threads / 32; ++w) {
      if (w < warp) place += of_warps[w];
      before += of_warps[w];
    }
    if (is_labelled) rows[place] = row;
    __syncthreads();
  }
  if (threadIdx.x == 0) *count = before;
}

// One block: the mean of those rows that have a label; 0 where none has.
__global__ __launch_bounds__(loss_threads) void mean_loss_kernel(const float* losses, const unsigned* count, float* mean,
                                                                 unsigned tokens) {
  __shared__ float parts[device::largest_block_in_warps];
  float sum = 0;
  for (unsigned row = threadIdx.x; row < tokens; row += loss_threads) sum += losses[row];
  sum = device::block_sum(sum, parts);
  if (threadIdx.x == 0) *mean = *count == 0 ? 0 : sum / static_cast<float>(*count);
}

// Which of the tokens have a label: the first and the last, then the ends of the sequences, evenly, of all but the fourth as long
// as the others have tokens left.
std::vector<bool> labelled_rows(std::size_t tokens, std::size_t count) {
  std::vector<bool> is_labelled(tokens);
  std::size_t left = count;
  const auto label = [&](std::size_t row) {
    if (left == 0 || row >= tokens || is_labelled[row]) return;
    is_labelled[row] = true;
    --left;
  };
  label(0);
  label(tokens - 1);
  const std::size_t length = (tokens + sequences - 1) / sequences;
  for (const bool of_fourth : {false, true})
    for (std::size_t from_end = 1; from_end <= length; ++from_end)
      for (std::size_t s = 0; s < sequences; ++s)
        if ((s == 3) == of_fourth) label((s + 1) * length - from_end);
  return is_labelled;
}

class MaskedLoss final : public Workload {
 public:
  explicit MaskedLoss(Setup& setup)
      : tokens_{small(setup, "tokens", 256)},
        labelled_{std::min(tokens_, small(setup, "labelled", 77))},
        depth_{small(setup, "depth", 128)},
        vocabulary_{small(setup, "vocabulary", 1000)},
        tiled_{std::max(tile_rows, (labelled_ + tile_rows - 1) / tile_rows * tile_rows)},
        is_labelled_{labelled_rows(tokens_, labelled_)},
        hidden_{setup.input<bf16>(tokens_ * depth_, hidden(), {.name = "hidden states"})},
        weights_{setup.input<bf16>(vocabulary_ * depth_, normal(0, 2 / std::sqrt(static_cast<float>(depth_))),
                                   {.name = "weights", .constant = true})},
        labels_{setup.input<int>(tokens_,
                                 HostFill<int>{[this](std::span<int> labels, std::uint64_t seed) { draw(labels, seed); }},
                                 {.name = "labels"})},
        // As the loader hands them over, which made the labels.
        rows_{setup.input<unsigned>(std::max<std::size_t>(labelled_, 1),
                                    HostFill<unsigned>{[this](std::span<unsigned> rows, std::uint64_t) { list(rows); }},
                                    {.name = "labelled rows"})},
        losses_{setup.output<float>(tokens_, {.name = "losses"})},
        mean_{setup.output<float>(1, {.name = "mean loss"})},
        dhidden_{setup.output<bf16>(tokens_ * depth_, {.name = "gradient of the hidden states"})},
        logits_{setup.scratch<bf16>(std::max(tokens_, tiled_) * vocabulary_, {.name = "logits"})},
        gathered_{setup.scratch<bf16>(std::max(tokens_, tiled_) * depth_, {.name = "gathered rows"})},
        dgathered_{setup.scratch<bf16>(std::max(tokens_, tiled_) * depth_, {.name = "gradients of gathered rows"})},
        listed_{setup.scratch<unsigned>(tokens_, {.name = "labelled rows, listed on the device"})},
        every_row_{setup.scratch<unsigned>(tokens_, {.name = "all rows"})},
        count_{setup.scratch<unsigned>(1, {.name = "how many have a label"})},
        all_count_{setup.scratch<unsigned>(1, {.name = "how many rows there are"})},
        told_{setup.scratch<unsigned>(1, {.name = "their number on the host", .memory = Memory::pinned})},
        all_{products(setup, tokens_)},
        tiles_{products(setup, tiled_)},
        reference_{hidden_, weights_, depth_, vocabulary_} {}

  // The cost of the rows that have a label; all weights are read for the logits and again for the gradient.
  Cost cost() const override {
    const double elements = static_cast<double>(labelled_) * static_cast<double>(vocabulary_);
    return {.flops = 4 * elements * static_cast<double>(depth_),
            .math = Math::bf16,
            .bytes = static_cast<double>((labelled_ > 0 ? weights_.bytes() : 0) + dhidden_.bytes())};
  }
  void compute_reference(Launch&) override { reference_.forget(tokens_); }
  double expected_output(int output, std::size_t i) const override {
    const auto loss = [&](std::size_t row) {
      return is_labelled_[row] ? reference_.loss(row, static_cast<std::size_t>(labels_.host(row))) : 0;
    };
    if (output == 0) return loss(i);
    if (output == 1) {
      double sum = 0;
      for (std::size_t row = 0; row < tokens_; ++row) sum += loss(row);
      return labelled_ == 0 ? 0 : sum / static_cast<double>(labelled_);
    }
    const std::size_t row = i / depth_;
    if (!is_labelled_[row]) return 0;
    return reference_.gradient(row, i % depth_, static_cast<std::size_t>(labels_.host(row))) / static_cast<double>(labelled_);
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    const bool is_compact = variant == "compacted" || variant == "counted_on_device";
    metrics.report("logits", static_cast<double>((is_compact ? tiled_ : tokens_) * vocabulary_) * sizeof(bf16) / 1e6, "MB",
                   Metrics::Better::lower);
    metrics.report_rate("labelled_tokens_per_second", static_cast<double>(labelled_), "tokens/s");
  }

  void tune_all(Launch& launch) {
    all_.logits.tune(launch, hidden_, weights_, logits_);
    all_.gradient.tune(launch, logits_, weights_, dgathered_);
  }
  void tune_tiles(Launch& launch) {
    tiles_.logits.tune(launch, gathered_, weights_, logits_);
    tiles_.gradient.tune(launch, logits_, weights_, dgathered_);
    check(cudaMemsetAsync(count_, 0, sizeof(unsigned), launch.stream));
  }
  void all_rows(Launch& launch) {
    count(launch);
    all_.logits.run_tuned(launch, hidden_, weights_, logits_);
    loss(launch, nullptr, tokens_);
    all_.gradient.run_tuned(launch, logits_, weights_, dhidden_);
    mean(launch);
  }
  void compacted(Launch& launch) {
    count(launch);
    head(launch, rows_, labelled_);
  }
  // The host learns the number from the device before it knows what to launch.
  void counted_on_device(Launch& launch) {
    launch(list_rows_kernel, {1, loss_threads}, labels_, tokens_, listed_, count_);
    check(cudaMemcpyAsync(told_, count_, sizeof(unsigned), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
    // A training script keeps plans for all numbers of tiles; these data need one.
    if (*told_ > tiled_) throw std::runtime_error{std::to_string(*told_) + " rows have a label, and plans are for fewer"};
    head(launch, listed_, *told_);
  }

  void list_every_row(Launch& launch) {
    tune_all(launch);
    std::vector<unsigned> all(tokens_);
    for (std::size_t row = 0; row < tokens_; ++row) all[row] = static_cast<unsigned>(row);
    const auto number = static_cast<unsigned>(tokens_);
    check(cudaMemcpyAsync(every_row_, all.data(), every_row_.bytes(), cudaMemcpyHostToDevice, launch.stream));
    check(cudaMemcpyAsync(all_count_, &number, sizeof number, cudaMemcpyHostToDevice, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
  }
  void gather_all_rows(Launch& launch) {
    count(launch);
    clear(launch);
    gather(launch, every_row_, all_count_, tokens_);
    all_.logits.run_tuned(launch, gathered_, weights_, logits_);
    loss(launch, every_row_, tokens_);
    all_.gradient.run_tuned(launch, logits_, weights_, dgathered_);
    scatter(launch, every_row_, tokens_);
    mean(launch);
  }

 private:
  struct Products {
    LibraryMatmul logits, gradient;
  };

  static std::size_t small(Setup& setup, std::string_view name, std::size_t most) {
    const std::size_t full = setup.size(name);
    return setup.shape(full, std::min(full, most));
  }
  Products products(Setup& setup, std::size_t rows) const {
    return {LibraryMatmul{setup, {.m = rows, .n = vocabulary_, .k = depth_, .b_is_transposed = true}},
            LibraryMatmul{setup, {.m = rows, .n = depth_, .k = vocabulary_}}};
  }
  // A row that no loss reads is not a number, as padding may be.
  Pattern hidden() const {
    for (std::size_t row = tokens_ / 2; row-- > 0;)
      if (!is_labelled_[row]) return normal(0, 1).set(std::numeric_limits<float>::quiet_NaN(), at(Axis{depth_, tokens_}, row));
    return normal(0, 1);
  }
  void draw(std::span<int> labels, std::uint64_t seed) const {
    std::size_t number = 0;
    for (std::size_t row = 0; row < labels.size(); ++row) {
      const auto drawn = static_cast<int>(random_bits(seed, row) % vocabulary_);
      labels[row] = ignored;
      if (is_labelled_[row]) labels[row] = number == 0 ? 0 : number == 1 ? static_cast<int>(vocabulary_) - 1 : drawn;
      number += is_labelled_[row];
    }
  }
  void list(std::span<unsigned> rows) const {
    std::size_t number = 0;
    rows[0] = 0;
    for (std::size_t row = 0; row < tokens_; ++row)
      if (is_labelled_[row]) rows[number++] = static_cast<unsigned>(row);
  }
  unsigned row_packets() const { return static_cast<unsigned>(depth_ / packet); }
  static const uint4* packets(const bf16* of) { return reinterpret_cast<const uint4*>(of); }
  static uint4* packets(bf16* of) { return reinterpret_cast<uint4*>(of); }

  void count(Launch& launch) { launch(count_labels_kernel, {1, loss_threads}, labels_, count_, tokens_); }
  void clear(Launch& launch) {
    check(cudaMemsetAsync(losses_, 0, losses_.bytes(), launch.stream));
    check(cudaMemsetAsync(dhidden_, 0, dhidden_.bytes(), launch.stream));
  }
  void gather(Launch& launch, const unsigned* rows, const unsigned* count, std::size_t with_padding) {
    launch(gather_kernel, {static_cast<unsigned>(with_padding), threads}, packets(hidden_.get()), packets(gathered_.get()), rows,
           count, row_packets());
  }
  void scatter(Launch& launch, const unsigned* rows, std::size_t count) {
    launch(scatter_kernel, {static_cast<unsigned>(count), threads}, packets(static_cast<const bf16*>(dgathered_.get())),
           packets(dhidden_.get()), rows, row_packets());
  }
  void loss(Launch& launch, const unsigned* rows, std::size_t count) {
    run_loss(launch.stream, {.logits = logits_,
                             .labels = labels_,
                             .rows_of = rows,
                             .counted = count_,
                             .losses = losses_,
                             .rows = static_cast<unsigned>(count),
                             .columns = static_cast<unsigned>(vocabulary_),
                             .pitch = vocabulary_,
                             .padded = static_cast<unsigned>(vocabulary_)});
  }
  void mean(Launch& launch) { launch(mean_loss_kernel, {1, loss_threads}, losses_, count_, mean_, tokens_); }
  // Over the rows of a list, whose number is in count_, too.
  void head(Launch& launch, const unsigned* rows, std::size_t count) {
    clear(launch);
    if (count > 0) {
      gather(launch, rows, count_, tiled_);
      tiles_.logits.run_tuned(launch, gathered_, weights_, logits_);
      loss(launch, rows, count);
      tiles_.gradient.run_tuned(launch, logits_, weights_, dgathered_);
      scatter(launch, rows, count);
    }
    mean(launch);
  }

  std::size_t tokens_, labelled_, depth_, vocabulary_;
  std::size_t tiled_;  // labelled rows, rounded up to whole tiles
  std::vector<bool> is_labelled_;
  Input<bf16> hidden_, weights_;
  Input<int> labels_;
  Input<unsigned> rows_;
  Output<float> losses_, mean_;
  Output<bf16> dhidden_;
  Scratch<bf16> logits_, gathered_, dgathered_;
  Scratch<unsigned> listed_, every_row_, count_, all_count_, told_;
  Products all_, tiles_;
  HeadReference reference_;
};

constexpr Needs by_cublaslt{.libraries = {Library::cublaslt}};

}  // namespace

extern constinit const Pair masked_loss{
    .teaches = "rows that no loss reads need no logits: gather those that have a label before the head",
    .lesson = "compacted",
    .make = make<MaskedLoss>,
    .baseline = {.name = "all_rows",
                 .run = call<&MaskedLoss::all_rows>,
                 .prepare = call<&MaskedLoss::tune_all>,
                 .needs = by_cublaslt},
    .optimized = variants({{.name = "compacted",
                            .run = call<&MaskedLoss::compacted>,
                            .prepare = call<&MaskedLoss::tune_tiles>,
                            .needs = by_cublaslt},
                           {.name = "counted_on_device",
                            .run = call<&MaskedLoss::counted_on_device>,
                            .prepare = call<&MaskedLoss::tune_tiles>,
                            .needs = by_cublaslt,
                            .same_bits_as = "compacted"}}),
    // Gathering and scattering without leaving anything out.
    .controls = variants({{.name = "gather_all_rows",
                           .run = call<&MaskedLoss::gather_all_rows>,
                           .prepare = call<&MaskedLoss::list_every_row>,
                           .needs = by_cublaslt,
                           .same_bits_as = "all_rows"}}),
    .bound = Bound::compute,
    // The reference rounds logits to bf16 as the products do, and few of them round the other way. The gradient has two roundings
    // of 1.6e-3: of what the loss leaves, and of the result.
    .tolerance = per_output({within(2e-4, 2e-3), within(1e-4), within(5e-3)}),
    .start = Start::immediate,  // one variant waits for the device
    .verification = Verification::small_shape,
    .sizes = sizes({{.name = "tokens", .full = 4096},
                    {.name = "labelled", .full = 1229, .least = 0},
                    {.name = "depth", .full = 4096, .multiple = 64, .most = 16384, .scales = false},
                    {.name = "vocabulary", .full = 128256, .multiple = 8, .most = 1u << 18, .scales = false}}),
    .sweep = cases({{"labelled_41", "labelled=41"},
                    {"labelled_128", "labelled=128"},
                    {"labelled_129", "labelled=129"},
                    {"labelled_410", "labelled=410"},
                    {"labelled_819", "labelled=819"},
                    {"labelled_1229", "labelled=1229"},
                    {"labelled_2048", "labelled=2048"},
                    {"labelled_4096", "labelled=4096"}}),
    .edges = cases({{"none", "tokens=256,labelled=0,depth=128,vocabulary=1000"},
                    {"one", "tokens=300,labelled=1,depth=128,vocabulary=1000"},
                    {"tile_less_one", "tokens=512,labelled=127,depth=128,vocabulary=1000"},
                    {"tile", "tokens=512,labelled=128,depth=128,vocabulary=1000"},
                    {"tile_and_one", "tokens=512,labelled=129,depth=128,vocabulary=1000"},
                    {"all", "tokens=200,labelled=200,depth=64,vocabulary=1000"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch13
