// SPDX-License-Identifier: Apache-2.0
// The host's side of decoding over a latent cache: tensor maps and grids.
#pragma once
#include <aisp/launch.hpp>
#include <aisp/tensor_map.hpp>

#include <cstddef>
#include <cstdint>

#include "mla.cuh"

namespace aisp::attention {

// q: [sequence][head][mla_key_size], heads being a multiple of 64; latents: [sequence][token][mla_key_size].
inline MlaMaps mla_maps(const bf16* q, const bf16* latents, std::size_t sequences, std::size_t heads, std::size_t tokens) {
  const auto map = [&](const bf16* data, std::size_t rows) {
    const std::uint64_t sizes[] = {mla_key_size, rows, sequences};
    const std::uint64_t strides[] = {mla_key_size * sizeof(bf16), rows * mla_key_size * sizeof(bf16)};
    const std::uint32_t box[] = {64, 64, 1};
    return tensor_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, sizes, strides, box);
  };
  return {map(q, heads), map(latents, tokens)};
}
inline Grid mla_grid(std::size_t heads, std::size_t pieces) {
  return {dim3{static_cast<unsigned>(heads / mla_heads), static_cast<unsigned>(pieces)}, mla_threads, sizeof(MlaShared)};
}

}  // namespace aisp::attention
