// SPDX-License-Identifier: Apache-2.0
// Queries that depend on one another: each filters 1 Mi keys by a threshold that the result of the one before decides, and sorts
// what is left, from a hundred keys to all of them. A graph needs its sizes when it is built. A host that reads the count and
// calls the sort that fits empties the GPU once a query; a SWITCH node has a body for each class of sizes, and the kernel that
// counts picks one.
#include <aisp/device/reduce.cuh>
#include <aisp/pair.hpp>

#include <cub/block/block_radix_sort.cuh>
#include <cub/device/device_radix_sort.cuh>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "graph_nodes.hpp"
#include "grid_sort.cuh"

namespace aisp::ch12 {
namespace {

constexpr int index_bits = 20, low_bits = 32 - index_bits;
constexpr unsigned keys = 1u << index_bits;
constexpr int threads = 256, warps = threads / device::warp_size, keys_per_lane = 16;
constexpr int filter_blocks = keys / (threads * keys_per_lane), copy_blocks = 264;
constexpr std::array<unsigned, 4> classes{2 << 10, 16 << 10, 128 << 10, keys};
constexpr unsigned fewest_survivors = 100;
constexpr int queries_per_graph = 16;

// The key that is the index-th in ascending order: the index, and bits that look random. Filtering by a threshold that is an
// index leaves as many keys as it says.
AISP_HOST_DEVICE constexpr unsigned key_at(unsigned index) {
  return index << low_bits | static_cast<unsigned>(random_bits(1, index)) >> index_bits;
}
AISP_HOST_DEVICE constexpr unsigned class_of(unsigned count) {
  unsigned found = 0;
  for (const unsigned most : {2u << 10, 16u << 10, 128u << 10}) found += count > most ? 1 : 0;
  return found;
}

struct Search {
  const unsigned *keys, *requests;  // requests: how many keys a query wants, plus the middle one of the result before it
  unsigned *survivors, *sorted;
  unsigned *counts, *checksums;  // of each query
  unsigned* progress;            // the next query, the one that is being sorted, blocks of the filter that are done
};

// Adds the share of the calling block to the checksum of a sorted result, which tells every order from every other one.
__device__ void add_checksum(const Search& search, unsigned query, unsigned* shared) {
  const unsigned count = search.counts[query];
  unsigned sum = 0;
  for (unsigned i = blockIdx.x * threads + threadIdx.x; i < count; i += gridDim.x * threads)
    sum += search.sorted[i] * (2 * i + 1);
  sum = device::block_sum(sum, shared);
  if (threadIdx.x == 0 && sum != 0) atomicAdd(&search.checksums[query], sum);
}
__global__ __launch_bounds__(threads) void checksum_kernel(Search search, unsigned query) {
  __shared__ unsigned shared[device::largest_block_in_warps];
  add_checksum(search, query, shared);
}

// Survivors come in any order: each block takes a place for all of its own.
template <bool in_graph>
__global__ __launch_bounds__(threads) void filter_kernel(Search search, cudaGraphConditionalHandle body) {
  __shared__ unsigned shared[device::largest_block_in_warps], of_warps[warps], first;
  const unsigned query = search.progress[0], before = query > 0 ? search.sorted[search.counts[query - 1] / 2] : 0;
  const unsigned wanted = search.requests[query] - before;
  const unsigned lane = threadIdx.x % device::warp_size, warp = threadIdx.x / device::warp_size;
  const unsigned* const mine = search.keys + (blockIdx.x * threads + warp * device::warp_size) * keys_per_lane + lane;
  unsigned key[keys_per_lane], votes[keys_per_lane], total = 0;
#pragma unroll
  for (int i = 0; i < keys_per_lane; ++i) key[i] = mine[i * device::warp_size];
#pragma unroll
  for (int i = 0; i < keys_per_lane; ++i) {
    votes[i] = __ballot_sync(device::whole_warp, key[i] >> low_bits < wanted);
    total += __popc(votes[i]);
  }
  if (lane == 0) of_warps[warp] = total;
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned sum = 0;
    for (unsigned& each : of_warps) {
      const unsigned own = each;
      each = sum;
      sum += own;
    }
    first = sum > 0 ? atomicAdd(&search.counts[query], sum) : 0;
  }
  __syncthreads();
  unsigned* to = search.survivors + first + of_warps[warp];
#pragma unroll
  for (int i = 0; i < keys_per_lane; ++i) {
    if ((votes[i] >> lane & 1) != 0) to[__popc(votes[i] & ((1u << lane) - 1))] = key[i];
    to += __popc(votes[i]);
  }
  if (query > 0) add_checksum(search, query - 1, shared);
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&search.progress[2], 1u) != gridDim.x - 1) return;
  search.progress[2] = 0;
  search.progress[1] = query;
  search.progress[0] = query + 1;
  if constexpr (in_graph) cudaGraphSetConditional(body, class_of(atomicAdd(&search.counts[query], 0u)));
}

// More than `fewest` survivors and up to `most`, by one block; otherwise nothing.
template <int sort_threads, int keys_each>
using BlockSort = cub::BlockRadixSort<unsigned, sort_threads, keys_each>;

template <int sort_threads, int keys_each>
__global__ __launch_bounds__(sort_threads) void block_sort_kernel(Search search, unsigned fewest, unsigned most) {
  using Sort = BlockSort<sort_threads, keys_each>;
  extern __shared__ __align__(16) unsigned char memory[];
  const unsigned count = search.counts[search.progress[1]];
  if (count <= fewest || count > most) return;
  unsigned key[keys_each];
#pragma unroll
  for (int i = 0; i < keys_each; ++i) {
    const unsigned place = i * sort_threads + threadIdx.x;
    key[i] = place < count ? search.survivors[place] : ~0u;
  }
  Sort{*reinterpret_cast<typename Sort::TempStorage*>(memory)}.SortBlockedToStriped(key);
#pragma unroll
  for (int i = 0; i < keys_each; ++i) {
    const unsigned place = i * sort_threads + threadIdx.x;
    if (place < count) search.sorted[place] = key[i];
  }
}

// So that a sort of a fixed number of keys can be captured: the largest key after the survivors.
__global__ __launch_bounds__(threads) void pad_kernel(Search search, unsigned end) {
  for (unsigned i = search.counts[search.progress[1]] + blockIdx.x * threads + threadIdx.x; i < end; i += gridDim.x * threads)
    search.survivors[i] = ~0u;
}

class ConditionalSwitch final : public Workload {
 public:
  explicit ConditionalSwitch(Setup& setup)
      : queries_{setup.size("queries")},
        small_percent_{setup.size("small_percent")},
        keys_{setup.input<unsigned>(keys, HostFill<unsigned>{shuffle_keys}, {.name = "keys"})},
        requests_{setup.input<unsigned>(
            queries_, HostFill<unsigned>{[percent = small_percent_](std::span<unsigned> requests, std::uint64_t seed) {
              draw_requests(requests, seed, percent);
            }},
            {.name = "requests"})},
        counts_{setup.inout<unsigned>(queries_, integers(0, 0), {.name = "counts"})},
        checksums_{setup.inout<unsigned>(queries_, integers(0, 0), {.name = "checksums of sorted survivors"})},
        progress_{setup.inout<unsigned>(3, integers(0, 0), {.name = "progress"})},
        survivors_{setup.scratch<unsigned>(keys)},
        sorted_{setup.scratch<unsigned>(keys)},
        between_{setup.scratch<unsigned>(keys)},
        digit_counts_{setup.scratch<unsigned>(grid_sort::blocks * grid_sort::digits)},
        seen_{setup.scratch<unsigned>(1, {.memory = Memory::pinned})},
        cub_bytes_{cub_sort(nullptr, keys, nullptr)},
        cub_space_{setup.scratch<std::uint8_t>(cub_bytes_)} {}

  // A query's filter and its sort, one after the other; the keys are read from L2, survivors written, read and written again.
  // Sizes that are spread evenly over their logarithm have these means.
  Cost cost() const override {
    const auto mean = [](double least, double most) { return (most - least) / std::log(most / least); };
    const double share = static_cast<double>(small_percent_) / 100, queries = static_cast<double>(queries_);
    const double survivors = share * mean(fewest_survivors, classes[1]) + (1 - share) * mean(classes[1], keys);
    return in_turn({{.l2_bytes = queries * sizeof(unsigned) * (keys + 3 * survivors)}, {.dependent_kernels = 2 * queries}});
  }

  void compute_reference(Launch&) override {
    sums_.resize(keys + 1);
    for (unsigned i = 0; i < keys; ++i) sums_[i + 1] = sums_[i] + key_at(i) * (2 * i + 1);
    expected_counts_.clear();
    for_each_count([this](unsigned count) { expected_counts_.push_back(count); });
  }
  double expected_output(int output, std::size_t index) const override {
    if (output == 2) return index == 0 ? static_cast<double>(queries_) : index == 1 ? static_cast<double>(queries_ - 1) : 0;
    return output == 0 ? expected_counts_[index] : sums_[expected_counts_[index]];
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("query_rate", static_cast<double>(queries_), "queries/s");
  }

  void host_switch(Launch& launch) {
    for (std::size_t q = 0; q < queries_; ++q) {
      launch(filter_kernel<false>, {filter_blocks, threads}, search(), cudaGraphConditionalHandle{});
      check(cudaMemcpyAsync(seen_, counts_ + q, sizeof(unsigned), cudaMemcpyDeviceToHost, launch.stream));
      check(cudaStreamSynchronize(launch.stream));
      sort_known(launch.stream, *seen_);
    }
    finish(launch);
  }
  void count_known(Launch& launch) {
    for_each_count([&](unsigned count) {
      launch(filter_kernel<false>, {filter_blocks, threads}, search(), cudaGraphConditionalHandle{});
      sort_known(launch.stream, count);
    });
    finish(launch);
  }

  void build_switch(Launch& launch) { build(switch_, launch.stream, 1); }
  void switch_node(Launch& launch) { run(launch, switch_, 1); }
  void build_unrolled(Launch& launch) { build(unrolled_, launch.stream, queries_per_graph); }
  void switch_node_unrolled(Launch& launch) { run(launch, unrolled_, queries_per_graph); }

  // No choice: every result is sorted as if all keys had survived.
  void build_largest(Launch& launch) {
    load_kernels(launch.stream);
    largest_.build([&](cudaGraph_t graph) {
      capture_into(graph, launch.stream, [this](cudaStream_t stream) {
        launch_kernel(stream, filter_kernel<false>, {filter_blocks, threads}, search(), cudaGraphConditionalHandle{});
        sort_class(stream, classes.size() - 1);
      });
    });
  }
  void largest_body(Launch& launch) { run(launch, largest_, 1); }

  // All sorts, each of which reads the count and returns at once when it is not the one.
  void build_early_exit(Launch& launch) {
    load_kernels(launch.stream);
    sort_whole_grid(launch.stream);
    early_exit_.build([&](cudaGraph_t graph) {
      capture_into(graph, launch.stream, [this](cudaStream_t stream) {
        launch_kernel(stream, filter_kernel<false>, {filter_blocks, threads}, search(), cudaGraphConditionalHandle{});
        sort_class(stream, 0);
        sort_class(stream, 1);
        sort_whole_grid(stream);
      });
    });
  }
  void early_exit(Launch& launch) { run(launch, early_exit_, 1); }

 private:
  static void shuffle_keys(std::span<unsigned> values, std::uint64_t seed) {
    const auto odd = static_cast<unsigned>(random_bits(seed, 0)) | 1, shift = static_cast<unsigned>(random_bits(seed, 1));
    for (unsigned i = 0; i < values.size(); ++i) {
      unsigned index = (i * odd + shift) % keys;
      index ^= index >> (index_bits / 2);  // each step gives every index a place of its own
      values[i] = key_at(index * 0x9E375u % keys);
    }
  }
  // Sizes are spread evenly over their logarithm, in random order, so that all seeds make as much work. Those of the first
  // queries lie at the ends of all classes.
  static void draw_requests(std::span<unsigned> requests, std::uint64_t seed, std::size_t small_percent) {
    constexpr unsigned ends[] = {2048, 2049, 16384, fewest_survivors, 16385, 131072, 131073, keys};
    const std::size_t small = requests.size() * small_percent / 100;
    unsigned before = 0;
    for (std::size_t q = 0; q < requests.size(); ++q) {
      const std::size_t rank = (q * (random_bits(seed, 0) | 1) + random_bits(seed, 1)) % requests.size();
      const bool is_small = rank < small;
      const std::size_t place = is_small ? rank : rank - small, places = is_small ? small : requests.size() - small;
      const double unit = (static_cast<double>(place) + 0.5) / static_cast<double>(places);
      const double least = is_small ? fewest_survivors : classes[1] + 1, most = is_small ? classes[1] : keys;
      auto count = static_cast<unsigned>(least * std::pow(most / least, unit));
      if (q < std::size(ends) && small_percent % 100 != 0) count = ends[q];
      requests[q] = count + before;
      before = key_at(count / 2);
    }
  }
  // Computes the counts that the GPU will find, from the requests.
  template <class Body>
  void for_each_count(const Body& body) const {
    unsigned before = 0;
    for (std::size_t q = 0; q < queries_; ++q) {
      const unsigned count = requests_.host(q) - before;
      before = key_at(count / 2);
      body(count);
    }
  }

  Search search() const { return {keys_, requests_, survivors_, sorted_, counts_, checksums_, progress_}; }
  // Returns the workspace that it needs, and does nothing else when there is none.
  std::size_t cub_sort(void* space, unsigned count, cudaStream_t stream) {
    std::size_t bytes = space == nullptr ? 0 : cub_bytes_;
    check(cub::DeviceRadixSort::SortKeys(space, bytes, survivors_.get(), sorted_.get(), static_cast<int>(count), 0, 32, stream));
    return bytes;
  }
  template <int sort_threads, int keys_each>
  void block_sort(cudaStream_t stream, unsigned fewest, unsigned most) const {
    launch_kernel(stream, block_sort_kernel<sort_threads, keys_each>,
                  {1, sort_threads, sizeof(typename BlockSort<sort_threads, keys_each>::TempStorage)}, search(), fewest, most);
  }
  // The sort of a class, for any number of keys that belongs to it.
  void sort_class(cudaStream_t stream, std::size_t of) {
    if (of == 0) return block_sort<256, 8>(stream, 0, classes[0]);
    if (of == 1) return block_sort<512, 32>(stream, classes[0], classes[1]);
    launch_kernel(stream, pad_kernel, {copy_blocks, threads}, search(), classes[of]);
    cub_sort(cub_space_, classes[of], stream);
  }
  // All classes that a block cannot hold.
  void sort_whole_grid(cudaStream_t stream) const {
    launch_kernel(stream, grid_sort::sort_kernel,
                  {.blocks = grid_sort::blocks, .threads = grid_sort::threads, .cooperative = true}, survivors_, between_,
                  sorted_, digit_counts_, counts_.get(), progress_ + 1, classes[1]);
  }
  void sort_known(cudaStream_t stream, unsigned count) {
    if (const unsigned of = class_of(count); of < 2) sort_class(stream, of);
    else cub_sort(cub_space_, count, stream);
  }
  void finish(Launch& launch) { launch(checksum_kernel, {copy_blocks, threads}, search(), queries_ - 1); }

  void run(Launch& launch, const NodeGraph& graph, std::size_t queries) {
    for (std::size_t q = 0; q < queries_; q += queries) graph.launch(launch.stream);
    finish(launch);
  }
  // A kernel's code is loaded at its first launch: not while a capture is under way.
  void load_kernels(cudaStream_t stream) {
    check(cudaMemsetAsync(progress_, 0, progress_.bytes(), stream));
    check(cudaMemsetAsync(counts_, 0, counts_.bytes(), stream));
    launch_kernel(stream, filter_kernel<false>, {filter_blocks, threads}, search(), cudaGraphConditionalHandle{});
    for (std::size_t of = 0; of < classes.size(); ++of) sort_class(stream, of);
  }
  void build(NodeGraph& made, cudaStream_t stream, int queries) {
    load_kernels(stream);
    made.build([&](cudaGraph_t graph) {
      Node last = nullptr;
      for (int q = 0; q < queries; ++q) {
        const cudaGraphConditionalHandle handle = conditional_handle(graph);
        const Nodes after = last != nullptr ? Nodes{&last, 1} : Nodes{};
        const Node filtered = add_kernel(graph, after, filter_kernel<true>, {filter_blocks, threads}, search(), handle);
        const Conditional sort = add_conditional(graph, {&filtered, 1}, handle, cudaGraphCondTypeSwitch, classes.size());
        for (std::size_t of = 0; of < classes.size(); ++of)
          capture_into(sort.bodies[of], stream, [&](cudaStream_t captured) { sort_class(captured, of); });
        last = sort.node;
      }
    });
  }

  std::size_t queries_, small_percent_;
  Input<unsigned> keys_, requests_;
  InOut<unsigned> counts_, checksums_, progress_;
  Scratch<unsigned> survivors_, sorted_, between_, digit_counts_, seen_;
  std::size_t cub_bytes_;
  Scratch<std::uint8_t> cub_space_;
  NodeGraph switch_, unrolled_, largest_, early_exit_;
  std::vector<unsigned> expected_counts_, sums_;  // sums_[n]: the checksum of n sorted survivors
};

}  // namespace

extern constinit const Pair conditional_switch{
    .teaches = "a SWITCH node picks on the device the captured sort that fits a count which nobody knew",
    .lesson = "switch_node",
    .make = make<ConditionalSwitch>,
    .baseline = {.name = "host_switch", .run = call<&ConditionalSwitch::host_switch>},
    .optimized = variants({{.name = "switch_node",
                            .run = call<&ConditionalSwitch::switch_node>,
                            .prepare = call<&ConditionalSwitch::build_switch>,
                            .needs = {.driver = 12080}},
                           {.name = "switch_node_unrolled",
                            .run = call<&ConditionalSwitch::switch_node_unrolled>,
                            .prepare = call<&ConditionalSwitch::build_unrolled>,
                            .needs = {.driver = 12080}}}),
    .controls = variants({{.name = "count_known", .run = call<&ConditionalSwitch::count_known>},
                          {.name = "largest_body",
                           .run = call<&ConditionalSwitch::largest_body>,
                           .prepare = call<&ConditionalSwitch::build_largest>},
                          {.name = "early_exit",
                           .run = call<&ConditionalSwitch::early_exit>,
                           .prepare = call<&ConditionalSwitch::build_early_exit>,
                           .needs = {.attributes = {cudaDevAttrCooperativeLaunch}}}}),
    .bound = Bound::latency,
    .tolerance = exact,
    .cache = Cache::hot,
    .start = Start::immediate,
    .sizes = sizes({{.name = "queries", .full = 256, .multiple = queries_per_graph, .most = 4096},
                    {.name = "small_percent", .full = 80, .least = 0, .most = 100, .scales = false}}),
    .sweep = cases({{"small_0", "small_percent=0"},
                    {"small_50", "small_percent=50"},
                    {"small_80", "small_percent=80"},
                    {"small_100", "small_percent=100"}}),
};

}  // namespace aisp::ch12
