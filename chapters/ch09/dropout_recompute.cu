// SPDX-License-Identifier: Apache-2.0
// Dropout, its residual addition, and its backward pass. Which elements are dropped must be known twice; a mask of a byte an
// element is written once and read once for that. A counter-based generator (Philox) makes the same random bits from an element's
// number whenever they are needed: 70 integer instructions for eight elements, while memory is busy with their 48 bytes.
#include <cuda_bf16.h>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "rows.cuh"

namespace aisp::ch09 {
namespace {

using shared::bf16, shared::packet;

constexpr unsigned threads = 256;
constexpr unsigned dropped_below = 6554;  // of 65536: 10 %
constexpr float kept_share = 0.9f, scale = 1 / kept_share;

// Philox4x32-10 (Salmon and others: Parallel random numbers: as easy as 1, 2, 3, SC 2011).
constexpr unsigned multiplier_0 = 0xD2511F53u, multiplier_1 = 0xCD9E8D57u, weyl_0 = 0x9E3779B9u, weyl_1 = 0xBB67AE85u;
constexpr int philox_rounds = 10;

__device__ __forceinline__ uint4 philox(std::size_t counter, uint2 key) {
  uint4 state = make_uint4(static_cast<unsigned>(counter), static_cast<unsigned>(counter >> 32), 0, 0);
#pragma unroll
  for (int round = 0; round < philox_rounds; ++round) {
    const unsigned high_0 = __umulhi(multiplier_0, state.x), low_0 = multiplier_0 * state.x;
    const unsigned high_1 = __umulhi(multiplier_1, state.z), low_1 = multiplier_1 * state.z;
    state = make_uint4(high_1 ^ state.y ^ key.x, low_1, high_0 ^ state.w ^ key.y, low_0);
    key.x += weyl_0, key.y += weyl_1;
  }
  return state;
}

// Which of eight neighbouring elements stay: 16 random bits each.
struct Kept {
  bool element[packet];
};
__device__ __forceinline__ Kept draw(std::size_t counter, uint2 key) {
  const uint4 bits = philox(counter, key);
  const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
  Kept kept;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    kept.element[2 * i] = words[i] << 16 >= dropped_below << 16;
    kept.element[2 * i + 1] = words[i] >= dropped_below << 16;
  }
  return kept;
}

// How the backward pass learns what was dropped.
struct ByteMask {
  using Mask = uint2;  // of eight elements
  static __device__ __forceinline__ void store(Mask* masks, std::size_t i, const Kept& kept) {
    unsigned words[2] = {};
#pragma unroll
    for (int j = 0; j < packet; ++j) words[j / 4] |= kept.element[j] ? 1u << j % 4 * 8 : 0;
    masks[i] = make_uint2(words[0], words[1]);
  }
  static __device__ __forceinline__ Kept load(const Mask* masks, std::size_t i, const uint2*) {
    const uint2 mask = masks[i];
    Kept kept;
#pragma unroll
    for (int j = 0; j < packet; ++j) kept.element[j] = ((j < 4 ? mask.x : mask.y) >> j % 4 * 8 & 1) != 0;
    return kept;
  }
};
struct BitMask {
  using Mask = unsigned char;
  static __device__ __forceinline__ void store(Mask* masks, std::size_t i, const Kept& kept) {
    unsigned bits = 0;
#pragma unroll
    for (int j = 0; j < packet; ++j) bits |= kept.element[j] ? 1u << j : 0;
    masks[i] = static_cast<Mask>(bits);
  }
  static __device__ __forceinline__ Kept load(const Mask* masks, std::size_t i, const uint2*) {
    const unsigned bits = masks[i];
    Kept kept;
#pragma unroll
    for (int j = 0; j < packet; ++j) kept.element[j] = (bits >> j & 1) != 0;
    return kept;
  }
};
struct NoMask {
  using Mask = unsigned char;
  static __device__ __forceinline__ void store(Mask*, std::size_t, const Kept&) {}
  static __device__ __forceinline__ Kept load(const Mask*, std::size_t i, const uint2* key) { return draw(i, *key); }
};

__device__ __forceinline__ std::size_t packet_index() { return std::size_t{blockIdx.x} * threads + threadIdx.x; }

__device__ __forceinline__ uint4 scale_kept(const uint4& from, const Kept& kept) {
  float x[packet];
  shared::unpack(from, x);
#pragma unroll
  for (int j = 0; j < packet; ++j) x[j] = kept.element[j] ? x[j] * scale : 0;
  return shared::pack(x);
}

__global__ __launch_bounds__(threads) void dropout_kernel(const uint4* __restrict__ x, const uint2* __restrict__ key,
                                                          uint4* __restrict__ result, uint2* __restrict__ masks,
                                                          std::size_t packets) {
  const std::size_t i = packet_index();
  if (i >= packets) return;
  const uint4 loaded = x[i];
  const Kept kept = draw(i, *key);
  ByteMask::store(masks, i, kept);
  result[i] = scale_kept(loaded, kept);
}

__global__ __launch_bounds__(threads) void add_kernel(const uint4* __restrict__ a, const uint4* __restrict__ b,
                                                      uint4* __restrict__ sum, std::size_t packets) {
  const std::size_t i = packet_index();
  if (i >= packets) return;
  float x[packet], y[packet];
  shared::unpack(a[i], x);
  shared::unpack(b[i], y);
#pragma unroll
  for (int j = 0; j < packet; ++j) x[j] += y[j];
  sum[i] = shared::pack(x);
}

template <class How>
__global__ __launch_bounds__(threads) void fused_forward_kernel(const uint4* __restrict__ x, const uint4* __restrict__ residual,
                                                                const uint2* __restrict__ key, uint4* __restrict__ y,
                                                                typename How::Mask* __restrict__ masks, std::size_t packets) {
  const std::size_t i = packet_index();
  if (i >= packets) return;
  const uint4 loaded_x = x[i], loaded_residual = residual[i];
  const Kept kept = draw(i, *key);
  How::store(masks, i, kept);
  float from[packet], sum[packet];
  shared::unpack(loaded_x, from);
  shared::unpack(loaded_residual, sum);
#pragma unroll
  for (int j = 0; j < packet; ++j) sum[j] = kept.element[j] ? fmaf(from[j], scale, sum[j]) : sum[j];
  y[i] = shared::pack(sum);
}

template <class How>
__global__ __launch_bounds__(threads) void backward_kernel(const uint4* __restrict__ dy, const uint2* __restrict__ key,
                                                           const typename How::Mask* __restrict__ masks, uint4* __restrict__ dx,
                                                           std::size_t packets) {
  const std::size_t i = packet_index();
  if (i >= packets) return;
  const uint4 loaded = dy[i];
  dx[i] = scale_kept(loaded, How::load(masks, i, key));
}

// The same generator for the host, written on its own: the 16 bits of `element`.
unsigned drawn_on_host(std::size_t element, std::uint32_t key_0, std::uint32_t key_1) {
  const std::size_t counter = element / packet;
  std::array<std::uint32_t, 4> c{static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0};
  for (int round = 0; round < philox_rounds; ++round) {
    const std::uint64_t first = std::uint64_t{multiplier_0} * c[0], second = std::uint64_t{multiplier_1} * c[2];
    c = {static_cast<std::uint32_t>(second >> 32) ^ c[1] ^ key_0, static_cast<std::uint32_t>(second),
         static_cast<std::uint32_t>(first >> 32) ^ c[3] ^ key_1, static_cast<std::uint32_t>(first)};
    key_0 += weyl_0, key_1 += weyl_1;
  }
  const std::size_t place = element % packet;
  return c[place / 2] >> (place % 2 * 16) & 0xFFFF;
}

class DropoutRecompute final : public Workload {
 public:
  explicit DropoutRecompute(Setup& setup)
      : count_{setup.size("elements")},
        // Far from zero, so that every wrong bit of a mask is a wrong element.
        x_{setup.input<bf16>(count_, uniform(1, 2), {.name = "x"})},
        residual_{setup.input<bf16>(count_, normal(0, 1), {.name = "residual"})},
        dy_{setup.input<bf16>(count_, uniform(0.5f, 1.5f), {.name = "dy"})},
        key_{setup.input<std::uint32_t>(2, integers(0, 0xFFFFFFFF), {.name = "key of the generator"})},
        y_{setup.output<bf16>(count_, {.name = "y"})},
        dx_{setup.output<bf16>(count_, {.name = "dx"})},
        dropped_{setup.scratch<bf16>(count_, {.name = "x after dropout"})},
        masks_{setup.scratch<std::uint8_t>(count_, {.name = "mask"})} {}

  Cost cost() const override {
    return {.flops = 3 * double{kept_share} * static_cast<double>(count_),
            .bytes = static_cast<double>(x_.bytes() + residual_.bytes() + dy_.bytes() + y_.bytes() + dx_.bytes())};
  }
  double expected_output(int output, std::size_t i) const override {
    const double kept = is_kept(i) ? 1 / double{kept_share} : 0;
    return output == 0 ? residual_.host(i) + kept * x_.host(i) : kept * dy_.host(i);
  }
  // Both ends of the mask, bit for bit, and the share that is dropped.
  void validate(std::string_view) override {
    const std::size_t part = std::min(count_, looked_at);
    std::vector<bf16> found(part);
    std::size_t dropped = 0;
    for (const std::size_t first : {std::size_t{0}, count_ - part}) {
      check(cudaMemcpy(found.data(), dx_.get() + first, part * sizeof(bf16), cudaMemcpyDeviceToHost));
      for (std::size_t k = 0; k < part; ++k) {
        const bool is_zero = __bfloat162float(found[k]) == 0;
        dropped += is_zero;
        if (is_zero == is_kept(first + k))
          throw std::runtime_error{"element " + std::to_string(first + k) + " is " + (is_zero ? "dropped" : "kept") +
                                   " against the mask"};
      }
    }
    const double share = static_cast<double>(dropped) / static_cast<double>(2 * part);
    if (part == looked_at && !(share > 0.099 && share < 0.101))
      throw std::runtime_error{"a share of " + std::to_string(share) + " is dropped instead of 0.1"};
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    const double bytes = variant == "fused_recompute"  ? 0
                         : variant == "fused_bit_mask" ? static_cast<double>(count_) / packet
                                                       : static_cast<double>(count_);
    metrics.report("mask_memory", bytes / (1 << 20), "MiB", Metrics::Better::lower);
  }

  void operators(Launch& launch) {
    auto* const masks = reinterpret_cast<uint2*>(masks_.get());
    launch(dropout_kernel, grid(), packets(x_.get()), key(), packets(dropped_.get()), masks, count());
    launch(add_kernel, grid(), packets(dropped_.get()), packets(residual_.get()), packets(y_.get()), count());
    launch(backward_kernel<ByteMask>, grid(), packets(dy_.get()), key(), masks, packets(dx_.get()), count());
  }
  template <class How>
  void fused(Launch& launch) {
    auto* const masks = reinterpret_cast<typename How::Mask*>(masks_.get());
    launch(fused_forward_kernel<How>, grid(), packets(x_.get()), packets(residual_.get()), key(), packets(y_.get()), masks,
           count());
    launch(backward_kernel<How>, grid(), packets(dy_.get()), key(), masks, packets(dx_.get()), count());
  }

 private:
  static constexpr std::size_t looked_at = std::size_t{4} << 20;  // elements, from either end

  bool is_kept(std::size_t i) const { return drawn_on_host(i, key_.host(0), key_.host(1)) >= dropped_below; }
  std::size_t count() const { return count_ / packet; }
  Grid grid() const { return {static_cast<unsigned>((count() + threads - 1) / threads), threads}; }
  const uint2* key() const { return reinterpret_cast<const uint2*>(key_.get()); }
  static const uint4* packets(const bf16* of) { return reinterpret_cast<const uint4*>(of); }
  static uint4* packets(bf16* of) { return reinterpret_cast<uint4*>(of); }

  std::size_t count_;
  Input<bf16> x_, residual_, dy_;
  Input<std::uint32_t> key_;
  Output<bf16> y_, dx_;
  Scratch<bf16> dropped_;
  Scratch<std::uint8_t> masks_;
};

}  // namespace

extern constinit const Pair dropout_recompute{
    .teaches = "bytes cost more than arithmetic: a counter-based generator makes a mask again instead of loading it",
    .lesson = "fused_recompute",
    .make = make<DropoutRecompute>,
    .baseline = {.name = "operators", .run = call<&DropoutRecompute::operators>},
    .optimized =
        variants({{.name = "fused_byte_mask", .run = call<&DropoutRecompute::fused<ByteMask>>, .kernels = {.local_bytes = 0}},
                  {.name = "fused_bit_mask",
                   .run = call<&DropoutRecompute::fused<BitMask>>,
                   .same_bits_as = "fused_byte_mask",
                   .kernels = {.local_bytes = 0}},
                  {.name = "fused_recompute",
                   .run = call<&DropoutRecompute::fused<NoMask>>,
                   .same_bits_as = "fused_byte_mask",
                   .gains_over = "fused_byte_mask",
                   .kernels = {.local_bytes = 0}}}),
    .bound = Bound::memory,
    // One rounding to bf16, 1.6e-3, and two in the baseline, whose dropout writes its result.
    .tolerance = within(4e-3),
    .sizes = sizes({{.name = "elements", .full = 16384 * 8192, .multiple = packet, .most = 1u << 31}}),
    .edges = cases({{"one_packet", "elements=8"}, {"odd_packets", "elements=4104"}, {"more_blocks", "elements=100008"}}),
};

}  // namespace aisp::ch09
