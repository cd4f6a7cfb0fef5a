// SPDX-License-Identifier: Apache-2.0
// What the roles of tcgen05_gemm.cuh share: the plan of a kernel, its shared memory, and the tiles it takes. Compiled for sm_100a
// and sm_103a, and not run.
#pragma once
#include "persistent_gemm.cuh"

#include <aisp/device/launch_control.cuh>
#include <aisp/device/tcgen05.cuh>
#include <aisp/needs.hpp>

#include <cuda_fp8.h>

#include <type_traits>

namespace aisp::ch10::tcgen05_gemm {

using device::Major, device::TensorKind, persistent_gemm::TileOrder, wgmma_gemm::bf16, wgmma_gemm::Cursor;
using e4m3 = __nv_fp8_e4m3;

inline constexpr Needs needs{.min_sm = 100, .tcgen05 = true};
// Of pairs whose baseline is on wgmma or, where there is none, on tcgen05: the last family that has either.
inline constexpr int last_sm = 110;

// Where tiles come from: each block takes every gridDim-th, or the hardware is asked for a block that has not started.
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

struct Two {
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

  // Of a pair, `full` and `sums_empty` are those of the even block: it counts the bytes of both, and waits for the warps of both.
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
  Cursor<Two> at{};

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
  for (Cursor<Two> at;; at.next()) {
    device::barrier_wait(&answers.empty[at.stage], at.phase ^ 1);
    device::fence_proxy_async_shared();
    device::barrier_arrive_expect(&answers.full[at.stage], sizeof(device::CancelledLaunch));
    device::ask_for_launch(&answers.answer[at.stage], &answers.full[at.stage]);
    device::barrier_wait(&answers.full[at.stage], at.phase);
    if (device::block_of(answers.answer[at.stage]) < 0) return;
  }
}

}  // namespace aisp::ch10::tcgen05_gemm
