// SPDX-License-Identifier: Apache-2.0
// The tasks of a tiled Cholesky factorization in fp32, lower triangle, row-major: factor a diagonal tile, solve a tile below it,
// subtract the product of two solved tiles from a third. Tiles of 128 x 128; a diagonal tile leaves the inverses of its four
// diagonal blocks of 32 x 32, so that solving is multiplying.
#pragma once
#include <aisp/device/async_copy.cuh>
#include <aisp/device/reduce.cuh>

#include <cstddef>

namespace aisp::ch12::cholesky {

constexpr int tile = 128, block = 32, blocks_of_tile = tile / block, threads = 256;
constexpr int parts = 4;                                    // blocks of a task's grid
constexpr int pitch = tile + 4, inverse_pitch = block + 4;  // of rows in shared memory: eight begin in different banks

struct Matrix {
  float* values;
  float* inverses;  // [tile][block of the diagonal][32][32]
  int n;

  __device__ float* at(int row_tile, int column_tile) const {
    return values + static_cast<std::size_t>(row_tile) * tile * n + column_tile * tile;
  }
  __device__ float* inverses_of(int diagonal_tile) const { return inverses + diagonal_tile * (blocks_of_tile * block * block); }
};

constexpr std::size_t factor_bytes = (tile * pitch + block * inverse_pitch) * sizeof(float);
constexpr std::size_t solve_bytes = ((tile + block) * pitch + tile * inverse_pitch) * sizeof(float);
constexpr int half = tile / 2, fours = tile / 4;
constexpr std::size_t update_bytes = 2 * half * pitch * sizeof(float);

// One warp: a lane has a row of a 32 x 32 block in registers, and its L when this returns. Upper elements stay as they are.
// Returns the reciprocal of the row's diagonal element: a root and a division for each column would be the longest chain here.
static __device__ float factor_block(float (&row)[block]) {
  const int lane = threadIdx.x % device::warp_size;
  float own = 0;
#pragma unroll
  for (int c = 0; c < block; ++c) {
    const float pivot = __shfl_sync(device::whole_warp, row[c], c);
    float reciprocal = rsqrtf(pivot);
    reciprocal *= fmaf(-0.5f * pivot * reciprocal, reciprocal, 1.5f);
    const float value = row[c] * reciprocal;
    if (lane == c) own = reciprocal;
    if (lane >= c) row[c] = value;
#pragma unroll
    for (int right = c + 1; right < block; ++right) {
      const float other = __shfl_sync(device::whole_warp, value, right);
      if (lane >= right) row[right] = fmaf(-value, other, row[right]);
    }
  }
  return own;
}

// One warp: lane c gets column c of the inverse of the triangle, from shared memory.
static __device__ void invert_block(const float* triangle, float reciprocal, float* inverse) {
  const int lane = threadIdx.x % device::warp_size;
  float column[block];
#pragma unroll
  for (int r = 0; r < block; ++r) column[r] = r == lane ? 1.0f : 0.0f;
#pragma unroll
  for (int k = 0; k < block; ++k) {
    column[k] *= __shfl_sync(device::whole_warp, reciprocal, k);
#pragma unroll
    for (int r = k + 1; r < block; ++r) column[r] = fmaf(-triangle[r * pitch + k], column[k], column[r]);
  }
#pragma unroll
  for (int r = 0; r < block; ++r) inverse[r * inverse_pitch + lane] = column[r];
}

// sums[i] += (or -=) row . (row i * step of `columns`), over `depth` values.
template <bool subtract = false>
static __device__ void add_products(float (&sums)[4], const float* row, const float* columns, int step, int depth) {
#pragma unroll 4
  for (int m = 0; m < depth; m += 4) {
    float4 a = *reinterpret_cast<const float4*>(row + m);
    if (subtract) a = make_float4(-a.x, -a.y, -a.z, -a.w);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 b = *reinterpret_cast<const float4*>(columns + i * step + m);
      sums[i] = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sums[i]))));
    }
  }
}

// A block of 32 x 32 values belongs to 256 threads, each of which has a row's every eighth column.
static __device__ void load_own(float (&values)[4], const float* from) {
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = from[i * 8];
}
static __device__ void store_own(float* to, const float (&values)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i * 8] = values[i];
}

// A block times the transposed inverse. The eight threads of a row, all of one warp, read it before they write.
static __device__ void solve_block(float* rows, const float* inverse, int row, int column) {
  float solved[4] = {};
  add_products(solved, rows + row * pitch, inverse + column * inverse_pitch, 8 * inverse_pitch, block);
  __syncwarp();
  store_own(rows + row * pitch + column, solved);
  __syncwarp();
}

// Diagonal tile k. One block: blocks of 32 columns one after the other, each factored and inverted by one warp, then solved for
// the rows below and subtracted from the columns to its right by all.
static __global__ __launch_bounds__(threads) void factor_kernel(Matrix matrix, int k) {
  extern __shared__ __align__(16) float shared[];
  float* const inverse = shared + tile * pitch;
  float* const global = matrix.at(k, k);
  for (int c = threadIdx.x; c < tile * fours; c += threads)
    device::copy_async_16(shared + c / fours * pitch + c % fours * 4,
                          global + static_cast<std::size_t>(c / fours) * matrix.n + c % fours * 4);
  device::commit_copies();
  device::wait_copies<0>();
  __syncthreads();
  const int row = threadIdx.x / 8, column = threadIdx.x % 8;
  for (int j = 0; j < blocks_of_tile; ++j) {
    const int first = j * block;
    if (threadIdx.x < device::warp_size) {
      float values[block];
      float* const mine = shared + (first + threadIdx.x) * pitch + first;
#pragma unroll
      for (int c = 0; c < block; ++c) values[c] = mine[c];
      const float reciprocal = factor_block(values);
#pragma unroll
      for (int c = 0; c < block; ++c) mine[c] = values[c];
      __syncwarp();
      invert_block(shared + first * pitch + first, reciprocal, inverse);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < block * block; i += threads)
      matrix.inverses_of(k)[j * block * block + i] = inverse[i / block * inverse_pitch + i % block];
    for (int below = j + 1; below < blocks_of_tile; ++below)
      solve_block(shared + below * block * pitch + first, inverse, row, column);
    __syncthreads();
    for (int below = j + 1; below < blocks_of_tile; ++below)
      for (int right = j + 1; right <= below; ++right) {
        float* const own = shared + (below * block + row) * pitch + right * block + column;
        float values[4];
        load_own(values, own);
        add_products<true>(values, shared + (below * block + row) * pitch + first,
                           shared + (right * block + column) * pitch + first, 8 * pitch, block);
        store_own(own, values);
      }
    __syncthreads();
  }
  for (int c = threadIdx.x; c < tile * fours; c += threads) {
    const int at_row = c / fours, at_column = c % fours * 4;
    const float4 four = *reinterpret_cast<const float4*>(shared + at_row * pitch + at_column);
    float* const to = global + static_cast<std::size_t>(at_row) * matrix.n + at_column;
    if (at_column + 3 <= at_row) *reinterpret_cast<float4*>(to) = four;
    else {
      if (at_column <= at_row) to[0] = four.x;
      if (at_column + 1 <= at_row) to[1] = four.y;
      if (at_column + 2 <= at_row) to[2] = four.z;
    }
  }
}

// Tile (i, k): X = A L(k,k)^-T, 32 rows a block.
static __device__ void solve_tile(const Matrix& matrix, int i, int k, int part) {
  extern __shared__ __align__(16) float shared[];
  float *const x = shared, *const l = shared + block * pitch, *const inverse = l + tile * pitch;
  float* const global = matrix.at(i, k) + static_cast<std::size_t>(part) * block * matrix.n;
  const float* const triangle = matrix.at(k, k);
  for (int c = threadIdx.x; c < block * fours; c += threads)
    device::copy_async_16(x + c / fours * pitch + c % fours * 4,
                          global + static_cast<std::size_t>(c / fours) * matrix.n + c % fours * 4);
  for (int c = threadIdx.x; c < tile * fours; c += threads)
    if (c % fours * 4 / block < c / fours / block)  // blocks below the diagonal
      device::copy_async_16(l + c / fours * pitch + c % fours * 4,
                            triangle + static_cast<std::size_t>(c / fours) * matrix.n + c % fours * 4);
  for (int c = threadIdx.x; c < tile * block / 4; c += threads)
    device::copy_async_16(inverse + c / (block / 4) * inverse_pitch + c % (block / 4) * 4, matrix.inverses_of(k) + c * 4);
  device::commit_copies();
  device::wait_copies<0>();
  __syncthreads();
  const int row = threadIdx.x / 8, column = threadIdx.x % 8;
#pragma unroll
  for (int j = 0; j < blocks_of_tile; ++j) {
    const int first = j * block;
    float* const own = x + row * pitch + first + column;
    float values[4];
    load_own(values, own);
    add_products<true>(values, x + row * pitch, l + (first + column) * pitch, 8 * pitch, first);
    store_own(own, values);
    __syncwarp();
    solve_block(x + first, inverse + j * block * inverse_pitch, row, column);
  }
  __syncthreads();
  for (int c = threadIdx.x; c < block * fours; c += threads)
    *reinterpret_cast<float4*>(global + static_cast<std::size_t>(c / fours) * matrix.n + c % fours * 4) =
        *reinterpret_cast<const float4*>(x + c / fours * pitch + c % fours * 4);
}

// Tile (i, j) -= X(i,k) X(j,k)^T, a quarter of 64 x 64 a block. Of a tile on the diagonal only the lower triangle is written.
static __device__ void update_tile(const Matrix& matrix, int i, int j, int k, int part) {
  extern __shared__ __align__(16) float shared[];
  const int top = part / 2 * half, left = part % 2 * half;
  if (i == j && left > top) return;
  float *const a = shared, *const b = shared + half * pitch;
  const float* const from_a = matrix.at(i, k) + static_cast<std::size_t>(top) * matrix.n;
  const float* const from_b = matrix.at(j, k) + static_cast<std::size_t>(left) * matrix.n;
  float* const global = matrix.at(i, j) + static_cast<std::size_t>(top) * matrix.n + left;
  constexpr int stages = 2, depth = tile / stages, stage_fours = depth / 4, each = 4;
  for (int stage = 0; stage < stages; ++stage) {
    for (int c = threadIdx.x; c < half * stage_fours; c += threads) {
      const int row = c / stage_fours, column = stage * depth + c % stage_fours * 4;
      device::copy_async_16(a + row * pitch + column, from_a + static_cast<std::size_t>(row) * matrix.n + column);
      device::copy_async_16(b + row * pitch + column, from_b + static_cast<std::size_t>(row) * matrix.n + column);
    }
    device::commit_copies();
  }
  const int row = threadIdx.x / 16, column = threadIdx.x % 16;  // and every 16th from there on
  float sums[each][each];
#pragma unroll
  for (int r = 0; r < each; ++r)
#pragma unroll
    for (int c = 0; c < each; ++c) sums[r][c] = global[static_cast<std::size_t>(row + r * 16) * matrix.n + column + c * 16];
#pragma unroll
  for (int stage = 0; stage < stages; ++stage) {
    if (stage == 0) device::wait_copies<stages - 1>();
    else device::wait_copies<0>();
    __syncthreads();
#pragma unroll 4
    for (int m = stage * depth; m < (stage + 1) * depth; m += 4) {
      float4 as[each], bs[each];
#pragma unroll
      for (int r = 0; r < each; ++r) {
        as[r] = *reinterpret_cast<const float4*>(a + (row + r * 16) * pitch + m);
        bs[r] = *reinterpret_cast<const float4*>(b + (column + r * 16) * pitch + m);
      }
#pragma unroll
      for (int r = 0; r < each; ++r)
#pragma unroll
        for (int c = 0; c < each; ++c)
          sums[r][c] =
              fmaf(-as[r].x, bs[c].x, fmaf(-as[r].y, bs[c].y, fmaf(-as[r].z, bs[c].z, fmaf(-as[r].w, bs[c].w, sums[r][c]))));
    }
  }
#pragma unroll
  for (int r = 0; r < each; ++r)
#pragma unroll
    for (int c = 0; c < each; ++c)
      if (i != j || left + column + c * 16 <= top + row + r * 16)
        global[static_cast<std::size_t>(row + r * 16) * matrix.n + column + c * 16] = sums[r][c];
}

static __global__ __launch_bounds__(threads) void solve_kernel(Matrix matrix, int i, int k) {
  solve_tile(matrix, i, k, blockIdx.x);
}
static __global__ __launch_bounds__(threads) void update_kernel(Matrix matrix, int i, int j, int k) {
  update_tile(matrix, i, j, k, blockIdx.x);
}
// All tiles below diagonal tile k, and all tiles that they change: one task a row of the grid.
static __global__ __launch_bounds__(threads) void solve_panel_kernel(Matrix matrix, int k) {
  solve_tile(matrix, k + 1 + blockIdx.y, k, blockIdx.x);
}
static __global__ __launch_bounds__(threads) void update_panel_kernel(Matrix matrix, int k) {
  int i = 0, j = blockIdx.y;
  for (; j > i; ++i) j -= i + 1;
  update_tile(matrix, k + 1 + i, k + 1 + j, k, blockIdx.x);
}
static __global__ void empty_kernel() {}

}  // namespace aisp::ch12::cholesky
