// SPDX-License-Identifier: Apache-2.0
// Chunks of activations arrive from host memory, and each is projected to queries, keys and values. One stream lets the copy
// engine and the tensor cores take turns. With a second buffer and a stream for the copies the next chunk arrives while the
// present one is computed, and only the first copy and the last computation have nothing to hide behind.
#include <cuda_bf16.h>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <array>

namespace aisp::ch01 {
namespace {

constexpr std::size_t chunks = 8, projections = 3, buffers = 2;

class DoubleBuffering final : public Workload {
 public:
  explicit DoubleBuffering(Setup& setup)
      : n_{setup.scaled(4096, 128)},
        in_{setup.input<__nv_bfloat16>(chunks * matrix(), uniform(-1, 1), {.name = "chunks", .memory = Memory::pinned})},
        weights_{setup.input<__nv_bfloat16>(projections * matrix(), uniform(-1, 1), {.name = "weights", .constant = true})},
        out_{setup.output<__nv_bfloat16>(chunks * projections * matrix(), {.name = "projections"})},
        device_in_{setup.scratch<__nv_bfloat16>(buffers * matrix(), {.name = "device chunks"})},
        copies_{setup.stream()},
        forked_{setup.event()},
        cublas_{setup} {
    for (auto* events : {&arrived_, &consumed_})
      for (cudaEvent_t& event : *events) event = setup.event();
  }

  Cost cost() const override {
    const double n = static_cast<double>(n_);
    return {
        .flops = 2 * n * n * n * chunks * projections, .math = Math::bf16, .host_to_device = static_cast<double>(in_.bytes())};
  }
  double expected(std::size_t index) const override {
    const std::size_t chunk = index / (projections * matrix()), projection = index / matrix() % projections;
    const std::size_t row = index % matrix() / n_, column = index % n_;
    double sum = 0;
    for (std::size_t i = 0; i < n_; ++i)
      sum += in_.host(chunk * matrix() + row * n_ + i) * weights_.host(projection * matrix() + i * n_ + column);
    return sum;
  }

  void one_stream(Launch& launch) {
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      upload(chunk, 0, launch.stream);
      project(chunk, 0, launch.stream);
    }
  }

  void two_buffers(Launch& launch) {
    pass(forked_, launch.stream, copies_);
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      const std::size_t buffer = chunk % buffers;
      if (chunk >= buffers) check(cudaStreamWaitEvent(copies_, consumed_[buffer]));
      upload(chunk, buffer, copies_);
      pass(arrived_[buffer], copies_, launch.stream);
      project(chunk, buffer, launch.stream);
      check(cudaEventRecord(consumed_[buffer], launch.stream));
    }
  }

 private:
  std::size_t matrix() const { return n_ * n_; }

  void upload(std::size_t chunk, std::size_t buffer, cudaStream_t stream) {
    check(cudaMemcpyAsync(device_in_ + buffer * matrix(), in_ + chunk * matrix(), matrix() * sizeof(__nv_bfloat16),
                          cudaMemcpyHostToDevice, stream));
  }
  void project(std::size_t chunk, std::size_t buffer, cudaStream_t stream) {
    const int n = static_cast<int>(n_);
    for (std::size_t projection = 0; projection < projections; ++projection)
      cublas_->gemm(stream, n, n, n, device_in_ + buffer * matrix(), weights_ + projection * matrix(),
                    out_ + (chunk * projections + projection) * matrix(), CUDA_R_16BF);
  }
  static void pass(cudaEvent_t event, cudaStream_t from, cudaStream_t to) {
    check(cudaEventRecord(event, from));
    check(cudaStreamWaitEvent(to, event));
  }

  std::size_t n_;
  Input<__nv_bfloat16> in_, weights_;
  Output<__nv_bfloat16> out_;
  Scratch<__nv_bfloat16> device_in_;
  cudaStream_t copies_;
  cudaEvent_t forked_;
  std::array<cudaEvent_t, buffers> arrived_{}, consumed_{};
  Opened<Cublas> cublas_;
};

}  // namespace

extern constinit const Pair double_buffering{
    .teaches = "copy engine and SMs are separate units, and two buffers with two streams keep both busy",
    .lesson = "two_buffers",
    .make = make<DoubleBuffering>,
    .baseline = {.name = "one_stream", .run = call<&DoubleBuffering::one_stream>},
    .optimized = variants({{.name = "two_buffers", .run = call<&DoubleBuffering::two_buffers>}}),
    .bound = Bound::transfer,
    .needs = {.libraries = {Library::cublas}},
    .start = Start::immediate,  // a copy takes far longer than the calls that queue what follows it
    .reference_samples = chunks * 2048,
};

}  // namespace aisp::ch01
