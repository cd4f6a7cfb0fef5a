// SPDX-License-Identifier: Apache-2.0
// Gathering 262144 scattered pages of a KV cache (4 KB each: 16 tokens of 128 bf16) into one contiguous piece: 1.07 GB read,
// 1.07 GB written. Copied one 2-byte element a thread, too few bytes are on their way to fill the memory's latency; 16 bytes a
// thread are enough. A bulk copy is no faster, but moves a whole page for one instruction of one thread, without registers: a
// thread sees its page through and ends, or four warps on an SM stay and keep rings of pages moving. The ring needs far fewer
// blocks at once; the short ones begin in the order of the pages.
#include <cuda_bf16.h>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

namespace aisp::ch10 {
namespace {

using bf16 = __nv_bfloat16;
constexpr unsigned page_elements = 16 * 128;
constexpr unsigned page_bytes = page_elements * sizeof(bf16);
constexpr unsigned page_vectors = page_bytes / sizeof(uint4);

constexpr int element_threads = 128;  // the fastest of 128, 256, 512 and 1024
__global__ void element_per_thread_kernel(const bf16* pool, const unsigned* table, bf16* out) {
  const bf16* from = pool + static_cast<std::size_t>(table[blockIdx.x]) * page_elements;
  bf16* to = out + static_cast<std::size_t>(blockIdx.x) * page_elements;
  for (unsigned i = threadIdx.x; i < page_elements; i += blockDim.x) to[i] = from[i];
}

// The fastest of 1, 2, 4 and 8 vectors a thread.
constexpr unsigned vectors = 2, threads_per_page = page_vectors / vectors, pages_per_block = 2;
__global__ __launch_bounds__(threads_per_page* pages_per_block) void vector16_kernel(const uint4* pool, const unsigned* table,
                                                                                     uint4* out, unsigned pages) {
  const unsigned page = blockIdx.x * pages_per_block + threadIdx.x / threads_per_page, t = threadIdx.x % threads_per_page;
  if (page >= pages) return;
  const uint4* from = pool + static_cast<std::size_t>(table[page]) * page_vectors + t;
  uint4* to = out + static_cast<std::size_t>(page) * page_vectors + t;
  uint4 values[vectors];
#pragma unroll
  for (unsigned i = 0; i < vectors; ++i) values[i] = from[i * threads_per_page];
#pragma unroll
  for (unsigned i = 0; i < vectors; ++i) to[i * threads_per_page] = values[i];
}

// A block of one thread, which sees its page through.
__global__ __launch_bounds__(1) void bulk_page_kernel(const uint4* pool, const unsigned* table, uint4* out) {
  __shared__ __align__(128) uint4 page[page_vectors];
  __shared__ std::uint64_t filled;
  const unsigned entry = table[blockIdx.x];
  device::barrier_init(&filled, 1);
  device::fence_barrier_init();
  device::barrier_arrive_expect(&filled, page_bytes);
  device::bulk_load(page, pool + static_cast<std::size_t>(entry) * page_vectors, page_bytes, &filled);
  device::barrier_wait(&filled, 0);
  device::bulk_store(out + static_cast<std::size_t>(blockIdx.x) * page_vectors, page, page_bytes);
  device::commit_stores();
  device::wait_stores_read<0>();
}

constexpr unsigned slots = 4;     // pages in shared memory
constexpr unsigned draining = 2;  // of them: pages whose way out has begun; the others are on their way in
constexpr int rings_per_sm = 4;
constexpr unsigned ring_bytes = slots * page_bytes;

// Block b copies the pages b, b + gridDim.x, ... Lane 0 starts every copy; the other lanes only help to fetch the table, 32
// entries at once and one batch ahead, because an entry that comes late would stop the ring.
__global__ __launch_bounds__(32) void bulk_ring_kernel(const uint4* pool, const unsigned* table, uint4* out, unsigned pages) {
  extern __shared__ __align__(128) uint4 ring[];
  __shared__ std::uint64_t filled[slots];
  const unsigned lane = threadIdx.x;
  const unsigned mine = (pages - blockIdx.x + gridDim.x - 1) / gridDim.x;
  const auto page_of = [&](unsigned turn) { return blockIdx.x + turn * gridDim.x; };
  const auto entry_of = [&](unsigned turn) { return turn < mine ? table[page_of(turn)] : 0; };
  if (lane == 0) {
    for (auto& barrier : filled) device::barrier_init(&barrier, 1);
    device::fence_barrier_init();
  }
  __syncwarp();

  unsigned entries = entry_of(lane), next_entries = entry_of(32 + lane);
  unsigned loaded = 0;
  const auto load_next = [&] {
    const unsigned entry = __shfl_sync(~0u, entries, static_cast<int>(loaded % 32));
    if (lane == 0) {
      const unsigned slot = loaded % slots;
      device::barrier_arrive_expect(&filled[slot], page_bytes);
      device::bulk_load(ring + slot * page_vectors, pool + static_cast<std::size_t>(entry) * page_vectors, page_bytes,
                        &filled[slot]);
    }
    if (++loaded % 32 == 0) {
      entries = next_entries;
      next_entries = entry_of(loaded + 32 + lane);
    }
  };
  while (loaded < slots && loaded < mine) load_next();
  for (unsigned turn = 0; turn < mine; ++turn) {
    const unsigned slot = turn % slots;
    if (lane == 0) {
      device::barrier_wait(&filled[slot], turn / slots % 2);
      device::bulk_store(out + static_cast<std::size_t>(page_of(turn)) * page_vectors, ring + slot * page_vectors, page_bytes);
      device::commit_stores();
      device::wait_stores_read<draining>();  // the slot of the page before those is free again
    }
    if (turn >= draining && loaded < mine) load_next();
  }
  if (lane == 0) device::wait_stores_read<0>();
}

// A random order of the pages: every page is read once.
void shuffle_pages(std::span<unsigned> table, std::uint64_t seed) {
  std::iota(table.begin(), table.end(), 0u);
  for (std::size_t i = table.size() - 1; i > 0; --i) std::swap(table[i], table[random_bits(seed, i) % (i + 1)]);
}

class TmaBulkGather final : public Workload {
 public:
  explicit TmaBulkGather(Setup& setup)
      : pages_{static_cast<unsigned>(setup.scaled(262144))},
        pool_{setup.input<bf16>(std::size_t{pages_} * page_elements, normal(0, 1), {.name = "pool"})},
        table_{setup.input<unsigned>(pages_, HostFill<unsigned>{shuffle_pages}, {.name = "page table"})},
        out_{setup.output<bf16>(std::size_t{pages_} * page_elements, {.name = "contiguous"})} {}

  Cost cost() const override { return {.bytes = static_cast<double>(pool_.bytes() + table_.bytes() + out_.bytes())}; }
  double expected(std::size_t i) const override {
    return pool_.host(std::size_t{table_.host(i / page_elements)} * page_elements + i % page_elements);
  }

  void element_per_thread(Launch& launch) { launch(element_per_thread_kernel, {pages_, element_threads}, pool_, table_, out_); }
  void vector16(Launch& launch) {
    const unsigned blocks = (pages_ + pages_per_block - 1) / pages_per_block;
    launch(vector16_kernel, {blocks, threads_per_page * pages_per_block}, pool(), table_, out(), pages_);
  }
  void bulk_page(Launch& launch) { launch(bulk_page_kernel, {pages_, 1}, pool(), table_, out()); }
  void count_rings(Launch&) {
    int resident = 0;
    allow_shared_memory(bulk_ring_kernel, ring_bytes);
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, bulk_ring_kernel, 32, ring_bytes));
    ring_blocks_ = std::min(multiprocessors() * static_cast<unsigned>(std::min(resident, rings_per_sm)), pages_);
  }
  void bulk_ring(Launch& launch) { launch(bulk_ring_kernel, {ring_blocks_, 32, ring_bytes}, pool(), table_, out(), pages_); }

 private:
  const uint4* pool() const { return reinterpret_cast<const uint4*>(pool_.get()); }
  uint4* out() const { return reinterpret_cast<uint4*>(out_.get()); }

  unsigned pages_;
  Input<bf16> pool_;
  Input<unsigned> table_;
  Output<bf16> out_;
  unsigned ring_blocks_ = 1;
};

}  // namespace

extern constinit const Pair tma_bulk_gather{
    .teaches = "a bulk copy moves a whole page for one instruction, without registers, index arithmetic per element or occupancy",
    .lesson = "bulk_page",
    .make = make<TmaBulkGather>,
    .baseline = {.name = "element_per_thread", .run = call<&TmaBulkGather::element_per_thread>},
    .optimized = variants({{.name = "vector16", .run = call<&TmaBulkGather::vector16>},
                           {.name = "bulk_page", .run = call<&TmaBulkGather::bulk_page>, .needs = {.min_sm = 90}},
                           {.name = "bulk_ring",
                            .run = call<&TmaBulkGather::bulk_ring>,
                            .prepare = call<&TmaBulkGather::count_rings>,
                            .needs = {.min_sm = 90}}}),
    .bound = Bound::memory,
    .tolerance = exact,
};

}  // namespace aisp::ch10
