// SPDX-License-Identifier: Apache-2.0
// A tensor moves from one GPU to the next. Through a host buffer it crosses PCIe twice, one crossing after the other. With peer
// access each GPU's memory is part of the other's address space, and the tensor crosses NVLink once: moved by a copy engine, or
// by a kernel of the receiving GPU that loads from the sender's memory. The control is the same call without that access: the
// driver takes the way through the host, in pieces, and nobody complains.
#include <aisp/device/vector.cuh>
#include <aisp/pair.hpp>
#include <aisp/peer.hpp>

#include <array>
#include <optional>

namespace aisp::ch02 {
namespace {

constexpr int block_threads = 256, loads_per_thread = 4;
constexpr std::size_t floats_per_block = std::size_t{block_threads} * loads_per_thread * 4;

// Runs on the receiving GPU. A load over NVLink takes far longer than one from the GPU's own memory, so every thread has four of
// them under way before it stores the first. Four leave enough registers for the most threads an SM can hold.
__global__ __launch_bounds__(block_threads) void pull_kernel(const float4* remote, float4* local) {
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * (block_threads * loads_per_thread) + threadIdx.x;
  float4 values[loads_per_thread];
#pragma unroll
  for (int k = 0; k < loads_per_thread; ++k) values[k] = device::load_once(remote + first + k * block_threads);
#pragma unroll
  for (int k = 0; k < loads_per_thread; ++k) device::store_streaming(local + first + k * block_threads, values[k]);
}

class MemoryTransferMultigpu final : public Workload {
 public:
  explicit MemoryTransferMultigpu(Setup& setup)
      : sender_{setup.device_ordinal(0)},
        receiver_{setup.device_ordinal(1)},
        count_{setup.size("floats")},
        in_{setup.input<float>(count_, uniform(-1, 1), {.name = "tensor on the first GPU", .device = 0})},
        out_{setup.output<float>(count_, {.name = "tensor on the second GPU", .device = 1})},
        host_{setup.scratch<float>(count_, {.name = "host buffer", .memory = Memory::pinned})},
        arrived_on_host_{setup.event(0)} {
    give_access();
  }

  Cost cost() const override {
    return {.bytes = static_cast<double>(in_.bytes()), .peer_bytes = static_cast<double>(in_.bytes())};
  }

  double expected(std::size_t index) const override { return in_.host(index); }

  // The harness forks the second GPU's stream from the first one's and joins it again; only the order in between is made here.
  void through_host(Launch& launch) {
    check(cudaMemcpyAsync(host_, in_, in_.bytes(), cudaMemcpyDeviceToHost, launch.streams[0]));
    check(cudaEventRecord(arrived_on_host_, launch.streams[0]));
    check(cudaStreamWaitEvent(launch.streams[1], arrived_on_host_));
    check(cudaMemcpyAsync(out_, host_, in_.bytes(), cudaMemcpyHostToDevice, launch.streams[1]));
  }

  // Between executions; every variant but the one that goes without has it.
  void with_access(Launch&) { give_access(); }
  void without_access(Launch&) {
    for (auto& each : access_) each.reset();
  }

  void peer_copy(Launch& launch) { check(cudaMemcpyPeerAsync(out_, receiver_, in_, sender_, in_.bytes(), launch.streams[0])); }

  void sm_pull(Launch& launch) {
    const SelectedGpu selected{receiver_};
    const auto blocks = static_cast<unsigned>(count_ / floats_per_block);
    pull_kernel<<<blocks, block_threads, 0, launch.streams[1]>>>(reinterpret_cast<const float4*>(in_.get()),
                                                                 reinterpret_cast<float4*>(out_.get()));
    check(cudaGetLastError());
  }

 private:
  void give_access() {
    if (access_[0]) return;
    access_[0].emplace(receiver_, sender_);  // for loads of the kernel
    access_[1].emplace(sender_, receiver_);  // for writes of the sender's copy engine
  }

  int sender_, receiver_;
  std::array<std::optional<PeerAccess>, 2> access_{};
  std::size_t count_;
  Input<float> in_;
  Output<float> out_;
  Scratch<float> host_;
  cudaEvent_t arrived_on_host_;
};

}  // namespace

extern constinit const Pair memory_transfer_multigpu{
    .teaches =
        "peer access maps one GPU's memory into another's address space over NVLink; without it copies bounce through the host",
    .lesson = "peer_copy",
    .make = make<MemoryTransferMultigpu>,
    .baseline = {.name = "through_host",
                 .run = call<&MemoryTransferMultigpu::through_host>,
                 .reset = call<&MemoryTransferMultigpu::with_access>},
    .optimized = variants({{.name = "peer_copy",
                            .run = call<&MemoryTransferMultigpu::peer_copy>,
                            .reset = call<&MemoryTransferMultigpu::with_access>},
                           {.name = "sm_pull",
                            .run = call<&MemoryTransferMultigpu::sm_pull>,
                            .reset = call<&MemoryTransferMultigpu::with_access>,
                            .gains_over = "through_host"}}),
    .controls = variants({{.name = "peer_copy_without_access",
                           .run = call<&MemoryTransferMultigpu::peer_copy>,
                           .reset = call<&MemoryTransferMultigpu::without_access>}}),
    .bound = Bound::transfer,
    .tolerance = exact,
    .needs = {.gpus = 2, .peer_access = true},
    .start = Start::immediate,  // without access the driver cuts a copy into pieces and waits for them on the host
    .sizes = sizes({{.name = "floats", .full = 1u << 26, .multiple = floats_per_block, .most = 1u << 30}}),
    .sweep = cases({{"kib_64", "floats=16384"},
                    {"kib_512", "floats=131072"},
                    {"mib_4", "floats=1048576"},
                    {"mib_32", "floats=8388608"},
                    {"mib_256", "floats=67108864"}}),
};

}  // namespace aisp::ch02
