// SPDX-License-Identifier: Apache-2.0
// O = softmax(Q K^T / sqrt(128)) V. Between its products every score passes the exponential unit, one for 256 FLOPs of the tensor
// cores: half their time. wgmma runs while its warps do something else. A first kernel leaves the overlap to chance. In the
// second two warpgroups take turns, each with its next product under way while it exponentiates. The others leave work out.
// With a causal mask the order of blocks counts as much: see block_in_order.
#include <aisp/device/async_copy.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/pair.hpp>
#include <aisp/tensor_map.hpp>
#include <algorithm>
#include <memory>
#include "attention_reference.hpp"
#include "attention_ring.cuh"
#include "blackwell_attention.cuh"
#include "cudnn_attention.hpp"

namespace aisp::ch10 {
namespace {

using namespace attention;

namespace mma_sync {

constexpr int threads = 128, query_rows = 128, keys = 64;
constexpr int pitch = head_size * 2, row_chunks = pitch / 16;  // bytes of a row, and 16-byte chunks
constexpr int shared_bytes = (query_rows + 2 * keys) * pitch;

// The thread's index, asked for again, so that no register holds it or what follows from it over the loop: sums and scores take
// 192 of a thread's 255, the fragments in flight nearly all others.
__device__ __forceinline__ int thread_again() {
  int t = static_cast<int>(threadIdx.x);
  asm volatile("" : "+r"(t));
  return t;
}

// The structure of FlashAttention-2: a warp owns 32 query rows, its scores never leave registers, K and V arrive by cp.async one
// product ahead. The 16-byte chunk c of a row lies at c ^ (row % 8), so that ldmatrix meets no bank twice. mma.sync holds its
// warp until it is done: exponentials hide only behind the products of the other block on the SM.
template <bool causal>
__global__ __launch_bounds__(threads, 2) void attention_kernel(const bf16* q, const bf16* k, const bf16* v, bf16* o, int length) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  const int block = block_in_order(causal, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), length / query_rows);
  const std::size_t first_row = static_cast<std::size_t>(block) * query_rows;
  const std::size_t first_key = first_row / length * length;
  const int row = t / 16;  // this thread copies every eighth row
  unsigned char* const to = memory + row * pitch + (t % 16 ^ row) * 16;
  const auto copy = [&](unsigned char* shared, const bf16* global, unsigned chunk, int rows) {
#pragma unroll
    for (int i = 0; i < rows; i += 8)
      device::copy_async_16(shared + i * pitch, reinterpret_cast<const uint4*>(global) + chunk + i * row_chunks);
    device::commit_copies();
  };
  copy(to, q, (static_cast<unsigned>(first_row) + row) * row_chunks + t % 16, query_rows);
  unsigned from = (static_cast<unsigned>(first_key) + row) * row_chunks + t % 16;  // one register, not two pointers of two
  copy(to + query_rows * pitch, k, from, keys);

  // Two layouts of addresses: 16 rows times two chunks (of Q, and of V as far from it as V is), and (K is read along its rows)
  // two groups of eight rows times two chunks.
  const std::uint32_t q_lane = device::shared_address(memory) + (warp * 32 + lane % 16) * pitch + (lane / 16 ^ lane % 8) * 16;
  const std::uint32_t k_lane =
      device::shared_address(memory + query_rows * pitch) + (lane / 16 * 8 + lane % 8) * pitch + (lane / 8 % 2 ^ lane % 8) * 16;
  float sums[2][head_size / 2] = {};
  Rows rows[2];
  const int seen = causal ? static_cast<int>(first_row - first_key) + query_rows : length;  // keys
  for (int remaining = seen; remaining > 0; remaining -= keys) {
    device::wait_copies<0>();
    __syncthreads();  // K is here, and nobody reads the last V any more
    copy(to + (query_rows + keys) * pitch, v, from, keys);
    from += keys * row_chunks;
    float scores[2][keys / 2] = {};
#pragma unroll
    for (int step = 0; step < head_size / 16; ++step) {
      unsigned x[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) device::load_matrices(x[i], (q_lane ^ step * 32) + i * 16 * pitch);
#pragma unroll
      for (int j = 0; j < keys / 16; ++j) {
        unsigned y[4];
        device::load_matrices(y, (k_lane ^ step * 32) + j * 16 * pitch);
#pragma unroll
        for (int i = 0; i < 4; ++i) device::mma_bf16(&scores[i % 2][8 * j + i / 2 * 4], x[i % 2], y[i / 2 * 2], y[i / 2 * 2 + 1]);
      }
    }
    device::wait_copies<0>();
    __syncthreads();  // V is here, and nobody reads K any more
    if (remaining > keys) copy(to + query_rows * pitch, k, from, keys);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float factor[2];
      if (causal && remaining <= query_rows)
        hide_later_keys(scores[i], remaining - query_rows + i * 16 + thread_again() / 32 * 32 + thread_again() % 32 / 4);
      online_softmax(scores[i], rows[i], factor);
      rescale(sums[i], factor);
    }
#pragma unroll
    for (int step = 0; step < keys / 16; ++step) {
      unsigned p[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) narrow(p[i], scores[i], step);
#pragma unroll
      for (int j = 0; j < head_size / 16; ++j) {
        unsigned y[4];
        device::load_matrices_transposed(y, (q_lane ^ j * 32) + (query_rows + keys - warp * 32 + step * 16) * pitch);
#pragma unroll
        for (int i = 0; i < 4; ++i) device::mma_bf16(&sums[i % 2][8 * j + i / 2 * 4], p[i % 2], y[i / 2 * 2], y[i / 2 * 2 + 1]);
      }
    }
  }

  // Through the shared memory of the warp's own query rows, so that it writes whole rows of 256 bytes.
  const int l = thread_again() % 32, own = thread_again() / 32 * 32;
  // A mask ends the keys with the block's own rows.
  const unsigned row_again = causal ? from / row_chunks - row - query_rows : blockIdx.x * query_rows;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float factor[2];
    reciprocals(rows[i], factor);
    rescale(sums[i], factor);
#pragma unroll
    for (int j = 0; j < head_size / 4; ++j)
      *reinterpret_cast<unsigned*>(memory + (own + i * 16 + j % 2 * 8 + l / 4) * pitch + (j / 2 ^ l / 4) * 16 + l % 4 * 4) =
          device::narrow_bf16(sums[i][2 * j], sums[i][2 * j + 1]);
  }
  __syncwarp();
#pragma unroll 2
  for (int i = own + l / 16; i < own + 32; i += 2)
    *reinterpret_cast<uint4*>(o + static_cast<std::size_t>(row_again + i) * head_size + l % 16 * 8) =
        *reinterpret_cast<const uint4*>(memory + i * pitch + (l % 16 ^ i % 8) * 16);
}

}  // namespace mma_sync

// Orders in which a consumer warpgroup takes the steps of a block of rows. Each leaves the sums of its rows in registers and Q's
// shared memory released.

// One after the other: scores, softmax, sums.
struct InOrder {
  __device__ __forceinline__ static void begin(int) {}
  __device__ __forceinline__ static void end(int) {}
  template <bool causal>
  __device__ __forceinline__ static void rows_of_block(Consumer& own, int tiles, Rows& rows) {
    Shared& shared = own.shared;
    for (int tile = 0; tile < tiles; ++tile, ++own.step.count) {
      const unsigned slot = own.step.slot(), parity = own.step.parity();
      device::barrier_wait(&shared.k_full[slot], parity);
      own.start_scores<false>(own.step);
      device::wgmma_wait<0>();
      device::wgmma_touch(own.scores);
      own.release(&shared.k_empty[slot]);
      if (causal && tile == 0) own.hide_later_keys();
      float factor[2];
      online_softmax(own.scores, rows, factor);
      own.narrow_scores();
      rescale(own.sums, factor);
      device::barrier_wait(&shared.v_full[slot], parity);
      own.start_sums(own.step);
      device::wgmma_wait<0>();
      device::wgmma_touch(own.sums);
      own.release(&shared.v_empty[slot]);
    }
    own.release(&shared.q_empty);
  }
};

// The scores of the next tile are started before the sums of this one; both run while its exponentials are taken, and a warpgroup
// starts its products after the other's. Deferred: sums are multiplied only when a row has outgrown its maximum by far.
template <bool deferred, bool kept_queries>
struct PingPong {
  __device__ __forceinline__ static void begin(int index) {
    if (index == 1) device::named_barrier_arrive(1, consumers * warpgroup);
  }
  __device__ __forceinline__ static void end(int index) {
    if (index == 0) device::named_barrier_sync(1, consumers * warpgroup);  // takes the last arrival
  }
  template <bool causal>
  __device__ __forceinline__ static void rows_of_block(Consumer& own, int tiles, Rows& rows) {
    Shared& shared = own.shared;
    float factor[2];
    if constexpr (kept_queries) own.keep_queries();
    device::barrier_wait(&shared.k_full[own.step.slot()], own.step.parity());
    own.start_scores<kept_queries>(own.step);
    device::wgmma_wait<0>();
    device::wgmma_touch(own.scores);
    own.release(&shared.k_empty[own.step.slot()]);
    if constexpr (kept_queries) own.release(&shared.q_empty);
    if constexpr (causal) own.hide_later_keys();
    online_softmax(own.scores, rows, factor);
    own.narrow_scores();
    for (int tile = 1; tile < tiles; ++tile) {
      const Step last = own.step;
      ++own.step.count;
      device::barrier_wait(&shared.k_full[own.step.slot()], own.step.parity());
      device::named_barrier_sync(1 + own.index, consumers * warpgroup);
      own.start_scores<kept_queries>(own.step);
      device::barrier_wait(&shared.v_full[last.slot()], last.parity());
      own.start_sums(last);
      device::named_barrier_arrive(2 - own.index, consumers * warpgroup);
      device::wgmma_wait<1>();
      device::wgmma_touch(own.scores);
      own.release(&shared.k_empty[own.step.slot()]);
      bool outgrown = true;
      if constexpr (deferred) outgrown = online_softmax_deferred(own.scores, rows, factor);
      else online_softmax(own.scores, rows, factor);
      device::wgmma_wait<0>();
      device::wgmma_touch(own.sums);
      own.release(&shared.v_empty[last.slot()]);
      own.narrow_scores();
      if (outgrown) rescale(own.sums, factor);
    }
    if constexpr (!kept_queries) own.release(&shared.q_empty);
    device::barrier_wait(&shared.v_full[own.step.slot()], own.step.parity());
    own.start_sums(own.step);
    device::wgmma_wait<0>();
    device::wgmma_touch(own.sums);
    own.release(&shared.v_empty[own.step.slot()]);
    ++own.step.count;
  }
};

using FullRescale = PingPong<false, false>;
using DeferredRescale = PingPong<true, false>;
using KeptQueries = PingPong<true, true>;
constexpr int threads = (1 + consumers) * warpgroup;

template <class Schedule, bool causal>
__global__ __launch_bounds__(threads, 1) void wgmma_kernel(const __grid_constant__ Maps maps, Work<causal> work) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  initialize(shared);
  if (threadIdx.x < warpgroup) {
    device::give_up_registers<24>();
    if (threadIdx.x == 0) produce(shared, maps, work);
  } else {
    device::take_registers<240>();
    Consumer own{shared, static_cast<int>(threadIdx.x) / warpgroup - 1, {}, {}, {}, {}};
    Schedule::begin(own.index);
    for (int round = 0;; ++round) {
      const int block = own.next_block(work, round);
      if (block == work.none) break;
      Rows rows;
#pragma unroll
      for (float& sum : own.sums) sum = 0;
      Schedule::template rows_of_block<causal>(own, work.tiles(block), rows);
      own.store(maps.o, block * block_rows + own.index * query_rows, rows);
    }
    Schedule::end(own.index);
    if (threadIdx.x % warpgroup == 0) device::wait_stores_read<0>();
  }
}

class WarpSpecializedAttention final : public Workload {
 public:
  explicit WarpSpecializedAttention(Setup& setup)
      : batch_{setup.size("batch")},
        heads_{batch_ * setup.size("heads")},
        length_{setup.size("tokens")},
        causal_{setup.size("causal") == 1},
        q_{setup.input<bf16>(heads_ * length_ * head_size, normal(0, 1), {.name = "q"})},
        k_{setup.input<bf16>(heads_ * length_ * head_size, normal(0, setup.size("peaked") == 1 ? 8 : 1), {.name = "k"})},
        v_{setup.input<bf16>(heads_ * length_ * head_size, normal(0, 1), {.name = "v"})},
        o_{setup.output<bf16>(heads_ * length_ * head_size, {.name = "o", .groups = {length_ * head_size, heads_}})},
        taken_{setup.scratch<unsigned>(1, {.name = "taken"})},
        cpus_{setup.cpus()},
        cudnn_{setup, batch_, heads_ / batch_, length_, head_size, mask()},
        tuned_cudnn_{setup, batch_, heads_ / batch_, length_, head_size, mask()},
        reproducible_{setup.reproducible()} {
    const auto map = [&](const bf16* data, unsigned rows) {
      return matrix_map_bf16(data, heads_ * length_, head_size, rows, 64);
    };
    maps_ = {map(q_, query_rows), map(k_, keys), map(v_, keys), map(o_, query_rows)};
  }
  Cost cost() const override {
    const auto length = static_cast<double>(length_);
    const double keys_of_a_row = causal_ ? (length + 1) / 2 : length;  // on average: of masked ones nothing need be computed
    return {.flops = 4 * static_cast<double>(heads_) * length * keys_of_a_row * head_size,
            .math = Math::bf16,
            .bytes = static_cast<double>(q_.bytes() + k_.bytes() + v_.bytes() + o_.bytes())};
  }
  void compute_reference(Launch&) override { reference_.keep(k_, cpus_); }
  double expected(std::size_t index) const override { return reference_.output(index, q_, v_); }
  void mma_sync(Launch& launch) {
    using namespace mma_sync;
    const auto grid = static_cast<unsigned>(heads_ * length_ / mma_sync::query_rows);
    const auto kernel = causal_ ? attention_kernel<true> : attention_kernel<false>;
    launch(kernel, {grid, mma_sync::threads, shared_bytes}, q_, k_, v_, o_, length_);
  }
  // Once: each run leaves it as it was.
  void clear_taken(Launch& launch) { check(cudaMemsetAsync(taken_, 0, taken_.bytes(), launch.stream)); }
  template <class Schedule>
  void wgmma(Launch& launch) {
    if (causal_) start<Schedule, true>(launch);
    else start<Schedule, false>(launch);
  }
  // Not run: scores and sums in tensor memory, a row a thread.
  void tcgen05(Launch& launch) {
    if (causal_) throw Unsupported{"this variant has no causal mask"};
    blackwell_attention::run(launch, q_, k_, v_, o_, heads_ * length_, static_cast<int>(length_));
  }
  void plan_cudnn(Launch&) { cudnn_->plan(); }
  void cudnn(Launch& launch) { cudnn_->run(launch.stream, q_, k_, v_, o_); }
  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    tuned_cudnn_->tune(launch.stream, q_, k_, v_, o_);
  }
  void cudnn_tuned(Launch& launch) { tuned_cudnn_->run(launch.stream, q_, k_, v_, o_); }

 private:
  shared::Mask mask() const { return causal_ ? shared::Mask::causal : shared::Mask::none; }
  template <class Schedule, bool causal>
  void start(Launch& launch) {
    const Work<causal> work{static_cast<int>(heads_ * length_ / block_rows), static_cast<int>(length_ / block_rows), taken_};
    const unsigned blocks = std::min(static_cast<unsigned>(work.blocks), multiprocessors());
    launch(wgmma_kernel<Schedule, causal>, {blocks, threads, sizeof(Shared)}, maps_, work);
  }
  std::size_t batch_, heads_, length_;  // heads_: of all sequences
  bool causal_;
  Input<bf16> q_, k_, v_;
  Output<bf16> o_;
  Scratch<unsigned> taken_;
  int cpus_;
  Maps maps_{};
  shared::AttentionReference reference_{heads_, length_, head_size, causal_};
  Opened<shared::CudnnAttention> cudnn_, tuned_cudnn_;
  bool reproducible_;
};

template <class Schedule>
constexpr Variant on_wgmma(std::string_view name) {
  return {.name = name,
          .run = call<&WarpSpecializedAttention::wgmma<Schedule>>,
          .prepare = call<&WarpSpecializedAttention::clear_taken>,
          .needs = {.max_sm = 90}};
}
}  // namespace

extern constinit const Pair warp_specialized_attention{
    .teaches = "exponentials must hide under the products: one warpgroup exponentiates while the other's wgmma runs",
    .lesson = "wgmma_pingpong",
    .make = make<WarpSpecializedAttention>,
    .baseline = {.name = "mma_sync", .run = call<&WarpSpecializedAttention::mma_sync>},
    .optimized = variants({on_wgmma<InOrder>("wgmma_tma"),
                           on_wgmma<FullRescale>("wgmma_pingpong"),
                           on_wgmma<DeferredRescale>("deferred_rescale"),
                           on_wgmma<KeptQueries>("query_in_registers"),
                           {.name = "tcgen05_attention",
                            .run = call<&WarpSpecializedAttention::tcgen05>,
                            .needs = blackwell_attention::needs,
                            .not_run = true}}),
    .libraries = variants({{.name = "cudnn",
                            .run = call<&WarpSpecializedAttention::cudnn>,
                            .prepare = call<&WarpSpecializedAttention::plan_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}},
                           {.name = "cudnn_tuned",
                            .run = call<&WarpSpecializedAttention::cudnn_tuned>,
                            .prepare = call<&WarpSpecializedAttention::tune_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::compute,
    // Weights and results are rounded to bf16 once each: 1.6e-3 twice, 2.3e-3 together; half as much again is allowed.
    .tolerance = within(3.5e-3),
    .needs = {.min_sm = 90},
    .sizes = sizes({{.name = "batch", .full = 2, .most = 256, .scales = false},
                    {.name = "heads", .full = 16, .most = 256, .scales = false},
                    {.name = "tokens", .full = 8192, .multiple = 512},
                    option("causal"),
                    // Scores so far apart that rows outgrow their first maximum by more than 2^8, which is when deferred_rescale
                    // has to rescale; otherwise it hardly ever does.
                    option("peaked")}),
    // 16384 tokens in all.
    .sweep = cases({{"tokens_1024", "batch=16,tokens=1024"},
                    {"tokens_2048", "batch=8,tokens=2048"},
                    {"tokens_4096", "batch=4,tokens=4096"},
                    {"tokens_8192", "batch=2,tokens=8192"},
                    {"tokens_16384", "batch=1,tokens=16384"},
                    {"causal_8192", "batch=2,tokens=8192,causal=1"},
                    {"peaked_8192", "batch=2,tokens=8192,peaked=1"}}),
    .edges = cases({{"one_head", "batch=1,heads=1,tokens=512"},
                    {"few_blocks_causal", "batch=1,heads=3,tokens=512,causal=1"},
                    {"odd_heads", "batch=3,heads=5,tokens=1536"},
                    {"odd_heads_causal", "batch=3,heads=5,tokens=1536,causal=1"},
                    {"peaked", "batch=1,heads=2,tokens=1024,peaked=1"},
                    {"peaked_causal", "batch=1,heads=2,tokens=1024,causal=1,peaked=1"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch10
