// SPDX-License-Identifier: Apache-2.0
// Conjugate gradient on a 2-D Poisson problem that stays in L2, about a thousand iterations of three short kernels. A host that
// tests the residual after each iteration empties the GPU each time. A WHILE node repeats its body until a kernel of it says
// stop; asking the host rarely, with a flag that freezes the state once the solution is there, needs no such node.
#include <aisp/device/reduce.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/graph.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "graph_nodes.hpp"

namespace aisp::ch12 {
namespace {

constexpr int threads = 256, values_per_thread = 4, most_blocks = 1024;
constexpr double tolerance = 1e-5;  // of the residual's norm, against that of the right-hand side

template <class T>
struct Progress {
  T rr, next_rr, threshold;  // squares of the residual's norm
  unsigned iterations;
  unsigned done;    // written by the last kernel of an iteration, read by the first
  unsigned frozen;  // the same for the iteration that is under way: written by its first kernel
};

template <class T>
struct System {
  const float* rhs;
  T *x, *r, *p, *q, *pq_parts, *rr_parts;  // parts: one sum a block
  Progress<T>* progress;
  unsigned* iterations;
  int n;                 // points in a row, and rows
  unsigned most_rounds;  // of iterations, should there be no convergence
};

template <class T, class Body>
__device__ void for_each_point(int n, Body body) {
  for (int i = blockIdx.x * threads + threadIdx.x; i < n * n; i += gridDim.x * threads) body(i);
}

// The same in every block, and in every variant: the order of the additions is fixed.
template <class T>
__device__ T sum_of_parts(const T* parts, T* shared) {
  T sum = 0;
  for (int i = threadIdx.x; i < static_cast<int>(gridDim.x); i += threads) sum += parts[i];
  return device::block_sum(sum, shared);
}

template <class T>
__device__ void store_part(T* parts, T value, T* shared) {
  const T sum = device::block_sum(value, shared);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

template <class T>
__global__ __launch_bounds__(threads) void start_kernel(System<T> system) {
  __shared__ T shared[device::largest_block_in_warps];
  T rr = 0;
  for_each_point<T>(system.n, [&](int i) {
    const T b = system.rhs[i];
    system.x[i] = 0;
    system.r[i] = system.p[i] = b;
    rr += b * b;
  });
  store_part(system.rr_parts, rr, shared);
}

template <class T>
__global__ __launch_bounds__(threads) void threshold_kernel(System<T> system, int parts) {
  __shared__ T shared[device::largest_block_in_warps];
  T sum = 0;
  for (int i = threadIdx.x; i < parts; i += threads) sum += system.rr_parts[i];
  const T rr = device::block_sum(sum, shared);
  if (threadIdx.x != 0) return;
  *system.progress = {rr, rr, static_cast<T>(tolerance * tolerance) * rr, 0, rr > 0 ? 0u : 1u, 0};
  *system.iterations = 0;
}

// q = A p, with the five-point stencil, and p q.
template <class T>
__global__ __launch_bounds__(threads) void apply_kernel(System<T> system) {
  __shared__ T shared[device::largest_block_in_warps];
  const unsigned done = system.progress->done;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    system.progress->frozen = done;
    system.progress->rr = system.progress->next_rr;
  }
  if (done != 0) return;
  const int n = system.n;
  T pq = 0;
  for_each_point<T>(n, [&](int i) {
    const int row = i / n, column = i % n;
    const T center = system.p[i];
    T value = 4 * center;
    if (row > 0) value -= system.p[i - n];
    if (row + 1 < n) value -= system.p[i + n];
    if (column > 0) value -= system.p[i - 1];
    if (column + 1 < n) value -= system.p[i + 1];
    system.q[i] = value;
    pq += value * center;
  });
  store_part(system.pq_parts, pq, shared);
}

template <class T>
__global__ __launch_bounds__(threads) void step_kernel(System<T> system) {
  __shared__ T shared[device::largest_block_in_warps];
  if (system.progress->frozen != 0) return;
  const T alpha = system.progress->rr / sum_of_parts(system.pq_parts, shared);
  T rr = 0;
  for_each_point<T>(system.n, [&](int i) {
    system.x[i] += alpha * system.p[i];
    const T r = system.r[i] - alpha * system.q[i];
    system.r[i] = r;
    rr += r * r;
  });
  store_part(system.rr_parts, rr, shared);
}

// The next direction; one thread tells whether it is needed.
template <bool in_loop, class T>
__global__ __launch_bounds__(threads) void direction_kernel(System<T> system, cudaGraphConditionalHandle again) {
  __shared__ T shared[device::largest_block_in_warps];
  Progress<T>& progress = *system.progress;
  if (progress.frozen != 0) return;
  const T rr = sum_of_parts(system.rr_parts, shared);
  const T beta = rr / progress.rr;
  for_each_point<T>(system.n, [&](int i) { system.p[i] = system.r[i] + beta * system.p[i]; });
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  const unsigned iterations = progress.iterations + 1;
  const bool done = !(rr > progress.threshold) || iterations == system.most_rounds;
  progress.next_rr = rr;
  progress.done = done ? 1 : 0;
  *system.iterations = progress.iterations = iterations;
  if constexpr (in_loop) cudaGraphSetConditional(again, done ? 0 : 1);
}

class ConditionalWhile final : public Workload {
 public:
  explicit ConditionalWhile(Setup& setup)
      : n_{static_cast<int>(setup.size("grid"))},
        per_test_{static_cast<int>(setup.size("per_test"))},
        rhs_{setup.input<float>(points(), uniform(0, 1), {.name = "right-hand side"})},
        x_{setup.output<float>(points(), {.name = "solution"})},
        iterations_{setup.output<unsigned>(1, {.name = "iterations"})},
        vectors_{setup.scratch<float>(3 * points())},
        parts_{setup.scratch<float>(2 * most_blocks)},
        progress_{setup.scratch<unsigned>(sizeof(Progress<float>) / sizeof(unsigned))},
        seen_{setup.scratch<unsigned>(1, {.memory = Memory::pinned})},
        precise_{setup.scratch<double>(4 * points() + 2 * most_blocks)},
        precise_progress_{setup.scratch<double>(sizeof(Progress<double>) / sizeof(double))},
        precise_iterations_{setup.scratch<unsigned>(1)} {}

  // An iteration passes eleven arrays through L2 (or memory, where L2 does not hold the five that there are) in three dependent
  // kernels. How many iterations there are depends on the data: more than two for each row of the grid.
  Cost cost() const override {
    const double iterations = 2.0 * n_, bytes = iterations * 11 * static_cast<double>(rhs_.bytes());
    const bool resident = 5 * rhs_.bytes() <= static_cast<std::size_t>(device_attribute(cudaDevAttrL2CacheSize));
    return in_turn({{.bytes = resident ? 0 : bytes, .l2_bytes = bytes}, {.dependent_kernels = 3 * iterations}});
  }

  void compute_reference(Launch& launch) override {
    const System<double> system{rhs_,
                                precise_,
                                precise_ + points(),
                                precise_ + 2 * points(),
                                precise_ + 3 * points(),
                                precise_ + 4 * points(),
                                precise_ + 4 * points() + most_blocks,
                                reinterpret_cast<Progress<double>*>(precise_progress_.get()),
                                precise_iterations_,
                                n_,
                                most_rounds()};
    solve(launch.stream, system, 16);
    reference_.resize(points());
    check(cudaMemcpy(reference_.data(), precise_, points() * sizeof(double), cudaMemcpyDeviceToHost));
    check(cudaMemcpy(&reference_iterations_, precise_iterations_, sizeof(unsigned), cudaMemcpyDeviceToHost));
  }
  double expected_output(int output, std::size_t index) const override {
    return output == 0 ? reference_[index] : reference_iterations_;
  }
  void metrics(std::string_view, Metrics& metrics) override {
    unsigned iterations = 0;
    check(cudaMemcpy(&iterations, iterations_, sizeof(unsigned), cudaMemcpyDeviceToHost));
    metrics.report_rate("iteration_rate", iterations, "iterations/s");
  }

  void check_every_iteration(Launch& launch) { solve(launch.stream, system(), 1); }
  void check_rarely(Launch& launch) { solve(launch.stream, system(), per_test_); }

  void capture_round(Launch& launch) {
    iterate(launch.stream, system(), per_test_);
    round_.capture(launch.stream, [this](cudaStream_t stream) { iterate(stream, system(), per_test_); });
  }
  void check_rarely_graph(Launch& launch) {
    start(launch.stream, system());
    do round_.launch(launch.stream);
    while (!done(launch.stream, system()));
  }

  void build_loop(Launch& launch) { build(loop_, launch.stream, 1); }
  void while_node(Launch& launch) { loop_.launch(launch.stream); }
  void build_unrolled_loop(Launch& launch) { build(unrolled_loop_, launch.stream, per_test_); }
  void while_node_unrolled(Launch& launch) { unrolled_loop_.launch(launch.stream); }

  // As many iterations as these data need; others may need some more or less.
  void capture_known_count(Launch& launch) {
    solve(launch.stream, system(), 1);
    unsigned count = 0;
    check(cudaMemcpy(&count, iterations_, sizeof(unsigned), cudaMemcpyDeviceToHost));
    known_.capture(launch.stream, [&](cudaStream_t stream) {
      start(stream, system());
      iterate(stream, system(), static_cast<int>(count));
    });
  }
  void known_count(Launch& launch) { known_.launch(launch.stream); }

 private:
  std::size_t points() const { return static_cast<std::size_t>(n_) * static_cast<std::size_t>(n_); }
  unsigned most_rounds() const { return 16 * static_cast<unsigned>(n_) + 64; }
  unsigned blocks() const {
    constexpr std::size_t values = threads * values_per_thread;
    return static_cast<unsigned>(std::min<std::size_t>((points() + values - 1) / values, most_blocks));
  }
  Grid grid() const { return {blocks(), threads}; }
  System<float> system() const {
    return {rhs_,
            x_,
            vectors_,
            vectors_ + points(),
            vectors_ + 2 * points(),
            parts_,
            parts_ + most_blocks,
            reinterpret_cast<Progress<float>*>(progress_.get()),
            iterations_,
            n_,
            most_rounds()};
  }

  template <class T>
  void start(cudaStream_t stream, const System<T>& system) const {
    launch_kernel(stream, start_kernel<T>, grid(), system);
    launch_kernel(stream, threshold_kernel<T>, {1, threads}, system, blocks());
  }
  template <bool in_loop = false, class T>
  void iterate(cudaStream_t stream, const System<T>& system, int iterations, cudaGraphConditionalHandle again = {}) const {
    for (int i = 0; i < iterations; ++i) {
      launch_kernel(stream, apply_kernel<T>, grid(), system);
      launch_kernel(stream, step_kernel<T>, grid(), system);
      launch_kernel(stream, direction_kernel<in_loop, T>, grid(), system, again);
    }
  }
  template <class T>
  bool done(cudaStream_t stream, const System<T>& system) const {
    check(cudaMemcpyAsync(seen_, &system.progress->done, sizeof(unsigned), cudaMemcpyDeviceToHost, stream));
    check(cudaStreamSynchronize(stream));
    return *seen_ != 0;
  }
  template <class T>
  void solve(cudaStream_t stream, const System<T>& system, int per_test) const {
    start(stream, system);
    do iterate(stream, system, per_test);
    while (!done(stream, system));
  }

  void build(NodeGraph& loop, cudaStream_t stream, int per_test) {
    solve(stream, system(), per_test);  // a kernel's code is loaded at its first launch: not while a capture is under way
    loop.build([&](cudaGraph_t graph) {
      const cudaGraphConditionalHandle again = conditional_handle(graph, 1);
      const Node started = add_kernel(graph, {}, start_kernel<float>, grid(), system());
      const Node ready = add_kernel(graph, {&started, 1}, threshold_kernel<float>, {1, threads}, system(), blocks());
      const Conditional repeat = add_conditional(graph, {&ready, 1}, again, cudaGraphCondTypeWhile, 1);
      capture_into(repeat.bodies[0], stream, [&](cudaStream_t captured) { iterate<true>(captured, system(), per_test, again); });
    });
  }

  int n_, per_test_;
  Input<float> rhs_;
  Output<float> x_;
  Output<unsigned> iterations_;
  Scratch<float> vectors_, parts_;
  Scratch<unsigned> progress_, seen_;
  Scratch<double> precise_, precise_progress_;
  Scratch<unsigned> precise_iterations_;
  Graph round_, known_;
  NodeGraph loop_, unrolled_loop_;
  std::vector<double> reference_;
  unsigned reference_iterations_ = 0;
};

}  // namespace

extern constinit const Pair conditional_while{
    .teaches = "a WHILE node repeats an iterative solver on the device until it converges",
    .lesson = "while_node",
    .make = make<ConditionalWhile>,
    .baseline = {.name = "check_every_iteration", .run = call<&ConditionalWhile::check_every_iteration>},
    .optimized = variants({{.name = "while_node",
                            .run = call<&ConditionalWhile::while_node>,
                            .prepare = call<&ConditionalWhile::build_loop>,
                            .needs = {.driver = 12040},
                            .same_bits_as = "check_every_iteration"},
                           {.name = "while_node_unrolled",
                            .run = call<&ConditionalWhile::while_node_unrolled>,
                            .prepare = call<&ConditionalWhile::build_unrolled_loop>,
                            .needs = {.driver = 12040},
                            .same_bits_as = "check_every_iteration"}}),
    .controls =
        variants({{.name = "check_rarely", .run = call<&ConditionalWhile::check_rarely>, .same_bits_as = "check_every_iteration"},
                  {.name = "check_rarely_graph",
                   .run = call<&ConditionalWhile::check_rarely_graph>,
                   .prepare = call<&ConditionalWhile::capture_round>,
                   .same_bits_as = "check_every_iteration"},
                  {.name = "known_count",
                   .run = call<&ConditionalWhile::known_count>,
                   .prepare = call<&ConditionalWhile::capture_known_count>,
                   .outputs = no_outputs}}),
    .bound = Bound::latency,
    // Float64 needs as many iterations, or one more or less. Then the solutions differ by 2e-6 on 512 x 512 points, and by more
    // on larger grids, as the conditioning grows.
    .tolerance = per_output({within(3e-5), within(1e-2)}),
    .cache = Cache::hot,
    .start = Start::immediate,
    .sizes =
        sizes({{.name = "grid", .full = 512, .most = 4096}, {.name = "per_test", .full = 16, .most = 1024, .scales = false}}),
    .sweep = cases({{"per_test_1", "per_test=1"},
                    {"per_test_2", "per_test=2"},
                    {"per_test_4", "per_test=4"},
                    {"per_test_8", "per_test=8"},
                    {"per_test_16", "per_test=16"},
                    {"per_test_64", "per_test=64"},
                    {"grid_128", "grid=128"},
                    {"grid_2048", "grid=2048"}}),
    .edges = cases({{"one_point", "grid=1"}, {"one_row", "grid=3"}, {"ragged", "grid=101,per_test=7"}}),
};

}  // namespace aisp::ch12
