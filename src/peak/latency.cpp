// SPDX-License-Identifier: Apache-2.0
// The cost of small work. Calls are timed on the host's clock, in blocks so long that the clock's own time does not matter.
#include <aisp/graph.hpp>

#include "base/system/clock.hpp"
#include "measure/statistics/statistics.hpp"
#include "peak/kernels.hpp"
#include "peak/parts.hpp"

namespace aisp::peak {
namespace {

constexpr int blocks = 15;
constexpr int calls = 200;  // fewer than a stream holds before the caller waits

Figure host_time(std::string_view id, const char* how, cudaStream_t stream, const std::function<void()>& call) {
  std::vector<double> times_s;
  for (int block = 0; block < blocks + 2; ++block) {
    const double start_s = base::monotonic_s();
    for (int i = 0; i < calls; ++i) call();
    times_s.push_back((base::monotonic_s() - start_s) / calls);
    check(cudaStreamSynchronize(stream));
  }
  times_s.erase(times_s.begin(), times_s.begin() + 2);
  return {.id = std::string{id}, .value = measure::median(times_s), .how = how};
}

Figure measure_empty_kernel(Bench& bench) {
  const Work work = [](Launch& launch) { launch_empty(launch.stream); };
  Figure figure{.id = std::string{figure_id::empty_kernel}};
  try {
    figure.value = bench.kernel_seconds(work);
    figure.how = "CUPTI";
  } catch (const Unsupported&) {
    figure.value = bench.seconds(work);
    figure.how = "events, the stopwatch's own time taken off";
  }
  return figure;
}

}  // namespace

void measure_latency(Bench& bench, const Teller& teller) {
  const cudaStream_t stream = bench.stream();
  teller.figure(figure_id::kernel_launch, [&] {
    return host_time(figure_id::kernel_launch, "host time of a call", stream, [&] { launch_empty(stream); });
  });
  teller.figure(figure_id::graph_launch, [&] {
    Graph graph;
    graph.capture(stream, [](cudaStream_t on) { launch_empty(on); });
    return host_time(figure_id::graph_launch, "host time of a call, one kernel", stream, [&] { graph.launch(stream); });
  });
  teller.figure(figure_id::event_record, [&] {
    const cudaEvent_t event = bench.setup().event();
    return host_time(figure_id::event_record, "host time of a call", stream, [&] { check(cudaEventRecord(event, stream)); });
  });
  teller.figure(figure_id::synchronize, [&] {
    return host_time(figure_id::synchronize, "empty kernel, cudaStreamSynchronize", stream, [&] {
      launch_empty(stream);
      check(cudaStreamSynchronize(stream));
    });
  });
  teller.figure(figure_id::graph_node, [&] {
    constexpr int nodes = 100;
    Graph graph;
    graph.capture(stream, [](cudaStream_t on) {
      for (int i = 0; i < nodes; ++i) launch_empty(on);
    });
    const double graph_s = bench.seconds([&](Launch& launch) { graph.launch(launch.stream); });
    return Figure{.id = std::string{figure_id::graph_node}, .value = graph_s / nodes, .how = "graph of 100 empty kernels"};
  });
  teller.figure(figure_id::empty_kernel, [&] { return measure_empty_kernel(bench); });
}

}  // namespace aisp::peak
