// SPDX-License-Identifier: Apache-2.0
// Breadth-first search through a maze: some 1,200 levels of a few thousand cells each. How many cells a level has is known when
// the one before it is done, on the device. Asking for it empties the GPU at each level. The last block of a level can launch the
// next one itself, sized exactly, into the tail of its own launch, or a single kernel loops over all levels with a barrier of the
// grid between two of them.
#include <cooperative_groups.h>
#include <aisp/device/reduce.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/device_runtime.hpp>
#include <aisp/graph.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace aisp::ch12 {
namespace {

constexpr int threads = 256;
constexpr int fixed_blocks = 66;  // of a level whose size is not asked for: 16,896 threads, more than most levels have cells
constexpr int levels_a_question = 16;
constexpr int empty_launches = 1200;
constexpr int hashed_neighbours = 16;

// A level's finds go to the next of three counters; the third is made ready for the level after.
struct Progress {
  int found[3];
  int blocks_done;
  int level;  // of the next launch, where the launch does not say
};
struct Search {
  const std::uint8_t* walls;
  const int* first;            // distance: the start's own
  int *distances, *frontiers;  // of even and of odd levels
  Progress* progress;
  int side;     // of the maze
  bool hashed;  // no maze: each cell has 16 neighbours anywhere

  __device__ int* frontier(int level) const { return frontiers + level % 2 * side * side; }
};

AISP_HOST_DEVICE inline int neighbours_of(bool hashed) { return hashed ? hashed_neighbours : 4; }
// The k-th neighbour of a cell; -1 outside of the maze.
AISP_HOST_DEVICE inline int neighbour(int side, bool hashed, int cell, int k) {
  if (hashed) {
    const auto cells = static_cast<std::uint64_t>(side) * static_cast<std::uint64_t>(side);
    return static_cast<int>(random_bits(static_cast<std::uint64_t>(k), static_cast<std::uint64_t>(cell)) % cells);
  }
  const int x = cell % side, y = cell / side;
  if (k == 0) return x > 0 ? cell - 1 : -1;
  if (k == 1) return x + 1 < side ? cell + 1 : -1;
  if (k == 2) return y > 0 ? cell - side : -1;
  return y + 1 < side ? cell + side : -1;
}

// Visits the neighbours of a level's cells, `cells` of them, by all threads of the grid; a thread takes one neighbour of one
// cell.
__device__ void visit(const Search& s, int level, int cells) {
  const int* const frontier = s.frontier(level);
  int* const next = s.frontier(level + 1);
  const int each = neighbours_of(s.hashed), all = cells * each;
  const int grid_threads = static_cast<int>(gridDim.x * blockDim.x);
  for (int base = static_cast<int>(blockIdx.x * blockDim.x); base < all; base += grid_threads) {
    const int i = base + static_cast<int>(threadIdx.x);
    const int cell = i < all ? neighbour(s.side, s.hashed, frontier[i / each], i % each) : -1;
    const bool found = cell >= 0 && s.walls[cell] == 0 && atomicCAS(&s.distances[cell], -1, *s.first + level + 1) == -1;
    const unsigned finders = __ballot_sync(device::whole_warp, found);
    if (finders == 0) continue;
    const unsigned lane = device::lane_index();
    int first = lane == 0 ? atomicAdd(&s.progress->found[(level + 1) % 3], __popc(finders)) : 0;
    first = __shfl_sync(device::whole_warp, first, 0);
    if (found) next[first + __popc(finders & ((1u << lane) - 1))] = cell;
  }
}
__device__ void clear_counter_after(const Search& s, int level) {
  if (blockIdx.x == 0 && threadIdx.x == 0) s.progress->found[(level + 2) % 3] = 0;
}

__global__ void start_kernel(Search s, int start) {
  s.distances[start] = *s.first;
  s.frontier(0)[0] = start;
  *s.progress = {{1, 0, 0}, 0, 0};
}

__global__ __launch_bounds__(threads) void level_kernel(Search s, int level) {
  clear_counter_after(s, level);
  visit(s, level, s.progress->found[level % 3]);
}

// In a graph, whose launches are the same: the level is that of the graph's first node and the node's own number.
__global__ __launch_bounds__(threads) void graph_level_kernel(Search s, int number) {
  const int level = s.progress->level + number;
  clear_counter_after(s, level);
  visit(s, level, s.progress->found[level % 3]);
}
__global__ void next_levels_kernel(Search s) { s.progress->level += levels_a_question; }

__global__ __launch_bounds__(threads) void tail_level_kernel(Search s, int level) {
  clear_counter_after(s, level);
  visit(s, level, s.progress->found[level % 3]);
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&s.progress->blocks_done, 1) != static_cast<int>(gridDim.x) - 1) return;
  s.progress->blocks_done = 0;
  __threadfence();
  const int cells = *static_cast<volatile int*>(&s.progress->found[(level + 1) % 3]);
  if (cells == 0) return;
  const int blocks = (cells * neighbours_of(s.hashed) + threads - 1) / threads;
  tail_level_kernel<<<blocks, threads, 0, cudaStreamTailLaunch>>>(s, level + 1);
}

__global__ void empty_tail_kernel(int left) {
  if (left > 1) empty_tail_kernel<<<1, 1, 0, cudaStreamTailLaunch>>>(left - 1);
}

__global__ __launch_bounds__(threads) void persistent_kernel(Search s) {
  const auto grid = cooperative_groups::this_grid();
  for (int level = 0;; ++level) {
    const int cells = *static_cast<volatile int*>(&s.progress->found[level % 3]);
    if (cells == 0) return;
    clear_counter_after(s, level);
    visit(s, level, cells);
    grid.sync();
  }
}

class DynamicParallelism final : public Workload {
 public:
  explicit DynamicParallelism(Setup& setup)
      : side_{static_cast<int>(setup.size("side"))},
        hashed_{setup.size("hashed") != 0},
        maze_{draw_maze()},
        reference_{search()},
        walls_{setup.input<std::uint8_t>(cells(), HostFill<std::uint8_t>{[this](std::span<std::uint8_t> to, std::uint64_t) {
                                           std::ranges::copy(maze_, to.begin());
                                         }},
                                         {.name = "walls", .constant = true})},
        first_{setup.input<int>(1, integers(0, 1 << 20), {.name = "distance of the start"})},
        distances_{setup.output<int>(cells(), {.name = "distances"})},
        frontiers_{setup.scratch<int>(2 * cells())},
        progress_{setup.scratch<Progress>(1)},
        answer_{setup.scratch<int>(1, {.memory = Memory::pinned})} {}

  // Levels follow one another. Distances stay in L2.
  Cost cost() const override { return {.dependent_kernels = static_cast<double>(levels_)}; }
  Cost variant_cost(std::string_view variant) const override {
    return variant == "empty_chain" ? Cost{.dependent_kernels = empty_launches} : cost();
  }
  double expected(std::size_t i) const override { return reference_[i] < 0 ? -1 : first_.host(0) + reference_[i]; }

  void host_sized(Launch& launch) {
    ask_each_level(launch, [](int cells, int each) { return static_cast<unsigned>((cells * each + threads - 1) / threads); });
  }
  void fixed_grid_asked(Launch& launch) {
    ask_each_level(launch, [](int, int) { return static_cast<unsigned>(fixed_blocks); });
  }
  void tail_launch(Launch& launch) {
    start(launch);
    launch(tail_level_kernel, {1, threads}, search_on_device(), 0);
  }
  void persistent_frontier(Launch& launch) {
    start(launch);
    launch(persistent_kernel, {.blocks = multiprocessors(), .threads = threads, .cooperative = true}, search_on_device());
  }

  void capture(Launch& launch) {
    graph_.capture(launch.stream, [this](cudaStream_t stream) {
      for (int number = 0; number < levels_a_question; ++number)
        launch_kernel(stream, graph_level_kernel, {fixed_blocks, threads}, search_on_device(), number);
      launch_kernel(stream, next_levels_kernel, {1, 1}, search_on_device());
    });
  }
  void graph_16_levels(Launch& launch) {
    start(launch);
    for (int level = levels_a_question;; level += levels_a_question) {
      graph_.launch(launch.stream);
      if (cells_of(level, launch.stream) == 0) return;
    }
  }
  void empty_chain(Launch& launch) { launch(empty_tail_kernel, {1, 1}, empty_launches); }

  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant == "empty_chain") metrics.report_rate("launches", empty_launches, "launches/s");
    else metrics.report_rate("levels", levels_, "levels/s");
  }

 private:
  std::size_t cells() const { return static_cast<std::size_t>(side_) * static_cast<std::size_t>(side_); }
  int start_cell() const { return side_ / 2 * side_ + side_ / 2; }

  // The same walls in every draw, so that every draw is the same number of levels. Around the start there are none.
  std::vector<std::uint8_t> draw_maze() const {
    std::vector<std::uint8_t> walls(cells(), 0);
    if (hashed_) return walls;
    for (int cell = 0; cell < static_cast<int>(cells()); ++cell) {
      const int dx = cell % side_ - side_ / 2, dy = cell / side_ - side_ / 2;
      const bool is_near = dx * dx + dy * dy < 100;
      walls[static_cast<std::size_t>(cell)] = !is_near && random_bits(1, static_cast<std::uint64_t>(cell)) % 10 < 3;
    }
    return walls;
  }
  std::vector<int> search() {
    std::vector<int> distances(cells(), -1), frontier{start_cell()}, next;
    distances[static_cast<std::size_t>(start_cell())] = 0;
    for (levels_ = 0; !frontier.empty(); ++levels_, frontier.swap(next)) {
      next.clear();
      for (const int from : frontier)
        for (int k = 0; k < neighbours_of(hashed_); ++k) {
          const int cell = neighbour(side_, hashed_, from, k);
          if (cell < 0 || maze_[static_cast<std::size_t>(cell)] != 0 || distances[static_cast<std::size_t>(cell)] >= 0) continue;
          distances[static_cast<std::size_t>(cell)] = levels_ + 1;
          next.push_back(cell);
        }
    }
    return distances;
  }

  Search search_on_device() const { return {walls_, first_, distances_, frontiers_, progress_, side_, hashed_}; }
  void start(Launch& launch) const {
    check(cudaMemsetAsync(distances_, 0xFF, distances_.bytes(), launch.stream));
    launch(start_kernel, {1, 1}, search_on_device(), start_cell());
  }
  int cells_of(int level, cudaStream_t stream) const {
    check(cudaMemcpyAsync(answer_, &progress_.get()->found[level % 3], sizeof(int), cudaMemcpyDeviceToHost, stream));
    check(cudaStreamSynchronize(stream));
    return *answer_;
  }
  template <class Blocks>
  void ask_each_level(Launch& launch, const Blocks& blocks) const {
    start(launch);
    int cells = 1;
    for (int level = 0; cells > 0; ++level) {
      launch(level_kernel, {blocks(cells, neighbours_of(hashed_)), threads}, search_on_device(), level);
      cells = cells_of(level + 1, launch.stream);
    }
  }

  int side_;
  bool hashed_;
  int levels_ = 0;
  std::vector<std::uint8_t> maze_;
  std::vector<int> reference_;
  Input<std::uint8_t> walls_;
  Input<int> first_;
  Output<int> distances_;
  Scratch<int> frontiers_;
  Scratch<Progress> progress_;
  Scratch<int> answer_;
  Graph graph_;
};

}  // namespace

extern constinit const Pair dynamic_parallelism{
    .teaches = "a level of a search that launches its successor on the device saves the trip to the host and back",
    .lesson = "tail_launch",
    .make = make<DynamicParallelism>,
    .baseline = {.name = "host_sized", .run = call<&DynamicParallelism::host_sized>},
    .optimized = variants({{.name = "tail_launch", .run = call<&DynamicParallelism::tail_launch>},
                           {.name = "persistent_frontier", .run = call<&DynamicParallelism::persistent_frontier>}}),
    // The baseline with a fixed grid: whether sizing it matters. Sixteen such levels as a graph, asked about once: the plain
    // cure. A chain of empty launches from the device: what they cost.
    .controls = variants({{.name = "fixed_grid_asked", .run = call<&DynamicParallelism::fixed_grid_asked>},
                          {.name = "graph_16_levels",
                           .run = call<&DynamicParallelism::graph_16_levels>,
                           .prepare = call<&DynamicParallelism::capture>},
                          {.name = "empty_chain", .run = call<&DynamicParallelism::empty_chain>, .outputs = no_outputs}}),
    .bound = Bound::latency,
    .tolerance = exact,
    .cache = Cache::hot,
    .start = Start::immediate,
    .sizes = sizes({{.name = "side", .full = 1024, .most = 4096}, option("hashed")}),
    .sweep = cases({{"side_256", "side=256"},
                    {"side_1024", "side=1024"},
                    {"side_4096", "side=4096"},
                    {"hashed_graph", "side=2048,hashed=1"}}),
    .edges = cases({{"one_cell", "side=1"}, {"no_walls", "side=19"}, {"odd_side", "side=333"}}),
};

}  // namespace aisp::ch12
