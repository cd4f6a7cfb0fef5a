// SPDX-License-Identifier: Apache-2.0
// After the projection of a transformer's layer queries and keys are rotated by their position, and keys and values go into the
// paged cache. That is traffic and hardly any arithmetic. One kernel for each step sends keys through memory twice, and threads
// that move four bytes each cannot keep enough of them under way; one kernel in pieces of 16 bytes moves everything once. A
// thread that takes the same piece of several heads also reads its angles once.
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "rows.cuh"

namespace aisp::ch18 {
namespace {

using shared::bf16;

constexpr int head_size = 128, q_heads = 32, kv_heads = 8, heads = q_heads + 2 * kv_heads;
constexpr int page_rows = 16, page_elements = kv_heads * page_rows * head_size;
constexpr int pairs = head_size / 2, pieces = head_size / shared::packet;  // of a head
constexpr int longest = 131072;                                            // positions in the table
constexpr int threads = 256;

struct Tokens {
  const int *positions, *slots;  // slot: page * page_rows + row; -1 of a token that is not to be cached
  const float* table;            // [position][pair]: cosine, sine
  int count;
};
struct Cache {
  bf16 *k, *v;  // [page][head][row][head_size]
};
__device__ __forceinline__ std::size_t in_cache(int slot, int head) {
  return std::size_t(slot / page_rows) * page_elements + (head * page_rows + slot % page_rows) * head_size;
}

// a c - b s, with an error of little more than one rounding even where the two cancel: what is lost in b s is added again
// (Kahan). So results differ from exact ones in the rounding to bf16 alone.
__device__ __forceinline__ float difference_of_products(float a, float c, float b, float s) {
  const float product = b * s;
  return fmaf(a, c, -product) + fmaf(-b, s, product);
}
__device__ __forceinline__ unsigned rotated(unsigned bits, float2 by) {
  const float x = __uint_as_float(bits << 16), y = __uint_as_float(bits & 0xFFFF0000u);
  return device::narrow_bf16(difference_of_products(x, by.x, y, by.y), difference_of_products(x, by.y, y, -by.x));
}
__device__ __forceinline__ uint4 rotated(const uint4& bits, const float4 (&by)[2]) {
  return make_uint4(rotated(bits.x, {by[0].x, by[0].y}), rotated(bits.y, {by[0].z, by[0].w}), rotated(bits.z, {by[1].x, by[1].y}),
                    rotated(bits.w, {by[1].z, by[1].w}));
}
__device__ __forceinline__ void load_angles(float4 (&by)[2], const Tokens& tokens, int token, int piece) {
  const auto* from = reinterpret_cast<const float4*>(tokens.table + std::size_t(tokens.positions[token]) * head_size) + piece * 2;
  by[0] = from[0], by[1] = from[1];
}

// `count` heads of each token's row, from `first` on, to where heads stand one after the other or, of queries, to themselves.
// With `Word` = unsigned a thread has a pair, with uint4 four of them.
template <class Word>
__global__ __launch_bounds__(threads) void rotate_kernel(const bf16* qkv, bf16* to, int to_heads, Tokens tokens, int first,
                                                         int count) {
  constexpr unsigned words = head_size * sizeof(bf16) / sizeof(Word);
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  const int word = static_cast<int>(i % words), head = static_cast<int>(i / words % static_cast<unsigned>(count));
  const int token = static_cast<int>(i / (static_cast<unsigned>(count) * words));
  if (token >= tokens.count) return;
  const Word bits = reinterpret_cast<const Word*>(qkv + (std::size_t(token) * heads + first + head) * head_size)[word];
  Word& result = reinterpret_cast<Word*>(to + (std::size_t(token) * to_heads + head) * head_size)[word];
  if constexpr (sizeof(Word) == sizeof(uint4)) {
    float4 by[2];
    load_angles(by, tokens, token, word);
    result = rotated(bits, by);
  } else {
    const auto* row = reinterpret_cast<const float2*>(tokens.table + std::size_t(tokens.positions[token]) * head_size);
    result = rotated(bits, row[word]);
  }
}

// Rotated keys and the values of each token's row, into their pages.
template <class Word>
__global__ __launch_bounds__(threads) void append_kernel(const bf16* k, const bf16* qkv, Cache cache, Tokens tokens) {
  constexpr unsigned words = head_size * sizeof(bf16) / sizeof(Word);
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  const int word = static_cast<int>(i % words), head = static_cast<int>(i / words % kv_heads);
  const int token = static_cast<int>(i / (kv_heads * words));
  if (token >= tokens.count || tokens.slots[token] < 0) return;
  const std::size_t to = in_cache(tokens.slots[token], head);
  const bf16* v = qkv + (std::size_t(token) * heads + q_heads + kv_heads + head) * head_size;
  reinterpret_cast<Word*>(cache.k + to)[word] =
      reinterpret_cast<const Word*>(k + (std::size_t(token) * kv_heads + head) * head_size)[word];
  reinterpret_cast<Word*>(cache.v + to)[word] = reinterpret_cast<const Word*>(v)[word];
}

__global__ __launch_bounds__(threads) void fused_append_kernel(uint4* qkv, Cache cache, Tokens tokens) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  const int piece = static_cast<int>(i % pieces), head = static_cast<int>(i / pieces % heads);
  const int token = static_cast<int>(i / (heads * pieces));
  if (token >= tokens.count) return;
  uint4 bits = qkv[i];
  if (head < q_heads + kv_heads) {
    float4 by[2];
    load_angles(by, tokens, token, piece);
    bits = rotated(bits, by);
  }
  if (head < q_heads) {
    qkv[i] = bits;
    return;
  }
  const int slot = tokens.slots[token], kv_head = (head - q_heads) % kv_heads;
  if (slot < 0) return;
  reinterpret_cast<uint4*>((head < q_heads + kv_heads ? cache.k : cache.v) + in_cache(slot, kv_head))[piece] = bits;
}

// A team has a token, each of its threads one piece of every eighth head.
constexpr int team = 128, at_once = team / pieces;
__global__ __launch_bounds__(threads) void angles_once_kernel(uint4* qkv, Cache cache, Tokens tokens) {
  constexpr int steps = heads / at_once;
  static_assert(heads % at_once == 0 && q_heads % at_once == 0 && kv_heads % at_once == 0,
                "a step is of queries, keys or values");
  const int token = static_cast<int>(blockIdx.x * (threads / team) + threadIdx.x / team);
  if (token >= tokens.count) return;
  const int piece = static_cast<int>(threadIdx.x) % pieces, first = static_cast<int>(threadIdx.x) % team / pieces;
  uint4* const row = qkv + (std::size_t(token) * heads + first) * pieces + piece;
  uint4 bits[steps];
#pragma unroll
  for (int s = 0; s < steps; ++s) bits[s] = row[s * team];
  const int slot = tokens.slots[token];
  float4 by[2];
  load_angles(by, tokens, token, piece);
#pragma unroll
  for (int s = 0; s < q_heads / at_once; ++s) row[s * team] = rotated(bits[s], by);
  if (slot < 0) return;
#pragma unroll
  for (int s = 0; s < kv_heads / at_once; ++s) {
    const std::size_t to = in_cache(slot, first + s * at_once) + piece * shared::packet;
    *reinterpret_cast<uint4*>(cache.k + to) = rotated(bits[q_heads / at_once + s], by);
    *reinterpret_cast<uint4*>(cache.v + to) = bits[(q_heads + kv_heads) / at_once + s];
  }
}

// Cosine and sine of each position's angles, as rotary embeddings have them.
void fill_table(std::span<float> table, std::uint64_t) {
  for (int pair = 0; pair < pairs; ++pair) {
    const double frequency = std::pow(10000.0, -static_cast<double>(pair) / pairs);
    for (std::size_t position = 0; position < longest; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      table[position * head_size + 2 * pair] = static_cast<float>(std::cos(angle));
      table[position * head_size + 2 * pair + 1] = static_cast<float>(std::sin(angle));
    }
  }
}

// Sequences have 64 to 511 of the tokens, the second one token; so many pages are enough.
std::size_t pages_for(std::size_t tokens) { return tokens / page_rows + 2 * (tokens / 64 + 3); }

// Positions, then slots, of parts of sequences one after the other: the first two begin at position 0, the last ends at the last
// position, others are anywhere. Pages come in random order. Every 50th token or so is not to be cached.
void fill_tokens(std::span<int> both, std::uint64_t seed) {
  const std::size_t tokens = both.size() / 2;
  std::vector<int> free_pages(pages_for(tokens));
  std::iota(free_pages.begin(), free_pages.end(), 0);
  for (std::size_t i = free_pages.size() - 1; i > 0; --i) std::swap(free_pages[i], free_pages[random_bits(seed, i) % (i + 1)]);
  std::size_t page = 0;
  for (std::size_t begin = 0, sequence = 0; begin < tokens; ++sequence) {
    const std::uint64_t bits = random_bits(~seed, sequence);
    const std::size_t wanted = sequence == 1 ? 1 : 64 + bits % 448, length = std::min(wanted, tokens - begin);
    const bool last = begin + length == tokens;
    const std::size_t start = sequence < 2 ? 0 : last ? longest - length : (bits >> 32) % (longest - length);
    for (std::size_t i = 0; i < length; ++i) {
      const std::size_t position = start + i;
      if (i > 0 && position % page_rows == 0) ++page;
      const bool cached = random_bits(seed ^ 1, begin + i) % 50 != 0;
      both[begin + i] = static_cast<int>(position);
      both[tokens + begin + i] = cached ? free_pages[page] * page_rows + static_cast<int>(position % page_rows) : -1;
    }
    ++page;
    begin += length;
  }
}

class RopeKvAppend final : public Workload {
 public:
  explicit RopeKvAppend(Setup& setup)
      : tokens_{setup.size("tokens")},
        table_{setup.input<float>(std::size_t{longest} * head_size, HostFill<float>{fill_table},
                                  {.name = "cosines and sines", .constant = true})},
        positions_and_slots_{setup.input<int>(2 * tokens_, HostFill<int>{fill_tokens}, {.name = "positions and slots"})},
        qkv_{setup.inout<bf16>(tokens_ * heads * head_size, normal(0, 1), {.name = "qkv"})},
        k_cache_{setup.inout<bf16>(pages_for(tokens_) * page_elements, normal(0, 1), {.name = "k cache"})},
        v_cache_{setup.inout<bf16>(k_cache_.size(), normal(0, 1), {.name = "v cache"})},
        rotated_k_{setup.scratch<bf16>(tokens_ * kv_heads * head_size, {.name = "rotated keys"})} {}

  // Queries there and back, keys and values into the cache.
  Cost cost() const override {
    return {.flops = 3.0 * static_cast<double>(tokens_ * (q_heads + kv_heads) * head_size),
            .bytes = 2 * static_cast<double>(qkv_.bytes()) + static_cast<double>(positions_and_slots_.bytes())};
  }
  // Which token is in a slot of the cache.
  void compute_reference(Launch&) override {
    token_of_.assign(k_cache_.size() / (kv_heads * head_size), -1);
    for (std::size_t token = 0; token < tokens_; ++token)
      if (const int slot = positions_and_slots_.host(tokens_ + token); slot >= 0)
        token_of_[static_cast<std::size_t>(slot)] = static_cast<std::ptrdiff_t>(token);
  }
  double expected_output(int output, std::size_t i) const override {
    if (output == 0) {
      const std::size_t head = i / head_size % heads;
      return head < q_heads ? turned(i / head_size / heads, head, i % head_size) : qkv_.initial(i);
    }
    const std::size_t page = i / page_elements, head = i / (page_rows * head_size) % kv_heads, row = i / head_size % page_rows;
    const std::ptrdiff_t token = token_of_[page * page_rows + row];
    if (token < 0) return output == 1 ? k_cache_.initial(i) : v_cache_.initial(i);
    const auto of = static_cast<std::size_t>(token);
    if (output == 1) return turned(of, q_heads + head, i % head_size);
    return qkv_.initial((of * heads + q_heads + kv_heads + head) * head_size + i % head_size);
  }

  void kernel_per_step(Launch& launch) { in_steps<unsigned>(launch); }
  void vector_kernels(Launch& launch) { in_steps<uint4>(launch); }
  void fused_append(Launch& launch) {
    launch(fused_append_kernel, {blocks(tokens_ * heads * pieces), threads}, qkv(), cache(), tokens());
  }
  void angles_once(Launch& launch) { launch(angles_once_kernel, {blocks(tokens_ * team), threads}, qkv(), cache(), tokens()); }

 private:
  static unsigned blocks(std::size_t work) { return static_cast<unsigned>((work + threads - 1) / threads); }
  uint4* qkv() const { return reinterpret_cast<uint4*>(qkv_.get()); }
  Cache cache() const { return {k_cache_, v_cache_}; }
  Tokens tokens() const {
    return {positions_and_slots_, positions_and_slots_.get() + tokens_, table_, static_cast<int>(tokens_)};
  }
  double turned(std::size_t token, std::size_t head, std::size_t d) const {
    const std::size_t at = (token * heads + head) * head_size + d / 2 * 2;
    const std::size_t angle = static_cast<std::size_t>(positions_and_slots_.host(token)) * head_size + d / 2 * 2;
    const double x = qkv_.initial(at), y = qkv_.initial(at + 1), cosine = table_.host(angle), sine = table_.host(angle + 1);
    return d % 2 == 0 ? x * cosine - y * sine : x * sine + y * cosine;
  }
  template <class Word>
  void in_steps(Launch& launch) {
    constexpr std::size_t words = head_size * sizeof(bf16) / sizeof(Word);
    const bf16* const from = qkv_;
    launch(rotate_kernel<Word>, {blocks(tokens_ * q_heads * words), threads}, from, qkv_.get(), heads, tokens(), 0, q_heads);
    launch(rotate_kernel<Word>, {blocks(tokens_ * kv_heads * words), threads}, from, rotated_k_.get(), kv_heads, tokens(),
           q_heads, kv_heads);
    const bf16* const k = rotated_k_;
    launch(append_kernel<Word>, {blocks(tokens_ * kv_heads * words), threads}, k, from, cache(), tokens());
  }

  std::size_t tokens_;
  Input<float> table_;
  Input<int> positions_and_slots_;
  InOut<bf16> qkv_, k_cache_, v_cache_;  // qkv: [token][32 heads of queries, 8 of keys, 8 of values][head_size]
  Scratch<bf16> rotated_k_;
  std::vector<std::ptrdiff_t> token_of_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair rope_kv_append{
    .teaches = "rotation and cache write are pure traffic: one trip for queries, keys and values, not a kernel for each",
    .lesson = "fused_append",
    .make = make<RopeKvAppend>,
    .baseline = {.name = "kernel_per_step", .run = call<&RopeKvAppend::kernel_per_step>, .kernels = nothing_spilled},
    // The gain of wider accesses, and then that of one trip.
    .optimized = variants({{.name = "vector_kernels",
                            .run = call<&RopeKvAppend::vector_kernels>,
                            .same_bits_as = "kernel_per_step",
                            .kernels = nothing_spilled},
                           {.name = "fused_append",
                            .run = call<&RopeKvAppend::fused_append>,
                            .same_bits_as = "kernel_per_step",
                            .kernels = nothing_spilled},
                           {.name = "angles_once",
                            .run = call<&RopeKvAppend::angles_once>,
                            .same_bits_as = "kernel_per_step",
                            .kernels = nothing_spilled}}),
    // Rotated values are exact but for their last rounding: an error of 2^-23 before it moves one value in 2^14 across the border
    // of two bf16. Copied ones are exact.
    .tolerance = per_output({within_steps(1, 1e-3), within_steps(1, 1e-3), exact}),
    .sizes = sizes({{.name = "tokens", .full = 16384}}),
    .sweep = cases({{"tokens_1", "tokens=1"},
                    {"tokens_16", "tokens=16"},
                    {"tokens_256", "tokens=256"},
                    {"tokens_4096", "tokens=4096"},
                    {"tokens_16384", "tokens=16384"}}),
    .edges = cases({{"one_token", "tokens=1"}, {"half_a_block", "tokens=3"}, {"partial_pages", "tokens=1021"}}),
};

}  // namespace aisp::ch18
