// SPDX-License-Identifier: Apache-2.0
// Dictionary encoding of 48 table columns of 64 Ki to 256 Ki values: each is sorted, and its distinct values are selected with
// the places where their runs begin, by calls of CUB that make a dozen launches with few blocks. One column after the other
// leaves most of the SMs idle. Dealt out to streams, each of which has a queue of the hardware, the same calls fill them. Each
// column's chain is captured as a graph: launched one by one, 500 kernels would take the host longer than the GPU.
#include <aisp/graph.hpp>
#include <aisp/pair.hpp>

#include <thrust/iterator/counting_iterator.h>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace aisp::ch11 {
namespace {

constexpr std::size_t least_values = 64 << 10, most_values = 256 << 10;
constexpr unsigned threads = 256;
constexpr int value_bits = 32, column_bits = 6;

__global__ void join_kernel(const std::uint32_t* values, std::uint64_t column, std::uint64_t* keys, unsigned count) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i < count) keys[i] = column << value_bits | values[i];
}

// A run ends where the next one begins.
__global__ void lengths_kernel(const std::uint32_t* begins, const std::uint32_t* runs, std::uint32_t* lengths, unsigned count) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i < count) lengths[i] = i < *runs ? (i + 1 < *runs ? begins[i + 1] : count) - begins[i] : 0;
}

// Runs of equal keys in `in`: the keys sorted, each once, where its run begins and how long it is. Calls of CUB return the
// workspace that they need when they get none.
template <class Key>
struct Encoding {
  const Key* in;
  Key *sorted, *distinct;
  std::uint32_t *begins, *lengths, *runs;
  int count, bits;

  std::size_t space_bytes() const {
    std::size_t sort = 0, select = 0;
    queue_sort(nullptr, sort, nullptr);
    queue_select(nullptr, select, nullptr);
    return (std::max(sort, select) + 255) / 256 * 256;
  }
  void queue(void* space, std::size_t bytes, cudaStream_t stream) const {
    const auto values = static_cast<std::size_t>(count);
    check(cudaMemsetAsync(distinct, 0, values * sizeof(Key), stream));  // what lies beyond the last run is zero
    check(cudaMemsetAsync(begins, 0, values * sizeof *begins, stream));
    queue_sort(space, bytes, stream);
    queue_select(space, bytes, stream);
    launch_kernel(stream, lengths_kernel, {static_cast<unsigned>((values + threads - 1) / threads), threads}, begins, runs,
                  lengths, count);
  }

 private:
  void queue_sort(void* space, std::size_t& bytes, cudaStream_t stream) const {
    check(cub::DeviceRadixSort::SortKeys(space, bytes, in, sorted, count, 0, bits, stream));
  }
  void queue_select(void* space, std::size_t& bytes, cudaStream_t stream) const {
    check(cub::DeviceSelect::UniqueByKey(space, bytes, sorted, thrust::counting_iterator<std::uint32_t>{0}, distinct, begins,
                                         runs, count, stream));
  }
};

class HyperQ final : public Workload {
 public:
  explicit HyperQ(Setup& setup)
      : columns_{setup.size("columns")},
        begins_of_columns_{places(columns_)},
        values_{begins_of_columns_.back()},
        dictionary_{setup.output<std::uint32_t>(values_, {.name = "dictionaries"})},
        begins_{setup.output<std::uint32_t>(values_, {.name = "begins of runs"})},
        lengths_{setup.output<std::uint32_t>(values_, {.name = "lengths of runs"})},
        runs_{setup.output<std::uint32_t>(columns_, {.name = "runs"})},
        sorted_{setup.scratch<std::uint32_t>(values_)},
        joined_keys_{setup.scratch<std::uint64_t>(3 * values_, {.name = "joined keys, sorted, distinct"})},
        joined_counts_{setup.scratch<std::uint32_t>(2 * values_ + 1, {.name = "joined begins, lengths, runs"})},
        graphs_(columns_),
        by_length_(columns_),
        forked_{setup.event()} {
    for (std::size_t c = 0; c < columns_; ++c)
      in_.push_back(setup.input<std::uint32_t>(length(c), distribution(c), {.name = "column"}));
    spaces_.push_back(joined().space_bytes());
    for (std::size_t c = 0; c < columns_; ++c) spaces_.push_back(spaces_.back() + column(c).space_bytes());
    space_.emplace(setup.scratch<std::byte>(spaces_.back()));
    for (std::size_t s = 0; s < setup.size("streams"); ++s) {
      streams_.push_back(setup.stream());
      done_.push_back(setup.event());
    }
    std::iota(by_length_.begin(), by_length_.end(), std::size_t{0});
    in_order_ = by_length_;
    std::sort(by_length_.begin(), by_length_.end(), [&](std::size_t a, std::size_t b) { return length(a) > length(b); });
  }

  // Each value is read, its sorted place written and read, and the three results written.
  Cost cost() const override { return {.bytes = static_cast<double>(values_) * sizeof(std::uint32_t) * 6}; }

  void compute_reference(Launch&) override {
    for (auto& output : expected_) output.assign(values_, 0);
    for (std::size_t c = 0; c < columns_; ++c) {
      const std::size_t first = begins_of_columns_[c];
      std::vector<std::uint32_t> sorted(length(c));
      for (std::size_t i = 0; i < sorted.size(); ++i) sorted[i] = in_[c].host(i);
      std::sort(sorted.begin(), sorted.end());
      std::size_t runs = 0;
      for (std::size_t i = 0; i < sorted.size(); ++i) {
        if (i == 0 || sorted[i] != sorted[i - 1]) {
          expected_[0][first + runs] = sorted[i];
          expected_[1][first + runs] = static_cast<std::uint32_t>(i);
          ++runs;
        }
        ++expected_[2][first + runs - 1];
      }
      expected_[3][c] = static_cast<std::uint32_t>(runs);
    }
  }
  double expected_output(int output, std::size_t index) const override {
    return expected_[static_cast<std::size_t>(output)][index];
  }
  // joined_keys has one dictionary for all columns, so that its outputs lie elsewhere.
  void validate(std::string_view variant) override {
    if (variant != "joined_keys") return;
    std::vector<std::uint64_t> distinct(values_);
    std::vector<std::uint32_t> lengths(values_);
    check(cudaMemcpy(distinct.data(), joined().distinct, values_ * sizeof(std::uint64_t), cudaMemcpyDeviceToHost));
    check(cudaMemcpy(lengths.data(), joined().lengths, values_ * sizeof(std::uint32_t), cudaMemcpyDeviceToHost));
    std::size_t run = 0;
    for (std::size_t c = 0; c < columns_; ++c)
      for (std::size_t i = 0; i < expected_[3][c]; ++i, ++run) {
        const std::size_t at = begins_of_columns_[c] + i;
        if (distinct[run] != (std::uint64_t{c} << value_bits | expected_[0][at]) || lengths[run] != expected_[2][at])
          throw std::runtime_error{"a run of the joined columns is wrong"};
      }
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("values", static_cast<double>(values_), "values/s");
  }

  void capture(Launch& launch) {
    for (std::size_t c = 0; c < columns_; ++c) {
      if (c == 0) queue(c, launch.stream);  // code is loaded at its first launch, not while a capture is under way
      graphs_[c].capture(launch.stream, [&](cudaStream_t stream) { queue(c, stream); });
    }
  }
  void one_stream(Launch& launch) {
    for (const Graph& graph : graphs_) graph.launch(launch.stream);
  }
  void streams(Launch& launch) { deal_graphs(launch, in_order_); }
  void streams_largest_first(Launch& launch) { deal_graphs(launch, by_length_); }
  void capture_all(Launch& launch) {
    queue(0, launch.stream);
    all_.capture(launch.stream,
                 [&](cudaStream_t stream) { deal(stream, by_length_, [&](std::size_t c, cudaStream_t on) { queue(c, on); }); });
  }
  void one_graph(Launch& launch) { all_.launch(launch.stream); }
  void direct_launches(Launch& launch) {
    deal(launch.stream, in_order_, [&](std::size_t c, cudaStream_t on) { queue(c, on); });
  }
  void joined_keys(Launch& launch) {
    for (std::size_t c = 0; c < columns_; ++c)
      launch(join_kernel, {static_cast<unsigned>((length(c) + threads - 1) / threads), threads}, in_[c], std::uint64_t{c},
             joined_keys_ + begins_of_columns_[c], length(c));
    joined().queue(space_->get(), spaces_.front(), launch.stream);
  }

 private:
  // Lengths from the least to the most in a mixed order; few are multiples of anything.
  static std::vector<std::size_t> places(std::size_t columns) {
    std::vector<std::size_t> begins{0};
    for (std::size_t c = 0; c < columns; ++c)
      begins.push_back(begins.back() + least_values + (most_values - least_values) * (c * 29 % 48) / 47);
    return begins;
  }
  // Words, categories and numbers, one column of a single value and one without any repetition.
  static Pattern distribution(std::size_t c) {
    if (c == 0) return integers(7, 7);
    if (c == 1) return sequence(0, 12345);
    switch (c % 3) {
      case 0: return zipf(1 << 16);
      case 1: return integers(0, 999);
      default: return integers(0, 0xFFFFFFFF);
    }
  }
  std::size_t length(std::size_t c) const { return begins_of_columns_[c + 1] - begins_of_columns_[c]; }
  Encoding<std::uint32_t> column(std::size_t c) const {
    const std::size_t first = begins_of_columns_[c];
    return {in_[c],           sorted_ + first, dictionary_ + first,         begins_ + first,
            lengths_ + first, runs_ + c,       static_cast<int>(length(c)), value_bits};
  }
  Encoding<std::uint64_t> joined() const {
    std::uint64_t* const keys = joined_keys_;
    std::uint32_t* const counts = joined_counts_;
    return {keys,
            keys + values_,
            keys + 2 * values_,
            counts,
            counts + values_,
            counts + 2 * values_,
            static_cast<int>(values_),
            value_bits + column_bits};
  }
  void queue(std::size_t c, cudaStream_t stream) const {
    column(c).queue(space_->get() + spaces_[c], spaces_[c + 1] - spaces_[c], stream);
  }
  // Columns in turn to the streams, which fork from `stream` and join it.
  template <class Work>
  void deal(cudaStream_t stream, const std::vector<std::size_t>& order, const Work& work) {
    check(cudaEventRecord(forked_, stream));
    for (const cudaStream_t each : streams_) check(cudaStreamWaitEvent(each, forked_));
    for (std::size_t i = 0; i < order.size(); ++i) work(order[i], streams_[i % streams_.size()]);
    for (std::size_t s = 0; s < streams_.size(); ++s) {
      check(cudaEventRecord(done_[s], streams_[s]));
      check(cudaStreamWaitEvent(stream, done_[s]));
    }
  }
  void deal_graphs(Launch& launch, const std::vector<std::size_t>& order) {
    deal(launch.stream, order, [this](std::size_t c, cudaStream_t on) { graphs_[c].launch(on); });
  }

  std::size_t columns_;
  std::vector<std::size_t> begins_of_columns_;
  std::size_t values_;
  Output<std::uint32_t> dictionary_, begins_, lengths_, runs_;
  Scratch<std::uint32_t> sorted_;
  Scratch<std::uint64_t> joined_keys_;
  Scratch<std::uint32_t> joined_counts_;
  std::vector<Input<std::uint32_t>> in_;
  std::optional<Scratch<std::byte>> space_;
  std::vector<std::size_t> spaces_;  // where each column's workspace begins, and the last one ends; the joined one's is the first
  std::vector<Graph> graphs_;
  Graph all_;
  std::vector<std::size_t> in_order_, by_length_;
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> done_;
  cudaEvent_t forked_;
  std::array<std::vector<std::uint32_t>, 4> expected_;
};

}  // namespace

extern constinit const Pair hyper_q{
    .teaches = "library calls with small grids leave SMs idle; on streams of their own, unchanged, they fill them",
    .lesson = "streams_16",
    .make = make<HyperQ>,
    .baseline = {.name = "one_stream", .run = call<&HyperQ::one_stream>, .prepare = call<&HyperQ::capture>},
    .optimized = variants(
        {{.name = "streams_16", .run = call<&HyperQ::streams>, .prepare = call<&HyperQ::capture>},
         {.name = "streams_16_largest_first", .run = call<&HyperQ::streams_largest_first>, .prepare = call<&HyperQ::capture>},
         {.name = "one_graph", .run = call<&HyperQ::one_graph>, .prepare = call<&HyperQ::capture_all>}}),
    .controls = variants({{.name = "direct_launches", .run = call<&HyperQ::direct_launches>},
                          {.name = "joined_keys", .run = call<&HyperQ::joined_keys>, .outputs = no_outputs}}),
    .bound = Bound::latency,
    .tolerance = exact,
    .start = Start::immediate,  // launches are part of it
    .timeline = true,
    .sizes = sizes({{.name = "columns", .full = 48, .most = 48}, {.name = "streams", .full = 16, .most = 32, .scales = false}}),
    .sweep = cases({{"streams_1", "streams=1"},
                    {"streams_2", "streams=2"},
                    {"streams_4", "streams=4"},
                    {"streams_8", "streams=8"},
                    {"streams_16", "streams=16"},
                    {"streams_32", "streams=32"}}),
    .edges = cases({{"one_column", "columns=1"}, {"few_columns", "columns=5"}}),
};

}  // namespace aisp::ch11
