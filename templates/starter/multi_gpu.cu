// SPDX-License-Identifier: Apache-2.0
// Say here what the pair is about: what its baseline waits for, and what the other variants do about that.
#include <aisp/pair.hpp>
#include <aisp/peer.hpp>

namespace aisp::starter {
namespace {

class Work final : public Workload {
 public:
  explicit Work(Setup& setup)
      : first_{setup.device_ordinal(0)},
        second_{setup.device_ordinal(1)},
        first_writes_{first_, second_},
        count_{setup.scaled(std::size_t{1} << 24)},
        in_{setup.input<float>(count_, uniform(-1, 1), {.device = 0})},
        out_{setup.output<float>(count_, {.device = 1})},
        on_host_{setup.scratch<float>(count_, {.memory = Memory::pinned})},
        arrived_{setup.event(0)} {}

  Cost cost() const override {
    return {.bytes = static_cast<double>(in_.bytes()), .peer_bytes = static_cast<double>(in_.bytes())};
  }
  double expected(std::size_t i) const override { return in_.host(i); }

  // Each GPU has a stream. The harness lets the second one's begin behind the first one's and waits for both; only the order in
  // between is made here.
  void baseline(Launch& launch) {
    check(cudaMemcpyAsync(on_host_, in_, in_.bytes(), cudaMemcpyDeviceToHost, launch.streams[0]));
    check(cudaEventRecord(arrived_, launch.streams[0]));
    check(cudaStreamWaitEvent(launch.streams[1], arrived_));
    check(cudaMemcpyAsync(out_, on_host_, in_.bytes(), cudaMemcpyHostToDevice, launch.streams[1]));
  }
  void optimized(Launch& launch) { check(cudaMemcpyPeerAsync(out_, second_, in_, first_, in_.bytes(), launch.streams[0])); }

 private:
  int first_, second_;
  PeerAccess first_writes_;
  std::size_t count_;
  Input<float> in_;
  Output<float> out_;
  Scratch<float> on_host_;
  cudaEvent_t arrived_;
};

}  // namespace

extern constinit const Pair multi_gpu{
    .teaches = "say here in one sentence what the pair shows",
    .make = make<Work>,
    .baseline = {.name = "through_host", .run = call<&Work::baseline>},
    .optimized = variants({{.name = "peer_copy", .run = call<&Work::optimized>}}),
    .bound = Bound::transfer,
    .tolerance = exact,
    .needs = {.gpus = 2, .peer_access = true},
};

}  // namespace aisp::starter
