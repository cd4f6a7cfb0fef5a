// SPDX-License-Identifier: Apache-2.0
// How often each of 50257 tokens occurs among 128 Mi: a block counts in shared memory and adds its counts to those of all. In the
// 48 KiB that a kernel gets without asking there is room for 12288 counters, so the tokens are read five times, each time for
// another part of the vocabulary. A kernel that asks can have 227 KiB on Hopper: all counters, and one pass. Two counters a word
// need half of that, so that two blocks fit; what would overflow is carried to the result in time.
#include <aisp/device/arch.cuh>
#include <aisp/pair.hpp>

#include <cub/device/device_histogram.cuh>

#include <algorithm>
#include <cmath>
#include <vector>

#include "residency.hpp"

namespace aisp::ch08 {
namespace {

constexpr unsigned default_counters = 48 * 1024 / sizeof(unsigned);
constexpr int loads = 4;  // of 16 bytes that a thread has under way
constexpr unsigned small_block = 512, large_block = 1024;
constexpr unsigned carried = 1u << 15;  // half of what 16 bits hold: no count gets further before it is carried

// Calls `count(token)` for all tokens, in a grid of any size.
template <class Count>
__device__ __forceinline__ void for_each_token(const int4* tokens, std::size_t quads, Count count) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < quads; i += loads * step) {
    int4 loaded[loads];
#pragma unroll
    for (int k = 0; k < loads; ++k) loaded[k] = i + k * step < quads ? tokens[i + k * step] : make_int4(-1, -1, -1, -1);
#pragma unroll
    for (const int4& four : loaded) count(four.x), count(four.y), count(four.z), count(four.w);
  }
}

// Counts the tokens from `first` on, as many as there are counters.
__global__ __launch_bounds__(large_block) void count_kernel(const int4* tokens, std::size_t quads, unsigned first,
                                                            unsigned counters, unsigned* counts) {
  extern __shared__ unsigned counter[];
  for (unsigned i = threadIdx.x; i < counters; i += blockDim.x) counter[i] = 0;
  __syncthreads();
  for_each_token(tokens, quads, [&](int token) {
    const unsigned i = static_cast<unsigned>(token) - first;  // those before `first` come out large
    if (i < counters) atomicAdd(counter + i, 1u);
  });
  __syncthreads();
  for (unsigned i = threadIdx.x; i < counters; i += blockDim.x)
    if (counter[i] != 0) atomicAdd(counts + first + i, counter[i]);
}

// One block is all that fits where an SM holds 1536 threads and 100 KiB.
constexpr unsigned packed_blocks = AISP_SM == 86 || AISP_SM == 89 || AISP_SM == 120 ? 1 : 2;

// The counter of token t is half t % 2 of word t / 2. Who makes it reach half of its range carries that to the result and takes
// it off again; in the few instructions between, others would have to add as many to make it overflow.
__global__ __launch_bounds__(large_block, packed_blocks) void packed_kernel(const int4* tokens, std::size_t quads,
                                                                            unsigned vocabulary, unsigned* counts) {
  extern __shared__ unsigned pair[];
  const unsigned words = (vocabulary + 1) / 2;
  for (unsigned i = threadIdx.x; i < words; i += blockDim.x) pair[i] = 0;
  __syncthreads();
  for_each_token(tokens, quads, [&](int token) {
    const auto id = static_cast<unsigned>(token);
    if (id >= vocabulary) return;
    const unsigned shift = id % 2 * 16;
    const unsigned before = atomicAdd(pair + id / 2, 1u << shift) >> shift & 0xFFFFu;
    if (before == carried - 1) {
      atomicSub(pair + id / 2, carried << shift);
      atomicAdd(counts + id, carried);
    }
  });
  __syncthreads();
  for (unsigned id = threadIdx.x; id < vocabulary; id += blockDim.x)
    if (const unsigned count = pair[id / 2] >> id % 2 * 16 & 0xFFFFu; count != 0) atomicAdd(counts + id, count);
}

__global__ void global_kernel(const int4* tokens, std::size_t quads, unsigned* counts) {
  for_each_token(tokens, quads, [&](int token) {
    if (token >= 0) atomicAdd(counts + token, 1u);
  });
}

// Token k as often as 1 / (k + 1) demands. Three random numbers of 20 bits at a time look a token up in a table of the inverse
// distribution.
HostFill<int> zipf(std::size_t vocabulary, bool all_equal) {
  return [=](std::span<int> tokens, std::uint64_t seed) {
    constexpr std::size_t steps = 1u << 20;
    double all = 0, through = 0;
    for (std::size_t k = 0; k < vocabulary; ++k) all += 1.0 / static_cast<double>(k + 1);
    std::vector<int> table(steps, static_cast<int>(vocabulary - 1));
    for (std::size_t k = 0, step = 0; k < vocabulary; ++k) {
      through += 1.0 / static_cast<double>(k + 1);
      for (; step < steps && static_cast<double>(step) < through / all * steps; ++step) table[step] = static_cast<int>(k);
    }
    for (std::size_t i = 0; i < tokens.size(); i += 3) {
      const std::uint64_t bits = random_bits(seed, i);
      for (std::size_t k = 0; k < 3 && i + k < tokens.size(); ++k)
        tokens[i + k] = all_equal ? static_cast<int>(seed % vocabulary) : table[bits >> 20 * k & (steps - 1)];
    }
  };
}

class SharedCarveout final : public Workload {
 public:
  explicit SharedCarveout(Setup& setup)
      : vocabulary_{static_cast<unsigned>(setup.size("vocabulary"))},
        size_{setup.scaled(std::size_t{128} << 20, 4)},
        tokens_{setup.input<int>(size_, zipf(vocabulary_, setup.size("all_equal") != 0), {.name = "tokens"})},
        counts_{setup.output<unsigned>(vocabulary_, {.name = "counts"})},
        cub_bytes_{cub_histogram(nullptr, 0, nullptr)},
        cub_space_{setup.scratch<std::uint8_t>(cub_bytes_)},
        team_{setup.threads(std::min(setup.cpus(), 16), false)} {}

  Cost cost() const override { return {.bytes = static_cast<double>(tokens_.bytes() + counts_.bytes())}; }
  void compute_reference(Launch&) override {
    std::vector<std::vector<unsigned>> parts(static_cast<std::size_t>(team_.size()), std::vector<unsigned>(vocabulary_));
    team_.run([&](int worker) {
      const auto w = static_cast<std::size_t>(worker);
      for (std::size_t i = size_ * w / parts.size(); i < size_ * (w + 1) / parts.size(); ++i)
        ++parts[w][static_cast<std::size_t>(tokens_.host(i))];
    });
    expected_.assign(vocabulary_, 0);
    for (const auto& part : parts)
      for (std::size_t k = 0; k < vocabulary_; ++k) expected_[k] += part[k];
  }
  double expected(std::size_t index) const override { return expected_[index]; }
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant != "cub_device_histogram") launched_.report(metrics);
  }

  void passes_in_48_kb(Launch& launch) {
    clear(launch);
    for (unsigned first = 0; first < vocabulary_; first += default_counters)
      count(launch, first, std::min(default_counters, vocabulary_ - first), small_block, default_counters);
  }
  void opt_in_201_kb(Launch& launch) {
    clear(launch);
    count(launch, 0, vocabulary_, large_block, vocabulary_);
  }
  void packed_16_bit(Launch& launch) {
    clear(launch);
    const Grid grid{2 * multiprocessors(), large_block, (vocabulary_ + 1) / 2 * sizeof(unsigned)};
    launched_.launch(launch, packed_kernel, grid, quads(), size_ / 4, vocabulary_, counts_);
  }
  // One of the baseline's passes, and the same where it has an SM to itself: the price of fewer warps alone.
  void one_pass_48_kb(Launch& launch) {
    clear(launch);
    count(launch, 0, std::min(default_counters, vocabulary_), small_block, default_counters);
  }
  void one_pass_201_kb(Launch& launch) {
    clear(launch);
    count(launch, 0, std::min(default_counters, vocabulary_), large_block, vocabulary_);
  }
  void global_atomics(Launch& launch) {
    clear(launch);
    launched_.launch(launch, global_kernel, {4 * multiprocessors(), small_block}, quads(), size_ / 4, counts_);
  }
  void cub_device_histogram(Launch& launch) { cub_histogram(cub_space_, cub_bytes_, launch.stream); }

 private:
  const int4* quads() const { return reinterpret_cast<const int4*>(tokens_.get()); }
  void clear(Launch& launch) { check(cudaMemsetAsync(counts_, 0, counts_.bytes(), launch.stream)); }
  void count(Launch& launch, unsigned first, unsigned counters, unsigned threads, unsigned reserved) {
    const std::size_t bytes = reserved * sizeof(unsigned);
    allow_shared_memory(count_kernel, bytes);
    int resident = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, count_kernel, static_cast<int>(threads), bytes));
    const Grid grid{static_cast<unsigned>(resident) * multiprocessors(), threads, bytes};
    launched_.launch(launch, count_kernel, grid, quads(), size_ / 4, first, counters, counts_);
  }
  // Returns the workspace that it needs; does nothing else when there is none.
  std::size_t cub_histogram(void* space, std::size_t bytes, cudaStream_t stream) {
    check(cub::DeviceHistogram::HistogramEven(space, bytes, tokens_.get(), counts_.get(), static_cast<int>(vocabulary_) + 1, 0,
                                              static_cast<int>(vocabulary_), static_cast<int>(size_), stream));
    return bytes;
  }

  unsigned vocabulary_;
  std::size_t size_;
  Input<int> tokens_;
  Output<unsigned> counts_;
  std::size_t cub_bytes_;
  Scratch<std::uint8_t> cub_space_;
  ThreadTeam& team_;
  std::vector<unsigned> expected_;
  Residency launched_;
};

}  // namespace

extern constinit const Pair shared_carveout{
    .teaches =
        "kernels get 48 KiB of shared memory unless they ask, and several times that where they do: what fits needs one pass",
    .lesson = "opt_in_201_kb",
    .make = make<SharedCarveout>,
    .baseline = {.name = "passes_in_48_kb", .run = call<&SharedCarveout::passes_in_48_kb>},
    .optimized = variants({{.name = "opt_in_201_kb", .run = call<&SharedCarveout::opt_in_201_kb>},
                           {.name = "packed_16_bit", .run = call<&SharedCarveout::packed_16_bit>}}),
    .controls = variants({{.name = "one_pass_48_kb", .run = call<&SharedCarveout::one_pass_48_kb>, .outputs = no_outputs},
                          {.name = "one_pass_201_kb", .run = call<&SharedCarveout::one_pass_201_kb>, .outputs = no_outputs},
                          {.name = "global_atomics", .run = call<&SharedCarveout::global_atomics>}}),
    .libraries = variants({{.name = "cub_device_histogram", .run = call<&SharedCarveout::cub_device_histogram>}}),
    .bound = Bound::memory,
    .tolerance = exact,
    .sizes = sizes({{.name = "vocabulary", .full = 50257, .scales = false}, option("all_equal")}),
    .sweep = cases({{"vocabulary_12288", "vocabulary=12288"},
                    {"vocabulary_24576", "vocabulary=24576"},
                    {"vocabulary_36864", "vocabulary=36864"},
                    {"vocabulary_50257", "vocabulary=50257"},
                    {"tokens_all_equal", "all_equal=1"}}),
    .edges = cases({{"vocabulary_1", "vocabulary=1"}, {"vocabulary_25129", "vocabulary=25129"}, {"all_equal", "all_equal=1"}}),
};

}  // namespace aisp::ch08
