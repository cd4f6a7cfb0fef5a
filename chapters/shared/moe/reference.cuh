// SPDX-License-Identifier: Apache-2.0
// Experts of a mixture in float64, from the bf16 operands and without any rounding in between: plain kernels that go through the
// tokens of one choice after the other, and share nothing with the layers that are compared with them.
#pragma once
#include <cuda_bf16.h>
#include <aisp/launch.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "moe/routing.hpp"

namespace aisp::moe::reference {

// Experts with SwiGLU over two GPUs, of which the first `of_gpu` are the first one's. Gate and up are interleaved in groups of
// eight rows.
struct Experts {
  const __nv_bfloat16 *gate_up[2], *down[2];  // [expert][2 ffn][hidden], [expert][hidden][ffn]
  int count, of_gpu, hidden, ffn;

  __device__ const __nv_bfloat16* gate(int expert, int f) const {
    return (expert < of_gpu ? gate_up[0] : gate_up[1]) +
           (static_cast<std::size_t>(expert % of_gpu) * 2 * ffn + f / 8 * 16 + f % 8) * hidden;
  }
  __device__ const __nv_bfloat16* up(int expert, int f) const { return gate(expert, f) + 8 * static_cast<std::size_t>(hidden); }
  __device__ const __nv_bfloat16* row_of_down(int expert, int i) const {
    return (expert < of_gpu ? down[0] : down[1]) + (static_cast<std::size_t>(expert % of_gpu) * hidden + i) * ffn;
  }
};

inline constexpr int tile = 64, tile_k = 16, of_thread = 4, threads = (tile / of_thread) * (tile / of_thread);

// Rows of one expert, in the order of the experts.
struct Rows {
  int first, end, expert;
};
struct Tiles {
  const int* token_of_row;
  const Rows* rows;  // of each block along y
};

namespace detail {

__device__ inline double wide(double x) { return x; }
__device__ inline double wide(__nv_bfloat16 x) { return static_cast<double>(__bfloat162float(x)); }

// sums[i][j] = a_row(4 y + i) b_row(4 x + j), of the thread (x, y) of 16 by 16; a null row is one of zeros.
template <class RowOfA, class RowOfB>
__device__ void multiply(double (&sums)[of_thread][of_thread], int k, RowOfA a_row, RowOfB b_row) {
  __shared__ double a[tile_k][tile + 1], b[tile_k][tile + 1];
  const int x = static_cast<int>(threadIdx.x) % (tile / of_thread), y = static_cast<int>(threadIdx.x) / (tile / of_thread);
  for (int begin = 0; begin < k; begin += tile_k) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < tile * tile_k; i += threads) {
      const int row = i / tile_k, column = i % tile_k;
      const auto* const from_a = a_row(row);
      const auto* const from_b = b_row(row);
      const bool exists = begin + column < k;
      a[column][row] = exists && from_a != nullptr ? wide(from_a[begin + column]) : 0;
      b[column][row] = exists && from_b != nullptr ? wide(from_b[begin + column]) : 0;
    }
    __syncthreads();
    for (int step = 0; step < tile_k; ++step)
#pragma unroll
      for (int i = 0; i < of_thread; ++i)
#pragma unroll
        for (int j = 0; j < of_thread; ++j) sums[i][j] += a[step][y * of_thread + i] * b[step][x * of_thread + j];
  }
}

}  // namespace detail

// activated[row][f].
static __global__ __launch_bounds__(threads) void activate_kernel(Experts experts, Tiles tiles, const __nv_bfloat16* tokens,
                                                                  double* activated) {
  const Rows rows = tiles.rows[blockIdx.y];
  const int first_f = static_cast<int>(blockIdx.x) * tile;
  const auto token = [&](int row) -> const __nv_bfloat16* {
    if (rows.first + row >= rows.end) return nullptr;
    return tokens + static_cast<std::size_t>(tiles.token_of_row[rows.first + row]) * experts.hidden;
  };
  double gate[of_thread][of_thread]{}, up[of_thread][of_thread]{};
  detail::multiply(gate, experts.hidden, token, [&](int f) -> const __nv_bfloat16* {
    return first_f + f < experts.ffn ? experts.gate(rows.expert, first_f + f) : nullptr;
  });
  detail::multiply(up, experts.hidden, token, [&](int f) -> const __nv_bfloat16* {
    return first_f + f < experts.ffn ? experts.up(rows.expert, first_f + f) : nullptr;
  });
  for (int i = 0; i < of_thread; ++i)
    for (int j = 0; j < of_thread; ++j) {
      const int row = rows.first + static_cast<int>(threadIdx.x) / (tile / of_thread) * of_thread + i;
      const int f = first_f + static_cast<int>(threadIdx.x) % (tile / of_thread) * of_thread + j;
      if (row < rows.end && f < experts.ffn)
        activated[static_cast<std::size_t>(row) * experts.ffn + f] = gate[i][j] / (1 + exp(-gate[i][j])) * up[i][j];
    }
}

// out[token][i] += share of the token * down. A token has one row.
static __global__ __launch_bounds__(threads) void add_down_kernel(Experts experts, Tiles tiles, const double* activated,
                                                                  const float* shares, int top_k, double* out) {
  const Rows rows = tiles.rows[blockIdx.y];
  const int first_column = static_cast<int>(blockIdx.x) * tile;
  double sums[of_thread][of_thread]{};
  detail::multiply(
      sums, experts.ffn,
      [&](int row) -> const double* {
        return rows.first + row < rows.end ? activated + static_cast<std::size_t>(rows.first + row) * experts.ffn : nullptr;
      },
      [&](int i) -> const __nv_bfloat16* {
        return first_column + i < experts.hidden ? experts.row_of_down(rows.expert, first_column + i) : nullptr;
      });
  for (int i = 0; i < of_thread; ++i)
    for (int j = 0; j < of_thread; ++j) {
      const int row = rows.first + static_cast<int>(threadIdx.x) / (tile / of_thread) * of_thread + i;
      const int column = first_column + static_cast<int>(threadIdx.x) % (tile / of_thread) * of_thread + j;
      if (row >= rows.end || column >= experts.hidden) continue;
      const auto token = static_cast<std::size_t>(tiles.token_of_row[row]);
      const double share = shares == nullptr ? 1.0 : static_cast<double>(shares[token * top_k]);
      out[token * experts.hidden + column] += share * sums[i][j];
    }
}

// Adds what the experts of one choice make of one GPU's tokens to out[token][hidden]. `chosen`: the expert of each token;
// `shares`: of this choice of the first token, with a distance of `top_k` to the next one's, or null where each is 1; `activated`
// has room for tokens * ffn, `index` for index_words().
inline void add_choice(cudaStream_t stream, const Experts& experts, const __nv_bfloat16* tokens, const std::vector<int>& chosen,
                       const float* shares, int top_k, double* activated, int* index, double* out) {
  const Grouped grouped = group_by_expert(chosen, static_cast<std::size_t>(experts.count));
  std::vector<int> words = grouped.slot_of_row;
  unsigned tiles = 0;
  for (int expert = 0; expert < experts.count; ++expert) {
    const int end = grouped.offsets[static_cast<std::size_t>(expert) + 1];
    for (int first = grouped.offsets[static_cast<std::size_t>(expert)]; first < end; first += tile, ++tiles)
      words.insert(words.end(), {first, std::min(first + tile, end), expert});
  }
  if (tiles == 0) return;
  check(cudaMemcpyAsync(index, words.data(), words.size() * sizeof(int), cudaMemcpyHostToDevice, stream));
  check(cudaStreamSynchronize(stream));  // the words are gone when this function returns
  const Tiles at{index, reinterpret_cast<const Rows*>(index + chosen.size())};
  const auto blocks = [&](int extent) { return dim3(static_cast<unsigned>((extent + tile - 1) / tile), tiles); };
  launch_kernel(stream, activate_kernel, {blocks(experts.ffn), threads}, experts, at, tokens, activated);
  launch_kernel(stream, add_down_kernel, {blocks(experts.hidden), threads}, experts, at, activated, shares, top_k, out);
}
inline std::size_t index_words(std::size_t tokens, std::size_t experts) { return tokens + 3 * (tokens / tile + experts + 1); }

// The same of all choices; expert_of(slot) is the expert of choice slot % top_k of token slot / top_k.
template <class ExpertOf>
void add_choices(cudaStream_t stream, const Experts& experts, const __nv_bfloat16* tokens, std::size_t count,
                 const ExpertOf& expert_of, const float* shares, int top_k, double* activated, int* index, double* out) {
  const auto choices = static_cast<std::size_t>(top_k);
  for (std::size_t k = 0; k < choices; ++k) {
    std::vector<int> chosen(count);
    for (std::size_t token = 0; token < count; ++token) chosen[token] = expert_of(token * choices + k);
    add_choice(stream, experts, tokens, chosen, shares + k, top_k, activated, index, out);
  }
}

}  // namespace aisp::moe::reference
