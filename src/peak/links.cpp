// SPDX-License-Identifier: Apache-2.0
// PCIe or NVLink-C2C to the host, NVLink or PCIe to other GPUs.
#include <aisp/peer.hpp>

#include <memory>

#include "base/text.hpp"
#include "peak/kernels.hpp"
#include "peak/parts.hpp"

namespace aisp::peak {
namespace {

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

Load copy_load(const char* how, void* to, const void* from, std::size_t bytes) {
  return {how, static_cast<double>(bytes),
          [=](Launch& launch) { check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, launch.stream)); }};
}

}  // namespace

void measure_host_link(Bench& bench, const Teller& teller) {
  constexpr std::size_t bytes = host_copy_bytes;
  std::unique_ptr<PinnedMemory> up, down;
  const base::DeviceMemory in{bytes}, out{bytes};
  constexpr const char* how = "pinned, cudaMemcpyAsync";
  teller.figure(figure_id::host_to_device, [&] {
    up = std::make_unique<PinnedMemory>(bytes);
    return bench.best_rate(figure_id::host_to_device, {[&] { return copy_load(how, in.data(), up->data(), bytes); }});
  });
  teller.figure(figure_id::device_to_host, [&] {
    down = std::make_unique<PinnedMemory>(bytes);
    return bench.best_rate(figure_id::device_to_host, {[&] { return copy_load(how, down->data(), out.data(), bytes); }});
  });
  teller.figure(figure_id::both_directions, [&] {
    if (!up || !down) throw Unsupported{"there is no pinned memory for it"};
    const cudaStream_t other = bench.setup().stream();
    const cudaEvent_t fork = bench.setup().event(), join = bench.setup().event();
    const auto work = [&, other, fork, join](Launch& launch) {
      check(cudaEventRecord(fork, launch.stream));
      check(cudaStreamWaitEvent(other, fork));
      check(cudaMemcpyAsync(in.data(), up->data(), bytes, cudaMemcpyDefault, launch.stream));
      check(cudaMemcpyAsync(down->data(), out.data(), bytes, cudaMemcpyDefault, other));
      check(cudaEventRecord(join, other));
      check(cudaStreamWaitEvent(launch.stream, join));
    };
    return bench.best_rate(figure_id::both_directions, {[&] { return Load{"two streams", 2.0 * bytes, work}; }});
  });
}

void measure_peers(Bench& bench, const Teller& teller) {
  if (visible_gpus() < 2) return;
  const auto from_neighbour = [&](std::string_view id, const std::function<Load(void*, void*)>& make_load) {
    teller.figure(id, [&] {
      const PeerAccess access{0, 1};
      const base::DeviceMemory here{peer_copy_bytes};
      std::unique_ptr<base::DeviceMemory> there;
      {
        const SelectedGpu selected{1};
        there = std::make_unique<base::DeviceMemory>(peer_copy_bytes);
      }
      return bench.best_rate(id, {[&] { return make_load(here.data(), there->data()); }});
    });
  };
  constexpr std::size_t bytes = peer_copy_bytes;
  from_neighbour(figure_id::peer_copy, [&](void* here, void* there) {
    return Load{"cudaMemcpyPeerAsync", static_cast<double>(bytes),
                [=](Launch& launch) { check(cudaMemcpyPeerAsync(here, 0, there, 1, bytes, launch.stream)); }};
  });
  from_neighbour(figure_id::peer_pull, [&](void* here, void* there) {
    return Load{"16 bytes a thread", static_cast<double>(bytes),
                [=](Launch& launch) { launch_copy(there, here, bytes, launch.stream); }};
  });
}

void measure_collectives(const Teller& teller) {
  const int gpus = visible_gpus();
  if (gpus < 2) return;
  teller.figure(figure_id::all_reduce, [&] {
    const CollectiveTime time = measure_collective(gpus, Collective::all_reduce);
    return Figure{.id = std::string{figure_id::all_reduce},
                  .value = time.bus_bytes_s(static_cast<std::size_t>(gpus)),
                  .how = std::to_string(gpus) + " GPUs, " + base::human_bytes(time.bytes)};
  });
}

}  // namespace aisp::peak
