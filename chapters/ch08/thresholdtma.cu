// SPDX-License-Identifier: Apache-2.0
// A soft threshold, sign(x) max(|x| - t, 0) in bf16, by a kernel that runs in the background on 32 SMs only. An SM's port passes
// some 100 GB/s, read and written together, whoever asks: one load of 16 bytes a thread, four of them, or a ring of bulk copies,
// which needs few threads and registers. Its producer, one of five warps, keeps ten tiles of 16 KiB on their way, the other four
// change each in place, and bulk copies bring it out. Blocks that find themselves on an SM beyond the 32 leave it; tiles go by
// tickets to those that stay.
#include <cuda_bf16.h>
#include <aisp/device/fence.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>

#include "residency.hpp"

namespace aisp::ch08 {
namespace {

using bf16 = __nv_bfloat16;
using Packet = uint4;  // of eight values
constexpr float dead_zone = 0.5f;
constexpr int threads = 512, consumers = 128, ring_threads = consumers + 32;
constexpr int tile = 1024, tiles_per_ticket = 4, chunk = tile * tiles_per_ticket;  // packets: 16 KiB, and 64 KiB for a ticket
constexpr int stages = 12, behind = 2;  // tiles of the ring; those that are still being read by stores
constexpr unsigned tile_bytes = tile * sizeof(Packet), ring_bytes = stages * tile_bytes;

// Computes both values in a word.
__device__ __forceinline__ unsigned soft(unsigned word) {
  const auto x = reinterpret_cast<const __nv_bfloat162&>(word);
  const __nv_bfloat162 zone = __float2bfloat162_rn(dead_zone), zero = __float2bfloat162_rn(0);
  const __nv_bfloat162 rest = __hmax2(__hsub2(__habs2(x), zone), zero);
  return reinterpret_cast<const unsigned&>(rest) | (word & 0x80008000u);
}
__device__ __forceinline__ Packet soft(const Packet& x) { return make_uint4(soft(x.x), soft(x.y), soft(x.z), soft(x.w)); }

// Grids have many more blocks than fit, so that every SM is offered some. Whoever is on another SM leaves, but for the first
// block, which alone would do all of the work.
__device__ bool leaves(unsigned sms) {
  unsigned sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  return sm >= sms && blockIdx.x != 0;
}

// Each thread has `loads` accesses under way. The next ticket is drawn while a chunk is in work.
template <int loads>
__global__ __launch_bounds__(threads) void vector_kernel(const Packet* in, Packet* out, unsigned chunks, unsigned* tickets,
                                                         unsigned sms) {
  __shared__ unsigned drawn[2];
  if (leaves(sms)) return;
  if (threadIdx.x == 0) drawn[0] = atomicAdd(tickets, 1u);
  __syncthreads();
  for (unsigned turn = 0, now = drawn[0]; now < chunks; now = drawn[++turn % 2]) {
    if (threadIdx.x == 0) drawn[(turn + 1) % 2] = atomicAdd(tickets, 1u);
    const std::size_t first = std::size_t{now} * chunk + threadIdx.x;
#pragma unroll 1
    for (int i = 0; i < chunk / threads; i += loads) {
      Packet packets[loads];
#pragma unroll
      for (int k = 0; k < loads; ++k) packets[k] = in[first + (i + k) * threads];
#pragma unroll
      for (int k = 0; k < loads; ++k) out[first + (i + k) * threads] = soft(packets[k]);
    }
    __syncthreads();
  }
}

// The producing thread fills the ring as far as it is free; -1 for a tile says that there are no more.
__device__ void produce(Packet* ring, int* tile_in, std::uint64_t* filled, std::uint64_t* freed, const Packet* in,
                        unsigned chunks, unsigned* tickets) {
  int stage = 0;
  unsigned parity = 1;  // of the first round: all stages are free
  const auto push = [&](int number) {
    device::barrier_wait(&freed[stage], parity);
    tile_in[stage] = number;
    if (number < 0) device::barrier_arrive(&filled[stage]);
    else {
      device::barrier_arrive_expect(&filled[stage], tile_bytes);
      device::bulk_load(ring + stage * tile, in + std::size_t{static_cast<unsigned>(number)} * tile, tile_bytes, &filled[stage]);
    }
    if (++stage == stages) stage = 0, parity ^= 1;
  };
  for (unsigned now = atomicAdd(tickets, 1u); now < chunks;) {
    const unsigned next = atomicAdd(tickets, 1u);
    for (int k = 0; k < tiles_per_ticket; ++k) push(static_cast<int>(now) * tiles_per_ticket + k);
    now = next;
  }
  push(-1);
}

// Four warps change a tile in place. One of their threads starts its way out and frees the stage of an earlier tile.
__device__ void consume(Packet* ring, const int* tile_in, std::uint64_t* filled, std::uint64_t* freed, Packet* out) {
  int stage = 0;
  unsigned parity = 0;
  for (int done = 0;; ++done) {
    device::barrier_wait(&filled[stage], parity);
    const int number = tile_in[stage];
    if (number < 0) break;
    Packet* const packets = ring + stage * tile + threadIdx.x;
    Packet held[tile / consumers];
#pragma unroll
    for (int k = 0; k < tile / consumers; ++k) held[k] = packets[k * consumers];
#pragma unroll
    for (int k = 0; k < tile / consumers; ++k) packets[k * consumers] = soft(held[k]);
    device::fence_proxy_async_shared();
    asm volatile("bar.sync 1, %0;" ::"n"(consumers) : "memory");
    if (threadIdx.x == 0) {
      device::bulk_store(out + std::size_t{static_cast<unsigned>(number)} * tile, ring + stage * tile, tile_bytes);
      device::commit_stores();
      device::wait_stores_read<behind>();
      if (done >= behind) device::barrier_arrive(&freed[(stage + stages - behind) % stages]);
    }
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  if (threadIdx.x == 0) device::wait_stores<0>();
}

__global__ __launch_bounds__(ring_threads, 1) void ring_kernel(const Packet* in, Packet* out, unsigned chunks, unsigned* tickets,
                                                               unsigned sms) {
  extern __shared__ __align__(128) Packet ring[];
  __shared__ std::uint64_t filled[stages], freed[stages];
  __shared__ int tile_in[stages];
  if (leaves(sms)) return;
  if (threadIdx.x == 0) {
    for (auto& barrier : filled) device::barrier_init(&barrier, 1);
    for (auto& barrier : freed) device::barrier_init(&barrier, 1);
    device::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < consumers) consume(ring, tile_in, filled, freed, out);
  else if (threadIdx.x == consumers) produce(ring, tile_in, filled, freed, in, chunks, tickets);
}

class Thresholdtma final : public Workload {
 public:
  explicit Thresholdtma(Setup& setup)
      : sms_{static_cast<unsigned>(setup.size("sms"))},
        count_{setup.scaled(std::size_t{256} << 20, std::size_t{chunk} * 8)},
        in_{setup.input<bf16>(count_, normal(0, 1), {.name = "x"})},
        out_{setup.output<bf16>(count_, {.name = "thresholded"})},
        tickets_{setup.scratch<unsigned>(1, {.name = "tickets"})} {}

  Cost cost() const override { return {.bytes = static_cast<double>(in_.bytes() + out_.bytes())}; }
  double expected(std::size_t index) const override {
    const double x = in_.host(index), rest = std::max(std::abs(x) - dead_zone, 0.0);
    return std::copysign(static_cast<double>(__bfloat162float(__float2bfloat16_rn(static_cast<float>(rest)))), x);
  }
  void metrics(std::string_view, Metrics& metrics) override { launched_.report(metrics); }

  void vec16(Launch& launch) { by_vectors<1>(launch, sms_); }
  void vec16_ilp4(Launch& launch) { by_vectors<4>(launch, sms_); }
  void bulk_ring(Launch& launch) { by_ring(launch, sms_); }
  void vec16_everywhere(Launch& launch) { by_vectors<1>(launch, multiprocessors()); }
  void vec16_ilp4_everywhere(Launch& launch) { by_vectors<4>(launch, multiprocessors()); }
  void bulk_ring_everywhere(Launch& launch) { by_ring(launch, multiprocessors()); }

 private:
  using Kernel = void (*)(const Packet*, Packet*, unsigned, unsigned*, unsigned);
  template <int loads>
  void by_vectors(Launch& launch, unsigned sms) {
    run(launch, vector_kernel<loads>, threads, 0, sms);
  }
  void by_ring(Launch& launch, unsigned sms) { run(launch, ring_kernel, ring_threads, ring_bytes, sms); }
  void run(Launch& launch, Kernel kernel, unsigned block, std::size_t shared_bytes, unsigned sms) {
    constexpr unsigned offers = 8;  // of blocks for each place
    if (shared_bytes > 0) allow_shared_memory(kernel, shared_bytes);
    int resident = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, static_cast<int>(block), shared_bytes));
    check(cudaMemsetAsync(tickets_, 0, tickets_.bytes(), launch.stream));
    const unsigned places = static_cast<unsigned>(resident) * multiprocessors();
    const Grid grid{sms < multiprocessors() ? offers * places : places, block, shared_bytes};
    launched_.launch(launch, kernel, grid, reinterpret_cast<const Packet*>(in_.get()), reinterpret_cast<Packet*>(out_.get()),
                     count_ / (8 * chunk), tickets_, sms);
  }

  unsigned sms_;
  std::size_t count_;
  Input<bf16> in_;
  Output<bf16> out_;
  Scratch<unsigned> tickets_;
  Residency launched_;
};

}  // namespace

extern constinit const Pair thresholdtma{
    .teaches =
        "the port of an SM limits what a kernel on few SMs moves, whoever asks: a ring of bulk copies moves as much with a "
        "twelfth of the warps",
    .lesson = "bulk_ring",
    .make = make<Thresholdtma>,
    .baseline = {.name = "vec16", .run = call<&Thresholdtma::vec16>},
    .optimized = variants({{.name = "vec16_ilp4", .run = call<&Thresholdtma::vec16_ilp4>},
                           {.name = "bulk_ring", .run = call<&Thresholdtma::bulk_ring>}}),
    .controls = variants({{.name = "vec16_everywhere", .run = call<&Thresholdtma::vec16_everywhere>},
                          {.name = "vec16_ilp4_everywhere", .run = call<&Thresholdtma::vec16_ilp4_everywhere>},
                          {.name = "bulk_ring_everywhere", .run = call<&Thresholdtma::bulk_ring_everywhere>}}),
    .bound = Bound::memory,
    .tolerance = exact,
    .needs = {.min_sm = 90},
    .sizes = sizes({{.name = "sms", .full = 32, .most = 1024, .scales = false}}),
    .sweep =
        cases({{"sms_8", "sms=8"}, {"sms_16", "sms=16"}, {"sms_32", "sms=32"}, {"sms_64", "sms=64"}, {"sms_132", "sms=132"}}),
    .edges = cases({{"sms_1", "sms=1"}, {"sms_15", "sms=15"}}),
};

}  // namespace aisp::ch08
