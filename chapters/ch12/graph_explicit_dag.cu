// SPDX-License-Identifier: Apache-2.0
// Tiled Cholesky factorization: 816 tasks for 16 x 16 tiles, each a kernel of four small blocks. Captured from one stream they
// are a chain, in which each waits for the one before whether it needs it or not. Several captured streams, joined at each panel,
// let a panel's tasks run side by side; a graph with the tasks' own edges also lets the next panel begin before this one ends.
#include <aisp/graph.hpp>
#include <aisp/opened.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <vector>

#include "cholesky_tiles.cuh"
#include "cusolver_potrf.hpp"
#include "graph_nodes.hpp"

namespace aisp::ch12 {
namespace {

using namespace cholesky;

constexpr std::size_t streams = 4;

// The reference, column by column: all later columns minus their share of this one.
__global__ void eliminate_kernel(double* values, std::size_t n, std::size_t c) {
  const std::size_t row = c + 1 + blockIdx.y, column = c + 1 + std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column <= row) values[row * n + column] -= values[row * n + c] * values[column * n + c] / values[c * n + c];
}

class GraphExplicitDag final : public Workload {
 public:
  explicit GraphExplicitDag(Setup& setup)
      : n_{setup.size("n")},
        tiles_{static_cast<int>(n_ / tile)},
        // Random, and positive definite: the eigenvalues of what is off the diagonal end at 1.15 sqrt(n).
        matrix_{setup.inout<float>(n_ * n_, uniform(-1, 1).set(1.75f * std::sqrt(static_cast<float>(n_)), at(Axis{1, n_ + 1}, 0)),
                                   {.name = "matrix"})},
        inverses_{setup.scratch<float>(n_ * block)},
        precise_{setup.scratch<double>(n_ * n_)},
        forked_{setup.event()},
        potrf_{setup, static_cast<int>(n_)} {
    for (std::size_t i = 1; i < streams; ++i) {
      streams_[i] = setup.stream();
      done_[i] = setup.event();
    }
  }

  // A third of n^3 multiply-adds, and a panel's three tasks, each of which needs the one before.
  Cost cost() const override {
    const auto n = static_cast<double>(n_);
    return {.flops = n * n * n / 3, .dependent_kernels = 3.0 * tiles_ - 2};
  }

  void compute_reference(Launch& launch) override {
    reference_.resize(n_ * n_);
    for (std::size_t i = 0; i < reference_.size(); ++i) reference_[i] = matrix_.initial(i);
    check(cudaMemcpyAsync(precise_, reference_.data(), precise_.bytes(), cudaMemcpyHostToDevice, launch.stream));
    for (std::size_t c = 0; c + 1 < n_; ++c) {
      const auto rows = static_cast<unsigned>(n_ - c - 1);
      launch(eliminate_kernel, {dim3{(rows + threads - 1) / threads, rows}, threads}, precise_, n_, c);
    }
    std::vector<double> eliminated(n_ * n_);
    check(cudaMemcpyAsync(eliminated.data(), precise_, precise_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
    for (std::size_t row = 0; row < n_; ++row)
      for (std::size_t column = 0; column <= row; ++column)
        reference_[row * n_ + column] = eliminated[row * n_ + column] / std::sqrt(eliminated[column * n_ + column]);
  }
  double expected(std::size_t index) const override { return reference_[index]; }

  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("rate", static_cast<double>(n_) * static_cast<double>(n_) * static_cast<double>(n_) / 3e9, "GFLOP/s");
  }

  void capture_one_stream(Launch& launch) {
    record(launch, chain_, [this](cudaStream_t stream) {
      for_each_task([&](int k) { factor(stream, k); }, [&](int i, int k) { solve(stream, i, k); },
                    [&](int i, int j, int k) { update(stream, i, j, k); });
    });
  }
  void one_stream(Launch& launch) { chain_.launch(launch.stream); }

  void capture_forked(Launch& launch) {
    record(launch, forked_graph_, [this](cudaStream_t stream) {
      streams_[0] = stream;
      std::size_t next = 0;
      const auto any = [&] { return streams_[next++ % streams]; };
      for (int k = 0; k < tiles_; ++k) {
        factor(stream, k);
        fork(stream);
        for (int i = k + 1; i < tiles_; ++i) solve(any(), i, k);
        join(stream);
        fork(stream);
        for (int i = k + 1; i < tiles_; ++i)
          for (int j = k + 1; j <= i; ++j) update(any(), i, j, k);
        join(stream);
      }
    });
  }
  void forked_capture(Launch& launch) { forked_graph_.launch(launch.stream); }

  void build_dag(Launch& launch) {
    batched(launch.stream);  // a kernel's code is loaded at its first launch, and its shared memory allowed
    solve(launch.stream, 0, 0);
    update(launch.stream, 0, 0, 0);
    dag_.build([this](cudaGraph_t graph) {
      add_tasks([&](Nodes after, int k) { return add_kernel(graph, after, factor_kernel, factor_grid(), matrix(), k); },
                [&](Nodes after, int i, int k) { return add_kernel(graph, after, solve_kernel, solve_grid(), matrix(), i, k); },
                [&](Nodes after, int i, int j, int k) {
                  return add_kernel(graph, after, update_kernel, update_grid(), matrix(), i, j, k);
                });
    });
  }
  void explicit_dag(Launch& launch) { dag_.launch(launch.stream); }

  void capture_batched(Launch& launch) {
    record(launch, batched_, [this](cudaStream_t stream) { batched(stream); });
  }
  void batched_panels(Launch& launch) { batched_.launch(launch.stream); }

  // The tasks that must follow one another, alone.
  void capture_path(Launch& launch) {
    record(launch, path_, [this](cudaStream_t stream) {
      for (int k = 0; k < tiles_; ++k) {
        factor(stream, k);
        if (k + 1 == tiles_) break;
        solve(stream, k + 1, k);
        update(stream, k + 1, k + 1, k);
      }
    });
  }
  void critical_path(Launch& launch) { path_.launch(launch.stream); }

  // The same nodes and edges without work.
  void capture_empty_chain(Launch& launch) {
    record(launch, empty_chain_, [this](cudaStream_t stream) {
      const auto empty = [stream](unsigned blocks) { launch_kernel(stream, empty_kernel, {blocks, threads}); };
      for_each_task([&](int) { empty(1); }, [&](int, int) { empty(parts); }, [&](int, int, int) { empty(parts); });
    });
  }
  void empty_chain(Launch& launch) { empty_chain_.launch(launch.stream); }
  void build_empty_dag(Launch& launch) {
    launch(empty_kernel, {1, threads});
    empty_dag_.build([this](cudaGraph_t graph) {
      const auto empty = [graph](Nodes after, unsigned blocks) {
        return add_kernel(graph, after, empty_kernel, {blocks, threads});
      };
      add_tasks([&](Nodes after, int) { return empty(after, 1); }, [&](Nodes after, int, int) { return empty(after, parts); },
                [&](Nodes after, int, int, int) { return empty(after, parts); });
    });
  }
  void empty_dag(Launch& launch) { empty_dag_.launch(launch.stream); }

  void cusolver(Launch& launch) { potrf_->run(launch.stream, matrix_); }
  void capture_cusolver(Launch& launch) {
    record(launch, library_, [this](cudaStream_t stream) { potrf_->run(stream, matrix_); });
  }
  void cusolver_graph(Launch& launch) { library_.launch(launch.stream); }

 private:
  Matrix matrix() const { return {matrix_, inverses_, static_cast<int>(n_)}; }
  static Grid factor_grid() { return {1, threads, factor_bytes}; }
  static Grid solve_grid(unsigned tasks = 1) { return {dim3{parts, tasks}, threads, solve_bytes}; }
  static Grid update_grid(unsigned tasks = 1) { return {dim3{parts, tasks}, threads, update_bytes}; }

  void factor(cudaStream_t stream, int k) const { launch_kernel(stream, factor_kernel, factor_grid(), matrix(), k); }
  void solve(cudaStream_t stream, int i, int k) const { launch_kernel(stream, solve_kernel, solve_grid(), matrix(), i, k); }
  void update(cudaStream_t stream, int i, int j, int k) const {
    launch_kernel(stream, update_kernel, update_grid(), matrix(), i, j, k);
  }
  void batched(cudaStream_t stream) const {
    for (int k = 0; k < tiles_; ++k) {
      const auto below = static_cast<unsigned>(tiles_ - k - 1);
      factor(stream, k);
      if (below == 0) break;
      launch_kernel(stream, solve_panel_kernel, solve_grid(below), matrix(), k);
      launch_kernel(stream, update_panel_kernel, update_grid(below * (below + 1) / 2), matrix(), k);
    }
  }

  template <class Factor, class Solve, class Update>
  void for_each_task(const Factor& factor_tile, const Solve& solve_below, const Update& update_right) const {
    for (int k = 0; k < tiles_; ++k) {
      factor_tile(k);
      for (int i = k + 1; i < tiles_; ++i) solve_below(i, k);
      for (int i = k + 1; i < tiles_; ++i)
        for (int j = k + 1; j <= i; ++j) update_right(i, j, k);
    }
  }
  // A task runs after the last writers of the tiles that it uses, its own among them.
  template <class Factor, class Solve, class Update>
  void add_tasks(const Factor& factor_tile, const Solve& solve_below, const Update& update_right) const {
    const auto tiles = static_cast<std::size_t>(tiles_);
    std::vector<Node> writers(tiles * tiles, nullptr);
    const auto writer = [&](int i, int j) -> Node& {
      return writers[static_cast<std::size_t>(i) * tiles + static_cast<std::size_t>(j)];
    };
    const auto written = [](std::initializer_list<Node> nodes) {
      std::vector<Node> after;
      for (const Node node : nodes)
        if (node != nullptr && std::ranges::find(after, node) == after.end()) after.push_back(node);
      return after;
    };
    for_each_task([&](int k) { writer(k, k) = factor_tile(written({writer(k, k)}), k); },
                  [&](int i, int k) {
                    writer(i, k) = solve_below(written({writer(k, k), writer(i, k)}), i, k);
                  },
                  [&](int i, int j, int k) {
                    writer(i, j) = update_right(written({writer(i, k), writer(j, k), writer(i, j)}), i, j, k);
                  });
  }

  template <class Queue>
  static void record(Launch& launch, Graph& graph, const Queue& queue) {
    queue(launch.stream);  // a kernel's code is loaded at its first launch: not while a capture is under way
    graph.capture(launch.stream, queue);
  }
  void fork(cudaStream_t stream) const {
    check(cudaEventRecord(forked_, stream));
    for (std::size_t i = 1; i < streams; ++i) check(cudaStreamWaitEvent(streams_[i], forked_));
  }
  void join(cudaStream_t stream) const {
    for (std::size_t i = 1; i < streams; ++i) {
      check(cudaEventRecord(done_[i], streams_[i]));
      check(cudaStreamWaitEvent(stream, done_[i]));
    }
  }

  std::size_t n_;
  int tiles_;
  InOut<float> matrix_;
  Scratch<float> inverses_;
  Scratch<double> precise_;
  std::array<cudaStream_t, streams> streams_{};
  std::array<cudaEvent_t, streams> done_{};
  cudaEvent_t forked_;
  Opened<Potrf> potrf_;
  Graph chain_, forked_graph_, batched_, path_, empty_chain_, library_;
  NodeGraph dag_, empty_dag_;
  std::vector<double> reference_;
};

}  // namespace

extern constinit const Pair graph_explicit_dag{
    .teaches = "one captured stream records false dependencies; a graph with the tasks' own edges runs independent ones together",
    .lesson = "explicit_dag",
    .make = make<GraphExplicitDag>,
    .baseline = {.name = "one_stream",
                 .run = call<&GraphExplicitDag::one_stream>,
                 .prepare = call<&GraphExplicitDag::capture_one_stream>},
    .optimized = variants({{.name = "forked_capture",
                            .run = call<&GraphExplicitDag::forked_capture>,
                            .prepare = call<&GraphExplicitDag::capture_forked>,
                            .same_bits_as = "one_stream"},
                           {.name = "explicit_dag",
                            .run = call<&GraphExplicitDag::explicit_dag>,
                            .prepare = call<&GraphExplicitDag::build_dag>,
                            .same_bits_as = "one_stream"}}),
    .controls = variants({{.name = "batched_panels",
                           .run = call<&GraphExplicitDag::batched_panels>,
                           .prepare = call<&GraphExplicitDag::capture_batched>,
                           .same_bits_as = "one_stream"},
                          {.name = "critical_path",
                           .run = call<&GraphExplicitDag::critical_path>,
                           .prepare = call<&GraphExplicitDag::capture_path>,
                           .outputs = no_outputs},
                          {.name = "empty_chain",
                           .run = call<&GraphExplicitDag::empty_chain>,
                           .prepare = call<&GraphExplicitDag::capture_empty_chain>,
                           .outputs = no_outputs},
                          {.name = "empty_dag",
                           .run = call<&GraphExplicitDag::empty_dag>,
                           .prepare = call<&GraphExplicitDag::build_empty_dag>,
                           .outputs = no_outputs}}),
    .libraries =
        variants({{.name = "cusolver", .run = call<&GraphExplicitDag::cusolver>, .needs = {.libraries = {Library::cusolver}}},
                  {.name = "cusolver_graph",
                   .run = call<&GraphExplicitDag::cusolver_graph>,
                   .prepare = call<&GraphExplicitDag::capture_cusolver>,
                   .needs = {.libraries = {Library::cusolver}}}}),
    .bound = Bound::latency,
    // The matrix is well conditioned (5), and a value is a sum of up to n products.
    .tolerance = within(5e-6),
    .cache = Cache::hot,
    .timeline = true,
    .sizes = sizes({{.name = "n", .full = 2048, .multiple = tile, .most = 4096}}),
    .sweep = cases({{"n_512", "n=512"}, {"n_1024", "n=1024"}, {"n_2048", "n=2048"}, {"n_4096", "n=4096"}}),
    .edges = cases({{"one_tile", "n=128"}, {"two_tiles", "n=256"}, {"three_tiles", "n=384"}}),
};

}  // namespace aisp::ch12
