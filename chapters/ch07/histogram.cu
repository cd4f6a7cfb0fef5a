// SPDX-License-Identifier: Apache-2.0
// How often each byte occurs in text. Counters are memory that everybody wants: in one histogram for a block, lanes of a warp
// meet at equal counters and at equal banks, and take turns. A copy of the histogram for each lane, lane k's counters all in bank
// k, leaves nothing to wait for within a warp.
#include <aisp/device/reduce.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/pair.hpp>

#include <cub/device/device_histogram.cuh>

#include <cmath>
#include <vector>

namespace aisp::ch07 {
namespace {

constexpr int bins = 256;
constexpr int narrow_threads = 256, narrow_blocks = 8;  // of an SM: 2048 threads
constexpr int wide_threads = 1024, wide_blocks = 2;     // the same number of threads, with 32 KiB of counters a block
constexpr int sampled = 16;                             // part of the data that the control counts

// Calls `count` for each byte of a thread's packets. The next packet is requested before this one is counted.
template <class Packet, class Count>
__device__ void for_each_byte(const Packet* data, std::size_t packets, Count count) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  Packet next{};
  if (i < packets) next = data[i];
  while (i < packets) {
    const Packet packet = next;
    i += stride;
    if (i < packets) next = data[i];
    const auto* words = reinterpret_cast<const unsigned*>(&packet);
#pragma unroll
    for (int w = 0; w < static_cast<int>(sizeof packet / sizeof(unsigned)); ++w)
#pragma unroll
      for (int byte = 0; byte < 4; ++byte) count(words[w] >> 8 * byte & 0xFF);
  }
}

// `copies` histograms for a block, one after the other: one for all of its warps, or one for each.
template <class Packet, int copies>
__global__ __launch_bounds__(narrow_threads) void block_bins_kernel(const Packet* data, unsigned* counts, std::size_t packets) {
  __shared__ unsigned own[copies][bins];
  for (int i = threadIdx.x; i < copies * bins; i += narrow_threads) own[i / bins][i % bins] = 0;
  __syncthreads();
  unsigned* mine = own[threadIdx.x / 32 % copies];
  for_each_byte(data, packets, [&](unsigned byte) { atomicAdd(&mine[byte], 1u); });
  __syncthreads();
  unsigned sum = 0;
  for (int copy = 0; copy < copies; ++copy) sum += own[copy][threadIdx.x];
  if (sum > 0) atomicAdd(&counts[threadIdx.x], sum);
}
static_assert(narrow_threads == bins);

// Lane k has the k-th word of each row of 32, so a warp's additions always go to 32 different banks. The warps of the block share
// the copies: additions still have to be atomic.
__global__ __launch_bounds__(wide_threads) void lane_bins_kernel(const uint4* data, unsigned* counts, std::size_t packets) {
  __shared__ unsigned own[bins][32];
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x; i < bins * 32; i += wide_threads) own[i / 32][i % 32] = 0;
  __syncthreads();
  for_each_byte(data, packets, [&](unsigned byte) { atomicAdd(&own[byte][lane], 1u); });
  __syncthreads();
  for (int bin = threadIdx.x / 32; bin < bins; bin += wide_threads / 32) {
    const unsigned sum = __reduce_add_sync(device::whole_warp, own[bin][lane]);
    if (lane == 0 && sum > 0) atomicAdd(&counts[bin], sum);
  }
}

__global__ __launch_bounds__(narrow_threads) void global_bins_kernel(const uint4* data, unsigned* counts, std::size_t packets) {
  for_each_byte(data, packets, [&](unsigned byte) { atomicAdd(&counts[byte], 1u); });
}

// The k-th commonest of so many values comes 1/k times as often as the commonest (Zipf's law), as letters of a text roughly do.
// Every 16 random bits choose one from a table.
void write_text(std::span<std::uint8_t> text, std::uint64_t seed, std::size_t values) {
  double whole = 0, passed = 0;
  for (std::size_t k = 1; k <= values; ++k) whole += 1.0 / static_cast<double>(k);
  std::vector<std::uint8_t> chosen(1 << 16);
  std::size_t rank = 0;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    while (rank + 1 < values &&
           static_cast<double>(i) >= static_cast<double>(chosen.size()) * (passed + 1.0 / (1 + rank)) / whole)
      passed += 1.0 / static_cast<double>(++rank);
    chosen[i] = static_cast<std::uint8_t>(rank * 89 + seed);  // odd: different for each rank, common ones apart
  }
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = chosen[random_bits(seed, i / 4) >> i % 4 * 16 & 0xFFFF];
}

class Histogram final : public Workload {
 public:
  explicit Histogram(Setup& setup)
      : bytes_{setup.scaled(256 << 20, sampled * sizeof(uint4))},
        text_{setup.input<std::uint8_t>(bytes_, text_of(setup.size("values")), {.name = "text"})},
        counts_{setup.output<unsigned>(bins, {.name = "counts"})},
        cub_bytes_{cub_histogram(nullptr, 0, nullptr)},
        cub_space_{setup.scratch<std::uint8_t>(cub_bytes_)},
        team_{setup.threads(setup.cpus(), false)} {}

  Cost cost() const override { return {.bytes = static_cast<double>(text_.bytes() + counts_.bytes())}; }
  Cost variant_cost(std::string_view variant) const override {
    return variant == "global_bins" ? Cost{.bytes = static_cast<double>(text_.bytes() / sampled + counts_.bytes())} : cost();
  }

  void compute_reference(Launch&) override {
    const auto workers = static_cast<std::size_t>(team_.size());
    std::vector<std::vector<std::size_t>> found(workers, std::vector<std::size_t>(bins));
    team_.run([&](int worker) {
      const auto w = static_cast<std::size_t>(worker);
      for (std::size_t i = bytes_ * w / workers; i < bytes_ * (w + 1) / workers; ++i) ++found[w][text_.host(i)];
    });
    expected_.assign(bins, 0);
    for (const auto& part : found)
      for (std::size_t bin = 0; bin < bins; ++bin) expected_[bin] += part[bin];
  }
  double expected(std::size_t bin) const override { return static_cast<double>(expected_[bin]); }

  void block_bins(Launch& launch) { count(launch, block_bins_kernel<unsigned, 1>, narrow_blocks, narrow_threads); }
  void vec16(Launch& launch) { count(launch, block_bins_kernel<uint4, 1>, narrow_blocks, narrow_threads); }
  void warp_bins(Launch& launch) { count(launch, block_bins_kernel<uint4, narrow_threads / 32>, narrow_blocks, narrow_threads); }
  void lane_bins(Launch& launch) { count(launch, lane_bins_kernel, wide_blocks, wide_threads); }
  void global_bins(Launch& launch) { count(launch, global_bins_kernel, narrow_blocks, narrow_threads, sampled); }
  void cub_histogram_even(Launch& launch) { cub_histogram(cub_space_, cub_bytes_, launch.stream); }

 private:
  static HostFill<std::uint8_t> text_of(std::size_t values) {
    return [values](std::span<std::uint8_t> text, std::uint64_t seed) { write_text(text, seed, values); };
  }
  template <class Packet>
  void count(Launch& launch, void (*kernel)(const Packet*, unsigned*, std::size_t), int blocks, int threads, int part = 1) {
    check(cudaMemsetAsync(counts_, 0, counts_.bytes(), launch.stream));
    launch(kernel, {multiprocessors() * static_cast<unsigned>(blocks), static_cast<unsigned>(threads)},
           reinterpret_cast<const Packet*>(text_.get()), counts_, bytes_ / sizeof(Packet) / static_cast<std::size_t>(part));
  }
  // Returns the workspace that it needs; does nothing else when there is none.
  std::size_t cub_histogram(void* space, std::size_t bytes, cudaStream_t stream) {
    check(cub::DeviceHistogram::HistogramEven(space, bytes, text_.get(), counts_.get(), bins + 1, 0, bins,
                                              static_cast<int>(bytes_), stream));
    return bytes;
  }

  std::size_t bytes_;
  Input<std::uint8_t> text_;
  Output<unsigned> counts_;
  std::size_t cub_bytes_;
  Scratch<std::uint8_t> cub_space_;
  ThreadTeam& team_;
  std::vector<std::size_t> expected_;
};

}  // namespace

extern constinit const Pair histogram{
    .teaches = "counters are contended memory: one copy per block conflicts in its banks, a copy per lane in none",
    .lesson = "lane_bins",
    .make = make<Histogram>,
    .baseline = {.name = "block_bins", .run = call<&Histogram::block_bins>},
    .optimized = variants({{.name = "vec16", .run = call<&Histogram::vec16>},
                           {.name = "warp_bins", .run = call<&Histogram::warp_bins>},
                           {.name = "lane_bins", .run = call<&Histogram::lane_bins>}}),
    // One counter per value for the whole GPU, over a sixteenth of the text.
    .controls = variants({{.name = "global_bins", .run = call<&Histogram::global_bins>, .outputs = no_outputs}}),
    .libraries = variants({{.name = "cub_histogram_even", .run = call<&Histogram::cub_histogram_even>}}),
    .bound = Bound::memory,
    .tolerance = exact,
    // A printed text has about 96 different characters.
    .sizes = sizes({{.name = "values", .full = 96, .most = bins, .scales = false}}),
    .sweep = cases({{"values_1", "values=1"},
                    {"values_2", "values=2"},
                    {"values_4", "values=4"},
                    {"values_16", "values=16"},
                    {"values_96", "values=96"},
                    {"values_256", "values=256"}}),
    .edges = cases({{"values_1", "values=1"}, {"values_47", "values=47"}}),
};

}  // namespace aisp::ch07
