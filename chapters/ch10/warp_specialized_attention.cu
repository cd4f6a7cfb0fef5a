// SPDX-License-Identifier: Apache-2.0
// O = softmax(Q K^T / sqrt(128)) V. Between its two products every score passes the exponential unit, at a 256th of the tensor
// cores' rate: done in turn, the exponentials of a tile take half as long as its products. wgmma runs while its warps do something
// else. A first kernel leaves the overlap to chance: two warpgroups, fed by a producer warp, drift apart. In the second they take
// turns, and each has its next product under way while it exponentiates. (The algorithm is the subject of
// ch18:flash_attention_forward.)
#include <aisp/device/fence.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/device/warpgroup.cuh>
#include <aisp/device/wgmma.cuh>
#include <aisp/pair.hpp>
#include <aisp/tensor_map.hpp>

#include <cmath>
#include <thread>
#include <vector>

#include "mma_sync_attention.cuh"

namespace aisp::ch10 {
namespace {

using attention::bf16, attention::depth, attention::Rows;
using device::Major;
constexpr int consumers = 2, stages = 2, warpgroup = 128, threads = (1 + consumers) * warpgroup;
constexpr int query_rows = 64, block_rows = consumers * query_rows, keys = 128;  // of a warpgroup, of a block, of a tile
constexpr int halves = depth / 64;                                               // boxes are 64 columns wide: 128 bytes

struct Shared {
  alignas(1024) bf16 q[consumers][halves][query_rows * 64], o[consumers][halves][query_rows * 64];
  bf16 k[stages][halves][keys * 64], v[stages][halves][keys * 64];
  std::uint64_t q_full, q_empty, k_full[stages], k_empty[stages], v_full[stages], v_empty[stages];
};
constexpr unsigned q_bytes = sizeof(Shared::q), tile_bytes = sizeof(Shared::k) / stages;

struct Maps {
  CUtensorMap q, k, v, o;  // boxes of 64 columns: 64 rows of Q and O, 128 of K and V
};

// Counts the tiles that went through a ring of stages.
struct Step {
  unsigned count = 0;
  __device__ unsigned slot() const { return count % stages; }
  __device__ unsigned parity() const { return count / stages % 2; }
};

// One thread keeps the ring full.
__device__ void produce(Shared& shared, const Maps& maps, int blocks, int length) {
  Step step;
  unsigned rounds = 0;
  const auto load = [&](bf16 (&to)[halves][keys * 64], const CUtensorMap& map, int row, std::uint64_t* full, std::uint64_t* empty) {
    device::barrier_wait(empty, step.parity() ^ 1);
    device::barrier_arrive_expect(full, tile_bytes);
    for (int half = 0; half < halves; ++half) device::tensor_load_2d(to[half], &map, half * 64, row, full);
  };
  for (int block = blockIdx.x; block < blocks; block += gridDim.x, ++rounds) {
    device::barrier_wait(&shared.q_empty, rounds % 2 ^ 1);
    device::barrier_arrive_expect(&shared.q_full, q_bytes);
    for (int i = 0; i < consumers * halves; ++i)
      device::tensor_load_2d(shared.q[i / halves][i % halves], &maps.q, i % halves * 64,
                             block * block_rows + i / halves * query_rows, &shared.q_full);
    const int first_key = block * block_rows / length * length;
    for (int key = first_key; key < first_key + length; key += keys, ++step.count) {
      const unsigned slot = step.slot();
      load(shared.k[slot], maps.k, key, &shared.k_full[slot], &shared.k_empty[slot]);
      load(shared.v[slot], maps.v, key, &shared.v_full[slot], &shared.v_empty[slot]);
    }
  }
}

// A consumer warpgroup's view of the block's shared memory, and its registers.
struct Consumer {
  Shared& shared;
  int index;                        // of the warpgroup
  Step step;
  float scores[keys / 2], sums[depth / 2];
  unsigned p[keys / 16][4];

  __device__ __forceinline__ static void release(std::uint64_t* empty) {
    if (threadIdx.x % 32 == 0) device::barrier_arrive(empty);
  }
  // scores = Q K^T for the 64 rows of this warpgroup. Asynchronous, as the next.
  __device__ __forceinline__ void start_scores(const Step& at) {
    const std::uint64_t q = device::operand(shared.q[index]), k = device::operand(shared.k[at.slot()]);
    device::wgmma_touch(scores);
    device::wgmma_fence();
#pragma unroll
    for (int i = 0; i < depth / 16; ++i)
      device::wgmma_m64n128k16(scores, device::advance(q, i / 4 * query_rows * 128 + i % 4 * 32),
                               device::advance(k, i / 4 * keys * 128 + i % 4 * 32), i > 0);
    device::wgmma_commit();
  }
  // sums += P V. V lies as it came: its keys are rows, the second product's K.
  __device__ __forceinline__ void start_sums(const Step& at) {
    const std::uint64_t v = device::operand(shared.v[at.slot()], 1024, keys * 128);
    device::wgmma_touch(sums);
    device::wgmma_fence();
#pragma unroll
    for (int i = 0; i < keys / 16; ++i)
      device::wgmma_m64n128k16<Major::mn>(sums, p[i], device::advance(v, i * 2048));
    device::wgmma_commit();
  }
  __device__ __forceinline__ void narrow_scores() {
#pragma unroll
    for (int i = 0; i < keys / 16; ++i) attention::narrow(p[i], scores, i);
  }
  // Normalises the rows and hands them to TMA by way of swizzled shared memory.
  __device__ __forceinline__ void store(const CUtensorMap& map, int row, const Rows& rows) {
    const int t = threadIdx.x % warpgroup, lane = t % 32, lane_row = t / 32 * 16 + lane % 16;
    float factor[2];
    attention::reciprocals(rows, factor);
    attention::rescale(sums, factor);
    if (t == 0) device::wait_stores_read<0>();
    device::named_barrier_sync(3 + index, warpgroup);  // what was stored last has been read
    unsigned words[depth / 16][4];
#pragma unroll
    for (int i = 0; i < depth / 16; ++i) {
      attention::narrow(words[i], sums, i);
      device::store_matrices(
          device::shared_address(shared.o[index][i / 4]) + lane_row * 128 + ((i % 4 * 2 + lane / 16) ^ lane_row % 8) * 16,
          words[i][0], words[i][1], words[i][2], words[i][3]);
    }
    device::fence_proxy_async_shared();
    device::named_barrier_sync(3 + index, warpgroup);
    if (t == 0) {
      for (int half = 0; half < halves; ++half) device::tensor_store_2d(&map, half * 64, row, shared.o[index][half]);
      device::commit_stores();
    }
  }
};

// One after the other: scores, softmax, sums.
struct InOrder {
  __device__ __forceinline__ static void begin(int) {}
  __device__ __forceinline__ static void end(int) {}
  __device__ __forceinline__ static void rows_of_block(Consumer& own, int tiles, Rows& rows) {
    Shared& shared = own.shared;
    for (int tile = 0; tile < tiles; ++tile, ++own.step.count) {
      const unsigned slot = own.step.slot(), parity = own.step.parity();
      device::barrier_wait(&shared.k_full[slot], parity);
      own.start_scores(own.step);
      device::wgmma_wait<0>();
      device::wgmma_touch(own.scores);
      own.release(&shared.k_empty[slot]);
      float factor[2];
      attention::online_softmax(own.scores, rows, factor);
      own.narrow_scores();
      attention::rescale(own.sums, factor);
      device::barrier_wait(&shared.v_full[slot], parity);
      own.start_sums(own.step);
      device::wgmma_wait<0>();
      device::wgmma_touch(own.sums);
      own.release(&shared.v_empty[slot]);
    }
    own.release(&shared.q_empty);
  }
};

// The scores of the next tile are started before the sums of this one, and both run while the exponentials of the next are taken.
// A warpgroup starts its products when the other has started its own: while one exponentiates, the other's products run.
struct PingPong {
  __device__ __forceinline__ static void begin(int index) {
    if (index == 1) device::named_barrier_arrive(1, consumers * warpgroup);
  }
  __device__ __forceinline__ static void end(int index) {
    if (index == 0) device::named_barrier_sync(1, consumers * warpgroup);  // takes the last arrival
  }
  __device__ __forceinline__ static void rows_of_block(Consumer& own, int tiles, Rows& rows) {
    Shared& shared = own.shared;
    float factor[2];
    device::barrier_wait(&shared.k_full[own.step.slot()], own.step.parity());
    own.start_scores(own.step);
    device::wgmma_wait<0>();
    device::wgmma_touch(own.scores);
    own.release(&shared.k_empty[own.step.slot()]);
    attention::online_softmax(own.scores, rows, factor);
    own.narrow_scores();
    for (int tile = 1; tile < tiles; ++tile) {
      const Step last = own.step;
      ++own.step.count;
      device::barrier_wait(&shared.k_full[own.step.slot()], own.step.parity());
      device::named_barrier_sync(1 + own.index, consumers * warpgroup);
      own.start_scores(own.step);
      device::barrier_wait(&shared.v_full[last.slot()], last.parity());
      own.start_sums(last);
      device::named_barrier_arrive(2 - own.index, consumers * warpgroup);
      device::wgmma_wait<1>();
      device::wgmma_touch(own.scores);
      own.release(&shared.k_empty[own.step.slot()]);
      attention::online_softmax(own.scores, rows, factor);
      device::wgmma_wait<0>();
      device::wgmma_touch(own.sums);
      own.release(&shared.v_empty[last.slot()]);
      own.narrow_scores();
      attention::rescale(own.sums, factor);
    }
    own.release(&shared.q_empty);
    device::barrier_wait(&shared.v_full[own.step.slot()], own.step.parity());
    own.start_sums(own.step);
    device::wgmma_wait<0>();
    device::wgmma_touch(own.sums);
    own.release(&shared.v_empty[own.step.slot()]);
    ++own.step.count;
  }
};

template <class Schedule>
__global__ __launch_bounds__(threads, 1) void wgmma_kernel(const __grid_constant__ Maps maps, int blocks, int length) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    constexpr unsigned warps = consumers * warpgroup / 32;
    device::barrier_init(&shared.q_full, 1);
    device::barrier_init(&shared.q_empty, warps);
    for (int i = 0; i < stages; ++i) {
      device::barrier_init(&shared.k_full[i], 1);
      device::barrier_init(&shared.v_full[i], 1);
      device::barrier_init(&shared.k_empty[i], warps);
      device::barrier_init(&shared.v_empty[i], warps);
    }
    device::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < warpgroup) {
    device::give_up_registers<24>();
    if (threadIdx.x == 0) produce(shared, maps, blocks, length);
  } else {
    device::take_registers<240>();
    Consumer own{shared, static_cast<int>(threadIdx.x) / warpgroup - 1, {}, {}, {}, {}};
    Schedule::begin(own.index);
    unsigned rounds = 0;
    for (int block = blockIdx.x; block < blocks; block += gridDim.x, ++rounds) {
      Rows rows;
#pragma unroll
      for (float& sum : own.sums) sum = 0;
      device::barrier_wait(&shared.q_full, rounds % 2);
      Schedule::rows_of_block(own, length / keys, rows);
      own.store(maps.o, block * block_rows + own.index * query_rows, rows);
    }
    Schedule::end(own.index);
    if (threadIdx.x % warpgroup == 0) device::wait_stores_read<0>();
  }
}

class WarpSpecializedAttention final : public Workload {
 public:
  explicit WarpSpecializedAttention(Setup& setup)
      : length_{setup.scaled(8192, 1024)},
        q_{setup.input<bf16>(heads * length_ * depth, normal(0, 1), {.name = "q"})},
        k_{setup.input<bf16>(heads * length_ * depth, normal(0, 1), {.name = "k"})},
        v_{setup.input<bf16>(heads * length_ * depth, normal(0, 1), {.name = "v"})},
        o_{setup.output<bf16>(heads * length_ * depth, {.name = "o"})},
        cpus_{setup.cpus()} {
    const auto map = [&](const bf16* data, unsigned rows) { return matrix_map_bf16(data, heads * length_, depth, rows, 64); };
    maps_ = {map(q_, query_rows), map(k_, keys), map(v_, keys), map(o_, query_rows)};
    const auto allow = [](auto kernel, std::size_t bytes) {
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
    };
    allow(attention::mma_sync::attention_kernel, attention::mma_sync::shared_bytes);
    allow(wgmma_kernel<InOrder>, sizeof(Shared));
    allow(wgmma_kernel<PingPong>, sizeof(Shared));
    int device = 0;
    check(cudaGetDevice(&device));
    check(cudaDeviceGetAttribute(&sms_, cudaDevAttrMultiProcessorCount, device));
  }

  Cost cost() const override {
    const auto length = static_cast<double>(length_);
    return {.flops = 4 * heads * length * length * depth,
            .math = Math::bf16,
            .bytes = static_cast<double>(q_.bytes() + k_.bytes() + v_.bytes() + o_.bytes())};
  }

  // Every reference needs all keys of a head: kept on the host, a head's columns one after the other, so that the scores of all
  // keys are summed side by side.
  void compute_reference(Launch&) override {
    columns_of_k_.resize(k_.size());
    std::vector<std::thread> workers;
    for (int w = 0; w < cpus_; ++w)
      workers.emplace_back([this, w] {
        for (std::size_t column = static_cast<std::size_t>(w); column < heads * depth; column += static_cast<std::size_t>(cpus_))
          for (std::size_t key = 0; key < length_; ++key)
            columns_of_k_[column * length_ + key] =
                static_cast<float>(k_.host((column / depth * length_ + key) * depth + column % depth));
      });
    for (std::thread& worker : workers) worker.join();
  }
  double expected(std::size_t index) const override {
    const std::size_t row = index / depth, head = row / length_;
    std::vector<double> scores(length_);
    for (std::size_t i = 0; i < depth; ++i) {
      const double q = q_.host(row * depth + i) / std::sqrt(static_cast<double>(depth));
      const float* column = &columns_of_k_[(head * depth + i) * length_];
      for (std::size_t key = 0; key < length_; ++key) scores[key] += q * static_cast<double>(column[key]);
    }
    double sum = 0, weights = 0;  // scores stay below 10: no maximum need be taken off
    for (std::size_t key = 0; key < length_; ++key) {
      const double weight = std::exp(scores[key]);
      weights += weight;
      sum += weight * v_.host((head * length_ + key) * depth + index % depth);
    }
    return sum / weights;
  }

  void mma_sync(Launch& launch) {
    const auto grid = static_cast<unsigned>(heads * length_ / attention::mma_sync::query_rows);
    attention::mma_sync::attention_kernel<<<grid, attention::mma_sync::threads, attention::mma_sync::shared_bytes,
                                            launch.stream>>>(q_, k_, v_, o_, static_cast<int>(length_));
    check(cudaGetLastError());
  }
  template <class Schedule>
  void wgmma(Launch& launch) {
    const int blocks = static_cast<int>(heads * length_ / block_rows);
    wgmma_kernel<Schedule>
        <<<std::min(blocks, sms_), threads, sizeof(Shared), launch.stream>>>(maps_, blocks, static_cast<int>(length_));
    check(cudaGetLastError());
  }

 private:
  static constexpr std::size_t heads = 32;  // 16 of each of two sequences

  std::size_t length_;
  Input<bf16> q_, k_, v_;
  Output<bf16> o_;
  int cpus_, sms_ = 1;
  Maps maps_{};
  std::vector<float> columns_of_k_;
};

}  // namespace

extern constinit const Pair warp_specialized_attention{
    .teaches = "exponentials must hide under the products: one warpgroup exponentiates while the other's wgmma runs",
    .make = make<WarpSpecializedAttention>,
    .baseline = {.name = "mma_sync", .run = call<&WarpSpecializedAttention::mma_sync>},
    .optimized = variants({{.name = "wgmma_tma", .run = call<&WarpSpecializedAttention::wgmma<InOrder>>, .needs = {.max_sm = 90}},
                           {.name = "wgmma_pingpong",
                            .run = call<&WarpSpecializedAttention::wgmma<PingPong>>,
                            .needs = {.max_sm = 90}}}),
    .bound = Bound::compute,
    // Weights and results are rounded to bf16 once each: 1.6e-3 twice.
    .tolerance = within(5e-3),
    .needs = {.min_sm = 90},
    .reference_samples = 1024,
};

}  // namespace aisp::ch10
