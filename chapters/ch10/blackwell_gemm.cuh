// SPDX-License-Identifier: Apache-2.0
// NOT RUN: compiled for sm_100a and sm_103a, no such GPU was at hand. A GEMM on Blackwell's tensor cores, for the variants of
// this chapter that need them. One thread loads by TMA, one starts the products, and four warps bring sums from tensor memory to
// C while the next tile's are made: tensor memory holds two tiles.
#pragma once
#include "gemm_pipeline.cuh"

#include <aisp/device/cluster.cuh>
#include <aisp/device/fence.cuh>
#include <aisp/device/launch_control.cuh>
#include <aisp/device/matrix.cuh>
#include <aisp/device/pair_tma.cuh>
#include <aisp/device/tcgen05.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/launch.hpp>
#include <aisp/needs.hpp>

#include <cuda_fp8.h>

#include <algorithm>
#include <type_traits>

namespace aisp::ch10::blackwell_gemm {

using device::Major, device::TensorKind, gemm::TileOrder, gemm::bf16, gemm::Cursor;
using e4m3 = __nv_fp8_e4m3;

inline constexpr Needs needs{.min_sm = 100, .tcgen05 = true};
// The last family for pairs whose baseline uses wgmma or, where there is none, tcgen05.
inline constexpr int last_sm = 110;

// The source of tiles: each block takes every gridDim-th, or the hardware is asked for a block that has not started.
enum class Schedule { in_turn, launch_control };

// Operands as bf16, B by rows of k, or both along K. A pair of blocks makes a tile of twice the rows: each has its rows of A and
// half of the columns of B, and the tensor cores of both read all of B.
template <TensorKind kind_, Major b_major_ = Major::mn, int blocks_ = 1, Schedule schedule_ = Schedule::in_turn>
struct Plan {
  static constexpr TensorKind kind = kind_;
  static constexpr Major b_major = b_major_;
  static constexpr int blocks = blocks_;  // that multiply together
  static constexpr bool asks = schedule_ == Schedule::launch_control;
  static_assert(blocks == 1 || !asks, "a pair takes its tiles in turn");
  using Element = std::conditional_t<kind == TensorKind::e4m3, e4m3, bf16>;

  static constexpr int block_m = 128, tile_m = blocks * block_m, tile_n = 256, block_n = tile_n / blocks;
  static constexpr int row_bytes = 128, step_bytes = 32, tile_k = row_bytes / static_cast<int>(sizeof(Element));
  static constexpr unsigned a_bytes = block_m * row_bytes, b_bytes = block_n * row_bytes, stage_bytes = a_bytes + b_bytes;
  static constexpr int stages = static_cast<int>(192 * 1024 / stage_bytes);
  static constexpr int storing_warps = 4, loading_warp = 4, multiplying_warp = 5, asking_warp = 6;
  static constexpr int threads = 32 * (asks ? 7 : 6);
  static constexpr std::uint32_t instruction = device::tensor_instruction(kind, tile_m, tile_n, false, b_major == Major::mn);
};

using AskingPlan = Plan<TensorKind::bf16, Major::mn, 1, Schedule::launch_control>;
using PairPlan = Plan<TensorKind::bf16, Major::mn, 2>;
template <TensorKind kind>
using KMajorPlan = Plan<kind, Major::k>;

struct Maps {
  CUtensorMap a, b, c;  // C in boxes of 32 rows of 64 columns: what a warp stores at once
};
constexpr int box_rows = 32, box_columns = 64, box_bytes = box_rows * box_columns * 2, boxes_of_warp = 2;

struct TwoStages {
  static constexpr int stages = 2;
};

struct Answers {
  device::CancelledLaunch answer[2];
  std::uint64_t full[2], empty[2];
};

template <class P>
struct Shared {
  alignas(1024) unsigned char a[P::stages][P::a_bytes];
  alignas(1024) unsigned char b[P::stages][P::b_bytes];
  alignas(1024) unsigned char boxes[P::storing_warps][boxes_of_warp][box_bytes];
  Answers answers;
  std::uint64_t full[P::stages], empty[P::stages], sums_full[2], sums_empty[2];
  std::uint32_t tensor_memory;

  // A pair's `full` and `sums_empty` are those of the even block: it counts the bytes of both, and waits for the warps of both.
  __device__ void init() {
    for (int i = 0; i < P::stages; ++i) {
      device::barrier_init(&full[i], 1);
      device::barrier_init(&empty[i], 1);
    }
    for (int i = 0; i < 2; ++i) {
      device::barrier_init(&sums_full[i], 1);
      device::barrier_init(&sums_empty[i], P::blocks * P::storing_warps);
      device::barrier_init(&answers.full[i], 1);
      device::barrier_init(&answers.empty[i], P::storing_warps + 2);
    }
    device::fence_barrier_init();
  }
};

// The tiles of this block (or pair) one after the other, as each of its roles sees them; -1: none left.
template <class P>
struct Tiles {
  Answers& answers;
  int count, tile = static_cast<int>(blockIdx.x) / P::blocks;
  Cursor<TwoStages> at{};

  // By one thread, or by a whole warp.
  template <bool whole_warp>
  __device__ int next() {
    if constexpr (!P::asks) {
      tile += static_cast<int>(gridDim.x) / P::blocks;
      return tile < count ? tile : -1;
    } else {
      device::barrier_wait(&answers.full[at.stage], at.phase);
      tile = device::block_of(answers.answer[at.stage]);
      device::fence_proxy_async_shared();  // the next answer to come here is written by the asynchronous proxy
      if constexpr (whole_warp) __syncwarp();
      if (!whole_warp || device::lane_index() == 0) device::barrier_arrive(&answers.empty[at.stage]);
      at.next();
      return tile;
    }
  }
};

// Asks for the next tile while the present one is made, until there is none.
__device__ __forceinline__ void ask(Answers& answers) {
  for (Cursor<TwoStages> at;; at.next()) {
    device::barrier_wait(&answers.empty[at.stage], at.phase ^ 1);
    device::fence_proxy_async_shared();
    device::barrier_arrive_expect(&answers.full[at.stage], sizeof(device::CancelledLaunch));
    device::ask_for_launch(&answers.answer[at.stage], &answers.full[at.stage]);
    device::barrier_wait(&answers.full[at.stage], at.phase);
    if (device::block_of(answers.answer[at.stage]) < 0) return;
  }
}

template <class P>
__device__ __forceinline__ void load_stage(Shared<P>& shared, int stage, const Maps& maps, int row, int column, int first_k,
                                           unsigned rank) {
  std::uint64_t* const full = &shared.full[stage];
  if (rank == 0) device::barrier_arrive_expect(full, P::blocks * P::stage_bytes);
  if constexpr (P::blocks == 1) {
    device::tensor_load_2d(shared.a[stage], &maps.a, first_k, row, full);
    if constexpr (P::b_major == Major::mn) device::tensor_load_3d(shared.b[stage], &maps.b, 0, first_k, column / 64, full);
    else device::tensor_load_2d(shared.b[stage], &maps.b, first_k, column, full);
  } else {
    // The odd block may come first: its bytes only leave a phase of the barrier open that the even block has yet to arrive at.
    const std::uint32_t even = device::remote_address(full, 0);
    device::tensor_load_2d_pair(shared.a[stage], &maps.a, first_k, row, even);
    if constexpr (P::b_major == Major::mn) device::tensor_load_3d_pair(shared.b[stage], &maps.b, 0, first_k, column / 64, even);
    else device::tensor_load_2d_pair(shared.b[stage], &maps.b, first_k, column, even);
  }
}

// By one thread of each block.
template <class P>
__device__ __forceinline__ void load(Shared<P>& shared, Tiles<P> tiles, const Maps& maps, const TileOrder& order, int steps,
                                     unsigned rank) {
  Cursor<P> at;
  for (int tile = tiles.tile; tile >= 0; tile = tiles.template next<false>()) {
    const auto [row, column] = order[tile];
    for (int step = 0; step < steps; ++step, at.next()) {
      device::barrier_wait(&shared.empty[at.stage], at.phase ^ 1);
      load_stage(shared, at.stage, maps, row * P::tile_m + static_cast<int>(rank) * P::block_m,
                 column * P::tile_n + static_cast<int>(rank) * P::block_n, step * P::tile_k, rank);
    }
  }
  // No arrival may come when the block has ended.
  for (int i = 0; i < P::stages; ++i, at.next()) device::barrier_wait(&shared.empty[at.stage], at.phase ^ 1);
}

template <class P>
__device__ __forceinline__ void commit(std::uint64_t* barrier) {
  if constexpr (P::blocks == 1) device::tensor_commit(barrier);
  else device::tensor_commit_pair(barrier, 0b11);
}

template <class P>
__device__ __forceinline__ void wait_for_storing_warps(Shared<P>& shared, const Cursor<TwoStages>& at) {
  if constexpr (P::blocks == 1) device::barrier_wait(&shared.sums_empty[at.stage], at.phase ^ 1);
  else device::barrier_wait_cluster(&shared.sums_empty[at.stage], at.phase ^ 1);
  device::tensor_fence_after();
}

// By one thread; of a pair, of the even block.
template <class P>
__device__ __forceinline__ void multiply(Shared<P>& shared, Tiles<P> tiles, std::uint32_t tensor_memory, int steps) {
  Cursor<P> at;
  Cursor<TwoStages> sums;
  for (int tile = tiles.tile; tile >= 0; tile = tiles.template next<false>(), sums.next()) {
    wait_for_storing_warps(shared, sums);
    const std::uint32_t to = tensor_memory + static_cast<std::uint32_t>(sums.stage * P::tile_n);
    for (int step = 0; step < steps; ++step, at.next()) {
      device::barrier_wait(&shared.full[at.stage], at.phase);
      device::tensor_fence_after();
      // B by rows of k: 64 columns are a chunk of 64 rows of 128 bytes, and 16 of K are 16 of its rows.
      constexpr bool by_rows = P::b_major == Major::mn;
      const std::uint64_t a = device::tensor_operand(shared.a[at.stage]);
      const std::uint64_t b = device::tensor_operand(shared.b[at.stage], 1024, by_rows ? P::tile_k * P::row_bytes : 16);
#pragma unroll
      for (int i = 0; i < P::row_bytes / P::step_bytes; ++i)
        device::tensor_multiply<P::kind, P::blocks>(to, device::advance(a, i * P::step_bytes),
                                                    device::advance(b, i * (by_rows ? 16 * P::row_bytes : P::step_bytes)),
                                                    P::instruction, step > 0 || i > 0);
      commit<P>(&shared.empty[at.stage]);
    }
    commit<P>(&shared.sums_full[sums.stage]);
  }
  for (int i = 0; i < 2; ++i, sums.next()) wait_for_storing_warps(shared, sums);
}

// 64 columns of the warp's 32 rows, a row a thread, to a box with the swizzle of TMA: eight threads of eight rows meet no bank
// twice.
__device__ __forceinline__ void fill_box(unsigned char* box, const float (&first)[32], const float (&second)[32], float scale) {
  const unsigned row = device::lane_index();
#pragma unroll
  for (unsigned chunk = 0; chunk < 8; ++chunk) {
    const float* const v = (chunk < 4 ? first : second) + chunk % 4 * 8;
    uint4 packed;
    packed.x = device::narrow_bf16(scale * v[0], scale * v[1]);
    packed.y = device::narrow_bf16(scale * v[2], scale * v[3]);
    packed.z = device::narrow_bf16(scale * v[4], scale * v[5]);
    packed.w = device::narrow_bf16(scale * v[6], scale * v[7]);
    *reinterpret_cast<uint4*>(box + row * 128 + (chunk ^ row % 8) * 16) = packed;
  }
}

// By the warps 0 to 3, which reach a quarter of the lanes each.
template <class P>
__device__ __forceinline__ void store(Shared<P>& shared, Tiles<P> tiles, const Maps& maps, const TileOrder& order,
                                      std::uint32_t tensor_memory, float scale, unsigned rank) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool leader = device::lane_index() == 0;
  Cursor<TwoStages> sums;
  for (int tile = tiles.tile; tile >= 0; tile = tiles.template next<true>(), sums.next()) {
    const auto [row, column] = order[tile];
    device::barrier_wait(&shared.sums_full[sums.stage], sums.phase);
    device::tensor_fence_after();
    const std::uint32_t from =
        tensor_memory + (static_cast<std::uint32_t>(warp * 32) << 16) + static_cast<std::uint32_t>(sums.stage * P::tile_n);
#pragma unroll
    for (int box = 0; box < P::tile_n / box_columns; ++box) {
      float first[32], second[32];
      device::tensor_load(first, from + static_cast<std::uint32_t>(box * box_columns));
      device::tensor_load(second, from + static_cast<std::uint32_t>(box * box_columns + 32));
      device::tensor_wait_loaded(first, second);
      if (box == P::tile_n / box_columns - 1) {
        device::tensor_fence_before();
        __syncwarp();
        if (leader && P::blocks == 1) device::barrier_arrive(&shared.sums_empty[sums.stage]);
        if (leader && P::blocks == 2) device::barrier_arrive_remote(&shared.sums_empty[sums.stage], 0);
      }
      unsigned char* const at = shared.boxes[warp][box % boxes_of_warp];
      if (leader) device::wait_stores_read<boxes_of_warp - 1>();
      __syncwarp();
      fill_box(at, first, second, scale);
      device::fence_proxy_async_shared();
      __syncwarp();
      if (leader) {
        device::tensor_store_2d(&maps.c, column * P::tile_n + box * box_columns,
                                row * P::tile_m + static_cast<int>(rank) * P::block_m + warp * box_rows, at);
        device::commit_stores();
      }
    }
  }
  if (leader) device::wait_stores_read<0>();
}

template <class P>
__device__ __forceinline__ void meet() {
  device::tensor_fence_before();
  if constexpr (P::blocks == 1) __syncthreads();
  else device::cluster_sync();
  device::tensor_fence_after();
}

// A grid of one dimension; pairs are clusters of two. `steps` along K, of 128 bytes each.
template <class P>
static __global__ __launch_bounds__(P::threads, 1) void gemm_kernel(const __grid_constant__ Maps maps, TileOrder order, int steps,
                                                                    float scale) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared<P>& shared = *reinterpret_cast<Shared<P>*>(memory);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  unsigned rank = 0;
  if constexpr (P::blocks == 2) rank = device::cluster_rank();
  if (threadIdx.x == 0) shared.init();
  if (warp == P::multiplying_warp) {
    device::tensor_allocate<P::blocks>(&shared.tensor_memory, device::tensor_columns);
    device::tensor_allocate_no_more<P::blocks>();
  }
  meet<P>();
  const std::uint32_t tensor_memory = shared.tensor_memory;
  const Tiles<P> tiles{shared.answers, order.count()};
  if (warp < P::storing_warps) store(shared, tiles, maps, order, tensor_memory, scale, rank);
  else if (device::elect_thread()) {
    if (warp == P::loading_warp) load(shared, tiles, maps, order, steps, rank);
    if (warp == P::multiplying_warp && rank == 0) multiply(shared, tiles, tensor_memory, steps);
    if constexpr (P::asks)
      if (warp == P::asking_warp) ask(shared.answers);
  }
  __syncwarp();
  meet<P>();  // nobody reads tensor memory any more, nor the shared memory or the barriers of the other block
  if (warp == P::multiplying_warp) device::tensor_free<P::blocks>(tensor_memory, device::tensor_columns);
}

// Whether the present GPU has tcgen05: 10.0, 10.3 and 11.0 do, 12.x does not.
inline bool on_this_gpu() {
  const int major = device_attribute(cudaDevAttrComputeCapabilityMajor);
  return major == 10 || major == 11;
}

// C[m][n] = scale A[m][k] B: B is [k][n], or [n][k] where it lies along K. m and n are multiples of 256, k of a step.
template <class P>
class Gemm {
 public:
  using Element = typename P::Element;

  // Does nothing where the kernel could not run.
  Gemm(const Element* a, const Element* b, bf16* c, std::size_t m, std::size_t n, std::size_t k)
      : m_{m}, n_{n}, steps_{static_cast<int>(k) / P::tile_k}, usable_{on_this_gpu()} {
    if (!usable_) return;
    constexpr auto type = sizeof(Element) == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    maps_.a = matrix_map(type, sizeof(Element), a, m, k, P::block_m, P::tile_k);
    if constexpr (P::b_major == Major::mn) maps_.b = gemm::b_map(b, k, n, P::block_n);
    else maps_.b = matrix_map(type, sizeof(Element), b, n, k, P::block_n, P::tile_k);
    maps_.c = matrix_map_bf16(c, m, n, box_rows, box_columns);
  }
  bool usable() const { return usable_; }

  // In bands of `band` rows of tiles; with at most `most_blocks` blocks, or one for every tile where the hardware is asked.
  void run(Launch& launch, int band, unsigned most_blocks, float scale = 1) const {
    const TileOrder order{m_, n_, P::tile_m, P::tile_n, band};
    const unsigned tiles = static_cast<unsigned>(order.count());
    const unsigned groups = P::asks ? tiles : std::min(tiles, most_blocks / P::blocks);
    launch(gemm_kernel<P>, {groups * P::blocks, P::threads, sizeof(Shared<P>), P::blocks}, maps_, order, steps_, scale);
  }

 private:
  std::size_t m_, n_;
  int steps_;
  bool usable_;
  Maps maps_{};
};

}  // namespace aisp::ch10::blackwell_gemm
