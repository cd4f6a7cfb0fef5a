// SPDX-License-Identifier: Apache-2.0
// A cache of the first tokens (sinks) and of a window of recent ones: where tokens stand in it, how positions rotate keys, and
// how it is filled before measuring.
#pragma once
#include <cuda_fp16.h>

#include "decode_reference.hpp"

namespace aisp::ch18 {

constexpr int sinks = 4, pairs = head_size / 2, stream_threads = 256;

// A sequence at some step. Tokens are numbered in the text and by their place in the cache, sinks first, then the window.
struct Stream {
  int tokens, capacity;  // seen, the new one included; rows of the cache
  __host__ __device__ int cached() const { return tokens < capacity ? tokens : capacity; }
  __host__ __device__ int text_of(int place) const { return place < sinks ? place : tokens - cached() + place; }
  // Returns the place of a text position in a ring.
  __host__ __device__ int slot_of(int text) const { return text < sinks ? text : sinks + (text - sinks) % (capacity - sinks); }
  __host__ __device__ int place_of_slot(int slot) const {
    if (slot < sinks || tokens <= capacity) return slot;
    const int window = capacity - sinks, behind_newest = slot - slot_of(tokens - 1);
    return capacity - 1 + (behind_newest > 0 ? behind_newest - window : behind_newest);
  }
};

// Cosine and sine of `position` times a frequency, which is given in turns: float64 keeps the fraction of a turn also at a
// million.
__device__ __forceinline__ float2 angle(double turns, int position) {
  const double all = turns * position;
  float2 result;
  sincospif(2 * static_cast<float>(all - floor(all)), &result.y, &result.x);
  return result;
}
__device__ __forceinline__ unsigned rotated(unsigned bits, float2 by) {
  const float x = __uint_as_float(bits << 16), y = __uint_as_float(bits & 0xFFFF0000u);
  return device::narrow_bf16(fmaf(x, by.x, -(y * by.y)), fmaf(x, by.y, y * by.x));
}

struct Caches {
  bf16 *k, *v;  // [sequence][KV head][row of capacity]
};
struct Inputs {
  const int* seen;                // tokens before the first step
  const double* turns;            // of each pair, for a position
  const bf16 *k, *v;              // what is cached then, not rotated, by place: [sequence][KV head][capacity]
  const bf16 *q, *new_k, *new_v;  // of a step, not rotated
  int capacity;
};
struct Rotated {
  bf16 *by_place, *by_text;  // queries of a step, [sequence][head]: turned to the place in the cache, and in the text
};
enum class Kept { by_place, in_ring, in_ring_not_rotated };

// The cache before the first step. blockIdx.x: the KV head of a sequence; a thread has a pair.
template <Kept kept>
__global__ __launch_bounds__(stream_threads) void begin_kernel(Inputs in, Caches to) {
  const int sequence = static_cast<int>(blockIdx.x) / kv_heads, pair = static_cast<int>(threadIdx.x) % pairs;
  const Stream stream{in.seen[sequence], in.capacity};
  const std::size_t first = std::size_t{blockIdx.x} * in.capacity * pairs + pair;
  const int step = static_cast<int>(gridDim.y) * (stream_threads / pairs);
  for (int place = static_cast<int>(blockIdx.y * (stream_threads / pairs) + threadIdx.x / pairs); place < stream.cached();
       place += step) {
    const int text = stream.text_of(place), row = kept == Kept::by_place ? place : stream.slot_of(text);
    const std::size_t from = first + std::size_t(place) * pairs, target = first + std::size_t(row) * pairs;
    const unsigned key = reinterpret_cast<const unsigned*>(in.k)[from];
    const int position = kept == Kept::by_place ? place : text;
    reinterpret_cast<unsigned*>(to.k)[target] =
        kept == Kept::in_ring_not_rotated ? key : rotated(key, angle(in.turns[pair], position));
    reinterpret_cast<unsigned*>(to.v)[target] = reinterpret_cast<const unsigned*>(in.v)[from];
  }
}

// Cosines and sines, [place][pair].
static __global__ __launch_bounds__(stream_threads) void fill_table_kernel(const double* turns, __half2* table, int size) {
  const int i = static_cast<int>(blockIdx.x * stream_threads + threadIdx.x);
  if (i >= size) return;
  const float2 by = angle(turns[i % pairs], i / pairs);
  table[i] = __floats2half2_rn(by.x, by.y);
}

// With full caches, sequences are just before the place where the ring begins again, at it, a million tokens on, and
// elsewhere.
inline int tokens_seen(std::size_t seen, std::size_t capacity, std::size_t sequence) {
  const std::size_t wrap = sinks + (seen / (capacity - sinks) + 1) * (capacity - sinks);
  const std::size_t places[] = {wrap - 2, wrap, std::max<std::size_t>(seen, 1000000), seen + 37 * sequence};
  return static_cast<int>(seen < capacity ? seen : places[std::min<std::size_t>(sequence, 3)]);
}
inline auto fill_tokens_seen(std::size_t seen, std::size_t capacity) {
  return [=](std::span<int> tokens, std::uint64_t) {
    for (std::size_t s = 0; s < tokens.size(); ++s) tokens[s] = tokens_seen(seen, capacity, s);
  };
}
// [step][sequence]: in each step, the new token included.
inline auto fill_rows_cached(std::size_t seen, std::size_t capacity, std::size_t batch) {
  return [=](std::span<int> rows, std::uint64_t) {
    for (std::size_t i = 0; i < rows.size(); ++i)
      rows[i] =
          Stream{tokens_seen(seen, capacity, i % batch) + static_cast<int>(i / batch) + 1, static_cast<int>(capacity)}.cached();
  };
}
// Turns of each pair for a position: RoPE with a base of 10000.
inline void fill_turns(std::span<double> turns, std::uint64_t) {
  for (std::size_t p = 0; p < turns.size(); ++p)
    turns[p] = std::pow(10000.0, -static_cast<double>(p) / pairs) / (2 * 3.14159265358979323846);
}

}  // namespace aisp::ch18
