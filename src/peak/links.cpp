// SPDX-License-Identifier: Apache-2.0
// PCIe or NVLink-C2C to the host, NVLink or PCIe to other GPUs.
#include <aisp/library.hpp>
#include <aisp/peer.hpp>

#include <algorithm>
#include <memory>

#include "base/system/clock.hpp"
#include "measure/statistics/statistics.hpp"
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

// NCCL's header is no part of the CUDA toolkit; these four calls and two numbers have been the same since NCCL 2.0.
class Nccl {
 public:
  explicit Nccl(int gpus) : communicators_(static_cast<std::size_t>(gpus)) {
    check_nccl(function<int(void**, int, const int*)>("ncclCommInitAll")(communicators_.data(), gpus, nullptr));
  }
  ~Nccl() {
    for (void* communicator : communicators_) function<int(void*)>("ncclCommDestroy")(communicator);
  }
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  void all_reduce(const std::vector<std::unique_ptr<base::DeviceMemory>>& data, std::size_t floats,
                  const std::vector<cudaStream_t>& streams) {
    constexpr int float32 = 7, sum = 0;
    check_nccl(start_());
    for (std::size_t i = 0; i < communicators_.size(); ++i)
      check_nccl(reduce_(data[i]->data(), data[i]->data(), floats, float32, sum, communicators_[i], streams[i]));
    check_nccl(end_());
  }

 private:
  using AllReduce = int(const void*, void*, std::size_t, int, int, void*, cudaStream_t);
  template <class F>
  static F* function(const char* name) {
    return SharedLibrary::open(Library::nccl).function<F>(name);
  }
  static void check_nccl(int status) {
    if (status != 0) throw Unsupported{"NCCL failed with status " + std::to_string(status)};
  }

  std::vector<void*> communicators_;
  AllReduce* reduce_ = function<AllReduce>("ncclAllReduce");
  int (*start_)() = function<int()>("ncclGroupStart");
  int (*end_)() = function<int()>("ncclGroupEnd");
};

int visible_gpus() {
  int count = 0;
  check(cudaGetDeviceCount(&count));
  return count;
}

// One stream and one buffer a GPU, for as long as the all-reduce is measured.
class Ring {
 public:
  explicit Ring(int gpus) : streams_(static_cast<std::size_t>(gpus)) {
    for (int gpu = 0; gpu < gpus; ++gpu) {
      const SelectedGpu selected{gpu};
      check(cudaStreamCreateWithFlags(&streams_[static_cast<std::size_t>(gpu)], cudaStreamNonBlocking));
      data_.push_back(std::make_unique<base::DeviceMemory>(peer_copy_bytes));
      check(cudaMemset(data_.back()->data(), 0, peer_copy_bytes));
    }
  }
  ~Ring() {
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // On the host's clock: the kernels of all GPUs wait for each other, and milliseconds hide the launch.
  double seconds(Nccl& nccl, int times) {
    const double start_s = base::monotonic_s();
    for (int i = 0; i < times; ++i) nccl.all_reduce(data_, peer_copy_bytes / sizeof(float), streams_);
    for (cudaStream_t stream : streams_) check(cudaStreamSynchronize(stream));
    return (base::monotonic_s() - start_s) / times;
  }

 private:
  std::vector<cudaStream_t> streams_;
  std::vector<std::unique_ptr<base::DeviceMemory>> data_;
};

// As nccl-tests count: each GPU sends and receives 2 (n - 1) / n of the data.
Figure measure_all_reduce(int gpus) {
  Nccl nccl{gpus};
  Ring ring{gpus};
  ring.seconds(nccl, 5);
  std::vector<double> times_s;
  for (int i = 0; i < 7; ++i) times_s.push_back(ring.seconds(nccl, 5));
  const double moved = 2.0 * (gpus - 1) / gpus * static_cast<double>(peer_copy_bytes);
  return {.id = std::string{figure_id::all_reduce},
          .value = moved / measure::median(times_s),
          .how = std::to_string(gpus) + " GPUs, 1 GiB"};
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
  if (gpus >= 2) teller.figure(figure_id::all_reduce, [&] { return measure_all_reduce(gpus); });
}

}  // namespace aisp::peak
