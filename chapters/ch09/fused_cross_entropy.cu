// SPDX-License-Identifier: Apache-2.0
// The loss of a language model over a vocabulary of 128,256, and its gradient in place of the logits. Operator by operator, the
// log-probabilities go to memory in fp32 and come back: four times the bytes of the gradient. Fused, a row is read once for its
// sum and once for its gradient, and the second time costs nothing if the rows under way stay in L2 together: they must fit, 33
// MB for one row an SM and 271 MB for eight, and the results that are stored meanwhile must leave first.
#include <cuda_bf16.h>
#include <aisp/device/async_copy.cuh>
#include <aisp/device/vector.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "rows.cuh"

namespace aisp::ch09 {
namespace {

using shared::bf16, shared::packet;

constexpr unsigned most_threads = 1024, threads = 256;  // threads: of the kernel that has no row for each block
constexpr unsigned in_flight = 4;                       // loads of 16 bytes of a thread
constexpr unsigned blocks_of_small_rows = 8;            // of an SM, where each has an eighth of the threads
constexpr unsigned most_in_shared = 12800;              // packets: 200 KiB

// Calls use(index, elements) for the packets of a row that are this thread's, four loads at a time: a store of `use` may be where
// the next load is, as far as the compiler knows.
template <class Use>
__device__ __forceinline__ void for_packets(const uint4* row, unsigned count, Use use) {
  for (unsigned first = threadIdx.x; first < count; first += in_flight * blockDim.x) {
    uint4 loaded[in_flight];
#pragma unroll
    for (unsigned k = 0; k < in_flight; ++k)
      if (first + k * blockDim.x < count) loaded[k] = row[first + k * blockDim.x];
#pragma unroll
    for (unsigned k = 0; k < in_flight; ++k)
      if (first + k * blockDim.x < count) {
        float x[packet];
        shared::unpack(loaded[k], x);
        use(first + k * blockDim.x, x);
      }
  }
}

__device__ __forceinline__ shared::MaxSum max_sum_of_row(const uint4* row, unsigned row_packets, shared::MaxSum* parts) {
  shared::MaxSum seen = shared::nothing_seen();
  for_packets(row, row_packets, [&](unsigned, float(&x)[packet]) { shared::add(seen, x); });
  return shared::block_merge(seen, parts);
}
__device__ __forceinline__ float log_sum(const shared::MaxSum& of) { return of.maximum + logf(of.sum); }

__global__ __launch_bounds__(most_threads) void log_softmax_kernel(const uint4* logits, float4* log_probabilities,
                                                                   unsigned row_packets) {
  __shared__ shared::MaxSum parts[device::largest_block_in_warps];
  const std::size_t row = std::size_t{blockIdx.x} * row_packets;
  const float below = log_sum(max_sum_of_row(logits + row, row_packets, parts));
  for_packets(logits + row, row_packets, [&](unsigned i, float(&x)[packet]) {
    log_probabilities[2 * (row + i)] = make_float4(x[0] - below, x[1] - below, x[2] - below, x[3] - below);
    log_probabilities[2 * (row + i) + 1] = make_float4(x[4] - below, x[5] - below, x[6] - below, x[7] - below);
  });
}

__global__ __launch_bounds__(threads) void pick_labels_kernel(const float* log_probabilities, const int* labels, float* losses,
                                                              unsigned rows, unsigned vocabulary) {
  const unsigned row = blockIdx.x * threads + threadIdx.x;
  if (row < rows) losses[row] = -log_probabilities[std::size_t{row} * vocabulary + static_cast<unsigned>(labels[row])];
}

// One block.
__global__ __launch_bounds__(most_threads) void mean_kernel(const float* losses, float* mean, unsigned rows) {
  __shared__ float parts[device::largest_block_in_warps];
  float sum = 0;
  for (unsigned row = threadIdx.x; row < rows; row += blockDim.x) sum += losses[row];
  sum = device::block_sum(sum, parts);
  if (threadIdx.x == 0) *mean = sum / static_cast<float>(rows);
}

// The gradient of eight columns from their probabilities, both times what a row weighs in the mean; `label` counts from the first
// of them.
__device__ __forceinline__ uint4 gradient(float (&probabilities)[packet], int label, float weight) {
  if (label >= 0 && label < packet)
#pragma unroll
    for (int j = 0; j < packet; ++j) probabilities[j] -= j == label ? weight : 0;
  return shared::pack(probabilities);
}

__global__ __launch_bounds__(threads) void backward_kernel(const float4* log_probabilities, const int* labels, uint4* gradients,
                                                           unsigned rows, unsigned row_packets) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= std::size_t{rows} * row_packets) return;
  const auto row = static_cast<unsigned>(i / row_packets), column = static_cast<unsigned>(i % row_packets) * packet;
  const float weight = 1 / static_cast<float>(rows);
  const float4 low = log_probabilities[2 * i], high = log_probabilities[2 * i + 1];
  float x[packet] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (float& value : x) value = shared::exponential(value, 0) * weight;
  gradients[i] = gradient(x, labels[row] - static_cast<int>(column), weight);
}

// A block has a row at a time, and the next ones at a distance of the grid.
template <bool evict_first>
__global__ __launch_bounds__(most_threads) void fused_kernel(uint4* logits, const int* labels, float* losses, unsigned rows,
                                                             unsigned row_packets) {
  __shared__ shared::MaxSum parts[device::largest_block_in_warps];
  const float weight = 1 / static_cast<float>(rows);
  for (unsigned row = blockIdx.x; row < rows; row += gridDim.x) {
    uint4* const own = logits + std::size_t{row} * row_packets;
    const int label = labels[row];
    // Before it is overwritten, after the barriers of the sum.
    const float of_label = __bfloat162float(reinterpret_cast<const bf16*>(own)[label]);
    const shared::MaxSum seen = max_sum_of_row(own, row_packets, parts);
    const float offset = shared::level(seen.maximum) * shared::log2_e, factor = weight / seen.sum;
    for_packets(own, row_packets, [&](unsigned i, float(&x)[packet]) {
#pragma unroll
      for (float& value : x) value = shared::exponential(value, offset) * factor;
      const uint4 result = gradient(x, label - static_cast<int>(i) * packet, weight);
      if constexpr (evict_first) device::store_streaming(own + i, result);
      else own[i] = result;
    });
    if (threadIdx.x == 0) losses[row] = log_sum(seen) - of_label;
  }
}

// A row is read once, all of it requested at the beginning: what fits comes into shared memory, the rest into registers. Threads
// read only what they have copied themselves.
__global__ __launch_bounds__(most_threads) void on_chip_kernel(uint4* logits, const int* labels, float* losses, unsigned rows,
                                                               unsigned row_packets, unsigned in_shared) {
  extern __shared__ uint4 kept[];
  __shared__ shared::MaxSum parts[device::largest_block_in_warps];
  const float weight = 1 / static_cast<float>(rows);
  for (unsigned row = blockIdx.x; row < rows; row += gridDim.x) {
    uint4* const own = logits + std::size_t{row} * row_packets;
    const int label = labels[row];
    const float of_label = __bfloat162float(reinterpret_cast<const bf16*>(own)[label]);
    shared::MaxSum seen = shared::nothing_seen();
    for (unsigned i = threadIdx.x; i < in_shared; i += most_threads) device::copy_async_16(kept + i, own + i);
    device::commit_copies();
    uint4 held[in_flight];
#pragma unroll
    for (unsigned k = 0; k < in_flight; ++k)
      if (in_shared + threadIdx.x + k * most_threads < row_packets) held[k] = own[in_shared + threadIdx.x + k * most_threads];
    const auto for_row = [&](auto use) {
      float x[packet];
      for (unsigned i = threadIdx.x; i < in_shared; i += most_threads) {
        shared::unpack(kept[i], x);
        use(i, x);
      }
#pragma unroll
      for (unsigned k = 0; k < in_flight; ++k)
        if (in_shared + threadIdx.x + k * most_threads < row_packets) {
          shared::unpack(held[k], x);
          use(in_shared + threadIdx.x + k * most_threads, x);
        }
    };
    device::wait_copies<0>();
    for_row([&](unsigned, float(&x)[packet]) { shared::add(seen, x); });
    seen = shared::block_merge(seen, parts);
    const float offset = shared::level(seen.maximum) * shared::log2_e, factor = weight / seen.sum;
    for_row([&](unsigned i, float(&x)[packet]) {
#pragma unroll
      for (float& value : x) value = shared::exponential(value, offset) * factor;
      own[i] = gradient(x, label - static_cast<int>(i) * packet, weight);
    });
    if (threadIdx.x == 0) losses[row] = log_sum(seen) - of_label;
  }
}

class FusedCrossEntropy final : public Workload {
 public:
  explicit FusedCrossEntropy(Setup& setup)
      : rows_{setup.size("rows")},
        vocabulary_{setup.size("vocabulary")},
        blocks_an_sm_{setup.size("blocks_an_sm")},
        logits_{setup.inout<bf16>(rows_ * vocabulary_, logits(), {.name = "logits", .groups = Axis{vocabulary_, rows_}})},
        // Not among the first eight, which are -infinity in some rows, nor the large one, whose loss is nothing but rounding.
        labels_{setup.input<int>(rows_, integers(packet, static_cast<std::int64_t>(vocabulary_) - 4), {.name = "labels"})},
        losses_{setup.output<float>(rows_, {.name = "losses of the rows"})},
        mean_{setup.output<float>(1, {.name = "mean loss"})},
        log_probabilities_{setup.scratch<float>(rows_ * vocabulary_, {.name = "log-probabilities"})},
        team_{setup.threads(setup.cpus(), false)} {}

  Cost cost() const override {
    const auto elements = static_cast<double>(logits_.size());
    return {.flops = 6 * elements, .bytes = 2 * static_cast<double>(logits_.bytes()), .special_functions = elements};
  }
  // The mean needs all rows.
  void compute_reference(Launch&) override {
    log_sums_.assign(rows_, 0);
    team_.run([&](int worker) {
      for (std::size_t row = static_cast<std::size_t>(worker); row < rows_; row += static_cast<std::size_t>(team_.size())) {
        double sum = 0;  // no logit is large enough for an overflow
        for (std::size_t k = row * vocabulary_; k < (row + 1) * vocabulary_; ++k) sum += std::exp(logits_.initial(k));
        log_sums_[row] = std::log(sum);
      }
    });
  }
  double expected_output(int output, std::size_t i) const override {
    if (output == 0) {
      const std::size_t row = i / vocabulary_;
      const double probability = std::exp(logits_.initial(i) - log_sums_[row]);
      return (probability - (i % vocabulary_ == label(row) ? 1 : 0)) / static_cast<double>(rows_);
    }
    if (output == 1) return loss(i);
    double sum = 0;
    for (std::size_t row = 0; row < rows_; ++row) sum += loss(row);
    return sum / static_cast<double>(rows_);
  }
  // Samples hardly meet the columns of labels, where the gradient is largest.
  void validate(std::string_view) override {
    const std::size_t count = std::min<std::size_t>(rows_, 64);
    for (std::size_t k = 0; k < count; ++k) {
      const std::size_t row = k * rows_ / count, i = row * vocabulary_ + label(row);
      bf16 found;
      check(cudaMemcpy(&found, logits_.get() + i, sizeof found, cudaMemcpyDeviceToHost));
      const double wanted = expected_output(0, i), error = std::abs(static_cast<double>(__bfloat162float(found)) - wanted);
      if (!(error <= gradient_error * (std::abs(wanted) + 1e-3 / static_cast<double>(rows_))))
        throw std::runtime_error{"the gradient of the label of row " + std::to_string(row) + " is off by " +
                                 std::to_string(error) + " of " + std::to_string(wanted)};
    }
  }

  void operators(Launch& launch) {
    const auto packets = static_cast<unsigned>(logits_.size() / packet);
    auto* const wide = reinterpret_cast<float4*>(log_probabilities_.get());
    launch(log_softmax_kernel, {rows(), block_of(1)}, packed(), wide, row_packets());
    launch(pick_labels_kernel, {(rows() + threads - 1) / threads, threads}, log_probabilities_, labels_, losses_, rows_,
           vocabulary_);
    mean(launch);
    launch(backward_kernel, {(packets + threads - 1) / threads, threads}, wide, labels_, packed(), rows_, row_packets());
  }
  void fused_two_pass(Launch& launch) { fused<false>(launch, rows(), block_of(blocks_of_small_rows)); }
  void fused_l2_resident(Launch& launch) { fused<false>(launch, multiprocessors(), block_of(1)); }
  void evict_first(Launch& launch) { fused<true>(launch, multiprocessors(), block_of(1)); }
  void row_on_chip(Launch& launch) {
    if (row_packets() > most_in_shared + in_flight * most_threads)
      throw Unsupported{"a row of more than 135168 elements does not fit into the shared memory and registers of a block"};
    const unsigned in_shared = std::min(row_packets(), most_in_shared);
    launch(on_chip_kernel, {std::min(multiprocessors(), rows()), most_threads, in_shared * sizeof(uint4)}, packed(), labels_,
           losses_, rows_, row_packets(), in_shared);
    mean(launch);
  }
  void live_rows(Launch& launch) {
    if (blocks_an_sm_ == 0 || blocks_of_small_rows % blocks_an_sm_ != 0)
      throw Unsupported{"an SM has 1, 2, 4 or 8 blocks, which share its threads"};
    fused<false>(launch, multiprocessors() * static_cast<unsigned>(blocks_an_sm_),
                 block_of(static_cast<unsigned>(blocks_an_sm_)));
  }

 private:
  static constexpr double gradient_error = 5e-3;

  // Some rows have a large one close to the end, and some begin with -infinity. Deviations of 3 give the most likely words
  // probabilities that are not lost beside the label's one.
  Pattern logits() const {
    const Axis rows{vocabulary_, rows_}, columns{1, vocabulary_};
    return normal(0, 3)
        .set(24, at(columns, vocabulary_ - 3), drawn(rows, rows_ / 8 + 1))
        .set(-std::numeric_limits<float>::infinity(), at(columns, 0, packet), drawn(rows, rows_ / 8 + 1));
  }
  unsigned rows() const { return static_cast<unsigned>(rows_); }
  unsigned row_packets() const { return static_cast<unsigned>(vocabulary_ / packet); }
  uint4* packed() const { return reinterpret_cast<uint4*>(logits_.get()); }
  std::size_t label(std::size_t row) const { return static_cast<std::size_t>(labels_.host(row)); }
  double loss(std::size_t row) const { return log_sums_[row] - logits_.initial(row * vocabulary_ + label(row)); }
  static unsigned block_of(unsigned blocks_an_sm) { return most_threads / blocks_an_sm; }

  void mean(Launch& launch) { launch(mean_kernel, {1, most_threads}, losses_, mean_, rows_); }
  template <bool evict_first>
  void fused(Launch& launch, unsigned blocks, unsigned block) {
    launch(fused_kernel<evict_first>, {std::min(blocks, rows()), block}, packed(), labels_, losses_, rows_, row_packets());
    mean(launch);
  }

  std::size_t rows_, vocabulary_, blocks_an_sm_;  // blocks_an_sm: of the control live_rows
  InOut<bf16> logits_;
  Input<int> labels_;
  Output<float> losses_, mean_;
  Scratch<float> log_probabilities_;
  ThreadTeam& team_;
  std::vector<double> log_sums_;
};

}  // namespace

extern constinit const Pair fused_cross_entropy{
    .teaches =
        "a loss fused with its gradient needs no log-probabilities, and its second pass is free where few rows are live and "
        "results leave L2 first",
    .lesson = "evict_first",
    .make = make<FusedCrossEntropy>,
    .baseline = {.name = "operators", .run = call<&FusedCrossEntropy::operators>},
    .optimized = variants({{.name = "fused_two_pass",
                            .run = call<&FusedCrossEntropy::fused_two_pass>,
                            .kernels = {.registers = 64, .local_bytes = 0}},
                           {.name = "fused_l2_resident",
                            .run = call<&FusedCrossEntropy::fused_l2_resident>,
                            .kernels = {.registers = 64, .local_bytes = 0}},
                           {.name = "evict_first",
                            .run = call<&FusedCrossEntropy::evict_first>,
                            .same_bits_as = "fused_l2_resident",
                            .kernels = {.registers = 64, .local_bytes = 0}},
                           {.name = "row_on_chip",
                            .run = call<&FusedCrossEntropy::row_on_chip>,
                            .gains_over = "fused_l2_resident",
                            .kernels = {.registers = 64, .local_bytes = 0}}}),
    // Persistent blocks, as many an SM as the size says; they share 1024 threads.
    .controls = variants({{.name = "live_rows", .run = call<&FusedCrossEntropy::live_rows>}}),
    .bound = Bound::memory,
    // Gradients are rounded to bf16 once, 1.6e-3; losses are sums of exponentials in fp32, most of them in short chains.
    .tolerance = per_output({within(5e-3), within(1e-5)}),
    .sizes = sizes({{.name = "rows", .full = 4096},
                    {.name = "vocabulary", .full = 128256, .multiple = 16, .most = 1 << 20, .scales = false},
                    {.name = "blocks_an_sm", .full = 8, .most = 8, .scales = false}}),
    .sweep = cases({{"one_an_sm", "blocks_an_sm=1"},
                    {"two_an_sm", "blocks_an_sm=2"},
                    {"four_an_sm", "blocks_an_sm=4"},
                    {"eight_an_sm", "blocks_an_sm=8"}}),
    .edges = cases({{"one_row", "rows=1,vocabulary=16"},
                    {"odd_rows", "rows=37,vocabulary=1008"},
                    {"more_rows_than_blocks", "rows=411,vocabulary=4112"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch09
