// SPDX-License-Identifier: Apache-2.0
// One training step of a 12-layer model: 420 short kernels and 640 tensors that are made and freed while the host queues it. The
// kernels are shorter than their launches, so the host sets the pace, and each call of the driver's pool adds to it. Free lists
// by size class answer in nanoseconds; a plan made of the step before gives every tensor an offset where steps repeat.
#include <aisp/graph.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "allocating_step.hpp"
#include "free_lists.hpp"
#include "live_blocks.hpp"
#include "memory_pool.hpp"

namespace aisp::ch13 {
namespace {

constexpr unsigned threads = 256;
constexpr std::size_t input_bytes = std::size_t{1} << 20, most_streams = 2;

__host__ __device__ inline std::uint32_t mixed(std::uint32_t a, std::uint32_t b, std::uint32_t salt) {
  const std::uint32_t x = (a ^ salt) * 0x9E3779B1u + b;
  return x ^ x >> 15;
}
__host__ __device__ inline uint4 mixed(uint4 a, uint4 b, std::uint32_t salt) {
  return make_uint4(mixed(a.x, b.x, salt), mixed(a.y, b.y, salt), mixed(a.z, b.z, salt), mixed(a.w, b.w, salt));
}

struct View {
  const uint4* words;
  unsigned count;
};
struct Result {
  uint4* words;
  unsigned count;
};

// Two results of two tensors, which are repeated where they are shorter. `cycles` make the kernel longer and change nothing.
__global__ __launch_bounds__(threads) void operation_kernel(View a, View b, Result main, Result second, std::uint32_t salt,
                                                            unsigned cycles) {
  const long long start = clock64();
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i < max(main.count, second.count)) {
    const uint4 value = mixed(a.words[i % a.count], b.words[i % b.count], salt);
    if (i < main.count) main.words[i] = value;
    if (i < second.count) second.words[i] = mixed(value, value, ~salt);
  }
  while (clock64() - start < cycles) {
  }
}

// The source of one stream's tensors.
struct FromPool {
  const MemoryPool* pool;
  Block allocate(std::uint32_t, std::size_t bytes, cudaStream_t stream) const {
    return {.memory = bytes == 0 ? nullptr : static_cast<std::byte*>(pool->allocate(bytes, stream))};
  }
  void release(const Block& block, cudaStream_t stream) const {
    if (block.memory != nullptr) check(cudaFreeAsync(block.memory, stream));
  }
  void end_step() const {}
};
struct FromLists {
  FreeLists lists;
  Block allocate(std::uint32_t, std::size_t bytes, cudaStream_t) { return lists.allocate(bytes); }
  void release(const Block& block, cudaStream_t) { lists.release(block); }
  void end_step() const {}
};
struct FromArena {
  FreeLists* others;
  PlannedArena arena;
  Block allocate(std::uint32_t, std::size_t bytes, cudaStream_t) { return arena.allocate(bytes); }
  void release(const Block& block, cudaStream_t) { arena.release(block); }
  void end_step() { arena.end_step(); }
};
struct FromFixed {
  std::byte* memory;
  const std::vector<std::size_t>* offsets;
  Block allocate(std::uint32_t tensor, std::size_t, cudaStream_t) const { return {.memory = memory + (*offsets)[tensor]}; }
  void release(const Block&, cudaStream_t) const {}
  void end_step() const {}
};

// The step of one stream under way.
template <class Source>
struct Lane {
  Source source;
  cudaStream_t stream = nullptr;
  std::array<Block, tensors> blocks{};
  std::size_t released = 0;
  Block old_state{};
};

class CustomAllocator final : public Workload {
 public:
  explicit CustomAllocator(Setup& setup)
      : streams_{setup.size("streams")},
        cycles_{static_cast<unsigned>(setup.size("cycles"))},
        step_{std::make_unique<Step>()},
        in_{setup.input<std::uint32_t>(streams_ * input_bytes / 4, integers(0, 0xFFFFFFFF), {.name = "inputs"})},
        releases_{
            setup.input<Release>(tensors - 1, HostFill<Release>{draw_releases}, {.name = "releases", .memory = Memory::pinned})},
        out_{setup.output<std::uint32_t>(streams_ * state_bytes / 4, {.name = "states"})},
        pool_{setup.device_ordinal(0), MemoryPool::keep_all},
        side_{setup.stream()},
        forked_{setup.event()},
        joined_{setup.event()} {
    std::size_t bytes = 0;
    for (const std::uint32_t tensor : step_->bytes) {
      offsets_.push_back(bytes);
      if (tensor > 0) bytes += class_bytes(class_of(tensor));
    }
    // Room for all tensors at once: more than any allocator needs.
    const auto region = [&](const char* name) -> std::byte* { return setup.scratch<std::byte>(bytes, {.name = name}); };
    lists_of_arena_.reserve(streams_);
    for (std::size_t s = 0; s < streams_; ++s) {
      pool_lanes_.push_back({FromPool{&pool_}});
      list_lanes_.push_back({FromLists{FreeLists{region("free lists"), bytes}}});
      lists_of_arena_.emplace_back(region("free lists of the arena"), bytes);
      arena_lanes_.push_back({FromArena{&lists_of_arena_[s], PlannedArena{region("arena"), bytes, lists_of_arena_[s]}}});
      fixed_lanes_.push_back({FromFixed{region("fixed buffers"), &offsets_}});
    }
  }
  ~CustomAllocator() override {
    for (const auto& lane : pool_lanes_) cudaFree(lane.old_state.memory);
  }

  Cost cost() const override { return {.dependent_kernels = static_cast<double>(operations)}; }

  void compute_reference(Launch&) override {
    expected_.clear();
    for (std::size_t s = 0; s < streams_; ++s) {
      std::vector<std::uint32_t> input(input_bytes / 4);
      for (std::size_t i = 0; i < input.size(); ++i) input[i] = in_.host(s * input.size() + i);
      std::vector<std::vector<std::uint32_t>> results(tensors);
      const auto words_of = [&](std::uint32_t t) -> const std::vector<std::uint32_t>& { return t == none ? input : results[t]; };
      for (std::uint32_t o = 0; o < operations; ++o) {
        const auto &a = words_of(step_->operation[o].inputs[0]), &b = words_of(step_->operation[o].inputs[1]);
        for (const int which : {0, 1}) {
          const std::uint32_t t = step_->operation[o].results[which];
          if (t == none) continue;
          results[t].resize(step_->bytes[t] / 4);
          for (std::size_t i = 0; i < results[t].size(); ++i) {
            const std::uint32_t value = mixed(a[i % a.size()], b[i % b.size()], salt(o));
            results[t][i] = which == 0 ? value : mixed(value, value, ~salt(o));
          }
        }
      }
      expected_.insert(expected_.end(), results[step_->state].begin(), results[step_->state].end());
    }
  }
  double expected(std::size_t index) const override { return expected_[index]; }

  // The allocations of two steps again without kernels, under an audit.
  void validate(std::string_view variant) override {
    if (variant == "caching") audit(list_lanes_[0]);
    if (variant == "planned_arena") audit(arena_lanes_[0]);
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    double reserved = static_cast<double>(streams_ * (offsets_.back() + class_bytes(class_of(step_->bytes.back()))));
    if (variant == "stream_pool") reserved = static_cast<double>(pool_.reserved_bytes());
    if (variant == "caching") reserved = sum(list_lanes_, [](const FromLists& from) { return from.lists.reserved_bytes(); });
    if (variant == "planned_arena")
      reserved =
          sum(arena_lanes_, [](const FromArena& from) { return from.arena.arena_bytes() + from.others->reserved_bytes(); });
    const double live = static_cast<double>(streams_ * peak_live_bytes());
    metrics.report("reserved", reserved / (1 << 20), "MiB", Metrics::Better::lower);
    metrics.report("fragmentation", 100 * (1 - live / reserved), "%", Metrics::Better::lower);
    metrics.report_rate("steps", 1, "steps/s");
  }

  void stream_pool(Launch& launch) { run(launch.stream, pool_lanes_); }
  void caching(Launch& launch) { run(launch.stream, list_lanes_); }
  void planned_arena(Launch& launch) { run(launch.stream, arena_lanes_); }
  void fixed_buffers(Launch& launch) { run(launch.stream, fixed_lanes_); }
  void capture(Launch& launch) {
    run(launch.stream, fixed_lanes_);  // code is loaded at its first launch, not while a capture is under way
    graph_.capture(launch.stream, [this](cudaStream_t stream) { run(stream, fixed_lanes_); });
  }
  void fixed_graph(Launch& launch) { graph_.launch(launch.stream); }

 private:
  static std::uint32_t salt(std::uint32_t operation) { return operation * 0x85EBCA6Bu + 1; }

  // A step on each stream, operation by operation in turn, so that one stream frees what the other asks for next.
  template <class Source>
  void run(cudaStream_t stream, std::vector<Lane<Source>>& lanes) {
    lanes[0].stream = stream;
    if (lanes.size() > 1) {
      lanes[1].stream = side_;
      check(cudaEventRecord(forked_, stream));
      check(cudaStreamWaitEvent(side_, forked_));
    }
    for (Lane<Source>& lane : lanes) lane.released = 0;
    for (std::uint32_t o = 0; o < operations; ++o)
      for (std::size_t s = 0; s < lanes.size(); ++s) {
        make_results(lanes[s], o);
        launch_operation(lanes[s], s, o);
        free_unused(lanes[s], o, [](const Block&, std::size_t) {});
      }
    for (std::size_t s = 0; s < lanes.size(); ++s) {
      lanes[s].old_state = lanes[s].blocks[step_->state];
      lanes[s].source.end_step();
      check(cudaMemcpyAsync(out_ + s * state_bytes / 4, lanes[s].old_state.memory, state_bytes, cudaMemcpyDeviceToDevice,
                            lanes[s].stream));
    }
    if (lanes.size() > 1) {
      check(cudaEventRecord(joined_, side_));
      check(cudaStreamWaitEvent(stream, joined_));
    }
  }
  template <class Source>
  void make_results(Lane<Source>& lane, std::uint32_t o) {
    for (const std::uint32_t t : step_->operation[o].results)
      if (t != none) lane.blocks[t] = lane.source.allocate(t, step_->bytes[t], lane.stream);
  }
  // Calls freed(block, bytes) before each release.
  template <class Source, class Freed>
  void free_unused(Lane<Source>& lane, std::uint32_t o, const Freed& freed) {
    const Release* const releases = releases_;
    for (; lane.released < tensors - 1 && releases[lane.released].operation == o; ++lane.released) {
      const std::uint32_t t = releases[lane.released].tensor;
      freed(lane.blocks[t], step_->bytes[t]);
      lane.source.release(lane.blocks[t], lane.stream);
    }
    if (o != old_state_last_use || lane.old_state.memory == nullptr) return;
    freed(lane.old_state, state_bytes);
    lane.source.release(lane.old_state, lane.stream);
    lane.old_state = {};
  }
  template <class Source>
  void launch_operation(const Lane<Source>& lane, std::size_t s, std::uint32_t o) const {
    const Operation& operation = step_->operation[o];
    const auto view = [&](std::uint32_t t) -> View {
      if (t == none) return {reinterpret_cast<const uint4*>(in_ + s * input_bytes / 4), input_bytes / sizeof(uint4)};
      return {reinterpret_cast<const uint4*>(lane.blocks[t].memory), step_->bytes[t] / static_cast<unsigned>(sizeof(uint4))};
    };
    const auto result = [&](std::uint32_t t) -> Result {
      if (t == none) return {nullptr, 0};
      return {reinterpret_cast<uint4*>(lane.blocks[t].memory), step_->bytes[t] / static_cast<unsigned>(sizeof(uint4))};
    };
    const Result main = result(operation.results[0]), second = result(operation.results[1]);
    const unsigned blocks = (std::max(main.count, second.count) + threads - 1) / threads;
    launch_kernel(lane.stream, operation_kernel, {blocks, threads}, view(operation.inputs[0]), view(operation.inputs[1]), main,
                  second, salt(o), cycles_);
  }

  template <class Source>
  void audit(Lane<Source>& lane) {
    LiveBlocks live;
    live.allocated(lane.old_state.memory, state_bytes);
    for (int step = 0; step < 2; ++step) {
      lane.released = 0;
      for (std::uint32_t o = 0; o < operations; ++o) {
        make_results(lane, o);
        for (const std::uint32_t t : step_->operation[o].results)
          if (t != none) live.allocated(lane.blocks[t].memory, step_->bytes[t]);
        for (const std::uint32_t t : step_->operation[o].inputs)
          if (t != none) live.used(lane.blocks[t].memory, step_->bytes[t]);
        free_unused(lane, o, [&](const Block& block, std::size_t bytes) { live.freed(block.memory, bytes); });
      }
      lane.old_state = lane.blocks[step_->state];
      lane.source.end_step();
    }
    live.freed(lane.old_state.memory, state_bytes);
    live.require_none();
    if (live.peak_bytes() != peak_live_bytes())
      throw std::runtime_error{"the steps of the audit hold other bytes than the timed one"};
  }
  // With the state of the step before.
  std::size_t peak_live_bytes() const {
    const Release* const releases = releases_;
    std::size_t live = state_bytes, peak = 0, released = 0;
    for (std::uint32_t o = 0; o < operations; ++o) {
      for (const std::uint32_t t : step_->operation[o].results)
        if (t != none) live += step_->bytes[t];
      peak = std::max(peak, live);
      for (; released < tensors - 1 && releases[released].operation == o; ++released)
        live -= step_->bytes[releases[released].tensor];
      if (o == old_state_last_use) live -= state_bytes;
    }
    return peak;
  }
  template <class Source, class BytesOf>
  static double sum(const std::vector<Lane<Source>>& lanes, const BytesOf& bytes_of) {
    double bytes = 0;
    for (const Lane<Source>& lane : lanes) bytes += static_cast<double>(bytes_of(lane.source));
    return bytes;
  }

  std::size_t streams_;
  unsigned cycles_;
  std::unique_ptr<Step> step_;
  Input<std::uint32_t> in_;
  Input<Release> releases_;
  Output<std::uint32_t> out_;
  MemoryPool pool_;
  cudaStream_t side_;
  cudaEvent_t forked_, joined_;
  std::vector<std::size_t> offsets_;  // of the fixed buffers
  std::vector<FreeLists> lists_of_arena_;
  std::vector<Lane<FromPool>> pool_lanes_;
  std::vector<Lane<FromLists>> list_lanes_;
  std::vector<Lane<FromArena>> arena_lanes_;
  std::vector<Lane<FromFixed>> fixed_lanes_;
  Graph graph_;
  std::vector<std::uint32_t> expected_;
};

}  // namespace

extern constinit const Pair custom_allocator{
    .teaches =
        "where kernels are shorter than their launches, even the calls of the driver's pool show; free lists answer in "
        "nanoseconds",
    .lesson = "caching",
    .make = make<CustomAllocator>,
    .baseline = {.name = "stream_pool", .run = call<&CustomAllocator::stream_pool>},
    .optimized =
        variants({{.name = "caching", .run = call<&CustomAllocator::caching>, .same_bits_as = "stream_pool"},
                  {.name = "planned_arena", .run = call<&CustomAllocator::planned_arena>, .same_bits_as = "stream_pool"}}),
    .controls = variants({{.name = "fixed_buffers", .run = call<&CustomAllocator::fixed_buffers>, .same_bits_as = "stream_pool"},
                          {.name = "fixed_graph",
                           .run = call<&CustomAllocator::fixed_graph>,
                           .prepare = call<&CustomAllocator::capture>,
                           .same_bits_as = "stream_pool"}}),
    .bound = Bound::latency,
    .tolerance = exact,
    .needs = {.attributes = {cudaDevAttrMemoryPoolsSupported}},
    .cache = Cache::hot,
    .start = Start::immediate,  // calls of the host are the subject
    // The kernels run for 2 us at 0 cycles.
    .sizes = sizes({{.name = "cycles", .full = 0, .most = 1u << 20, .scales = false},
                    {.name = "streams", .full = 1, .most = most_streams, .scales = false}}),
    .sweep = cases({{"cycles_0", "cycles=0"},
                    {"cycles_4000", "cycles=4000"},
                    {"cycles_8000", "cycles=8000"},
                    {"cycles_16000", "cycles=16000"},
                    {"cycles_32000", "cycles=32000"}}),
    .edges = cases({{"two_streams", "streams=2"}, {"two_streams_long", "streams=2,cycles=20000"}}),
};

}  // namespace aisp::ch13
