// SPDX-License-Identifier: Apache-2.0
// Sampling a token by top-k and top-p from 128256 logits. The order of the whole vocabulary is not wanted, only that of fifty
// tokens: where these begin is counted, a second read keeps them, and they are sorted on the chip. A sample of a row tells a
// lower bound of that place, so that one read is enough.
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_segmented_sort.cuh>

#include <aisp/device/cluster.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/fastest.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "row_cache.hpp"
#include "token_choice.cuh"

namespace aisp::ch16 {
namespace {

constexpr unsigned sample_lines = 256, line = 32;            // 8192 logits, in pieces of 128 bytes all over the row
constexpr unsigned least_sampled = 4 * sample_lines * line;  // a shorter row is read twice

template <int in_flight = 2>
__device__ __forceinline__ auto each_of(const Rows& rows, unsigned row) {
  return [=](auto visit) { shared::visit_row<in_flight>(rows.row(row), rows.count, threadIdx.x, threads, visit); };
}

__global__ __launch_bounds__(threads, 2) void radix_select_kernel(Rows rows, Choice choice) {
  extern __shared__ __align__(128) unsigned char space[];
  Memory& memory = *reinterpret_cast<Memory*>(space);
  list_best(memory, choice.k, each_of(rows, blockIdx.x));
  finish(memory, blockIdx.x, choice);
}

// The k-th largest of a part of the row is not above the row's: its digit bounds the candidates.
__global__ __launch_bounds__(threads, 2) void sampled_bound_kernel(Rows rows, Choice choice) {
  extern __shared__ __align__(128) unsigned char space[];
  Memory& memory = *reinterpret_cast<Memory*>(space);
  const float* const row = rows.row(blockIdx.x);
  if (threadIdx.x == 0) memory.listed = 0;
  shared::clear(memory.counts);
  const unsigned distance = rows.count / sample_lines / line * line;
  const float* from = row + threadIdx.x / line * distance + threadIdx.x % line;
  for (unsigned lines = 0; lines < sample_lines; lines += 8 * (threads / line)) {
    float sample[8];
#pragma unroll
    for (float& x : sample) x = *from, from += threads / line * distance;
#pragma unroll
    for (const float x : sample) atomicAdd(&memory.counts.of[shared::ordered(x) >> (32 - shared::digit_bits)], 1u);
  }
  __syncthreads();
  shared::find_digit<threads>(memory.counts, choice.k);
  const float bound = shared::lower_bound(Candidate{memory.counts.digit} << (64 - shared::digit_bits));
  shared::visit_row<4>(row, rows.count, threadIdx.x, threads, [&](float x, unsigned place) {
    if (x >= bound) add(memory.list, &memory.listed, shared::candidate(x, place));
  });
  __syncthreads();
  if (memory.listed > most_listed) list_best(memory, choice.k, each_of(rows, blockIdx.x));
  finish(memory, blockIdx.x, choice);
}

// A cluster keeps the row: each block a part, which arrives in pieces. Counts are added up through the other blocks' shared
// memory, and the first block gets all candidates.
constexpr unsigned cluster = 4, pieces = 8;
struct ResidentMemory {
  Memory memory;
  std::uint64_t full[pieces];
  alignas(128) float part[1];
};
__host__ __device__ constexpr unsigned part_packets(unsigned count) { return ((count + 3) / 4 + cluster - 1) / cluster; }
__global__ __launch_bounds__(threads, 1) void cluster_resident_kernel(Rows rows, Choice choice) {
  extern __shared__ __align__(128) unsigned char space[];
  ResidentMemory& own = *reinterpret_cast<ResidentMemory*>(space);
  Memory& memory = own.memory;
  const unsigned rank = device::cluster_rank(), row = blockIdx.x / cluster, packets = (rows.count + 3) / 4;
  const unsigned per_block = part_packets(rows.count), begin = min(rank * per_block, packets);
  const unsigned all = min(begin + per_block, packets) - begin, per_piece = (all + pieces - 1) / pieces;
  if (threadIdx.x == 0) {
    memory.listed = 0;
    for (std::uint64_t& full : own.full) device::barrier_init(&full, 1);
    device::fence_barrier_init();
    for (unsigned piece = 0; piece < pieces; ++piece) {
      const unsigned first = min(piece * per_piece, all), bytes = (min(first + per_piece, all) - first) * 16;
      device::barrier_arrive_expect(&own.full[piece], bytes);
      if (bytes > 0) device::bulk_load(own.part + first * 4, rows.row(row) + (begin + first) * 4, bytes, &own.full[piece]);
    }
  }
  __syncthreads();
  const auto each = [&](auto visit) {
    for (unsigned piece = 0; piece < pieces; ++piece) {
      device::barrier_wait(&own.full[piece], 0);
      const unsigned first = min(piece * per_piece, all), end = min(first + per_piece, all);
      for (unsigned i = first + threadIdx.x; i < end; i += threads) {
        const float4 x = reinterpret_cast<const float4*>(own.part)[i];
        const unsigned place = (begin + i) * 4;
        visit(x.x, place);
        if (place + 1 < rows.count) visit(x.y, place + 1);
        if (place + 2 < rows.count) visit(x.z, place + 2);
        if (place + 3 < rows.count) visit(x.w, place + 3);
      }
    }
  };
  const auto join = [&](DigitCounts& counts) {
    constexpr unsigned of_thread = shared::digits / 4 / threads;
    uint4 sums[of_thread] = {};
    device::cluster_sync();
#pragma unroll
    for (unsigned i = 0; i < of_thread; ++i)
      for (unsigned other = 0; other < cluster; ++other) {
        const uint4 add = device::remote_pointer(reinterpret_cast<uint4*>(counts.of), other)[i * threads + threadIdx.x];
        sums[i].x += add.x, sums[i].y += add.y, sums[i].z += add.z, sums[i].w += add.w;
      }
    device::cluster_sync();
#pragma unroll
    for (unsigned i = 0; i < of_thread; ++i) reinterpret_cast<uint4*>(counts.of)[i * threads + threadIdx.x] = sums[i];
    __syncthreads();
  };
  const Candidate least = shared::least_of_best<threads>(memory.counts, choice.k, most_listed, each, join);
  keep(device::remote_pointer(memory.list, 0), device::remote_pointer(&memory.listed, 0), least, each);
  device::cluster_sync();
  if (rank == 0) finish(memory, row, choice);
}

// Picks from the candidates of other blocks, unless they are too many: then the row is read again.
__global__ __launch_bounds__(threads) void pick_found_kernel(Rows rows, Found found, Choice choice) {
  extern __shared__ __align__(128) unsigned char space[];
  Memory& memory = *reinterpret_cast<Memory*>(space);
  const unsigned count = found.counts[blockIdx.x];
  if (count > most_listed) {
    list_best(memory, choice.k, each_of(rows, blockIdx.x));
  } else {
    for (unsigned i = threadIdx.x; i < count; i += threads)
      memory.list[i] = found.lists[std::size_t{blockIdx.x} * found.capacity + i];
    if (threadIdx.x == 0) memory.listed = count;
    __syncthreads();
  }
  finish(memory, blockIdx.x, choice);
}

struct Sampled {
  std::vector<int> kept;
  int token;
};

class TopPSampling final : public Workload {
 public:
  explicit TopPSampling(Setup& setup)
      : rows_{setup.size("rows")},
        vocabulary_{setup.size("vocabulary")},
        pitch_{(vocabulary_ + 3) / 4 * 4},
        k_{std::min(setup.size("k"), vocabulary_)},
        logits_{setup.input<float>(rows_ * pitch_, logits(setup.size("same_exponent") == 1, setup.size("planted") == 1),
                                   {.name = "logits"})},
        uniforms_{setup.input<float>(rows_, uniform(0, 1), {.name = "uniform numbers"})},
        tokens_{setup.output<int>(rows_, {.name = "tokens"})},
        kept_{setup.output<int>(rows_ * k_, {.name = "kept tokens"})},
        ids_{setup.scratch<unsigned>(rows_ * pitch_, {.name = "ids"})},
        begins_{setup.scratch<int>(2 * rows_, {.name = "begins and ends"})},
        sorted_ids_{setup.scratch<unsigned>(rows_ * pitch_, {.name = "sorted ids"})},
        sorted_{setup.scratch<float>(rows_ * pitch_, {.name = "sorted logits"})},
        keys_{setup.scratch<Candidate>(2 * rows_ * pitch_, {.name = "keys of rows and logits"})},
        states_{setup.scratch<PassState>(rows_, {.name = "digits"})},
        lists_{setup.scratch<Candidate>(rows_ * most_listed, {.name = "found"})},
        counts_{setup.scratch<unsigned>(rows_, {.name = "numbers of found"})},
        space_{setup.scratch<unsigned char>(sort_bytes(), {.name = "workspace of the sorts"})} {}

  Cost cost() const override {
    return {.bytes =
                static_cast<double>(rows_ * vocabulary_ * sizeof(float) + uniforms_.bytes() + tokens_.bytes() + kept_.bytes())};
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(rows_), "tokens/s");
  }
  void compute_reference(Launch&) override { reference_.forget(rows_); }
  double expected_output(int output, std::size_t i) const override {
    const std::size_t row = output == 0 ? i : i / k_;
    const Sampled& sampled = reference_.of(row, [&] { return sample(row); });
    if (output == 0) return sampled.token;
    return i % k_ < sampled.kept.size() ? sampled.kept[i % k_] : -1;
  }

  void choose_sort(Launch& launch) {
    launch(number_kernel, {static_cast<unsigned>((rows_ * pitch_ + 255) / 256), 256}, rows(), ids_.get(), begins_.get());
    const auto best = fastest(launch.stream, ways, [&](std::size_t way) { sort(launch, way); });
    way_ = best.value_or(0);
  }
  void sorted(Launch& launch) {
    sort(launch, way_);
    launch(pick_sorted_kernel, {blocks(), threads, sizeof(Memory)}, rows(), sorted_ids_.get(), pitch_, choice());
  }
  void radix_select(Launch& launch) { launch(radix_select_kernel, {blocks(), threads, sizeof(Memory)}, rows(), choice()); }
  void sampled_bound(Launch& launch) {
    if (vocabulary_ < least_sampled) return radix_select(launch);
    launch(sampled_bound_kernel, {blocks(), threads, sizeof(Memory)}, rows(), choice());
  }
  void cluster_resident(Launch& launch) {
    const std::size_t part = std::size_t{part_packets(static_cast<unsigned>(vocabulary_))} * 16;
    launch(cluster_resident_kernel,
           {.blocks = blocks() * cluster, .threads = threads, .shared_bytes = sizeof(ResidentMemory) + part, .cluster = cluster},
           rows(), choice());
  }
  // Once: each run leaves the states as they were.
  void clear_states(Launch& launch) { check(cudaMemsetAsync(states_, 0, states_.bytes(), launch.stream)); }
  void four_passes(Launch& launch) {
    check(cudaMemsetAsync(counts_, 0, counts_.bytes(), launch.stream));
    const Found found{lists_, counts_, most_listed};
    shared::find_in_four_passes(launch, rows(), states_.get(), choice().k, found, static_cast<unsigned>(8 * multiprocessors()));
    launch(pick_found_kernel, {blocks(), threads, sizeof(Memory)}, rows(), found, choice());
  }

 private:
  // Planted row 0 has zeros of both signs alone, 1 a dominant token, 2 a flat head, 3 twenty tokens that are not masked, 4
  // climbs, and 6 has all exponents in one bin of the counts.
  Pattern logits(bool same_exponent, bool planted) const {
    const Pattern plain = normal(same_exponent ? 1000 : 0, 2.5);
    if (!planted) return plain;
    const Axis rows{pitch_, rows_}, tokens{1, pitch_};
    return plain.times(0, at(rows, 0))
        .set(60, at(rows, 1), at(tokens, vocabulary_ / 2))
        .times(0.02f, at(rows, 2))
        .set(-std::numeric_limits<float>::infinity(), at(rows, 3), at(tokens, 20, pitch_))
        .plus_steps(0.01f, 64, all_of(tokens), at(rows, 4))
        .plus_steps(1000, 1, at(rows, 5, 2));
  }
  Sampled sample(std::size_t row) const {
    std::vector<std::pair<double, int>> tokens(vocabulary_);
    for (std::size_t i = 0; i < vocabulary_; ++i) tokens[i] = {-logits_.host(row * pitch_ + i), static_cast<int>(i)};
    std::partial_sort(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(k_), tokens.end());
    std::vector<double> weights(k_);
    double all = 0, sum = 0;
    for (std::size_t r = 0; r < k_; ++r) all += weights[r] = std::exp((tokens[0].first - tokens[r].first) / temperature);
    Sampled result{};
    std::vector<std::pair<int, double>> kept;
    for (std::size_t r = 0; r < k_ && (r == 0 || sum < p * all); ++r) {
      result.kept.push_back(tokens[r].second);
      kept.emplace_back(tokens[r].second, weights[r]);
      sum += weights[r];
    }
    std::ranges::sort(kept);
    const double wanted = uniforms_.host(row) * sum;
    double up_to = 0;
    for (const auto& [token, weight] : kept) {
      result.token = token;
      up_to += weight;
      if (up_to > wanted) break;
    }
    return result;
  }

  unsigned blocks() const { return static_cast<unsigned>(rows_); }
  Rows rows() const {
    return {logits_, static_cast<unsigned>(rows_), static_cast<unsigned>(vocabulary_), static_cast<unsigned>(pitch_)};
  }
  Choice choice() const { return {static_cast<unsigned>(k_), uniforms_, tokens_, kept_}; }

  cudaError_t call_sort(std::size_t way, void* space, std::size_t& bytes, cudaStream_t stream) const {
    const auto items = static_cast<std::int64_t>(rows_ * pitch_), segments = static_cast<std::int64_t>(rows_);
    const int* const ends = begins_.get() + rows_;
    if (way == 0)
      return cub::DeviceSegmentedSort::StableSortPairsDescending(space, bytes, logits_.get(), sorted_.get(), ids_.get(),
                                                                 sorted_ids_.get(), items, segments, begins_.get(), ends, stream);
    return cub::DeviceRadixSort::SortPairs(space, bytes, keys_.get(), keys_.get() + items, ids_.get(), sorted_ids_.get(), items,
                                           0, 32 + std::bit_width(static_cast<unsigned>(rows_ - 1)), stream);
  }
  std::size_t sort_bytes() const {
    std::size_t most = 0;
    for (std::size_t way = 0; way < ways; ++way) {
      std::size_t bytes = 0;
      check(call_sort(way, nullptr, bytes, nullptr));
      most = std::max(most, bytes);
    }
    return most;
  }
  void sort(Launch& launch, std::size_t way) const {
    if (way == 1) launch(join_kernel, {static_cast<unsigned>((rows_ * pitch_ + 255) / 256), 256}, rows(), keys_.get());
    std::size_t bytes = space_.bytes();
    check(call_sort(way, space_.get(), bytes, launch.stream));
  }

  std::size_t rows_, vocabulary_, pitch_, k_;
  Input<float> logits_, uniforms_;
  Output<int> tokens_, kept_;
  Scratch<unsigned> ids_;
  Scratch<int> begins_;
  Scratch<unsigned> sorted_ids_;
  Scratch<float> sorted_;
  Scratch<Candidate> keys_;
  Scratch<PassState> states_;
  Scratch<Candidate> lists_;
  Scratch<unsigned> counts_;
  Scratch<unsigned char> space_;
  // Segment by segment, or all at once.
  static constexpr std::size_t ways = 2;
  std::size_t way_ = 0;
  shared::RowCache<Sampled> reference_;
};

}  // namespace

extern constinit const Pair top_p_sampling{
    .teaches = "top-k and top-p need a threshold, not the order of the whole vocabulary",
    .lesson = "radix_select",
    .make = make<TopPSampling>,
    .baseline = {.name = "full_sort", .run = call<&TopPSampling::sorted>, .prepare = call<&TopPSampling::choose_sort>},
    .optimized = variants({{.name = "radix_select", .run = call<&TopPSampling::radix_select>},
                           {.name = "sampled_bound", .run = call<&TopPSampling::sampled_bound>},
                           {.name = "cluster_resident",
                            .run = call<&TopPSampling::cluster_resident>,
                            .needs = {.min_sm = 90},
                            .gains_over = "radix_select"}}),
    .controls = variants(
        {{.name = "four_passes", .run = call<&TopPSampling::four_passes>, .prepare = call<&TopPSampling::clear_states>}}),
    .bound = Bound::memory,
    .tolerance = exact,
    .sizes = sizes({{.name = "rows", .full = 256, .most = 4096},
                    {.name = "vocabulary", .full = 128256, .most = 1 << 20, .scales = false},
                    {.name = "k", .full = 50, .most = most_k, .scales = false},
                    option("same_exponent"),
                    option("planted")}),
    .sweep = cases({{"rows_1", "rows=1"},
                    {"rows_16", "rows=16"},
                    {"rows_256", "rows=256"},
                    {"rows_1024", "rows=1024"},
                    {"greedy", "k=1"},
                    {"k_1000", "k=1000"},
                    {"one_exponent", "same_exponent=1"}}),
    .edges = cases({{"planted_rows", "rows=16,planted=1"},
                    {"planted_rows_of_one", "rows=8,planted=1,k=1"},
                    {"planted_rows_of_many", "rows=8,planted=1,k=1000,vocabulary=32001"},
                    {"planted_zeros", "rows=1,planted=1"},
                    {"fewer_tokens_than_k", "rows=3,vocabulary=33"},
                    {"one_token", "rows=2,vocabulary=1"},
                    {"same_exponents", "rows=5,vocabulary=50257,same_exponent=1"}}),
    .reference_samples = 16384,
};

}  // namespace aisp::ch16
