// SPDX-License-Identifier: Apache-2.0
// Three training steps that make, write, read and free 64 tensors through cudaMallocAsync; after each the host reads the loss.
// The pool's release threshold is 0 unless it is set, so the wait for the loss returns all free memory to the driver, and the
// next step maps it again. With a threshold above what a step needs, the pool keeps it.
#include <aisp/pair.hpp>

#include <array>
#include <chrono>
#include <string_view>

#include "memory_pool.hpp"
#include "tensor_passes.cuh"

namespace aisp::ch13 {
namespace {

constexpr std::size_t layers = 8, tensors = 8 * layers, steps = 3;
constexpr std::size_t narrow = 4096, wide = 14336, element_bytes = 2;

// A number of all sums that depends on their order; `loss` is memory of the host.
__global__ void loss_kernel(const std::uint32_t* sums, std::uint32_t* loss) {
  std::uint32_t value = 0;
  for (std::size_t t = 0; t < tensors; ++t) value = value * 3 + sums[t];
  *loss = value;
}

class StreamOrderedPool final : public Workload {
 public:
  explicit StreamOrderedPool(Setup& setup)
      : tokens_{setup.size("tokens")},
        first_{setup.input<std::uint32_t>(steps * tensors, integers(0, 0xFFFFFFFF), {.name = "first words"})},
        sums_{setup.output<std::uint32_t>(steps * tensors, {.name = "sums"})},
        losses_{setup.output<std::uint32_t>(steps, {.name = "losses", .memory = Memory::pinned})},
        space_{setup.scratch<std::byte>(offset(tokens_, tensors), {.name = "fixed buffers"})},
        warm_{setup.scratch<std::uint32_t>(tensors + 1, {.name = "results of the untimed step"})},
        default_pool_{setup.device_ordinal(0)},
        kept_pool_{setup.device_ordinal(0), std::uint64_t{setup.size("keep_mib")} << 20},
        trimmed_pool_{setup.device_ordinal(0), std::uint64_t{setup.size("keep_mib")} << 20} {}

  // Each tensor is written once and read once.
  Cost cost() const override {
    double bytes = 0;
    for (std::size_t step = 0; step < steps; ++step) bytes += 2.0 * static_cast<double>(offset(tokens_of(step), tensors));
    return {.bytes = bytes};
  }
  double expected_output(int output, std::size_t index) const override {
    if (output == 0) return sum(index / tensors, index % tensors);
    std::uint32_t loss = 0;
    for (std::size_t t = 0; t < tensors; ++t) loss = loss * 3 + sum(index, t);
    return loss;
  }

  void metrics(std::string_view variant, Metrics& metrics) override {
    double kept = static_cast<double>(space_.bytes());
    if (variant == "default_pool") kept = static_cast<double>(default_pool_.reserved_bytes());
    else if (variant == "trim_each_step") kept = static_cast<double>(trimmed_pool_.reserved_bytes());
    else if (variant != "fixed_buffers") kept = static_cast<double>(kept_pool_.reserved_bytes());
    metrics.report("kept", kept / (1 << 20), "MiB", Metrics::Better::lower);
    metrics.report("allocation_time", allocation_ms_, "ms", Metrics::Better::lower);
    metrics.report_rate("steps", steps, "steps/s");
  }

  void default_pool(Launch& launch) { train(launch, default_pool_); }
  void keep_pool(Launch& launch) { train(launch, kept_pool_); }
  void trim_each_step(Launch& launch) { train(launch, trimmed_pool_, true); }
  void fixed_buffers(Launch& launch) { train(launch, Fixed{space_, tokens_}); }

  // One step as large as the largest, so that no variant is the only one to pay for its first mapping.
  void warm_default_pool(Launch& launch) { warm(launch, default_pool_); }
  void warm_kept_pool(Launch& launch) { warm(launch, kept_pool_); }
  void warm_trimmed_pool(Launch& launch) { warm(launch, trimmed_pool_); }
  void warm_fixed_buffers(Launch& launch) { warm(launch, Fixed{space_, tokens_}); }

 private:
  // Tensors at the places that they have in the largest step.
  struct Fixed {
    std::byte* memory;
    std::size_t tokens;
  };

  // The second step needs less than the first, the third more than the second.
  std::size_t tokens_of(std::size_t step) const { return step == 1 ? tokens_ / 8 * 7 : tokens_; }
  static std::size_t tensor_bytes(std::size_t tokens, std::size_t tensor) {
    return tokens * (tensor % 2 == 0 ? narrow : wide) * element_bytes;
  }
  static std::size_t offset(std::size_t tokens, std::size_t tensor) {
    return (tensor + 1) / 2 * tensor_bytes(tokens, 0) + tensor / 2 * tensor_bytes(tokens, 1);
  }
  std::uint32_t sum(std::size_t step, std::size_t tensor) const {
    return tensor_sum(first_.host(step * tensors + tensor), tensor_bytes(tokens_of(step), tensor));
  }

  static void* allocate(const MemoryPool& pool, std::size_t bytes, std::size_t, cudaStream_t stream) {
    return pool.allocate(bytes, stream);
  }
  static void* allocate(const Fixed& fixed, std::size_t, std::size_t tensor, cudaStream_t) {
    return fixed.memory + offset(fixed.tokens, tensor);
  }
  static void release(const MemoryPool&, void* memory, cudaStream_t stream) { check(cudaFreeAsync(memory, stream)); }
  static void release(const Fixed&, void*, cudaStream_t) {}

  template <class Source>
  void train(Launch& launch, const Source& source, bool trims = false) {
    allocation_ms_ = 0;
    check(cudaMemsetAsync(sums_, 0, sums_.bytes(), launch.stream));
    for (std::size_t step = 0; step < steps; ++step) {
      run_step(launch, source, step, sums_ + step * tensors, losses_ + step);
      if (trims) trimmed_pool_.empty();
    }
  }
  template <class Source>
  void warm(Launch& launch, const Source& source) {
    check(cudaMemsetAsync(warm_, 0, warm_.bytes(), launch.stream));
    run_step(launch, source, 0, warm_, warm_ + tensors);
  }

  // Makes and writes all tensors, reads and frees them in reverse, and waits until the loss is on the host.
  template <class Source>
  void run_step(Launch& launch, const Source& source, std::size_t step, std::uint32_t* sums, std::uint32_t* loss) {
    std::array<void*, tensors> made{};
    const std::size_t tokens = tokens_of(step);
    for (std::size_t t = 0; t < tensors; ++t) {
      const auto before = std::chrono::steady_clock::now();
      made[t] = allocate(source, tensor_bytes(tokens, t), t, launch.stream);
      allocation_ms_ += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - before).count();
      write_tensor(launch.stream, made[t], tensor_bytes(tokens, t), first_ + step * tensors + t);
    }
    for (std::size_t t = tensors; t-- > 0;) {
      sum_tensor(launch.stream, made[t], tensor_bytes(tokens, t), sums + t);
      release(source, made[t], launch.stream);
    }
    launch(loss_kernel, {1, 1}, sums, loss);
    check(cudaStreamSynchronize(launch.stream));
  }

  std::size_t tokens_;
  Input<std::uint32_t> first_;
  Output<std::uint32_t> sums_, losses_;
  Scratch<std::byte> space_;
  Scratch<std::uint32_t> warm_;
  // A pool for each variant: what a run leaves in them does not depend on which one ran last.
  MemoryPool default_pool_, kept_pool_, trimmed_pool_;
  double allocation_ms_ = 0;
};

}  // namespace

extern constinit const Pair stream_ordered_pool{
    .teaches =
        "a pool of cudaMallocAsync returns unused memory to the driver at each synchronization unless its release threshold "
        "is set",
    .lesson = "keep_pool",
    .make = make<StreamOrderedPool>,
    .baseline = {.name = "default_pool",
                 .run = call<&StreamOrderedPool::default_pool>,
                 .reset = call<&StreamOrderedPool::warm_default_pool>},
    .optimized = variants(
        {{.name = "keep_pool", .run = call<&StreamOrderedPool::keep_pool>, .reset = call<&StreamOrderedPool::warm_kept_pool>}}),
    .controls = variants({{.name = "trim_each_step",
                           .run = call<&StreamOrderedPool::trim_each_step>,
                           .reset = call<&StreamOrderedPool::warm_trimmed_pool>},
                          {.name = "fixed_buffers",
                           .run = call<&StreamOrderedPool::fixed_buffers>,
                           .reset = call<&StreamOrderedPool::warm_fixed_buffers>}}),
    .bound = Bound::memory,
    .tolerance = exact,
    .needs = {.attributes = {cudaDevAttrMemoryPoolsSupported}},
    .start = Start::immediate,  // allocations and waits of the host are the subject
    .timeline = true,
    .sizes = sizes({{.name = "tokens", .full = 2048, .multiple = 64, .most = 8192},
                    // Above all that a step needs: the pool keeps everything.
                    {.name = "keep_mib", .full = 1u << 20, .most = 1u << 20, .scales = false}}),
    .sweep = cases({{"tokens_128", "tokens=128"},
                    {"tokens_512", "tokens=512"},
                    {"tokens_2048", "tokens=2048"},
                    {"tokens_8192", "tokens=8192"},
                    {"keep_1_mib", "keep_mib=1"},
                    {"keep_1_gib", "keep_mib=1024"},
                    {"keep_2_gib", "keep_mib=2048"},
                    {"keep_4_gib", "keep_mib=4096"}}),
    .edges = cases({{"small", "tokens=64"}}),
};

}  // namespace aisp::ch13
