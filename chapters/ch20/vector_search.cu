// SPDX-License-Identifier: Apache-2.0
// The best hundred of two million vectors for each of 64 queries, exactly: half a gigabyte of scores, which a radix select and
// its gather read five times, or a kernel that selects where the products are in registers and writes only what reaches a bound.
#include <cuda_bf16.h>
#include <aisp/device/fence.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>
#include <aisp/tensor_map.hpp>

#include <algorithm>
#include <utility>
#include <vector>

#include "search_tiles.cuh"

namespace aisp::ch20 {
namespace {

using shared::PassState;

struct SearchMemory {
  bf16 queries[steps][tile_queries * tile_depth];
  bf16 ring[stages][tile_vectors * tile_depth];
  Candidate sorted[most_sorted];
  float bounds[tile_queries];
  unsigned counts[tile_queries];
  std::uint64_t full[stages], free[stages], queries_full;
};

// A search over tiles of vectors, each `distance` tiles further.
struct Search {
  unsigned vectors, queries, tiles, distance;
  const float* bounds;
  float* scores;  // [query][tiles * tile_vectors], or the maxima of tiles: [query][tile]
  Candidate* candidates;
  unsigned* counts;  // [block][query]
  unsigned capacity, k;
};
enum class Keeps { scores, candidates, maxima };

// Before a list of the block is full it is cut to the best k, the worst of which is the new bound.
__device__ __forceinline__ void make_room(SearchMemory& memory, const Search& search, Candidate* lists) {
  for (unsigned query = 0; query < tile_queries; ++query) {
    const unsigned count = memory.counts[query];
    if (count + tile_vectors <= search.capacity) continue;
    Candidate* const list = lists + std::size_t{query} * search.capacity;
    for (unsigned i = threadIdx.x; i < count; i += threads) memory.sorted[i] = list[i];
    __syncthreads();
    shared::sort_candidates(memory.sorted, count);
    for (unsigned i = threadIdx.x; i < search.k; i += threads) list[i] = memory.sorted[i];
    if (threadIdx.x == 0) memory.counts[query] = search.k, memory.bounds[query] = shared::number_of(memory.sorted[search.k - 1]);
    __syncthreads();
  }
  __syncthreads();
}

// Blocks stay, each with the queries of a group (blockIdx.y) in shared memory, and tiles of vectors pass through its ring.
template <Keeps keeps>
__global__ __launch_bounds__(threads, 1) void search_kernel(const __grid_constant__ CUtensorMap vector_map,
                                                            const __grid_constant__ CUtensorMap query_map, Search search) {
  extern __shared__ __align__(1024) unsigned char space[];
  SearchMemory& memory = *reinterpret_cast<SearchMemory*>(space);
  const unsigned t = threadIdx.x, first_query = blockIdx.y * tile_queries;
  const unsigned own_tiles = blockIdx.x < search.tiles ? (search.tiles - 1 - blockIdx.x) / gridDim.x + 1 : 0;
  const auto tile_of = [&](unsigned number) { return blockIdx.x + number * gridDim.x; };
  const auto request = [&](unsigned step) {
    const unsigned slot = step % stages, first = tile_of(step / steps) * search.distance * tile_vectors;
    device::barrier_arrive_expect(&memory.full[slot], sizeof(memory.ring[0]));
    device::tensor_load_2d(memory.ring[slot], &vector_map, static_cast<int>(step % steps * tile_depth), static_cast<int>(first),
                           &memory.full[slot]);
  };
  if (t == 0) {
    for (int s = 0; s < stages; ++s) device::barrier_init(&memory.full[s], 1), device::barrier_init(&memory.free[s], warps);
    device::barrier_init(&memory.queries_full, 1);
    device::fence_barrier_init();
    device::barrier_arrive_expect(&memory.queries_full, sizeof(memory.queries));
    for (int s = 0; s < steps; ++s)
      device::tensor_load_2d(memory.queries[s], &query_map, s * tile_depth, static_cast<int>(first_query), &memory.queries_full);
    for (unsigned step = 0; step < min(stages, own_tiles * steps); ++step) request(step);
  }
  if (t < tile_queries) {
    const bool exists = first_query + t < search.queries;
    memory.counts[t] = 0;
    if constexpr (keeps == Keeps::candidates) memory.bounds[t] = exists ? search.bounds[first_query + t] : INFINITY;
  }
  __syncthreads();
  device::barrier_wait(&memory.queries_full, 0);
  const std::size_t first_list = std::size_t{blockIdx.x} * search.queries + first_query;
  Candidate* const lists = search.candidates + first_list * search.capacity;

  Products sums = {};
  for (unsigned step = 0; step < own_tiles * steps; ++step) {
    const unsigned slot = step % stages, of_tile = step % steps;
    device::barrier_wait(&memory.full[slot], step / stages % 2);
    multiply(sums, memory.ring[slot], memory.queries[of_tile]);
    device::fence_block();  // the arrival does not wait for ldmatrix
    __syncwarp();
    if (t % 32 == 0) device::barrier_arrive(&memory.free[slot]);
    if (t == 0 && step > 0 && step - 1 + stages < own_tiles * steps) {
      device::barrier_wait(&memory.free[(step - 1) % stages], (step - 1) / stages % 2);
      request(step - 1 + stages);
    }
    __syncwarp();
    if (of_tile != steps - 1) continue;
    const unsigned tile = tile_of(step / steps), first = tile * search.distance * tile_vectors;
    if constexpr (keeps == Keeps::scores) {
      each_product(sums, [&](float score, unsigned vector, unsigned query) {
        if (first_query + query < search.queries)
          search.scores[std::size_t{first_query + query} * search.tiles * tile_vectors + tile * tile_vectors + vector] =
              first + vector < search.vectors ? score : -INFINITY;
      });
    } else if constexpr (keeps == Keeps::candidates) {
      each_product(sums, [&](float score, unsigned vector, unsigned query) {
        if (score >= memory.bounds[query] && first + vector < search.vectors)
          lists[std::size_t{query} * search.capacity + atomicAdd(&memory.counts[query], 1u)] =
              shared::candidate(score, first + vector);
      });
      __syncthreads();
      const bool full = t < tile_queries && memory.counts[t] + tile_vectors > search.capacity;
      if (__syncthreads_or(full)) make_room(memory, search, lists);
    } else {
      // Maxima of each query, by the eight lanes and four warps that have its scores.
      float maxima[4][2];
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float best = fmaxf(fmaxf(sums[0][n][i], sums[0][n][i + 2]), fmaxf(sums[1][n][i], sums[1][n][i + 2]));
#pragma unroll
          for (int lanes = 4; lanes < 32; lanes *= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, lanes));
          maxima[n][i] = best;
        }
      if (t % 32 < 4) {
#pragma unroll
        for (unsigned n = 0; n < 4; ++n)
#pragma unroll
          for (unsigned i = 0; i < 2; ++i) {
            const unsigned query = first_query + t / 32 % 2 * 32 + n * 8 + t % 4 * 2 + i;
            if (query < search.queries)
              search.scores[(std::size_t{query} * search.tiles + tile) * (warps / 2) + t / 64] = maxima[n][i];
          }
      }
    }
#pragma unroll
    for (auto& of_vectors : sums)
#pragma unroll
      for (auto& of_queries : of_vectors)
#pragma unroll
        for (float& sum : of_queries) sum = 0;
  }
  if constexpr (keeps == Keeps::candidates)
    if (t < tile_queries && first_query + t < search.queries) search.counts[first_list + t] = memory.counts[t];
}

class VectorSearch final : public Workload {
 public:
  explicit VectorSearch(Setup& setup)
      : vectors_{setup.size("vectors")},
        queries_{setup.size("queries")},
        k_{std::min(setup.size("k"), vectors_)},
        pitch_{(vectors_ + 3) / 4 * 4},
        blocks_{std::max(1u, multiprocessors() / groups())},
        database_{setup.input<bf16>(vectors_ * depth, database(setup.size("order")), {.name = "vectors"})},
        query_{setup.input<bf16>(queries_ * depth, normal(0, 1).on_grid(grid_step), {.name = "queries"})},
        places_{setup.output<int>(queries_ * k_, {.name = "places"})},
        best_{setup.output<float>(queries_ * k_, {.name = "scores of the best"})},
        scores_{setup.scratch<float>(queries_ * std::max(pitch_, chunk), {.name = "scores"})},
        states_{setup.scratch<PassState>(queries_, {.name = "digits"})},
        found_{setup.scratch<Candidate>(queries_ * list_capacity, {.name = "candidates"})},
        found_counts_{setup.scratch<unsigned>(queries_, {.name = "numbers of candidates"})},
        bounds_{setup.scratch<float>(queries_, {.name = "bounds"})},
        sample_{setup.scratch<float>(queries_ * sample_tiles() * tile_vectors, {.name = "scores of a sample"})},
        lists_{setup.scratch<Candidate>(blocks_ * groups() * tile_queries * capacity(), {.name = "candidates of blocks"})},
        list_counts_{setup.scratch<unsigned>(blocks_ * groups() * tile_queries, {.name = "numbers of candidates of blocks"})},
        exact_{setup.scratch<double>(queries_ * chunk, {.name = "scores in float64"})},
        all_{setup, product(vectors_, pitch_)},
        chunk_{setup, product(std::min(chunk, vectors_), chunk)},
        rest_{setup, product(vectors_ % chunk > 0 ? vectors_ % chunk : std::min(chunk, vectors_), chunk)},
        reproducible_{setup.reproducible()} {}

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(vectors_ * queries_) * depth,
            .math = Math::bf16,
            .bytes = static_cast<double>(database_.bytes() + query_.bytes() + places_.bytes() + best_.bytes())};
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("queries_per_second", static_cast<double>(queries_), "queries/s");
  }
  void compute_reference(Launch& launch) override {
    reference_.assign(queries_, {});
    std::vector<double> scores(queries_ * chunk);
    for (std::size_t first = 0; first < vectors_; first += chunk) {
      const std::size_t count = std::min(chunk, vectors_ - first);
      launch(exact_kernel, {static_cast<unsigned>((count + 7) / 8), 256}, database_.get() + first * depth, count, query_.get(),
             queries_, exact_.get());
      check(cudaMemcpyAsync(scores.data(), exact_, queries_ * count * sizeof(double), cudaMemcpyDeviceToHost, launch.stream));
      check(cudaStreamSynchronize(launch.stream));
      for (std::size_t q = 0; q < queries_; ++q) keep_best(reference_[q], &scores[q * count], count, first);
    }
  }
  double expected_output(int output, std::size_t i) const override {
    const auto& [score, place] = reference_[i / k_].best[i % k_];
    return output == 0 ? static_cast<double>(place) : -score;
  }

  void tune(Launch& launch) {
    check(cudaMemsetAsync(states_, 0, states_.bytes(), launch.stream));  // once: each run leaves them as they were
    if (!reproducible_) all_.tune(launch, query_, database_, scores_);
  }
  void gemm_then_passes(Launch& launch) {
    all_.run_tuned(launch, query_, database_, scores_);
    clear(launch);
    shared::find_in_four_passes(launch, rows(), states_.get(), results().k, found(), 16 * multiprocessors());
    merge(launch);
  }
  void sampled_threshold(Launch& launch) {
    all_.run_tuned(launch, query_, database_, scores_);
    clear(launch);
    launch(bound_kernel, {u32(queries_), select_threads}, rows(), k_, bounds_.get());
    collect(launch, rows(), 0);
    merge(launch);
  }
  void tune_chunks(Launch& launch) {
    if (reproducible_) return;
    chunk_.tune(launch, query_, database_, scores_);
    rest_.tune(launch, query_, database_, scores_);
  }
  void l2_chunks(Launch& launch) {
    clear(launch);
    for (std::size_t first = 0; first < vectors_; first += chunk) {
      const std::size_t count = std::min(chunk, vectors_ - first);
      (count < chunk ? rest_ : chunk_).run_tuned(launch, query_, database_.get() + first * depth, scores_);
      const Rows of_chunk{scores_, u32(queries_), u32(count), u32(chunk)};
      if (first == 0) launch(bound_kernel, {u32(queries_), select_threads}, of_chunk, k_, bounds_.get());
      collect(launch, of_chunk, first);
      if (first / chunk % chunks_unchecked == 0)
        launch(shorten_kernel, {u32(queries_), select_threads}, found(), longest, k_, bounds_.get());
    }
    merge(launch);
  }
  void fused_topk(Launch& launch) {
    Search sample = search();
    sample.tiles = u32(sample_tiles()), sample.distance = u32(tiles() / sample_tiles());
    run<Keeps::scores>(launch, sample);
    const Rows of_sample{sample_, u32(queries_), u32(sample_tiles() * tile_vectors), u32(sample_tiles() * tile_vectors)};
    launch(bound_kernel, {u32(queries_), select_threads}, of_sample, k_, bounds_.get());
    run<Keeps::candidates>(launch, search());
    launch(merge_kernel, {u32(queries_), select_threads},
           Lists{lists_, list_counts_, std::min(blocks_, u32(tiles())), u32(queries_), capacity()}, rows(), results());
  }
  void max_per_tile(Launch& launch) {
    Search maxima = search();
    maxima.scores = scores_;
    run<Keeps::maxima>(launch, maxima);
  }
  void gemm_alone(Launch& launch) { all_.run_tuned(launch, query_, database_, scores_); }

 private:
  // Scores of a chunk are 17 MB for 64 queries. A list has room for all scores of some chunks after what it may have before.
  static constexpr std::size_t chunk = 65536, chunks_unchecked = 4, longest = 16384,
                               list_capacity = chunks_unchecked * chunk + longest;
  static constexpr float grid_step = 0.25f;  // so that fp32 sums are exact in any order
  using Best = std::pair<double, std::size_t>;

  Pattern database(std::size_t order) const {
    const Axis vectors{depth, vectors_};
    const Pattern plain = normal(0, 1);
    const Pattern ordered = order == 1   ? plain.times(0.5, 2, all_of(vectors))
                            : order == 2 ? plain.times(2, 0.5, all_of(vectors))
                            : order == 3 ? plain.times(0, all_of(vectors))
                            : order == 4 ? plain.times(4, at(vectors, vectors_ / 3, 100))
                                         : plain;
    return ordered.on_grid(grid_step);
  }
  struct BestOfQuery {
    std::vector<Best> best;
    Best limit{1e300, 0};  // no candidate beyond it is among the best
  };
  void keep_best(BestOfQuery& of, const double* scores, std::size_t count, std::size_t first) const {
    for (std::size_t i = 0; i < count; ++i) {
      const Best next{-scores[i], first + i};
      if (next >= of.limit) continue;
      of.best.push_back(next);
      if (of.best.size() == 4 * k_) shorten(of);
    }
    if (first + count < vectors_) return;
    shorten(of);
    std::ranges::sort(of.best);
  }
  void shorten(BestOfQuery& of) const {
    std::nth_element(of.best.begin(), of.best.begin() + static_cast<std::ptrdiff_t>(k_) - 1, of.best.end());
    of.best.resize(k_);
    of.limit = of.best.back();
  }

  MatmulProblem product(std::size_t vectors, std::size_t pitch) const {
    return {.m = queries_, .n = vectors, .k = depth, .result = CUDA_R_32F, .b_is_transposed = true, .c_pitch = pitch};
  }
  static unsigned u32(std::size_t count) { return static_cast<unsigned>(count); }
  unsigned groups() const { return u32((queries_ + tile_queries - 1) / tile_queries); }
  std::size_t tiles() const { return (vectors_ + tile_vectors - 1) / tile_vectors; }
  std::size_t sample_tiles() const { return std::min<std::size_t>(tiles(), multiprocessors()); }
  unsigned capacity() const { return k_ <= 256 ? 512 : most_sorted; }
  Rows rows() const { return {scores_, u32(queries_), u32(vectors_), u32(pitch_)}; }
  Found found() const { return {found_, found_counts_, u32(list_capacity)}; }
  Results results() const { return {places_, best_, u32(k_)}; }
  Search search() const {
    return {u32(vectors_), u32(queries_), u32(tiles()), 1, bounds_, sample_, lists_, list_counts_, capacity(), u32(k_)};
  }
  void clear(Launch& launch) const { check(cudaMemsetAsync(found_counts_, 0, found_counts_.bytes(), launch.stream)); }
  void collect(Launch& launch, const Rows& scores, std::size_t first) const {
    const unsigned parts = std::max(1u, 8 * multiprocessors() / u32(queries_));
    launch(collect_kernel, {dim3{parts, u32(queries_)}, collect_threads}, scores, first, bounds_.get(), found());
  }
  void merge(Launch& launch) const {
    launch(merge_kernel, {u32(queries_), select_threads}, Lists{found_, found_counts_, 1, u32(queries_), u32(list_capacity)},
           rows(), results());
  }
  template <Keeps keeps>
  void run(Launch& launch, const Search& search) const {
    launch(search_kernel<keeps>,
           {.blocks = dim3{std::min(blocks_, search.tiles), groups()}, .threads = threads, .shared_bytes = sizeof(SearchMemory)},
           matrix_map_bf16(database_, vectors_, depth, tile_vectors, tile_depth),
           matrix_map_bf16(query_, queries_, depth, tile_queries, tile_depth), search);
  }

  std::size_t vectors_, queries_, k_, pitch_;
  unsigned blocks_;  // of a group of queries
  Input<bf16> database_, query_;
  Output<int> places_;
  Output<float> best_;
  Scratch<float> scores_;
  Scratch<PassState> states_;
  Scratch<Candidate> found_;
  Scratch<unsigned> found_counts_;
  Scratch<float> bounds_, sample_;
  Scratch<Candidate> lists_;
  Scratch<unsigned> list_counts_;
  Scratch<double> exact_;
  LibraryMatmul all_, chunk_, rest_;
  bool reproducible_;
  std::vector<BestOfQuery> reference_;  // of each query: the negative score, and the place
};

}  // namespace

extern constinit const Pair vector_search{
    .teaches =
        "retrieval wants some results a query, not all scores: selecting where the products are leaves one read of the vectors",
    .lesson = "fused_topk",
    .make = make<VectorSearch>,
    .baseline = {.name = "gemm_then_passes",
                 .run = call<&VectorSearch::gemm_then_passes>,
                 .prepare = call<&VectorSearch::tune>,
                 .needs = {.libraries = {Library::cublaslt}}},
    .optimized = variants({{.name = "sampled_threshold",
                            .run = call<&VectorSearch::sampled_threshold>,
                            .prepare = call<&VectorSearch::tune>,
                            .needs = {.libraries = {Library::cublaslt}}},
                           {.name = "fused_topk", .run = call<&VectorSearch::fused_topk>, .needs = {.min_sm = 90}}}),
    .controls = variants(
        {{.name = "l2_chunks",
          .run = call<&VectorSearch::l2_chunks>,
          .prepare = call<&VectorSearch::tune_chunks>,
          .needs = {.libraries = {Library::cublaslt}}},
         {.name = "max_per_tile", .run = call<&VectorSearch::max_per_tile>, .needs = {.min_sm = 90}, .outputs = no_outputs},
         {.name = "gemm_alone",
          .run = call<&VectorSearch::gemm_alone>,
          .prepare = call<&VectorSearch::tune>,
          .needs = {.libraries = {Library::cublaslt}},
          .outputs = no_outputs}}),
    .bound = Bound::memory,
    .tolerance = exact,
    .sizes =
        sizes({{.name = "vectors", .full = 2000000, .most = 1 << 23},
               {.name = "queries", .full = 64, .most = 2048, .scales = false},
               {.name = "k", .full = 100, .most = most_results, .scales = false},
               // 1: from the shortest vectors to the longest; 2: the other way; 3: all scores equal; 4: the longest side by side.
               {.name = "order", .full = 0, .least = 0, .most = 4, .scales = false}}),
    .sweep = cases({{"queries_1", "queries=1"},
                    {"queries_64", "queries=64"},
                    {"queries_256", "queries=256"},
                    {"queries_1024", "queries=1024"},
                    {"nearest", "k=1"},
                    {"k_1000", "k=1000"}}),
    .edges = cases({{"one_vector", "vectors=1,queries=1"},
                    {"fewer_than_k", "vectors=61,queries=3"},
                    {"a_tail", "vectors=200037,queries=65"},
                    {"ascending", "vectors=150000,order=1"},
                    {"descending", "vectors=150000,order=2"},
                    {"all_equal", "vectors=100003,order=3"},
                    {"best_side_by_side", "vectors=150000,order=4"},
                    {"a_thousand", "vectors=70001,k=1000,queries=5"}}),
    .reference_samples = 16384,
};

}  // namespace aisp::ch20
