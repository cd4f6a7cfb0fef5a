// SPDX-License-Identifier: Apache-2.0
// Attention in one pass over K and V with the softmax kept online, on warp-level tensor core instructions, and the arithmetic of
// that softmax. Heads of 128 columns lie one after the other, each with `length` rows, a multiple of 128.
#pragma once
#include <aisp/device/async_copy.cuh>
#include <aisp/device/matrix.cuh>

#include <cuda_bf16.h>

#include <cstddef>

namespace aisp::ch10::attention {

using bf16 = __nv_bfloat16;
constexpr int depth = 128;  // columns of a head
// Exponents are taken to base 2; a score is a product of two rows over sqrt(depth).
constexpr float score_scale = 0.088388347648318440f * 1.4426950408889634f;

__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What a thread knows of the two rows of a fragment that it has elements of: the rows l / 4 and l / 4 + 8. The maximum is the
// row's, the sum is of the thread's own elements.
struct Rows {
  float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
};

template <int count>
__device__ __forceinline__ void row_maxima(const float (&scores)[count], float (&maximum)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float highest[2] = {scores[2 * half], scores[2 * half + 1]};
#pragma unroll
    for (int j = 4; j < count; j += 4) {
      highest[0] = fmaxf(highest[0], scores[j + 2 * half]);
      highest[1] = fmaxf(highest[1], scores[j + 2 * half + 1]);
    }
    maximum[half] = fmaxf(highest[0], highest[1]);
    maximum[half] = fmaxf(maximum[half], __shfl_xor_sync(~0u, maximum[half], 1));
    maximum[half] = fmaxf(maximum[half], __shfl_xor_sync(~0u, maximum[half], 2));
  }
}

// `factor` is what earlier results must be multiplied by, because the maximum has grown.
__device__ __forceinline__ void raise(Rows& rows, const float (&maximum)[2], float (&factor)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float raised = fmaxf(rows.maximum[half], maximum[half]);
    factor[half] = exp2_approximate((rows.maximum[half] - raised) * score_scale);
    rows.maximum[half] = raised;
    rows.sum[half] *= factor[half];
  }
}

template <int count>
__device__ __forceinline__ void exponentials(float (&scores)[count], Rows& rows) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float offset = rows.maximum[half] * score_scale;
#pragma unroll
    for (int j = 2 * half; j < count; j += 4)
#pragma unroll
      for (int i = j; i < j + 2; ++i) {
        scores[i] = exp2_approximate(fmaf(scores[i], score_scale, -offset));
        rows.sum[half] += scores[i];
      }
  }
}

// Turns the scores of these rows into their exponentials.
template <int count>
__device__ __forceinline__ void online_softmax(float (&scores)[count], Rows& rows, float (&factor)[2]) {
  float maximum[2];
  row_maxima(scores, maximum);
  raise(rows, maximum, factor);
  exponentials(scores, rows);
}

// The same, but the maximum may be outgrown by up to 2^8 before anything is rescaled: what exponentials are taken relative to
// cancels in the end, and neither fp32 nor bf16 loses bits by it. True if there is something to rescale.
template <int count>
__device__ __forceinline__ bool online_softmax_deferred(float (&scores)[count], Rows& rows, float (&factor)[2]) {
  constexpr float slack = 8 / score_scale;
  float maximum[2];
  row_maxima(scores, maximum);
  const bool outgrown = __any_sync(~0u, maximum[0] > rows.maximum[0] + slack || maximum[1] > rows.maximum[1] + slack);
  if (outgrown) raise(rows, maximum, factor);
  exponentials(scores, rows);
  return outgrown;
}

template <int count>
__device__ __forceinline__ void rescale(float (&rows)[count], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < count; ++i) rows[i] *= factor[i / 2 % 2];
}

// What the finished rows are multiplied by.
__device__ __forceinline__ void reciprocals(const Rows& rows, float (&factor)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = rows.sum[half];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    factor[half] = 1 / sum;
  }
}

// Rows of 16 columns as a left operand: the layout of the result of a product, narrowed.
template <int count>
__device__ __forceinline__ void narrow(unsigned (&operand)[4], const float (&rows)[count], int step) {
#pragma unroll
  for (int i = 0; i < 4; ++i) operand[i] = device::narrow_bf16(rows[8 * step + 2 * i], rows[8 * step + 2 * i + 1]);
}

// Hides keys behind a row's own, where `row` (of this thread's first) and the columns count from the same key.
template <int count>
__device__ __forceinline__ void hide_later_keys(float (&scores)[count], int row) {
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int i = 0; i < count; ++i)
    if (i / 4 * 8 + column + i % 2 > row + i / 2 % 2 * 8) scores[i] = -INFINITY;
}

// The order of blocks of 128 rows. Without a mask one head after the other: blocks that run together read the same keys. With a
// causal mask a block has more keys the later it stands in its head, and what is begun last should be short: the longest first.
// But not of all heads: a head's next block would come when L2 has long lost its keys, and each would be read from memory by
// every block. So it is the longest of the next few heads, which have 16 MiB of keys and values together.
__device__ __forceinline__ int block_in_order(bool causal, int turn, int blocks, int of_a_head) {
  if (!causal) return turn;
  constexpr int in_l2 = 256;  // times 128 rows of K and of V
  const int together = max(in_l2 / of_a_head, 1) * of_a_head, first = turn / together * together;
  const int heads = min(together, blocks - first) / of_a_head, longer = (turn - first) / heads;
  return first + (turn - first) % heads * of_a_head + of_a_head - 1 - longer;
}

namespace mma_sync {

constexpr int threads = 128, query_rows = 128, keys = 64;
constexpr int pitch = depth * 2, row_chunks = pitch / 16;  // bytes of a row, and 16-byte chunks
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
static __global__ __launch_bounds__(threads, 2) void attention_kernel(const bf16* q, const bf16* k, const bf16* v, bf16* o,
                                                                      int length) {
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
  float sums[2][depth / 2] = {};
  Rows rows[2];
  const int seen = causal ? static_cast<int>(first_row - first_key) + query_rows : length;  // keys
  for (int left = seen; left > 0; left -= keys) {
    device::wait_copies<0>();
    __syncthreads();  // K is here, and nobody reads the last V any more
    copy(to + (query_rows + keys) * pitch, v, from, keys);
    from += keys * row_chunks;
    float scores[2][keys / 2] = {};
#pragma unroll
    for (int step = 0; step < depth / 16; ++step) {
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
    if (left > keys) copy(to + query_rows * pitch, k, from, keys);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float factor[2];
      if (causal && left <= query_rows)
        hide_later_keys(scores[i], left - query_rows + i * 16 + thread_again() / 32 * 32 + thread_again() % 32 / 4);
      online_softmax(scores[i], rows[i], factor);
      rescale(sums[i], factor);
    }
#pragma unroll
    for (int step = 0; step < keys / 16; ++step) {
      unsigned p[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) narrow(p[i], scores[i], step);
#pragma unroll
      for (int j = 0; j < depth / 16; ++j) {
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
    for (int j = 0; j < depth / 4; ++j)
      *reinterpret_cast<unsigned*>(memory + (own + i * 16 + j % 2 * 8 + l / 4) * pitch + (j / 2 ^ l / 4) * 16 + l % 4 * 4) =
          device::narrow_bf16(sums[i][2 * j], sums[i][2 * j + 1]);
  }
  __syncwarp();
#pragma unroll 2
  for (int i = own + l / 16; i < own + 32; i += 2)
    *reinterpret_cast<uint4*>(o + static_cast<std::size_t>(row_again + i) * depth + l % 16 * 8) =
        *reinterpret_cast<const uint4*>(memory + i * pitch + (l % 16 ^ i % 8) * 16);
}

}  // namespace mma_sync
}  // namespace aisp::ch10::attention
