// SPDX-License-Identifier: Apache-2.0
// Requests that follow one another: the result of each selects which of three graphs of small kernels serves the next. Asked by
// the host, the GPU waits for a copy, for the host and for a launch each time. Graphs that are instantiated for the device are
// launched by the last kernel of the one before, or by a scheduler's kernel; a WHILE around a SWITCH node decides on the device
// as well.
#include <aisp/device/reduce.cuh>
#include <aisp/device_runtime.hpp>
#include <aisp/host.hpp>
#include <aisp/pair.hpp>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace aisp::ch12 {
namespace {

constexpr unsigned words = 16384, deciding_words = words / 2;  // what is made of the others decides nothing
constexpr unsigned threads = 256, deciding_threads = 1024;
constexpr unsigned kinds = 3;

struct Progress {
  unsigned done, choice;
};
struct Service {
  std::uint32_t *state, *choices;
  Progress* progress;
  std::uint32_t* told;            // in the host's memory: how many requests are done, times four, and the choice
  const cudaGraphExec_t* graphs;  // by kind, for launches from the device
  unsigned requests;
};

// One step of a request of a kind.
AISP_HOST_DEVICE inline std::uint32_t mixed(std::uint32_t word, unsigned place, unsigned kind) {
  const std::uint32_t product = word * (1664525 + 8 * kind) + 1013904223 + place;
  return product << 13 | product >> 19;
}
__global__ __launch_bounds__(threads) void mix_kernel(std::uint32_t* state, unsigned kind) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  state[i] = mixed(state[i], i, kind);
}

AISP_HOST_DEVICE inline unsigned kind_of(std::uint32_t sum) { return (sum >> 16) % kinds; }

// The use that the last kernel of a request makes of its choice.
enum class Then { leave_it, tell_host, tail_launch };

template <Then then>
__global__ __launch_bounds__(deciding_threads) void decide_kernel(Service s) {
  __shared__ std::uint32_t sums[device::largest_block_in_warps];
  std::uint32_t sum = 0;
  for (unsigned i = threadIdx.x; i < deciding_words; i += deciding_threads) sum += s.state[i];
  sum = device::block_sum(sum, sums);
  if (threadIdx.x != 0) return;
  const unsigned choice = kind_of(sum), done = s.progress->done + 1;
  s.choices[done - 1] = choice;
  *s.progress = {done, choice};
  if constexpr (then == Then::tell_host) {
    __threadfence_system();
    *static_cast<volatile std::uint32_t*>(s.told) = done * 4 + choice;
  }
  if constexpr (then == Then::tail_launch)
    if (done < s.requests) cudaGraphLaunch(s.graphs[choice], cudaStreamGraphTailLaunch);
}

// The only node of its graph. Its next launch begins when the request that it launches is done.
__global__ void scheduler_kernel(Service s) {
  if (s.progress->done == s.requests) return;
  cudaGraphLaunch(s.graphs[s.progress->choice], cudaStreamGraphFireAndForget);
  cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
}

// The first node of the loop's body.
__global__ void choose_kernel(Service s, cudaGraphConditionalHandle kind, cudaGraphConditionalHandle again) {
  cudaGraphSetConditional(kind, s.progress->choice);
  cudaGraphSetConditional(again, s.progress->done + 1 < s.requests);
}

// A captured graph that is instantiated with flags, which aisp/graph.hpp does without.
class FlaggedGraph {
 public:
  FlaggedGraph() = default;
  ~FlaggedGraph() { clear(); }
  FlaggedGraph(const FlaggedGraph&) = delete;
  FlaggedGraph& operator=(const FlaggedGraph&) = delete;

  template <class Work>
  void capture(cudaStream_t stream, const Work& work, unsigned long long flags) {
    clear();
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    work(stream);
    check(cudaStreamEndCapture(stream, &graph));
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, flags);
    cudaGraphDestroy(graph);
    check(status);
  }
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(executable_, stream)); }
  cudaGraphExec_t executable() const { return executable_; }

 private:
  void clear() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    executable_ = nullptr;
  }
  cudaGraphExec_t executable_ = nullptr;
};

class DeviceGraphLaunch final : public Workload {
 public:
  explicit DeviceGraphLaunch(Setup& setup)
      : requests_{static_cast<unsigned>(setup.size("requests"))},
        kernels_{static_cast<unsigned>(setup.size("kernels"))},
        state_{setup.inout<std::uint32_t>(words, HostFill<std::uint32_t>{draw_state}, {.name = "state"})},
        choices_{setup.output<std::uint32_t>(requests_, {.name = "choices"})},
        progress_{setup.scratch<Progress>(1)},
        device_graphs_{setup.scratch<cudaGraphExec_t>(2 * kinds)},
        answer_{setup.scratch<Progress>(1, {.memory = Memory::pinned})},
        told_{setup.scratch<std::uint32_t>(1, {.memory = Memory::pinned})} {}
  ~DeviceGraphLaunch() override {
    if (loop_ != nullptr) cudaGraphExecDestroy(loop_);
  }

  Cost cost() const override { return {.dependent_kernels = static_cast<double>(requests_) * kernels_}; }
  void compute_reference(Launch&) override {
    reference_.resize(words);
    for (unsigned i = 0; i < words; ++i) reference_[i] = state_.initial(i);
    kinds_.assign(requests_ + 1, 0);
    for (unsigned request = 0; request < requests_; ++request) {
      std::uint32_t sum = 0;
      for (unsigned i = 0; i < words; ++i) {
        for (unsigned k = 1; k < kernels_; ++k) reference_[i] = mixed(reference_[i], i, kinds_[request]);
        if (i < deciding_words) sum += reference_[i];
      }
      kinds_[request + 1] = kind_of(sum);
    }
  }
  double expected_output(int output, std::size_t i) const override { return output == 0 ? reference_[i] : kinds_[i + 1]; }

  void capture_for_host(Launch& launch) { capture<Then::leave_it>(asked_, launch.stream, 0); }
  void host_asks(Launch& launch) {
    start(launch);
    unsigned choice = 0;
    for (unsigned request = 0; request < requests_; ++request) {
      asked_[choice].launch(launch.stream);
      check(cudaMemcpyAsync(answer_, progress_, sizeof(Progress), cudaMemcpyDeviceToHost, launch.stream));
      check(cudaStreamSynchronize(launch.stream));
      choice = answer_.get()->choice;
    }
  }

  void capture_telling_host(Launch& launch) { capture<Then::tell_host>(telling_, launch.stream, 0); }
  void mapped_choice(Launch& launch) {
    start(launch);
    volatile std::uint32_t* const told = told_;
    *told = 0;
    unsigned choice = 0;
    for (unsigned request = 0; request < requests_; ++request) {
      telling_[choice].launch(launch.stream);
      while (*told / 4 <= request) pause_cpu();
      choice = *told % 4;
    }
  }

  void learn_order(Launch& launch) {
    capture_for_host(launch);
    std::vector<std::uint32_t> state(words);
    draw_state(state, 0);
    check(cudaMemcpyAsync(state_, state.data(), state_.bytes(), cudaMemcpyHostToDevice, launch.stream));
    host_asks(launch);
    known_.resize(requests_);
    check(cudaMemcpy(known_.data(), choices_, choices_.bytes(), cudaMemcpyDeviceToHost));
  }
  void known_order(Launch& launch) {
    start(launch);
    for (unsigned request = 0; request < requests_; ++request)
      asked_[request == 0 ? 0 : known_[request - 1]].launch(launch.stream);
  }

  void capture_tail_launches(Launch& launch) {
    capture<Then::tail_launch>(tailing_, launch.stream, cudaGraphInstantiateFlagDeviceLaunch);
    upload(tailing_, device_graphs_, launch.stream);
  }
  void tail_launch(Launch& launch) {
    start(launch);
    tailing_[0].launch(launch.stream);
  }

  void capture_scheduler(Launch& launch) {
    capture<Then::leave_it>(scheduled_, launch.stream, cudaGraphInstantiateFlagDeviceLaunch);
    upload(scheduled_, device_graphs_ + kinds, launch.stream);
    scheduler_.capture(
        launch.stream,
        [this](cudaStream_t stream) {
          launch_kernel(stream, scheduler_kernel, {1, 1}, service(device_graphs_ + kinds));
        },
        cudaGraphInstantiateFlagDeviceLaunch);
    check(cudaGraphUpload(scheduler_.executable(), launch.stream));
  }
  void scheduler_graph(Launch& launch) {
    start(launch);
    scheduler_.launch(launch.stream);
  }

  void build_loop(Launch& launch) {
    cudaGraph_t graph = nullptr;
    check(cudaGraphCreate(&graph, 0));
    cudaGraphConditionalHandle again{}, kind{};
    check(cudaGraphConditionalHandleCreate(&again, graph, 1, cudaGraphCondAssignDefault));
    const cudaGraph_t body = add_conditional(graph, again, cudaGraphCondTypeWhile, 1, nullptr)[0];
    check(cudaGraphConditionalHandleCreate(&kind, body, 0, 0));
    const cudaGraphNode_t chosen = capture_into(body, launch.stream, [&](cudaStream_t stream) {
      launch_kernel(stream, choose_kernel, {1, 1}, service(), kind, again);
    });
    const cudaGraph_t* const cases = add_conditional(body, kind, cudaGraphCondTypeSwitch, kinds, &chosen);
    for (unsigned k = 0; k < kinds; ++k)
      capture_into(cases[k], launch.stream, [&](cudaStream_t stream) { serve<Then::leave_it>(stream, k); });
    if (loop_ != nullptr) check(cudaGraphExecDestroy(loop_));
    check(cudaGraphInstantiate(&loop_, graph, 0));
    check(cudaGraphDestroy(graph));
  }
  void while_switch(Launch& launch) {
    start(launch);
    check(cudaGraphLaunch(loop_, launch.stream));
  }

  void metrics(std::string_view, Metrics& metrics) override { metrics.report_rate("rate", requests_, "requests/s"); }

 private:
  using Graphs = std::array<FlaggedGraph, kinds>;

  // The words that decide are the same in every draw, so that the order is known to the variant that does not ask.
  static void draw_state(std::span<std::uint32_t> state, std::uint64_t seed) {
    for (std::size_t i = 0; i < state.size(); ++i)
      state[i] = static_cast<std::uint32_t>(random_bits(i < deciding_words ? 1 : seed, i));
  }
  Service service(const cudaGraphExec_t* graphs = nullptr) const {
    return {state_, choices_, progress_, told_, graphs != nullptr ? graphs : device_graphs_.get(), requests_};
  }
  void start(Launch& launch) const { check(cudaMemsetAsync(progress_, 0, sizeof(Progress), launch.stream)); }

  // The kernels of one request.
  template <Then then>
  void serve(cudaStream_t stream, unsigned kind) const {
    for (unsigned k = 1; k < kernels_; ++k) launch_kernel(stream, mix_kernel, {words / threads, threads}, state_, kind);
    launch_kernel(stream, decide_kernel<then>, {1, deciding_threads}, service());
  }
  template <Then then>
  void capture(Graphs& graphs, cudaStream_t stream, unsigned long long flags) const {
    for (unsigned kind = 0; kind < kinds; ++kind)
      graphs[kind].capture(
          stream, [&](cudaStream_t on) { serve<then>(on, kind); }, flags);
  }
  static void upload(const Graphs& graphs, cudaGraphExec_t* to, cudaStream_t stream) {
    std::array<cudaGraphExec_t, kinds> all{};
    for (unsigned kind = 0; kind < kinds; ++kind) check(cudaGraphUpload(all[kind] = graphs[kind].executable(), stream));
    check(cudaMemcpyAsync(to, all.data(), sizeof(all), cudaMemcpyHostToDevice, stream));
    check(cudaStreamSynchronize(stream));
  }

  // Its bodies.
  static cudaGraph_t* add_conditional(cudaGraph_t graph, cudaGraphConditionalHandle handle, cudaGraphConditionalNodeType type,
                                      unsigned bodies, const cudaGraphNode_t* after) {
    cudaGraphNodeParams node{};
    node.type = cudaGraphNodeTypeConditional;
    node.conditional.handle = handle;
    node.conditional.type = type;
    node.conditional.size = bodies;
    cudaGraphNode_t added = nullptr;
    check(cudaGraphAddNode(&added, graph, after, nullptr, after != nullptr ? 1 : 0, &node));
    return node.conditional.phGraph_out;
  }
  // The last node that it adds.
  template <class Work>
  static cudaGraphNode_t capture_into(cudaGraph_t graph, cudaStream_t stream, const Work& work) {
    check(cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, cudaStreamCaptureModeThreadLocal));
    work(stream);
    cudaStreamCaptureStatus status{};
    const cudaGraphNode_t* last = nullptr;
    std::size_t count = 0;
    check(cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &last, nullptr, &count));
    const cudaGraphNode_t node = count > 0 ? last[0] : nullptr;
    check(cudaStreamEndCapture(stream, nullptr));
    return node;
  }

  unsigned requests_, kernels_;
  InOut<std::uint32_t> state_;
  Output<std::uint32_t> choices_;
  Scratch<Progress> progress_;
  Scratch<cudaGraphExec_t> device_graphs_;
  Scratch<Progress> answer_;
  Scratch<std::uint32_t> told_;
  Graphs asked_, telling_, tailing_, scheduled_;
  FlaggedGraph scheduler_;
  cudaGraphExec_t loop_ = nullptr;
  std::vector<std::uint32_t> reference_, kinds_, known_;
};

}  // namespace

extern constinit const Pair device_graph_launch{
    .teaches =
        "when the next task depends on the last result, a graph that launches the next one on the device saves the trip to the "
        "host",
    .lesson = "tail_launch",
    .make = make<DeviceGraphLaunch>,
    .baseline = {.name = "host_asks",
                 .run = call<&DeviceGraphLaunch::host_asks>,
                 .prepare = call<&DeviceGraphLaunch::capture_for_host>},
    .optimized = variants({{.name = "tail_launch",
                            .run = call<&DeviceGraphLaunch::tail_launch>,
                            .prepare = call<&DeviceGraphLaunch::capture_tail_launches>},
                           {.name = "scheduler_graph",
                            .run = call<&DeviceGraphLaunch::scheduler_graph>,
                            .prepare = call<&DeviceGraphLaunch::capture_scheduler>,
                            .gains_over = "host_asks"},
                           {.name = "while_switch",
                            .run = call<&DeviceGraphLaunch::while_switch>,
                            .prepare = call<&DeviceGraphLaunch::build_loop>,
                            .needs = {.driver = 12080},
                            .gains_over = "host_asks"}}),
    // Nobody asks: the limit. A word in the host's memory, polled: what of the trip is the copy and the driver's wait.
    .controls = variants(
        {{.name = "known_order", .run = call<&DeviceGraphLaunch::known_order>, .prepare = call<&DeviceGraphLaunch::learn_order>},
         {.name = "mapped_choice",
          .run = call<&DeviceGraphLaunch::mapped_choice>,
          .prepare = call<&DeviceGraphLaunch::capture_telling_host>}}),
    .bound = Bound::latency,
    .tolerance = exact,
    .cache = Cache::hot,
    .start = Start::immediate,
    .sizes = sizes({{.name = "requests", .full = 128, .most = 4096, .scales = false},
                    {.name = "kernels", .full = 6, .most = 128, .scales = false}}),
    .sweep = cases({{"kernels_1", "kernels=1"},
                    {"kernels_3", "kernels=3"},
                    {"kernels_6", "kernels=6"},
                    {"kernels_24", "kernels=24"},
                    {"kernels_96", "kernels=96"}}),
    .edges = cases({{"one_request", "requests=1"}, {"one_kernel", "kernels=1,requests=5"}}),
};

}  // namespace aisp::ch12
