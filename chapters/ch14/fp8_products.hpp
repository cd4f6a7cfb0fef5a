// SPDX-License-Identifier: Apache-2.0
// The products that fp8_quantize_gemm chooses among: one for each of fp8_shapes, with the generated epilogue.
#pragma once
#include <aisp/launch.hpp>
#include <aisp/libraries/nvrtc.hpp>

#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "fp8_glue_code.hpp"
#include "gemm/gemm.hpp"

namespace aisp::ch14 {

// A struct, though an alias does with CUDA 13.0 (gemm/README.md).
template <class Mainloop, std::size_t i>
struct TriedConfig : gemm::Config<gemm::Operand<gemm::e4m3>, gemm::Operand<gemm::e4m3>, Mainloop, fp8_shapes[i]> {};
template <class Mainloop, std::size_t i = 0>
using Tried = gemm::Gemm<TriedConfig<Mainloop, i>, gemm::Bands, Spliced, gemm::TmaStore<gemm::e4m3, 1>>;

// The product with the generated epilogue: one type for all shapes, and which of them was fastest.
template <class Mainloop>
struct Generated {
  using Prepared = typename Tried<Mainloop>::Prepared;
  std::array<Prepared, fp8_shapes.size()> prepared{};
  std::array<CompiledKernel<typename Prepared::Kernel>, fp8_shapes.size()> kernels{};
  std::optional<std::size_t> chosen{};

  template <std::size_t... i>
  void describe(const gemm::Problem<gemm::e4m3, gemm::e4m3, gemm::e4m3>& problem, int band, std::index_sequence<i...>) {
    prepared = {Tried<Mainloop, i>{problem, {.band = band}}.prepared()...};
  }
  void run(Launch& launch, std::size_t shape, const Spliced& epilogue) const {
    prepared[shape].run(launch.stream, kernels[shape].entry, epilogue);
  }
};

}  // namespace aisp::ch14
