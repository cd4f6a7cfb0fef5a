// SPDX-License-Identifier: Apache-2.0
// Products of small integers by the libraries that are opened at run time: exact, so that the host's own sums must come out.
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
