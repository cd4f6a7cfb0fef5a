// SPDX-License-Identifier: Apache-2.0
// Memory, launches and links of a GPU.
#include <aisp/graph.hpp>
#include <aisp/peer.hpp>

#include <algorithm>
#include <bit>
#include <memory>

#include "base/system/clock.hpp"
#include "base/text.hpp"
#include "measure/statistics/statistics.hpp"
#include "peak/kernels.hpp"
#include "peak/parts.hpp"

namespace aisp::peak {
namespace {

// Far beyond any L2, and three of them leave room on a small GPU.
std::size_t stream_bytes(const machine::Gpu& gpu) {
  return std::min(gib, std::bit_floor(std::max<std::size_t>(gpu.memory_bytes / 16, std::size_t{64} << 20)));
}

// A way to load that needs no preparation.
std::function<Load()> way(std::string how, double amount, Work work) {
  return [=] { return Load{how, amount, work}; };
}

void measure_streams(Bench& bench, const Teller& teller) {
  const std::size_t bytes = stream_bytes(bench.gpu());
  const base::DeviceMemory a{bytes}, b{bytes}, c{bytes}, sink{sizeof(std::uint32_t)};
  for (const base::DeviceMemory* memory : {&a, &b, &c})
    launch_fill(memory->data(), machine::NumberType::fp32, bytes / 4, 1, bench.stream());
  const auto amount = static_cast<double>(bytes);
  const Work read = [&](Launch& l) { launch_read(a.data(), bytes, sink.as<std::uint32_t>(), l.stream); };
  const Work write = [&](Launch& l) { launch_write(a.data(), bytes, l.stream); };
  const Work set = [&](Launch& l) { check(cudaMemsetAsync(a.data(), 1, bytes, l.stream)); };
  const Work copy = [&](Launch& l) { launch_copy(a.data(), b.data(), bytes, l.stream); };
  const Work engine = [&](Launch& l) { check(cudaMemcpyAsync(b.data(), a.data(), bytes, cudaMemcpyDeviceToDevice, l.stream)); };
  const Work triad = [&](Launch& l) { launch_triad(b.data(), c.data(), a.data(), bytes, l.stream); };
  constexpr const char* by_threads = "16 bytes a thread";
  // Lines that a read finds in L2 were not read from memory. Lines that a write leaves there are written by the next sample
  // instead, so writers are timed in their steady state.
  teller.figure(figure_id::hbm_read, [&] { return bench.best_rate({way(by_threads, amount, read)}, Cache::cold); });
  teller.figure(figure_id::hbm_write, [&] {
    return bench.best_rate({way(by_threads, amount, write), way("cudaMemsetAsync", amount, set)});
  });
  teller.figure(figure_id::hbm_copy, [&] {
    return bench.best_rate({way(by_threads, 2 * amount, copy), way("cudaMemcpyAsync", 2 * amount, engine)});
  });
  teller.figure(figure_id::hbm_triad, [&] { return bench.best_rate({way(by_threads, 3 * amount, triad)}); });
}

void measure_on_chip(Bench& bench, const Teller& teller) {
  const base::DeviceMemory sink{sizeof(std::uint32_t)};
  auto* const word = sink.as<std::uint32_t>();
  const int sms = bench.gpu().sm_count;
  teller.figure(figure_id::l2_read, [&] {
    // A third of L2 at most: the rest is for whatever else lives there.
    const std::size_t bytes = std::bit_floor(std::max<std::size_t>(bench.gpu().l2_bytes / 3, std::size_t{1} << 20));
    const base::DeviceMemory data{bytes};
    launch_fill(data.data(), machine::NumberType::fp32, bytes / 4, 1, bench.stream());
    constexpr int passes = 512;
    const double amount = launch_l2_read(data.data(), bytes, sms, passes, word, bench.stream());
    return bench.best_rate({way(base::human_bytes(static_cast<double>(bytes)), amount,
                                [&](Launch& l) { launch_l2_read(data.data(), bytes, sms, passes, word, l.stream); })});
  });
  teller.figure(figure_id::shared_read, [&] {
    constexpr int rounds = 2048;
    const double amount = launch_shared_read(sms, rounds, word, bench.stream());
    return bench.best_rate(
        {way("16 bytes a thread", amount, [&](Launch& l) { launch_shared_read(sms, rounds, word, l.stream); })});
  });
}

// Small work is timed on the host's clock, in blocks of calls so long that the clock's own time does not matter.
constexpr int blocks = 15;
constexpr int calls = 200;  // fewer than a stream holds before the caller waits

Figure host_time(const char* how, cudaStream_t stream, const std::function<void()>& call) {
  std::vector<double> times_s;
  for (int block = 0; block < blocks + 2; ++block) {
    const double start_s = base::monotonic_s();
    for (int i = 0; i < calls; ++i) call();
    times_s.push_back((base::monotonic_s() - start_s) / calls);
    check(cudaStreamSynchronize(stream));
  }
  times_s.erase(times_s.begin(), times_s.begin() + 2);
  return {.value = measure::median(times_s), .how = how};
}

Figure measure_empty_kernel(Bench& bench) {
  const Work work = [](Launch& launch) { launch_empty(launch.stream); };
  try {
    return {.value = bench.kernel_seconds(work), .how = "CUPTI"};
  } catch (const Unsupported&) {
    return {.value = bench.seconds(work), .how = "events, the stopwatch's own time taken off"};
  }
}

constexpr std::size_t host_copy_bytes = std::size_t{256} << 20;
constexpr std::size_t peer_copy_bytes = std::size_t{1} << 30;

class PinnedMemory {
 public:
  explicit PinnedMemory(std::size_t bytes) { check(cudaHostAlloc(&data_, bytes, cudaHostAllocDefault)); }
  ~PinnedMemory() { cudaFreeHost(data_); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

int visible_gpus() {
  int count = 0;
  check(cudaGetDeviceCount(&count));
  return count;
}

std::function<Load()> copy_by_engine(void* to, const void* from, std::size_t bytes) {
  return way("pinned, cudaMemcpyAsync", static_cast<double>(bytes),
             [=](Launch& launch) { check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, launch.stream)); });
}

}  // namespace

void measure_memory(Bench& bench, const Teller& teller) {
  measure_streams(bench, teller);
  measure_on_chip(bench, teller);
}

void measure_latency(Bench& bench, const Teller& teller) {
  const cudaStream_t stream = bench.stream();
  teller.figure(figure_id::kernel_launch,
                [&] { return host_time("host time of a call", stream, [&] { launch_empty(stream); }); });
  teller.figure(figure_id::graph_launch, [&] {
    Graph graph;
    graph.capture(stream, [](cudaStream_t on) { launch_empty(on); });
    return host_time("host time of a call, one kernel", stream, [&] { graph.launch(stream); });
  });
  teller.figure(figure_id::event_record, [&] {
    const cudaEvent_t event = bench.setup().event();
    return host_time("host time of a call", stream, [&] { check(cudaEventRecord(event, stream)); });
  });
  teller.figure(figure_id::synchronize, [&] {
    return host_time("empty kernel, cudaStreamSynchronize", stream, [&] {
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
    return Figure{.value = graph_s / nodes, .how = "graph of 100 empty kernels"};
  });
  teller.figure(figure_id::empty_kernel, [&] { return measure_empty_kernel(bench); });
}

// PCIe or NVLink-C2C to the host.
void measure_host_link(Bench& bench, const Teller& teller) {
  constexpr std::size_t bytes = host_copy_bytes;
  std::unique_ptr<PinnedMemory> up, down;
  const base::DeviceMemory in{bytes}, out{bytes};
  teller.figure(figure_id::host_to_device, [&] {
    up = std::make_unique<PinnedMemory>(bytes);
    return bench.best_rate({copy_by_engine(in.data(), up->data(), bytes)});
  });
  teller.figure(figure_id::device_to_host, [&] {
    down = std::make_unique<PinnedMemory>(bytes);
    return bench.best_rate({copy_by_engine(down->data(), out.data(), bytes)});
  });
  teller.figure(figure_id::both_directions, [&] {
    if (!up || !down) throw Unsupported{"there is no pinned memory for it"};
    const cudaStream_t other = bench.setup().stream();
    const cudaEvent_t fork = bench.setup().event(), join = bench.setup().event();
    return bench.best_rate({way("two streams", 2.0 * bytes, [&, other, fork, join](Launch& launch) {
      check(cudaEventRecord(fork, launch.stream));
      check(cudaStreamWaitEvent(other, fork));
      check(cudaMemcpyAsync(in.data(), up->data(), bytes, cudaMemcpyDefault, launch.stream));
      check(cudaMemcpyAsync(down->data(), out.data(), bytes, cudaMemcpyDefault, other));
      check(cudaEventRecord(join, other));
      check(cudaStreamWaitEvent(launch.stream, join));
    })});
  });
}

// NVLink or PCIe to another GPU, whose memory is read.
void measure_peers(Bench& bench, const Teller& teller) {
  if (visible_gpus() < 2) return;
  constexpr std::size_t bytes = peer_copy_bytes;
  const auto from_neighbour = [&](std::string_view id, const char* how, void (*work)(void* here, void* there, cudaStream_t)) {
    teller.figure(id, [&] {
      const PeerAccess access{0, 1};
      const base::DeviceMemory here{bytes};
      std::unique_ptr<base::DeviceMemory> there;
      {
        const SelectedGpu selected{1};
        there = std::make_unique<base::DeviceMemory>(bytes);
      }
      return bench.best_rate(
          {way(how, static_cast<double>(bytes), [&](Launch& launch) { work(here.data(), there->data(), launch.stream); })});
    });
  };
  from_neighbour(figure_id::peer_copy, "cudaMemcpyPeerAsync", [](void* here, void* there, cudaStream_t stream) {
    check(cudaMemcpyPeerAsync(here, 0, there, 1, bytes, stream));
  });
  from_neighbour(figure_id::peer_pull, "16 bytes a thread",
                 [](void* here, void* there, cudaStream_t stream) { launch_copy(there, here, bytes, stream); });
}

void measure_collectives(const Teller& teller) {
  const int gpus = visible_gpus();
  if (gpus < 2) return;
  teller.figure(figure_id::all_reduce, [&] {
    const CollectiveTime time = measure_collective(gpus, Collective::all_reduce);
    return Figure{.value = time.bus_bytes_s(static_cast<std::size_t>(gpus)),
                  .how = std::to_string(gpus) + " GPUs, " + base::human_bytes(time.bytes)};
  });
}

}  // namespace aisp::peak
