// SPDX-License-Identifier: Apache-2.0
// The examples of chapters/shared/gemm/README.md.
#include "gemm/grouped.hpp"
#include "gemm_case.hpp"

namespace aisp {
namespace {

using gemm::bf16, gemm::e4m3;

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

// Gates of 2 and ups of 3 or 5: silu(2) = 1.76 times that of the row's expert.
TEST_F(GemmExample, SwiGluOfExperts) {
  constexpr std::size_t rows = 300, width = 72, k = 64, experts = 2;
  const cudaStream_t stream = nullptr;
  std::vector<bf16> weights(experts * 2 * width * k);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const bool is_up = i / k % 16 >= 8, is_second = i / (2 * width * k) == 1;
    weights[i] = bf16{is_up ? (is_second ? 5.0f : 3.0f) / 64 : 2.0f / 64};
  }
  const OnGpu<bf16> x_of{std::vector<bf16>(rows * k, bf16{1.0f})}, w_of{weights}, y_of{std::vector<bf16>(rows * width)};
  const OnGpu<int> offsets_of{{0, 129, 300}};
  const OnGpu<std::byte> workspace_of{std::vector<std::byte>(4096)};
  bf16 *const x = x_of.get(), *const w = w_of.get(), *const y = y_of.get();
  int* const offsets = offsets_of.get();
  std::byte* const workspace = workspace_of.get();

#include "gemm_example_2.cuh"

  ASSERT_LE(Experts::workspace_bytes(rows, experts), 4096u);
  check(cudaDeviceSynchronize());
  const std::vector<bf16> results = y_of.host();
  for (std::size_t i = 0; i < results.size(); ++i)
    ASSERT_NEAR(static_cast<float>(results[i]), i / width < 129 ? 5.285 : 8.808, 0.03) << i / width;
}

TEST_F(GemmExample, QuantizedGelu) {
  constexpr std::size_t m = 200, n = 192, k = 256;
  const cudaStream_t stream = nullptr;
  const OnGpu<e4m3> x_of{std::vector<e4m3>(m * k, e4m3{0.5f})}, w_of{std::vector<e4m3>(n * k, e4m3{0.25f})},
      y_of{std::vector<e4m3>(m * n)};
  const OnGpu<float> scales{{0.125f, 2.0f, 0.0f}};
  e4m3 *const x = x_of.get(), *const w = w_of.get(), *const y = y_of.get();
  const float *const product_scale = scales.get(), *const y_scale = scales.get() + 1;
  float* const amax = scales.get() + 2;

#include "gemm_example_3.cuh"

  check(cudaDeviceSynchronize());
  for (const e4m3 result : y_of.host()) ASSERT_EQ(static_cast<float>(result), 8.0f);  // 256 / 8 / 8 = 4, GELU takes 0.0002 of it
  EXPECT_NEAR(scales.host()[2], 4, 0.001);
}

TEST_F(GemmExample, DecodingWithSwappedOperands) {
  constexpr std::size_t n = 200, k = 136, tokens = 21;
  const cudaStream_t stream = nullptr;
  const std::vector<bf16> weights = gemm::integers<bf16>(n * k, 1), activations = gemm::integers<bf16>(tokens * k, 2);
  const OnGpu<bf16> w_of{weights}, x_of{activations}, y_of{std::vector<bf16>(tokens * n)};
  bf16 *const x = x_of.get(), *const w = w_of.get(), *const y = y_of.get();

#include "gemm_example_4.cuh"

  check(cudaDeviceSynchronize());
  EXPECT_TRUE(gemm::right(gemm::as_floats(y_of.host()), n, [&](std::size_t token, std::size_t column) {
    double sum = 0;
    for (std::size_t i = 0; i < k; ++i)
      sum += static_cast<double>(static_cast<float>(activations[token * k + i])) *
             static_cast<double>(static_cast<float>(weights[column * k + i]));
    return sum;
  }));
}

}  // namespace
}  // namespace aisp
