// SPDX-License-Identifier: Apache-2.0
// Optimizer states live in host memory: what a layer has used goes out, what the next layer needs comes in. The PCIe link has
// wires of its own for each direction and the GPU a copy engine for each, but in one stream the second copy waits for the first.
// With a stream per direction both are under way at once, and the step takes as long as the longer copy.
#include <aisp/pair.hpp>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace aisp::ch02 {
namespace {

constexpr std::size_t block_bytes = std::size_t{4} << 20, block_floats = block_bytes / sizeof(float);

class MemoryTransfer final : public Workload {
 public:
  explicit MemoryTransfer(Setup& setup)
      : count_{setup.size("floats")},
        used_{setup.input<float>(count_, normal(0, 1), {.name = "used moments"})},
        next_{setup.input<float>(count_, normal(0, 1), {.name = "next moments on the host", .memory = Memory::pinned})},
        saved_{setup.output<float>(count_, {.name = "saved moments", .memory = Memory::pinned})},
        loaded_{setup.output<float>(count_, {.name = "loaded moments"})},
        check_block_{setup.scratch<float>(block_floats, {.name = "block to compare", .memory = Memory::pinned})},
        inbound_{setup.stream()},
        forked_{setup.event()},
        joined_{setup.event()} {}

  Cost cost() const override {
    return {.host_to_device = static_cast<double>(loaded_.bytes()), .device_to_host = static_cast<double>(saved_.bytes())};
  }

  double expected_output(int output, std::size_t index) const override {
    return output == 0 ? used_.host(index) : next_.host(index);
  }

  // Both buffers in full, not only the sampled elements.
  void validate(std::string_view) override {
    compare(used_, saved_, "saved");
    compare(loaded_, next_, "loaded");
  }

  void one_stream(Launch& launch) {
    copy_out(launch.stream);
    copy_in(launch.stream);
  }

  void full_duplex(Launch& launch) {
    check(cudaEventRecord(forked_, launch.stream));
    check(cudaStreamWaitEvent(inbound_, forked_));
    copy_out(launch.stream);
    copy_in(inbound_);
    check(cudaEventRecord(joined_, inbound_));
    check(cudaStreamWaitEvent(launch.stream, joined_));
  }

 private:
  void copy_out(cudaStream_t stream) { check(cudaMemcpyAsync(saved_, used_, saved_.bytes(), cudaMemcpyDeviceToHost, stream)); }
  void copy_in(cudaStream_t stream) { check(cudaMemcpyAsync(loaded_, next_, loaded_.bytes(), cudaMemcpyHostToDevice, stream)); }

  void compare(const float* device, const float* host, const char* what) {
    for (std::size_t first = 0; first < count_; first += block_floats) {
      const std::size_t bytes = std::min(block_floats, count_ - first) * sizeof(float);
      check(cudaMemcpy(check_block_, device + first, bytes, cudaMemcpyDeviceToHost));
      if (std::memcmp(check_block_, host + first, bytes) != 0)
        throw std::runtime_error{"block " + std::to_string(first / block_floats) + " of the " + what + " moments is wrong"};
    }
  }

  std::size_t count_;
  Input<float> used_, next_;
  Output<float> saved_, loaded_;
  Scratch<float> check_block_;
  cudaStream_t inbound_;
  cudaEvent_t forked_, joined_;
};

}  // namespace

extern constinit const Pair memory_transfer{
    .teaches = "uploads and downloads use different copy engines and different wires; queued in one stream they take turns",
    .lesson = "full_duplex",
    .make = make<MemoryTransfer>,
    .baseline = {.name = "one_stream", .run = call<&MemoryTransfer::one_stream>},
    .optimized = variants({{.name = "full_duplex", .run = call<&MemoryTransfer::full_duplex>}}),
    .bound = Bound::transfer,
    .tolerance = exact,
    .sizes = sizes({{.name = "floats", .full = 64 * block_floats, .multiple = 1024, .most = 1u << 30}}),
    .sweep = cases({{"kib_16", "floats=4096"},
                    {"kib_128", "floats=32768"},
                    {"mib_1", "floats=262144"},
                    {"mib_8", "floats=2097152"},
                    {"mib_64", "floats=16777216"},
                    {"mib_256", "floats=67108864"}}),
};

}  // namespace aisp::ch02
