// SPDX-License-Identifier: Apache-2.0
// The example of chapters/shared/gemm/README.md.
#include "gemm_case.hpp"

namespace aisp {
namespace {

using gemm::bf16;

class GemmExample : public gemm::HopperTest {};

TEST_F(GemmExample, GeluOfAProjection) {
  constexpr std::size_t m = 200, n = 192, k = 72;
  const cudaStream_t stream = nullptr;
  const std::vector<bf16> ones_of_bf16(n, bf16{1.0f});
  const OnGpu<bf16> x_of{std::vector<bf16>(m * k, bf16{0.125f})}, w_of{std::vector<bf16>(k * n, bf16{0.25f})},
      y_of{std::vector<bf16>(m * n)}, bias_of{ones_of_bf16};
  bf16 *const x = x_of.get(), *const w = w_of.get(), *const y = y_of.get(), *const bias = bias_of.get();

#include "gemm_example.cuh"

  check(cudaDeviceSynchronize());
  for (const bf16 result : y_of.host()) ASSERT_EQ(static_cast<float>(result), 3.25f);  // of 72 / 32 + 1 GELU takes 0.2 %
}

}  // namespace
}  // namespace aisp
