// SPDX-License-Identifier: Apache-2.0
// Products of small integers by the libraries that are opened at run time: exact, so that the host's own sums must come out.
#include <cuda_bf16.h>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/libraries/cusparse.hpp>

#include <vector>

#include "gpu_test.hpp"

namespace aisp {
namespace {

class LibraryProducts : public GpuTest<8> {
 protected:
  // From -3 to 3.
  static std::vector<float> integers(std::size_t count, unsigned seed) {
    std::vector<float> values(count);
    for (float& value : values) {
      seed = seed * 1664525u + 1013904223u;
      value = static_cast<float>(static_cast<int>((seed >> 16) % 7) - 3);
    }
    return values;
  }
};

TEST_F(LibraryProducts, CublasLtReadsTransposedOperandsAndLeavesWhatIsBetweenRows) {
  if (!SharedLibrary::available(Library::cublaslt)) GTEST_SKIP() << "no cuBLASLt";
  constexpr std::size_t m = 16, n = 8, k = 48, pitch = 24;
  constexpr float untouched = -1000;
  const std::vector<float> a = integers(k * m, 1), b = integers(n * k, 2);
  const OnGpu<float> a_there{a}, b_there{b}, c{std::vector<float>(m * pitch, untouched)};
  const CublasLt lt;
  MatmulPlan plan{lt,
                  {.m = m,
                   .n = n,
                   .k = k,
                   .operands = CUDA_R_32F,
                   .result = CUDA_R_32F,
                   .a_is_transposed = true,
                   .b_is_transposed = true,
                   .c_pitch = pitch}};
  plan.tune(nullptr, [&](auto one_product) { one_product(a_there.get(), b_there.get(), c.get()); });
  plan.run(nullptr, a_there.get(), b_there.get(), c.get());
  check(cudaDeviceSynchronize());
  const std::vector<float> result = c.host();
  for (std::size_t row = 0; row < m; ++row)
    for (std::size_t column = 0; column < pitch; ++column) {
      float sum = column < n ? 0 : untouched;
      for (std::size_t i = 0; i < k && column < n; ++i) sum += a[i * m + row] * b[column * k + i];
      ASSERT_EQ(result[row * pitch + column], sum) << "row " << row << ", column " << column;
    }
}

// Far from zero GELU has a slope of exactly 0 or 1, at zero of 1/2: results are exact, and so are their sums in each column.
TEST_F(LibraryProducts, CublasLtGoesBackThroughGeluAndAddsUpColumns) {
  if (!SharedLibrary::available(Library::cublaslt)) GTEST_SKIP() << "no cuBLASLt";
  using bf16 = __nv_bfloat16;
  constexpr std::size_t m = 64, n = 128, k = 32;
  const auto narrow = [](const std::vector<float>& values) { return std::vector<bf16>(values.begin(), values.end()); };
  const auto slope = [](std::size_t i) { return i % 5 == 0 ? 0.0f : i % 3 == 0 ? 0.5f : 1.0f; };
  const std::vector<float> a = integers(m * k, 5), b = integers(n * k, 6);
  std::vector<float> before(m * n);
  for (std::size_t i = 0; i < before.size(); ++i) before[i] = (slope(i) - 0.5f) * 64;
  const OnGpu<bf16> a_there{narrow(a)}, b_there{narrow(b)}, before_there{narrow(before)}, c{std::vector<bf16>(m * n)};
  const OnGpu<bf16> sums{std::vector<bf16>(n)};
  const CublasLt lt;
  const MatmulPlan plan{lt,
                        {.m = m,
                         .n = n,
                         .k = k,
                         .b_is_transposed = true,
                         .epilogue = CUBLASLT_EPILOGUE_DGELU_BGRAD,
                         .before_activation = before_there.get(),
                         .bias_gradient = sums.get()}};
  plan.run(nullptr, a_there.get(), b_there.get(), c.get());
  check(cudaDeviceSynchronize());
  const std::vector<bf16> result = c.host(), column_sums = sums.host();
  for (std::size_t column = 0; column < n; ++column) {
    float of_column = 0;
    for (std::size_t row = 0; row < m; ++row) {
      float sum = 0;
      for (std::size_t i = 0; i < k; ++i) sum += a[row * k + i] * b[column * k + i];
      sum *= slope(row * n + column);
      of_column += sum;
      ASSERT_EQ(static_cast<float>(result[row * n + column]), sum) << "row " << row << ", column " << column;
    }
    ASSERT_EQ(static_cast<float>(column_sums[column]), static_cast<float>(bf16{of_column})) << "column " << column;
  }
}

TEST_F(LibraryProducts, CusparseMultipliesCompressedRowsAlsoWhereOneIsEmpty) {
  if (!SharedLibrary::available(Library::cusparse)) GTEST_SKIP() << "no cuSPARSE";
  constexpr std::size_t width = 16;
  const std::vector<int> offsets = {0, 2, 2, 5}, indices = {3, 0, 1, 1, 2};  // an empty row, a column twice
  const std::vector<float> values = integers(indices.size(), 3), b = integers(4 * width, 4);
  const OnGpu<int> offsets_there{offsets}, indices_there{indices};
  const OnGpu<float> values_there{values}, b_there{b}, c{std::vector<float>(3 * width, -1000)};
  const Cusparse sparse;
  SpmmPlan plan{sparse,
                {.rows = 3,
                 .columns = 4,
                 .entries = static_cast<std::int64_t>(indices.size()),
                 .width = width,
                 .offsets = offsets_there.get(),
                 .indices = indices_there.get(),
                 .values = values_there.get(),
                 .b = b_there.get(),
                 .c = c.get()}};
  EXPECT_THROW(plan.run(nullptr), std::logic_error);
  plan.choose(nullptr);
  plan.run(nullptr);
  check(cudaDeviceSynchronize());
  const std::vector<float> result = c.host();
  for (std::size_t row = 0; row < 3; ++row)
    for (std::size_t column = 0; column < width; ++column) {
      float sum = 0;
      for (auto i = static_cast<std::size_t>(offsets[row]); i < static_cast<std::size_t>(offsets[row + 1]); ++i)
        sum += values[i] * b[static_cast<std::size_t>(indices[i]) * width + column];
      ASSERT_EQ(result[row * width + column], sum) << "row " << row << ", column " << column;
    }
}

}  // namespace
}  // namespace aisp
