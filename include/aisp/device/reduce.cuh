// SPDX-License-Identifier: Apache-2.0
// Sums and maxima over a warp (shfl.sync.bfly) and over a block. Every thread gets the result. The order of the additions is
// fixed, so equal inputs give equal bits.
#pragma once
#include <aisp/device/arch.cuh>

namespace aisp::device {

inline constexpr unsigned whole_warp = 0xFFFFFFFFu;
inline constexpr int warp_size = 32;
inline constexpr int largest_block_in_warps = 32;

struct Sum {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};

// A NaN on either side may get lost, as in fmaxf.
struct Max {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
  __device__ __forceinline__ double operator()(double a, double b) const { return fmax(a, b); }
};

struct Min {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a < b ? a : b;
  }
  __device__ __forceinline__ float operator()(float a, float b) const { return fminf(a, b); }
  __device__ __forceinline__ double operator()(double a, double b) const { return fmin(a, b); }
};

// Over groups of `width` neighbouring lanes (a power of two); all 32 lanes take part.
template <int width = warp_size, class T, class Op>
__device__ __forceinline__ T warp_reduce(T value, Op op) {
  static_assert(width >= 1 && width <= warp_size && (width & (width - 1)) == 0);
#pragma unroll
  for (int offset = width / 2; offset > 0; offset /= 2) value = op(value, __shfl_xor_sync(whole_warp, value, offset));
  return value;
}

template <int width = warp_size, class T>
__device__ __forceinline__ T warp_sum(T value) {
  return warp_reduce<width>(value, Sum{});
}

template <int width = warp_size, class T>
__device__ __forceinline__ T warp_max(T value) {
  return warp_reduce<width>(value, Max{});
}

// Over all threads of a one-dimensional block, whose size is a multiple of 32. `shared` holds one T a warp
// (largest_block_in_warps is always enough) and may be used again by the next reduction at once. Contains two __syncthreads.
template <class T, class Op>
__device__ __forceinline__ T block_reduce(T value, T identity, Op op, T* shared) {
  const unsigned lane = threadIdx.x % warp_size;
  const unsigned warp = threadIdx.x / warp_size;
  const unsigned warps = blockDim.x / warp_size;
  value = warp_reduce(value, op);
  __syncthreads();  // readers of the reduction before this one are done
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  return warp_reduce(lane < warps ? shared[lane] : identity, op);
}

template <class T>
__device__ __forceinline__ T block_sum(T value, T* shared) {
  return block_reduce(value, T{0}, Sum{}, shared);
}

// `lowest` is a lower bound of all values: -INFINITY, or the type's lowest integer.
template <class T>
__device__ __forceinline__ T block_max(T value, T lowest, T* shared) {
  return block_reduce(value, lowest, Max{}, shared);
}

}  // namespace aisp::device
