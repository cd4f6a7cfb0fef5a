// SPDX-License-Identifier: Apache-2.0
// One GPU's half of a mixture of experts that is split over two: buffers and products.
#pragma once
#include <cstddef>

#include "expert_exchange.cuh"
#include "gemm/repeated.hpp"
#include "moe/routing.hpp"
#include "moe/weights.hpp"

namespace aisp::ch20::exchange {

using shared::bf16;

using Rows = gemm::Operand<bf16>;
inline constexpr gemm::Shape shape{.tile_m = 128, .tile_n = 256, .stages = 4};
using Up = gemm::RepeatedGroupedGemm<gemm::Config<Rows, Rows, gemm::GatheredInTensorCores, shape>, gemm::SwiGlu>;
using Down = gemm::RepeatedGroupedGemm<gemm::Config<Rows, Rows, gemm::InTensorCores, shape>>;

struct Extents {
  std::size_t tokens, hidden, experts, ffn;
  std::size_t slots() const { return tokens * top_k; }
  std::size_t of_gpu() const { return experts / 2; }
  int packets() const { return static_cast<int>(hidden / packet); }
};

// A GPU's part. It has room for all slots of both GPUs, which may all want its experts.
struct Half {
  Extents of;
  Split split;
  Input<bf16> tokens;
  Input<int> experts_of;
  Input<float> shares;
  moe::ExpertWeights weights;
  Output<bf16> out;
  Scratch<bf16> arrived, results;  // rows, or tokens; rows
  Scratch<bf16> activated;
  Scratch<bf16> sent, returned;  // rows by messages
  Scratch<bf16> sums;            // of the own tokens' rows on the other GPU
  Scratch<int> groups, rows, others_rows, read_of_row, ranks, starts, offsets;
  Scratch<float> others_shares;
  Scratch<unsigned> done;
  Scratch<std::byte> tiles;
  Up up;
  Down down;

  Half(Setup& setup, const Extents& extents, moe::Routing routing, int gpu)
      : of{extents},
        split{gpu, static_cast<int>(of.of_gpu())},
        tokens{setup.input<bf16>(of.tokens * of.hidden, normal(0, 1), {.name = "tokens", .device = gpu})},
        experts_of{setup.input<int>(of.slots(), moe::expert_choices({.experts = of.experts, .top_k = top_k, .routing = routing}),
                                    {.name = "experts of slots", .device = gpu})},
        shares{setup.input<float>(of.slots(), uniform(0, 0.25f), {.name = "shares", .device = gpu})},
        weights{setup, of.of_gpu(), of.hidden, of.ffn, gpu},
        out{setup.output<bf16>(of.tokens * of.hidden, {.name = gpu == 0 ? "out on GPU 0" : "out on GPU 1", .device = gpu})},
        arrived{scratch<bf16>(setup, 2 * of.slots() * of.hidden)},
        results{scratch<bf16>(setup, 2 * of.slots() * of.hidden)},
        activated{scratch<bf16>(setup, 2 * of.slots() * of.ffn)},
        sent{scratch<bf16>(setup, of.slots() * of.hidden)},
        returned{scratch<bf16>(setup, of.slots() * of.hidden)},
        sums{scratch<bf16>(setup, of.tokens * of.hidden)},
        groups{scratch<int>(setup, 2 * of.slots())},
        rows{scratch<int>(setup, of.slots())},
        others_rows{scratch<int>(setup, of.slots())},
        read_of_row{scratch<int>(setup, 2 * of.slots())},
        ranks{scratch<int>(setup, 2 * of.slots())},
        starts{scratch<int>(setup, of.experts * static_cast<std::size_t>(moe::tiles_of(all_slots())))},
        offsets{scratch<int>(setup, of.experts + 1)},
        others_shares{scratch<float>(setup, of.slots())},
        done{scratch<unsigned>(setup, 1)},
        tiles{scratch<std::byte>(setup, Down::workspace_bytes(2 * of.slots(), of.experts))},
        up{{.a = arrived,
            .b = weights.gate_up,
            .c = activated,
            .m = 2 * of.slots(),
            .n = 2 * of.ffn,
            .k = of.hidden,
            .groups = of.of_gpu()},
           2,
           offsets,
           tiles,
           read_of_row},
        down{{.a = activated,
              .b = weights.down,
              .c = results,
              .m = 2 * of.slots(),
              .n = of.hidden,
              .k = of.ffn,
              .groups = of.of_gpu()},
             2,
             offsets,
             tiles} {}

  int all_slots() const { return static_cast<int>(2 * of.slots()); }
  moe::Slots ranking() const { return {groups, all_slots(), static_cast<int>(of.experts), ranks, starts, offsets, done}; }
  const uint4* token_packets() const { return reinterpret_cast<const uint4*>(tokens.get()); }

 private:
  template <class T>
  Scratch<T> scratch(Setup& setup, std::size_t count) const {
    return setup.scratch<T>(count, {.device = split.gpu});
  }
};

}  // namespace aisp::ch20::exchange
