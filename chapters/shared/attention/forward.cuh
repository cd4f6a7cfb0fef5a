// SPDX-License-Identifier: Apache-2.0
// O = softmax(score(Q K^T)) V on wgmma (sm_90a): two or three warpgroups with 64 query rows each take turns, so that one
// multiplies while another exponentiates; a warp keeps a ring of tiles of K and V full. It is chapter 10's query_in_registers
// with masks, layouts of keys, scores and tails.
#pragma once
#include <aisp/device/wgmma_products.cuh>

#include "forward_shared.cuh"

namespace aisp::attention {

using device::Major;

// A from registers has no direction.
template <Major b_major, int count, class A>
__device__ __forceinline__ void multiply(float (&d)[count], const A& a, std::uint64_t b, bool add) {
  if constexpr (sizeof(A) == 16) device::wgmma<device::Operands::bf16, b_major>(d, a, b, add);
  else device::wgmma<device::Operands::bf16, Major::k, b_major>(d, a, b, add);
}

// The named barrier of the first warpgroup's turn, and how many threads meet there: it waits, another arrives.
constexpr int first_turn = 1, of_two = 2 * warpgroup;

// A consumer warpgroup's view of the block's shared memory, and its registers.
template <class S>
struct Consumer {
  Shared<S>& shared;
  int index;  // of the warpgroup
  Step<S::stages> step;
  float scores[tile_keys / 2], sums[S::value_size / 2];
  unsigned p[tile_keys / 16][4], q[S::queries_in_registers ? S::head_size / 16 : 1][4];

  // The named barriers at which this warpgroup and the one after it wait for their turn to multiply, and its own for stores.
  __device__ __forceinline__ int my_turn() const { return first_turn + index; }
  __device__ __forceinline__ int turn_after() const {
    if constexpr (S::consumers == 2) return 2 - index;
    else return index == S::consumers - 1 ? first_turn : 2 + index;
  }
  __device__ __forceinline__ void pass_turn() const {
    device::named_barrier_sync(my_turn(), of_two);
    device::named_barrier_arrive(turn_after(), of_two);
  }
  __device__ __forceinline__ int storing() const { return 1 + S::consumers + index; }
  __device__ __forceinline__ static int thread() { return static_cast<int>(threadIdx.x) % warpgroup; }
  // Return this thread's first row and its first column.
  __device__ __forceinline__ int row() const { return index * S::query_rows + thread() / 32 * 16 + thread() % 32 / 4; }
  __device__ __forceinline__ static int column() { return thread() % 4 * 2; }
  // The bytes of a tile of 64 rows where lane l of ldmatrix and stmatrix begins with columns 16 i.
  __device__ __forceinline__ static unsigned fragment(int i) {
    const int lane = thread() % 32, row = thread() / 32 * 16 + lane % 16;
    return static_cast<unsigned>(row * 128 + ((i % 4 * 2 + lane / 16) ^ row % 8) * 16);
  }
  __device__ __forceinline__ static void release(std::uint64_t* empty) {
    if (threadIdx.x % 32 == 0) device::barrier_arrive(empty);
  }
  // The block of rows of this round, when its queries have come, or none.
  __device__ __forceinline__ int next_turn(unsigned round) {
    device::barrier_wait(&shared.q_full, round % 2);
    const int turn = threadIdx.x % 32 == 0 ? atomicAdd(&shared.turn, 0) : 0;  // by the lane that releases Q
    return __shfl_sync(~0u, turn, 0);
  }
  __device__ __forceinline__ void keep_queries() {
#pragma unroll
    for (int i = 0; i < S::head_size / 16; ++i)
      device::load_matrices(q[i], device::shared_address(shared.q[index][i / 4]) + fragment(i));
  }
  // scores = Q K^T for the 64 rows of this warpgroup, `begun`: added to what they are. Asynchronous, as the next.
  template <bool begun>
  __device__ __forceinline__ void start_scores(const Step<S::stages>& at) {
    const std::uint64_t from_q = device::operand(shared.q[index]), from_k = device::operand(shared.k[at.slot()]);
    device::wgmma_touch(scores);
    device::wgmma_fence();
#pragma unroll
    for (int i = 0; i < S::head_size / 16; ++i) {
      const std::uint64_t k = device::advance(from_k, i / 4 * tile_keys * 128 + i % 4 * 32);
      if constexpr (S::queries_in_registers) multiply<Major::k>(scores, q[i], k, begun || i > 0);
      else multiply<Major::k>(scores, device::advance(from_q, i / 4 * S::query_rows * 128 + i % 4 * 32), k, begun || i > 0);
    }
    device::wgmma_commit();
  }
  // sums += P V. V lies as it came: its keys are rows, the second product's K.
  __device__ __forceinline__ void start_sums(const Step<S::stages>& at) {
    const std::uint64_t v = device::operand(shared.v[at.slot()], 1024, tile_keys * 128);
    device::wgmma_touch(sums);
    device::wgmma_fence();
#pragma unroll
    for (int i = 0; i < tile_keys / 16; ++i) multiply<Major::mn>(sums, p[i], device::advance(v, i * 2048), true);
    device::wgmma_commit();
  }
  __device__ __forceinline__ void narrow_scores() {
#pragma unroll
    for (int i = 0; i < tile_keys / 16; ++i) narrow(p[i], scores, i);
  }
  // The results through swizzled shared memory to O, by TMA unless rows after the sequence's last are another's.
  template <class Work>
  __device__ __forceinline__ void store(const CUtensorMap& map, const Work& work, const RowBlock& block, const Lengths& lengths) {
    const int t = thread(), first_row = block.first_row + index * S::query_rows, rows = lengths.queries - first_row;
    if (t == 0) device::wait_stores_read<0>();
    device::named_barrier_sync(storing(), warpgroup);  // what was stored last has been read, and Q by this warpgroup
    bf16(*const results)[S::query_rows * 64] = shared.results(index);
#pragma unroll
    for (int i = 0; i < S::value_size / 16; ++i) {
      unsigned words[4];
      narrow(words, sums, i);
      device::store_matrices(device::shared_address(results[i / 4]) + fragment(i), words[0], words[1], words[2], words[3]);
    }
    device::fence_proxy_async_shared();
    device::named_barrier_sync(storing(), warpgroup);
    const Place place = work.keys.query(block.sequence, first_row);
    if (Work::KeysType::clips_queries || rows >= S::query_rows) {
      if (t == 0) {
        for (int i = 0; i < S::value_boxes; ++i)
          device::tensor_store_4d(&map, i * 64, place.row, block.head, place.sequence, results[i]);
        device::commit_stores();
      }
    } else {
      constexpr int chunks = S::value_size / 8;  // of 16 bytes, in a row
      bf16* const to = work.o + place.row * work.o_strides.row + block.head * work.o_strides.head;
      for (int i = t; i < rows * chunks; i += warpgroup) {
        const int row = i / chunks, chunk = i % chunks;
        *reinterpret_cast<uint4*>(to + row * work.o_strides.row + chunk * 8) =
            reinterpret_cast<const uint4*>(results[chunk / 8])[row * 8 + (chunk % 8 ^ row % 8)];
      }
    }
    if constexpr (S::results_over_queries) {
      if (t == 0) device::wait_stores_read<0>();
      device::named_barrier_sync(storing(), warpgroup);
      release(&shared.q_empty);
    }
  }
};

// How many of a block's tiles come before the first of which this warpgroup's rows, a part of the block's, see a key: all where
// it has no rows.
template <class S, class Work>
__device__ __forceinline__ int hidden_tiles(const Consumer<S>& own, const Work& work, const RowBlock& block,
                                            const Lengths& lengths, const TileSpan& tiles) {
  const int index = __shfl_sync(~0u, own.index, 0);  // tells the compiler that whole warps branch alike
  const int first_row = block.first_row + index * S::query_rows;
  if (first_row >= lengths.queries) return tiles.count;
  const TileSpan seen = tiles_of(work.mask, block.sequence, block.head, first_row, S::query_rows, lengths);
  return seen.count == 0 ? tiles.count : (seen.first - tiles.first) * tiles.step;
}

// A block of rows, from the arrival of its queries until the sums and the softmax's rows are complete. The scores of the next
// tile are started before the sums of this one, which need not be ready before its exponentials have been taken (ptxas of CUDA
// 13.0 waits for them before these all the same, which is faster). A warpgroup starts its products after those before it.
template <class S, class Work, class Tiles>
__device__ __forceinline__ void rows_of_block(Consumer<S>& own, const Work& work, const RowBlock& block, const Lengths& lengths,
                                              const Tiles& tiles, Rows& rows) {
  Shared<S>& shared = own.shared;
  const auto score = work.score.of_head(block.sequence, block.head);
  const float scale = work.score.exponent_scale();
  const int row = block.first_row + own.row(), column = own.column();
  float factor[2];
  constexpr bool begins = requires { score.begin(0.0f, 0.0f); };
  // Work before the products of tile i, while others multiply.
  const auto begin_scores = [&](int i) {
    if constexpr (begins) {
      const int first_key = tiles.index(i) * tile_keys + column;
      const float distance = static_cast<float>(first_key - block.first_row - (lengths.keys - lengths.queries));
#pragma unroll
      for (int j = 0; j < tile_keys / 2; ++j) own.scores[j] = score.begin(distance, static_cast<float>(j / 4 * 8 + j % 2));
      device::wgmma_touch(own.scores);
    }
  };
  // Work on the products of tile i before the softmax.
  const auto finish_scores = [&](int i) {
    const int first_key = tiles.index(i) * tile_keys;
    if constexpr (decltype(work.score)::changes) {
      const float distance = static_cast<float>(first_key + column - row - (lengths.keys - lengths.queries));
#pragma unroll
      for (int j = 0; j < tile_keys / 2; ++j) {
        const int right = j / 4 * 8 + j % 2, down = j / 2 % 2 * 8;
        own.scores[j] = score(own.scores[j], At{block.sequence, block.head, row + down, first_key + column + right,
                                                distance + static_cast<float>(right - down)});
      }
    }
    if (tiles.partial(i)) hide(work.mask, own.scores, block.sequence, block.head, row, first_key, column, lengths, -infinity);
  };

  if constexpr (S::queries_in_registers) own.keep_queries();
  if (tiles.count == 0) {
    if constexpr (!S::results_over_queries) own.release(&shared.q_empty);
    return;
  }
  int first = 0;
  // A block with more rows than a tile has keys may have tiles of which all rows of a warpgroup see nothing.
  if constexpr (S::block_rows > tile_keys && requires { tiles.step; }) {
    first = hidden_tiles(own, work, block, lengths, tiles);
    for (int i = 0; i < first; ++i, ++own.step.count) {
      const unsigned slot = own.step.slot(), parity = own.step.parity();
      device::barrier_wait(&shared.k_full[slot], parity);
      own.release(&shared.k_empty[slot]);
      if (i > 0) own.pass_turn();
      device::barrier_wait(&shared.v_full[slot], parity);
      own.release(&shared.v_empty[slot]);
    }
    if (first == tiles.count) {
      own.release(&shared.q_empty);
      return;
    }
  }
  begin_scores(first);
  device::barrier_wait(&shared.k_full[own.step.slot()], own.step.parity());
  if (first > 0) own.pass_turn();
  own.template start_scores<begins>(own.step);
  device::wgmma_wait<0>();
  device::wgmma_touch(own.scores);
  own.release(&shared.k_empty[own.step.slot()]);
  if constexpr (S::queries_in_registers) own.release(&shared.q_empty);
  finish_scores(first);
  online_softmax(own.scores, rows, scale, factor);
  own.narrow_scores();
  for (int i = first + 1; i < tiles.count; ++i) {
    const Step<S::stages> last = own.step;
    ++own.step.count;
    begin_scores(i);
    device::barrier_wait(&shared.k_full[own.step.slot()], own.step.parity());
    device::named_barrier_sync(own.my_turn(), of_two);
    own.template start_scores<begins>(own.step);
    device::barrier_wait(&shared.v_full[last.slot()], last.parity());
    own.start_sums(last);
    device::named_barrier_arrive(own.turn_after(), of_two);
    device::wgmma_wait<1>();
    device::wgmma_touch(own.scores);
    own.release(&shared.k_empty[own.step.slot()]);
    finish_scores(i);
    const bool outgrown = online_softmax(own.scores, rows, scale, factor);
    device::wgmma_wait<0>();
    device::wgmma_touch(own.sums);
    own.release(&shared.v_empty[last.slot()]);
    own.narrow_scores();
    if (outgrown) rescale(own.sums, factor);
  }
  if constexpr (!S::queries_in_registers && !S::results_over_queries) own.release(&shared.q_empty);
  device::barrier_wait(&shared.v_full[own.step.slot()], own.step.parity());
  own.start_sums(own.step);
  device::wgmma_wait<0>();
  device::wgmma_touch(own.sums);
  own.release(&shared.v_empty[own.step.slot()]);
  ++own.step.count;
}

template <class S, class Work, bool log_sum>
__device__ __forceinline__ void consume(Shared<S>& shared, const Maps& maps, const Work& work) {
  Consumer<S> own{shared, static_cast<int>(threadIdx.x) / warpgroup - 1, {}, {}, {}, {}, {}};
  if (own.index == S::consumers - 1) device::named_barrier_arrive(first_turn, of_two);
  for (unsigned round = 0;; ++round) {
    const int turn = own.next_turn(round);
    if (turn == Shared<S>::none) break;
    const RowBlock block = work.order.at(turn, S::block_rows);
    const Lengths lengths = work.keys.lengths(block.sequence);
    Rows rows;
#pragma unroll
    for (float& sum : own.sums) sum = 0;
    rows_of_block(own, work, block, lengths,
                  tiles_of(work.mask, block.sequence, block.head, block.first_row, S::block_rows, lengths), rows);
    whole_sums(rows);
    const float factor[2] = {reciprocal(rows.sum[0]), reciprocal(rows.sum[1])};
    rescale(own.sums, factor);
    if constexpr (log_sum) {
      const Place place = work.keys.query(block.sequence, block.first_row + own.row());
      float* const to = work.log_sums + place.sequence * work.log_sum_strides.sequence + block.head * work.log_sum_strides.head +
                        place.row * work.log_sum_strides.row;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (own.column() == 0 && block.first_row + own.row() + half * 8 < lengths.queries)
          to[half * 8 * work.log_sum_strides.row] = log_sum_exp(rows.maximum[half], rows.sum[half], work.score.exponent_scale());
    }
    own.store(maps.o, work, block, lengths);
  }
  if (own.index == 0) device::named_barrier_sync(first_turn, of_two);  // takes the last arrival
  if (own.thread() == 0) device::wait_stores_read<0>();
}

template <int head_size, int value_size, class Mask, class Keys, class Score, bool log_sum, class Order>
__global__ __launch_bounds__(forward_threads,
                             1) void forward_kernel(const __grid_constant__ Maps maps,
                                                    const __grid_constant__ Forward<Mask, Keys, Score, Order> work) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using S = Shape<head_size, value_size>;
  Shared<S>& shared = *reinterpret_cast<Shared<S>*>(memory);
  initialize(shared);
  if (threadIdx.x < warpgroup) {
    device::give_up_registers<24>();
    if (threadIdx.x < 32) produce(shared, maps, work);
  } else {
    device::take_registers<240>();
    consume<S, Forward<Mask, Keys, Score, Order>, log_sum>(shared, maps, work);
  }
}

}  // namespace aisp::attention
