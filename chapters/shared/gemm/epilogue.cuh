// SPDX-License-Identifier: Apache-2.0
// Changes of a tile's sums before they are stored. An epilogue is an object with
//   static constexpr int narrowing;  // columns that become one
//   template <int count> __device__ void operator()(float (&sums)[count], const Fragment& at) const;
// which changes the sums in place; with a narrowing of 2 the results are the first half of them. Chain{first, second} does one
// after the other.
#pragma once
#include "operands.cuh"

namespace aisp::gemm {

// The places of a thread's sums of 64 rows, as wgmma leaves them: sums[i] at row(i), column(i). Groups of four sums are 8 columns
// apart; sums[4 j] and sums[4 j + 1] are neighbours, sums[4 j + 2] and [4 j + 3] lie 8 rows below them.
struct Fragment {
  int first_row, first_column;  // of the warp's 16 rows, of the tile
  int row_end, column_end;      // what lies after does not exist, or belongs to others; column_end is the width of C
  int group;
  int slice = 0;

  __device__ __forceinline__ int row(int i) const {
    return first_row + static_cast<int>(device::lane_index()) / 4 + i % 4 / 2 * 8;
  }
  __device__ __forceinline__ int column(int i) const {
    return first_column + i / 4 * 8 + static_cast<int>(device::lane_index()) % 4 * 2 + i % 2;
  }
  __device__ __forceinline__ bool exists(int i) const { return row(i) < row_end && column(i) < column_end; }
  // In a vector with an element for each column of C, one such vector after the other for groups.
  __device__ __forceinline__ int element(int i) const { return group * column_end + column(i); }

  __device__ __forceinline__ Fragment narrowed(int by) const {
    return {first_row, first_column / by, row_end, column_end / by, group, slice};
  }
};

// The first `narrowing`th of the sums.
template <int narrowing, int count>
__device__ __forceinline__ auto narrowed(float (&sums)[count]) -> float (&)[count / narrowing] {
  return *reinterpret_cast<float(*)[count / narrowing]>(&sums);
}

// Two elements of a row at once; the width of C is even.
__device__ __forceinline__ float2 load_pair(const bf16* from) {
  const unsigned both = *reinterpret_cast<const unsigned*>(from);
  return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xFFFF0000u));
}

struct Identity {
  static constexpr int narrowing = 1;
  template <int count>
  __device__ __forceinline__ void operator()(float (&)[count], const Fragment&) const {}
};

// One scale for all.
struct Scaled {
  static constexpr int narrowing = 1;
  float scale = 1;
  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const Fragment&) const {
#pragma unroll
    for (float& sum : sums) sum *= scale;
  }
};

// The same, where only the GPU knows it.
struct ScaledOnGpu {
  static constexpr int narrowing = 1;
  const float* scale = nullptr;
  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const Fragment&) const {
    const float by = *scale;
#pragma unroll
    for (float& sum : sums) sum *= by;
  }
};

// One for each row of A times one for each column of B.
struct RowColumnScaled {
  static constexpr int narrowing = 1;
  const float *rows = nullptr, *columns = nullptr;
  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const Fragment& at) const {
    const float upper = at.row(0) < at.row_end ? rows[at.row(0)] : 0, lower = at.row(2) < at.row_end ? rows[at.row(2)] : 0;
#pragma unroll
    for (int i = 0; i < count; i += 4) {
      // There are stores for any number of columns.
      const float left = at.column(i) < at.column_end ? columns[at.element(i)] : 0;
      const float right = at.column(i + 1) < at.column_end ? columns[at.element(i + 1)] : 0;
      sums[i] *= upper * left;
      sums[i + 1] *= upper * right;
      sums[i + 2] *= lower * left;
      sums[i + 3] *= lower * right;
    }
  }
};

struct Bias {
  static constexpr int narrowing = 1;
  const bf16* bias = nullptr;
  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const Fragment& at) const {
#pragma unroll
    for (int i = 0; i < count; i += 4) {
      if (at.column(i) >= at.column_end) continue;
      const float2 b = load_pair(bias + at.element(i));
      sums[i] += b.x;
      sums[i + 1] += b.y;
      sums[i + 2] += b.x;
      sums[i + 3] += b.y;
    }
  }
};

// The approximation by tanh, which is what cuBLASLt's epilogue computes, too.
struct Gelu {
  static constexpr int narrowing = 1;
  static __device__ __forceinline__ float of(float x) {
    constexpr float root_2_over_pi = 0.7978845608f, cubic = 0.044715f;
    const float half = 0.5f * x;
    return fmaf(half, __tanhf(x * fmaf(x * x, root_2_over_pi * cubic, root_2_over_pi)), half);
  }
  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const Fragment&) const {
#pragma unroll
    for (float& sum : sums) sum = of(sum);
  }
};

// silu(gate) * up: columns come in groups of eight, eight of the gate and then the same eight of `up`, so that a thread has both
// (B is laid out so once, before). Half of the columns are left.
struct SwiGlu {
  static constexpr int narrowing = 2;
  static __device__ __forceinline__ float of(float gate, float up) { return __fdividef(gate, 1 + __expf(-gate)) * up; }
  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const Fragment&) const {
    static_assert(count % 8 == 0, "a tile has whole groups of gate and up");
#pragma unroll
    for (int i = 0; i < count / 2; ++i) sums[i] = of(sums[i / 4 * 8 + i % 4], sums[i / 4 * 8 + i % 4 + 4]);
  }
};

// Adds what lies at the same place of another matrix, as wide as C.
struct Residual {
  static constexpr int narrowing = 1;
  const bf16* residual = nullptr;
  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const Fragment& at) const {
#pragma unroll
    for (int i = 0; i < count; i += 2) {
      if (!at.exists(i)) continue;
      const float2 r = load_pair(residual + static_cast<std::size_t>(at.row(i)) * at.column_end + at.column(i));
      sums[i] += r.x;
      sums[i + 1] += r.y;
    }
  }
};

// For a store in e4m3, which saturates: sums times a scale that the GPU knows, and the largest magnitude before it, of which the
// next step's scale is made. `amax` is 0 or an earlier maximum before.
struct QuantizeE4m3 {
  static constexpr int narrowing = 1;
  const float* scale = nullptr;
  float* amax = nullptr;
  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const Fragment& at) const {
    const float by = *scale;
    float upper = 0, lower = 0;
#pragma unroll
    for (int i = 0; i < count; i += 4) {
      if (at.column(i) < at.column_end) {
        upper = fmaxf(upper, fmaxf(fabsf(sums[i]), fabsf(sums[i + 1])));
        lower = fmaxf(lower, fmaxf(fabsf(sums[i + 2]), fabsf(sums[i + 3])));
      }
#pragma unroll
      for (int j = i; j < i + 4; ++j) sums[j] *= by;
    }
    const float largest = fmaxf(at.exists(0) ? upper : 0, at.exists(2) ? lower : 0);
    // Floats that are not negative are ordered as their bits are.
    const unsigned of_warp = __reduce_max_sync(~0u, __float_as_uint(largest));
    if (device::lane_index() == 0) atomicMax(reinterpret_cast<unsigned*>(amax), of_warp);
  }
};

// The largest magnitude alone, of which a scale is made; `amax` as above. A warp that has nothing larger than what is there
// already does not write: where tiles are many, few of them do.
struct Amax {
  static constexpr int narrowing = 1;
  float* amax = nullptr;
  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const Fragment& at) const {
    const unsigned known = *reinterpret_cast<volatile unsigned*>(amax);
    float upper = 0, lower = 0;
#pragma unroll
    for (int i = 0; i < count; i += 4) {
      // Columns that do not exist are sums of zeros, but what an epilogue before made of them may be more.
      const bool left = at.column(i) < at.column_end, right = at.column(i + 1) < at.column_end;
      upper = fmaxf(upper, fmaxf(left ? fabsf(sums[i]) : 0, right ? fabsf(sums[i + 1]) : 0));
      lower = fmaxf(lower, fmaxf(left ? fabsf(sums[i + 2]) : 0, right ? fabsf(sums[i + 3]) : 0));
    }
    const float largest = fmaxf(at.exists(0) ? upper : 0, at.exists(2) ? lower : 0);
    const unsigned of_warp = __reduce_max_sync(~0u, __float_as_uint(largest));
    if (of_warp > known && device::lane_index() == 0) atomicMax(reinterpret_cast<unsigned*>(amax), of_warp);
  }
};

// The epilogue of KRanges: parts of sums wait for the others.
template <class Epilogue>
struct WhenWhole {
  static constexpr int narrowing = 1;
  static_assert(Epilogue::narrowing == 1, "parts are stored as they are");
  Epilogue epilogue{};
  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const Fragment& at) const {
    if (at.slice < 0) epilogue(sums, at);
  }
};

template <class First, class Second>
struct Chain {
  static constexpr int narrowing = First::narrowing * Second::narrowing;
  First first;
  Second second;
  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const Fragment& at) const {
    first(sums, at);
    second(narrowed<First::narrowing>(sums), at.narrowed(First::narrowing));
  }
};
template <class First, class Second>
Chain(First, Second) -> Chain<First, Second>;

using BiasGelu = Chain<Bias, Gelu>;

}  // namespace aisp::gemm
