// SPDX-License-Identifier: Apache-2.0
// One GPU's half of a mixture of experts that is split over two, with a shared expert on each: buffers and products.
#pragma once
#include <cuda_bf16.h>

#include <cstddef>

#include "gemm/on_multiprocessors.cuh"
#include "gemm/repeated.hpp"
#include "moe/routing.hpp"
#include "moe/weights.hpp"

namespace aisp::ch15::overlapped {

using bf16 = __nv_bfloat16;
inline constexpr int top_k = 8;

using Rows = gemm::Operand<bf16>;
using RoutedTile = gemm::Config<Rows, Rows, gemm::InTensorCores, gemm::Shape{.tile_m = 128, .tile_n = 256, .stages = 4}>;
using SharedTile = gemm::Config<Rows, Rows, gemm::InTensorCores, gemm::Shape{.tile_n = 256, .cluster = 2}>;
using RoutedUp = gemm::RepeatedGroupedGemm<RoutedTile, gemm::SwiGlu>;
using RoutedDown = gemm::RepeatedGroupedGemm<RoutedTile>;
using OnSome = gemm::OnMultiprocessors<gemm::Bands>;
using SharedUp = gemm::Gemm<SharedTile, OnSome, gemm::SwiGlu>;
using SharedDown = gemm::Gemm<SharedTile, OnSome>;

struct Extents {
  std::size_t tokens, hidden, experts, ffn, shared_ffn;
  std::size_t slots() const { return tokens * top_k; }
  std::size_t of_gpu() const { return experts / 2; }
};

// A GPU's part. Its rows, and what its experts make of them, lie in one order: those of its own tokens for its own experts, those
// that the other GPU sends, those of its own tokens for the other's experts; each by expert. They are 2 * slots at most.
struct Half {
  Extents of;
  Input<bf16> tokens;
  Input<int> experts_of;
  Input<float> shares;
  moe::ExpertWeights routed, common;
  Output<bf16> out;
  Scratch<bf16> rows, results, activated, common_activated, of_shared;
  Scratch<int> row_of_slot, offsets;
  Scratch<std::byte> tiles;
  RoutedUp up;
  RoutedDown down;
  cudaStream_t side;

  Half(Setup& setup, const Extents& extents, moe::Routing routing, int gpu)
      : of{extents},
        tokens{setup.input<bf16>(of.tokens * of.hidden, normal(0, 1), {.name = "tokens", .device = gpu})},
        experts_of{setup.input<int>(of.slots(), moe::expert_choices({.experts = of.experts, .top_k = top_k, .routing = routing}),
                                    {.name = "experts of slots", .device = gpu, .constant = true})},
        shares{setup.input<float>(of.slots(), uniform(0, 0.25f), {.name = "shares", .device = gpu})},
        routed{setup, of.of_gpu(), of.hidden, of.ffn, gpu},
        common{setup, 1, of.hidden, of.shared_ffn, gpu},
        out{setup.output<bf16>(of.tokens * of.hidden, {.name = gpu == 0 ? "out on GPU 0" : "out on GPU 1", .device = gpu})},
        rows{setup.scratch<bf16>(2 * of.slots() * of.hidden, {.name = "rows", .device = gpu})},
        results{setup.scratch<bf16>(2 * of.slots() * of.hidden, {.name = "results", .device = gpu})},
        activated{setup.scratch<bf16>(2 * of.slots() * of.ffn, {.name = "activated", .device = gpu})},
        common_activated{
            setup.scratch<bf16>(of.tokens * of.shared_ffn, {.name = "activated by the shared expert", .device = gpu})},
        of_shared{setup.scratch<bf16>(of.tokens * of.hidden, {.name = "results of the shared expert", .device = gpu})},
        row_of_slot{setup.scratch<int>(of.slots(), {.name = "rows of slots", .device = gpu})},
        offsets{setup.scratch<int>(of.experts + 1, {.name = "offsets", .device = gpu})},
        tiles{setup.scratch<std::byte>(RoutedUp::workspace_bytes(2 * of.slots(), of.experts),
                                       {.name = "row tiles", .device = gpu})},
        up{{.a = rows,
            .b = routed.gate_up,
            .c = activated,
            .m = 2 * of.slots(),
            .n = 2 * of.ffn,
            .k = of.hidden,
            .groups = of.of_gpu()},
           2,
           offsets,
           tiles},
        down{{.a = activated,
              .b = routed.down,
              .c = results,
              .m = 2 * of.slots(),
              .n = of.hidden,
              .k = of.ffn,
              .groups = of.of_gpu()},
             2,
             offsets,
             tiles},
        side{setup.stream(gpu)} {}

  // The shared expert for tokens from `first` on.
  void run_shared(cudaStream_t stream, std::size_t first, std::size_t count, int multiprocessors) const {
    if (count == 0) return;
    const OnSome on{{}, multiprocessors};
    SharedUp{{.a = tokens + first * of.hidden,
              .b = common.gate_up,
              .c = common_activated + first * of.shared_ffn,
              .m = count,
              .n = 2 * of.shared_ffn,
              .k = of.hidden},
             on}
        .run(stream);
    SharedDown{{.a = common_activated + first * of.shared_ffn,
                .b = common.down,
                .c = of_shared + first * of.hidden,
                .m = count,
                .n = of.hidden,
                .k = of.shared_ffn},
               on}
        .run(stream);
  }
};

}  // namespace aisp::ch15::overlapped
