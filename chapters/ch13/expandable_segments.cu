// SPDX-License-Identifier: Apache-2.0
// Eight steps of a layer of experts: each makes and writes 24 buffers whose sizes follow the routing, reads them, and frees them.
// An allocator above cudaMalloc keeps segments of the sizes of earlier steps, which seldom fit those of the next: at its cap it
// gives all free ones back to the driver and asks again. One range of addresses that is backed at its end has free space in one
// piece.
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "block_pool.hpp"
#include "live_blocks.hpp"
#include "tensor_passes.cuh"
#include "virtual_memory.hpp"

namespace aisp::ch13 {
namespace {

constexpr std::size_t experts = 24, steps = 8;
constexpr std::size_t skewed_step = 4, large_expert = 7;  // takes 60 % of the step's bytes
constexpr std::size_t mib = std::size_t{1} << 20;

// Sizes from 8 to 200 MB where a step has 1.6 GB, as many small as large ones by their logarithm; all steps have the same sum.
void draw_sizes(std::span<std::uint64_t> sizes, std::uint64_t seed, std::size_t total, bool equal) {
  for (std::size_t step = 0; step < sizes.size() / experts; ++step) {
    std::array<double, experts> shares{};
    double sum = 0;
    for (std::size_t e = 0; e < experts; ++e) {
      const double unit = static_cast<double>(random_bits(seed, step * experts + e) >> 11) * 0x1p-53;
      sum += shares[e] = equal ? 1 : std::pow(200.0 / 8, unit);
    }
    if (step == skewed_step && !equal) {
      sum -= shares[large_expert];
      shares[large_expert] = 1.5 * sum;
      sum *= 2.5;
    }
    std::size_t left = total;
    for (std::size_t e = 0; e < experts; ++e) {
      const auto share = static_cast<std::size_t>(static_cast<double>(total / BlockPool::granule) * (shares[e] / sum));
      const std::size_t bytes = e + 1 == experts ? left : share * BlockPool::granule;
      sizes[step * experts + e] = bytes;
      left -= bytes;
    }
  }
}

// How long the allocators' calls of the driver took, and how many there were.
struct DriverCalls {
  double ms = 0;
  int count = 0;
  template <class Call>
  auto timed(const Call& call) {
    const auto before = std::chrono::steady_clock::now();
    const auto result = call();
    ms += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - before).count();
    ++count;
    return result;
  }
};

struct DriverSegments {
  DriverCalls* calls;
  BlockPool::Address make(std::size_t bytes) const {
    void* memory = nullptr;
    const cudaError_t status = calls->timed([&] { return cudaMalloc(&memory, bytes); });
    if (status == cudaErrorMemoryAllocation) cudaGetLastError();
    else check(status);
    return reinterpret_cast<BlockPool::Address>(memory);
  }
  void release(BlockPool::Address first, std::size_t) const {
    calls->timed([&] { return cudaFree(reinterpret_cast<void*>(first)); });
  }
};

class MappedRange {
 public:
  MappedRange(int gpu, std::size_t cap_bytes, std::size_t handle_bytes, DriverCalls& calls)
      : pages_{std::make_unique<PagedMemory>(gpu, handle_bytes)}, base_{pages_->reserve(cap_bytes)}, calls_{&calls} {}

  std::size_t handle_bytes() const { return pages_->page_bytes(); }
  BlockPool::Address map(std::size_t bytes) {
    const BlockPool::Address first = base_ + pages_->mapped_pages() * handle_bytes();
    for (std::size_t at = 0; at < bytes; at += handle_bytes()) calls_->timed([&] { return pages_->map_page(first + at), true; });
    return first;
  }
  void unmap_all() { pages_->release_down_to(0); }

 private:
  std::unique_ptr<PagedMemory> pages_;
  CUdeviceptr base_;
  DriverCalls* calls_;
};

// Buffers one after the other, from the beginning in each step.
class FixedBuffers {
 public:
  explicit FixedBuffers(std::byte* memory) : memory_{memory} {}
  void* allocate(std::size_t bytes) { return memory_ + std::exchange(next_, next_ + bytes); }
  void release(void*) { next_ = 0; }
  void empty() {}
  void forget_peaks() {}

 private:
  std::byte* memory_;
  std::size_t next_ = 0;
};

class ExpandableSegments final : public Workload {
 public:
  explicit ExpandableSegments(Setup& setup)
      : total_{setup.size("mib") * mib},
        cap_{setup.size("cap_mib") * mib},
        handle_bytes_{setup.size("handle_mib") * mib},
        gpu_{setup.device_ordinal(0)},
        sizes_{setup.input<std::uint64_t>(
            steps * experts,
            [total = total_, equal = setup.size("equal") == 1](std::span<std::uint64_t> sizes, std::uint64_t seed) {
              draw_sizes(sizes, seed, total, equal);
            },
            {.name = "sizes", .memory = Memory::pinned})},
        first_{setup.input<std::uint32_t>(steps * experts, integers(0, 0xFFFFFFFF), {.name = "first words"})},
        sums_{setup.output<std::uint32_t>(steps * experts, {.name = "sums"})},
        warm_sums_{setup.scratch<std::uint32_t>(experts, {.name = "sums of the untimed step"})},
        fixed_memory_{setup.scratch<std::byte>(total_, {.name = "fixed buffers"})},
        segments_{DriverSegments{&calls_}, cap_, Rounding::granules},
        rounded_{DriverSegments{&calls_}, cap_, Rounding::eighths},
        uncapped_{DriverSegments{&calls_}, 8 * cap_, Rounding::granules},
        fixed_{fixed_memory_} {
    draw_sizes(warm_sizes_, 1, total_, setup.size("equal") == 1);
  }

  // Each buffer of the timed steps is written once and read once.
  Cost cost() const override { return {.bytes = 2.0 * steps * static_cast<double>(total_)}; }
  double expected(std::size_t index) const override { return tensor_sum(first_.host(index), sizes_.host(index)); }

  void metrics(std::string_view variant, Metrics& metrics) override {
    const BlockPool* const pool = pool_of(variant);
    const double reserved = static_cast<double>(pool != nullptr ? pool->peak_reserved_bytes() : total_);
    metrics.report("reserved", reserved / mib, "MiB", Metrics::Better::lower);
    metrics.report("fragmentation", 100 * (1 - static_cast<double>(total_) / reserved), "%", Metrics::Better::lower);
    metrics.report("driver_time", calls_.ms, "ms", Metrics::Better::lower);
    metrics.report("driver_calls", calls_.count, "", Metrics::Better::lower);
    metrics.report("retries", restarts_ + retries_of(variant), "", Metrics::Better::lower);
    metrics.report_rate("steps", steps, "steps/s");
    check(cudaDeviceSynchronize());
    give_back();
  }
  // Every step again without kernels, under an audit, and a request that cannot be met.
  void validate(std::string_view variant) override {
    if (variant == "segments") audit(segments_);
    if (variant == "rounded_sizes") audit(rounded_);
    if (variant == "large_cap") audit(uncapped_);
    if (variant == "expandable") audit(*expandable_);
  }

  void segments(Launch& launch) { train(launch, segments_); }
  void rounded_sizes(Launch& launch) { train(launch, rounded_); }
  void large_cap(Launch& launch) { train(launch, uncapped_); }
  void expandable(Launch& launch) { train(launch, *expandable_); }
  void fixed_buffers(Launch& launch) { train(launch, fixed_); }

  void reserve_range(Launch&) {
    if (!expandable_)
      expandable_ = std::make_unique<ExpandableAllocator<MappedRange>>(MappedRange{gpu_, cap_, handle_bytes_, calls_}, cap_);
  }
  void warm_segments(Launch& launch) { warm(launch, segments_); }
  void warm_rounded_sizes(Launch& launch) { warm(launch, rounded_); }
  void warm_large_cap(Launch& launch) { warm(launch, uncapped_); }
  void warm_expandable(Launch& launch) { warm(launch, *expandable_); }
  void warm_fixed_buffers(Launch& launch) { warm(launch, fixed_); }

 private:
  const BlockPool* pool_of(std::string_view variant) const {
    if (variant == "segments") return &segments_.pool();
    if (variant == "rounded_sizes") return &rounded_.pool();
    if (variant == "large_cap") return &uncapped_.pool();
    return variant == "expandable" ? &expandable_->pool() : nullptr;
  }
  int retries_of(std::string_view variant) const {
    if (variant == "segments") return segments_.retries();
    return variant == "rounded_sizes" ? rounded_.retries() : 0;
  }

  // Outside of the timed window: what one variant holds must not be missing when another one asks for memory.
  void give_back() {
    segments_.empty();
    rounded_.empty();
    uncapped_.empty();
    if (expandable_) expandable_->empty();
  }

  const std::uint64_t* sizes_of(std::size_t step) const { return sizes_.get() + step * experts; }

  // Empty allocators, then a step of other sizes: all variants have had memory from the driver when the run begins.
  template <class Allocator>
  void warm(Launch& launch, Allocator& allocator) {
    check(cudaStreamSynchronize(launch.stream));
    give_back();
    check(cudaMemsetAsync(warm_sums_, 0, warm_sums_.bytes(), launch.stream));
    run_step(launch, allocator, warm_sizes_.data(), first_, warm_sums_);
  }
  template <class Allocator>
  void train(Launch& launch, Allocator& allocator) {
    calls_ = {};
    restarts_ = 0;
    allocator.forget_peaks();
    check(cudaMemsetAsync(sums_, 0, sums_.bytes(), launch.stream));
    for (std::size_t step = 0; step < steps; ++step)
      run_step(launch, allocator, sizes_of(step), first_ + step * experts, sums_ + step * experts);
  }
  template <class Allocator>
  void run_step(Launch& launch, Allocator& allocator, const std::uint64_t* sizes, const std::uint32_t* first,
                std::uint32_t* sums) {
    const auto write = [&](std::size_t e, void* buffer) { write_tensor(launch.stream, buffer, sizes[e], first + e); };
    const std::array<void*, experts> buffers = make_buffers(allocator, sizes, write);
    for (std::size_t e = 0; e < experts; ++e) sum_tensor(launch.stream, buffers[e], sizes[e], sums + e);
    for (void* const buffer : buffers) allocator.release(buffer);
  }
  // An allocator that runs out of memory although enough bytes are free is emptied, and the step begins again.
  template <class Allocator, class Write>
  std::array<void*, experts> make_buffers(Allocator& allocator, const std::uint64_t* sizes, const Write& write) {
    std::array<void*, experts> buffers{};
    for (bool is_second = false;; is_second = true) {
      std::size_t made = 0;
      try {
        for (; made < experts; ++made) write(made, buffers[made] = allocator.allocate(sizes[made]));
        return buffers;
      } catch (const OutOfMemory&) {
        if (is_second) throw;
      }
      while (made > 0) allocator.release(buffers[--made]);
      check(cudaDeviceSynchronize());
      allocator.empty();
      ++restarts_;
    }
  }

  template <class Allocator>
  void audit(Allocator& allocator) {
    LiveBlocks live;
    for (std::size_t step = 0; step < steps; ++step) {
      const std::uint64_t* const sizes = sizes_of(step);
      const auto buffers = make_buffers(allocator, sizes, [](std::size_t, void*) {});
      for (std::size_t e = 0; e < experts; ++e) live.allocated(buffers[e], sizes[e]);
      for (const std::size_t parity : {1, 0})  // freed out of order
        for (std::size_t e = parity; e < experts; e += 2) {
          live.freed(buffers[e], sizes[e]);
          allocator.release(buffers[e]);
        }
    }
    live.require_none();
    try {
      allocator.allocate(8 * cap_ + 1);
    } catch (const OutOfMemory&) {
      return;
    }
    throw std::runtime_error{"a request above the cap was met"};
  }

  std::size_t total_, cap_, handle_bytes_;
  int gpu_;
  // Sizes of the untimed step before each run, always the same ones, so that runs on the same inputs leave the same segments.
  std::array<std::uint64_t, experts> warm_sizes_{};
  Input<std::uint64_t> sizes_;
  Input<std::uint32_t> first_;
  Output<std::uint32_t> sums_;
  Scratch<std::uint32_t> warm_sums_;
  Scratch<std::byte> fixed_memory_;
  DriverCalls calls_;
  int restarts_ = 0;
  SegmentAllocator<DriverSegments> segments_, rounded_, uncapped_;
  FixedBuffers fixed_;
  std::unique_ptr<ExpandableAllocator<MappedRange>> expandable_;
};

}  // namespace

extern constinit const Pair expandable_segments{
    .teaches =
        "segments of earlier steps' sizes fragment memory, and at the cap all of them go back to the driver; one range that "
        "grows at its end does neither",
    .lesson = "expandable",
    .make = make<ExpandableSegments>,
    .baseline = {.name = "segments",
                 .run = call<&ExpandableSegments::segments>,
                 .reset = call<&ExpandableSegments::warm_segments>},
    .optimized = variants({{.name = "rounded_sizes",
                            .run = call<&ExpandableSegments::rounded_sizes>,
                            .reset = call<&ExpandableSegments::warm_rounded_sizes>},
                           {.name = "expandable",
                            .run = call<&ExpandableSegments::expandable>,
                            .prepare = call<&ExpandableSegments::reserve_range>,
                            .reset = call<&ExpandableSegments::warm_expandable>}}),
    .controls = variants(
        {{.name = "large_cap", .run = call<&ExpandableSegments::large_cap>, .reset = call<&ExpandableSegments::warm_large_cap>},
         {.name = "fixed_buffers",
          .run = call<&ExpandableSegments::fixed_buffers>,
          .reset = call<&ExpandableSegments::warm_fixed_buffers>}}),
    .bound = Bound::memory,
    .tolerance = exact,
    .start = Start::immediate,  // calls of the driver are the subject
    .timeline = true,
    .sizes = sizes({{.name = "mib", .full = 1600, .multiple = 16, .least = 16, .most = 8192},
                    {.name = "cap_mib", .full = 2048, .multiple = 4, .least = 256, .scales = false},
                    {.name = "handle_mib", .full = 20, .multiple = 2, .most = 512, .scales = false},
                    option("equal")}),
    .sweep = cases({{"cap_1900", "cap_mib=1900"},
                    {"cap_2048", "cap_mib=2048"},
                    {"cap_3000", "cap_mib=3000"},
                    {"cap_6000", "cap_mib=6000"},
                    {"handle_2", "handle_mib=2"},
                    {"handle_20", "handle_mib=20"},
                    {"handle_64", "handle_mib=64"},
                    {"equal_sizes", "equal=1"}}),
    .edges = cases({{"small", "mib=16"}, {"tight", "mib=160,cap_mib=256"}, {"equal", "mib=160,cap_mib=256,equal=1"}}),
};

}  // namespace aisp::ch13
