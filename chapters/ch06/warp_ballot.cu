// SPDX-License-Identifier: Apache-2.0
// The signs of 256 Mi values, packed 32 to a word, as 1-bit compression of gradients wants them. A thread that gathers the bits
// of a word reads 32 neighbours one after another, so each load of a warp touches 32 lines. Where the lanes of a warp read 32
// neighbours instead, one line is enough, and the ballot makes the word of their signs in one instruction.
#include <aisp/device/reduce.cuh>
#include <aisp/pair.hpp>

namespace aisp::ch06 {
namespace {

constexpr int threads = 256, word_bits = 32;
constexpr int warp_words = 32;                                            // that a warp makes: one a lane
constexpr int values_per_warp = warp_words * word_bits;                   // 1024
constexpr std::size_t values_per_block = threads / 32 * values_per_warp;  // the same in all kernels: 32 for each thread

__global__ __launch_bounds__(threads) void word_per_thread_kernel(const float* values, unsigned* words) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  unsigned word = 0;
#pragma unroll
  for (int bit = 0; bit < word_bits; ++bit) word |= static_cast<unsigned>(values[i * word_bits + bit] < 0) << bit;
  words[i] = word;
}

__device__ unsigned negative_bits(float4 v) {
  return static_cast<unsigned>(v.x < 0) | static_cast<unsigned>(v.y < 0) << 1 | static_cast<unsigned>(v.z < 0) << 2 |
         static_cast<unsigned>(v.w < 0) << 3;
}

__global__ __launch_bounds__(threads) void word_vec4_kernel(const float4* values, unsigned* words) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  unsigned word = 0;
#pragma unroll
  for (int quad = 0; quad < word_bits / 4; ++quad) word |= negative_bits(values[i * (word_bits / 4) + quad]) << (4 * quad);
  words[i] = word;
}

// Lane k keeps the word of the k-th 32 values, and all lanes store theirs together.
__global__ __launch_bounds__(threads) void ballot_kernel(const float* values, unsigned* words) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  const int lane = threadIdx.x % 32;
  const float* const from = values + i / 32 * values_per_warp + lane;
  float loaded[warp_words];
#pragma unroll
  for (int k = 0; k < warp_words; ++k) loaded[k] = from[k * 32];
  unsigned word = 0;
#pragma unroll
  for (int k = 0; k < warp_words; ++k) {
    const unsigned votes = __ballot_sync(device::whole_warp, loaded[k] < 0);
    if (lane == k) word = votes;
  }
  words[i] = word;
}

// The lower eight bits, each moved to the lowest of four.
__device__ unsigned spread(unsigned bits) {
  bits &= 0xFF;
  bits = (bits | bits << 12) & 0x000F000F;
  bits = (bits | bits << 6) & 0x03030303;
  return (bits | bits << 3) & 0x11111111;
}

// A load brings the warp four words: bit k of ballot c is the sign of component c of lane k. Lane 4 k + w keeps the four ballots
// of the k-th load, and of them the bits of lanes 8 w to 8 w + 7, which make word w.
__global__ __launch_bounds__(threads) void ballot_vec4_kernel(const float4* values, unsigned* words) {
  constexpr int loads = warp_words / 4;
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  const int lane = threadIdx.x % 32;
  const float4* const from = values + i / 32 * (values_per_warp / 4) + lane;
  float4 loaded[loads];
#pragma unroll
  for (int k = 0; k < loads; ++k) loaded[k] = from[k * 32];
  unsigned x = 0, y = 0, z = 0, w = 0;
#pragma unroll
  for (int k = 0; k < loads; ++k) {
    const unsigned votes_x = __ballot_sync(device::whole_warp, loaded[k].x < 0);
    const unsigned votes_y = __ballot_sync(device::whole_warp, loaded[k].y < 0);
    const unsigned votes_z = __ballot_sync(device::whole_warp, loaded[k].z < 0);
    const unsigned votes_w = __ballot_sync(device::whole_warp, loaded[k].w < 0);
    if (lane / 4 != k) continue;
    x = votes_x, y = votes_y, z = votes_z, w = votes_w;
  }
  const int shift = lane % 4 * 8;
  words[i] = spread(x >> shift) | spread(y >> shift) << 1 | spread(z >> shift) << 2 | spread(w >> shift) << 3;
}

class WarpBallot final : public Workload {
 public:
  explicit WarpBallot(Setup& setup)
      : count_{setup.scaled(std::size_t{256} << 20, values_per_block)},
        values_{setup.input<float>(count_, normal(0, 1), {.name = "values"})},
        words_{setup.output<unsigned>(count_ / word_bits, {.name = "signs"})} {}

  Cost cost() const override { return {.bytes = static_cast<double>(values_.bytes() + words_.bytes())}; }
  double expected(std::size_t index) const override {
    unsigned word = 0;
    for (unsigned bit = 0; bit < word_bits; ++bit)
      word |= static_cast<unsigned>(values_.host(index * word_bits + bit) < 0) << bit;
    return word;
  }

  void word_per_thread(Launch& launch) { launch(word_per_thread_kernel, grid(), values_, words_); }
  void word_vec4(Launch& launch) { launch(word_vec4_kernel, grid(), quads(), words_); }
  void ballot(Launch& launch) { launch(ballot_kernel, grid(), values_, words_); }
  void ballot_vec4(Launch& launch) { launch(ballot_vec4_kernel, grid(), quads(), words_); }

 private:
  Grid grid() const { return {.blocks = static_cast<unsigned>(count_ / values_per_block), .threads = threads}; }
  const float4* quads() const { return reinterpret_cast<const float4*>(values_.get()); }

  std::size_t count_;
  Input<float> values_;
  Output<unsigned> words_;
};

}  // namespace

extern constinit const Pair warp_ballot{
    .teaches =
        "a ballot turns 32 neighbouring predicates into the bits of a word, so loads stay coalesced and no bits are shifted",
    .lesson = "ballot",
    .make = make<WarpBallot>,
    .baseline = {.name = "word_per_thread", .run = call<&WarpBallot::word_per_thread>},
    .optimized = variants(
        {{.name = "ballot", .run = call<&WarpBallot::ballot>}, {.name = "ballot_vec4", .run = call<&WarpBallot::ballot_vec4>}}),
    .controls = variants({{.name = "word_vec4", .run = call<&WarpBallot::word_vec4>}}),
    .bound = Bound::memory,
    .tolerance = exact,
    .reference_samples = 1 << 20,
};

}  // namespace aisp::ch06
