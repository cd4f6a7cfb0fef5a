// SPDX-License-Identifier: Apache-2.0
// Rows that an embedding cache misses lie anywhere in a pinned table of the host and go to free slots of the GPU. Each row is
// 0.3 us of the link, but a copy of its own is a command for the copy engine, which runs one after the other. One batched call
// submits all of them at once, and a graph replays them; neither makes commands shorter. A kernel that reads the mapped table
// itself has thousands of reads in flight. Arrays that can be packed before they are needed: ch01:packed_transfers.
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

namespace aisp::ch11 {
namespace {

constexpr std::size_t missing_bytes = std::size_t{64} << 20, table_factor = 4;  // the table has four times the missing rows
constexpr int packing_threads = 8;
constexpr unsigned threads = 256, in_flight = 4;  // 16-byte reads of a thread

// A block copies one row from row `from[blockIdx.x]` to slot `to[blockIdx.x]`; either list may be absent: the rows in their
// order.
__global__ __launch_bounds__(threads) void gather_kernel(const uint4* rows, const unsigned* from, uint4* slots,
                                                         const unsigned* to, unsigned row_words) {
  const uint4* const row = rows + std::size_t{from != nullptr ? from[blockIdx.x] : blockIdx.x} * row_words;
  uint4* const slot = slots + std::size_t{to[blockIdx.x]} * row_words;
  for (unsigned first = threadIdx.x; first < row_words; first += threads * in_flight) {
    uint4 words[in_flight];
#pragma unroll
    for (unsigned k = 0; k < in_flight; ++k)
      if (first + k * threads < row_words) words[k] = row[first + k * threads];
#pragma unroll
    for (unsigned k = 0; k < in_flight; ++k)
      if (first + k * threads < row_words) slot[first + k * threads] = words[k];
  }
}

class BatchedMemcpy final : public Workload {
 public:
  explicit BatchedMemcpy(Setup& setup)
      : row_bytes_{setup.size("row_kib") * 1024},
        rows_{setup.scaled(missing_bytes / row_bytes_)},
        table_{setup.input<std::uint32_t>(table_factor * rows_ * row_bytes_ / 4, integers(0, 0xFFFFFFFF),
                                          {.name = "table", .memory = Memory::pinned})},
        ids_{setup.input<std::uint32_t>(rows_, HostFill<std::uint32_t>{[this](auto ids, auto seed) { draw_ids(ids, seed); }},
                                        {.name = "missing rows", .memory = Memory::pinned, .constant = true})},
        places_{setup.input<std::uint32_t>(rows_, HostFill<std::uint32_t>{shuffle},
                                           {.name = "slots", .memory = Memory::pinned, .constant = true})},
        cache_{setup.output<std::uint32_t>(rows_ * row_bytes_ / 4, {.name = "cache"})},
        slab_{setup.scratch<std::byte>(rows_ * row_bytes_, {.name = "packed rows", .memory = Memory::pinned})},
        landed_{setup.scratch<std::byte>(rows_ * row_bytes_, {.name = "packed rows on the device"})},
        from_(rows_),
        to_(rows_),
        sizes_(rows_, row_bytes_),
        team_{setup.threads(packing_threads)},
        forked_{setup.event()} {
    for (std::size_t s = 0; s < streams_.size(); ++s) streams_[s] = setup.stream(), done_[s] = setup.event();
  }
  ~BatchedMemcpy() override {
    if (copies_ != nullptr) cudaGraphExecDestroy(copies_);
  }

  Cost cost() const override { return {.host_to_device = static_cast<double>(cache_.bytes())}; }

  void compute_reference(Launch&) override {
    id_of_slot_.resize(rows_);
    for (std::size_t i = 0; i < rows_; ++i) id_of_slot_[places_.host(i)] = ids_.host(i);
  }
  double expected(std::size_t index) const override {
    const std::size_t words = row_bytes_ / 4;
    return table_.host(id_of_slot_[index / words] * words + index % words);
  }
  void metrics(std::string_view, Metrics& metrics) override { metrics.report_rate("rows", static_cast<double>(rows_), "rows/s"); }

  void copy_each(Launch& launch) {
    for (std::size_t i = 0; i < rows_; ++i) copy(i, launch.stream);
  }

  void memcpy_batch(Launch& launch) {
    for (std::size_t i = 0; i < rows_; ++i) {
      from_[i] = row(i);
      to_[i] = slot(i);
    }
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderAny;
    attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
    std::size_t first = 0;  // the attributes are those of all copies from this one on
    check(cudaMemcpyBatchAsync(to_.data(), from_.data(), sizes_.data(), rows_, &attributes, &first, 1, launch.stream));
  }

  void sm_gather(Launch& launch) {
    launch(gather_kernel, {blocks(), threads}, reinterpret_cast<const uint4*>(table_.get()), ids_, slots(), places_, row_words());
  }

  void record_copies(Launch& launch) {
    if (copies_ != nullptr) check(cudaGraphExecDestroy(copies_));
    copies_ = nullptr;
    cudaGraph_t graph = nullptr;
    check(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t last = nullptr;
    for (std::size_t i = 0; i < rows_; ++i) {
      cudaGraphNode_t node = nullptr;
      check(cudaGraphAddMemcpyNode1D(&node, graph, &last, i > 0 ? 1 : 0, slot(i), row(i), row_bytes_, cudaMemcpyHostToDevice));
      last = node;
    }
    check(cudaGraphInstantiate(&copies_, graph, 0));
    check(cudaGraphDestroy(graph));
    check(cudaGraphUpload(copies_, launch.stream));
  }
  void graph_of_copies(Launch& launch) { check(cudaGraphLaunch(copies_, launch.stream)); }

  void four_streams(Launch& launch) {
    check(cudaEventRecord(forked_, launch.stream));
    for (const cudaStream_t stream : streams_) check(cudaStreamWaitEvent(stream, forked_));
    for (std::size_t i = 0; i < rows_; ++i) copy(i, streams_[i % streams_.size()]);
    for (std::size_t s = 0; s < streams_.size(); ++s) {
      check(cudaEventRecord(done_[s], streams_[s]));
      check(cudaStreamWaitEvent(launch.stream, done_[s]));
    }
  }
  void pack_then_copy(Launch& launch) {
    pack(0, rows_);
    copy_packed(launch);
  }
  void threads_pack_then_copy(Launch& launch) {
    const auto workers = static_cast<std::size_t>(team_.size());
    team_.run([&](int worker) {
      const auto w = static_cast<std::size_t>(worker);
      pack(rows_ * w / workers, rows_ * (w + 1) / workers);
    });
    copy_packed(launch);
  }
  void one_copy(Launch& launch) { check(cudaMemcpyAsync(cache_, table_, cache_.bytes(), cudaMemcpyHostToDevice, launch.stream)); }

 private:
  void pack(std::size_t first, std::size_t last) const {
    for (std::size_t i = first; i < last; ++i) std::memcpy(slab_ + i * row_bytes_, row(i), row_bytes_);
  }
  void copy_packed(Launch& launch) const {
    check(cudaMemcpyAsync(landed_, slab_, slab_.bytes(), cudaMemcpyHostToDevice, launch.stream));
    launch(gather_kernel, {blocks(), threads}, reinterpret_cast<const uint4*>(landed_.get()), nullptr, slots(), places_,
           row_words());
  }
  // One row of every four neighbours is missing, in a random order.
  void draw_ids(std::span<std::uint32_t> ids, std::uint64_t seed) const {
    shuffle(ids, seed);
    for (std::uint32_t& id : ids) id = static_cast<std::uint32_t>(id * table_factor + random_bits(seed + 1, id) % table_factor);
  }
  static void shuffle(std::span<std::uint32_t> numbers, std::uint64_t seed) {
    std::iota(numbers.begin(), numbers.end(), 0u);
    for (std::size_t i = numbers.size(); i > 1; --i) std::swap(numbers[i - 1], numbers[random_bits(seed, i) % i]);
  }
  const std::byte* row(std::size_t i) const {
    return reinterpret_cast<const std::byte*>(table_.get()) + std::size_t{ids_.get()[i]} * row_bytes_;
  }
  std::byte* slot(std::size_t i) const {
    return reinterpret_cast<std::byte*>(cache_.get()) + std::size_t{places_.get()[i]} * row_bytes_;
  }
  void copy(std::size_t i, cudaStream_t stream) const {
    check(cudaMemcpyAsync(slot(i), row(i), row_bytes_, cudaMemcpyHostToDevice, stream));
  }
  unsigned blocks() const { return static_cast<unsigned>(rows_); }
  unsigned row_words() const { return static_cast<unsigned>(row_bytes_ / sizeof(uint4)); }
  uint4* slots() const { return reinterpret_cast<uint4*>(cache_.get()); }

  std::size_t row_bytes_, rows_;
  Input<std::uint32_t> table_, ids_, places_;
  Output<std::uint32_t> cache_;
  Scratch<std::byte> slab_, landed_;
  std::vector<const void*> from_;
  std::vector<void*> to_;
  std::vector<std::size_t> sizes_;
  ThreadTeam& team_;
  cudaEvent_t forked_;
  std::array<cudaStream_t, 4> streams_{};
  std::array<cudaEvent_t, 4> done_{};
  cudaGraphExec_t copies_ = nullptr;
  std::vector<std::size_t> id_of_slot_;
};

}  // namespace

extern constinit const Pair batched_memcpy{
    .teaches =
        "small copies wait for the copy engine, a command each; SMs that read the host's memory have thousands of reads in "
        "flight",
    .lesson = "sm_gather",
    .make = make<BatchedMemcpy>,
    .baseline = {.name = "copy_each", .run = call<&BatchedMemcpy::copy_each>},
    .optimized = variants({{.name = "memcpy_batch", .run = call<&BatchedMemcpy::memcpy_batch>, .needs = {.driver = 13000}},
                           {.name = "sm_gather", .run = call<&BatchedMemcpy::sm_gather>}}),
    .controls = variants({{.name = "graph_of_copies",
                           .run = call<&BatchedMemcpy::graph_of_copies>,
                           .prepare = call<&BatchedMemcpy::record_copies>},
                          {.name = "four_streams", .run = call<&BatchedMemcpy::four_streams>},
                          {.name = "pack_then_copy", .run = call<&BatchedMemcpy::pack_then_copy>},
                          {.name = "threads_pack_then_copy",
                           .run = call<&BatchedMemcpy::threads_pack_then_copy>,
                           .needs = {.cpus = packing_threads}},
                          {.name = "one_copy", .run = call<&BatchedMemcpy::one_copy>, .outputs = no_outputs}}),
    .bound = Bound::transfer,
    .tolerance = exact,
    .start = Start::immediate,  // submission is part of it
    .timeline = true,
    .sizes = sizes({{.name = "row_kib", .full = 16, .most = 1024, .scales = false}}),
    .sweep = cases(
        {{"row_2_kib", "row_kib=2"}, {"row_16_kib", "row_kib=16"}, {"row_64_kib", "row_kib=64"}, {"row_256_kib", "row_kib=256"}}),
    .edges = cases({{"odd_rows", "row_kib=3"}, {"row_256_kib", "row_kib=256"}}),
};

}  // namespace aisp::ch11
