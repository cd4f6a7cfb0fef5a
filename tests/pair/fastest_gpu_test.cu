// SPDX-License-Identifier: Apache-2.0
// The choice of a library's algorithm by the clock, on kernels whose times are known.
#include <gtest/gtest.h>
#include <aisp/libraries/fastest.hpp>

#include <optional>
#include <source_location>
#include <stdexcept>
#include <vector>

namespace aisp {
namespace {

// `cycles` of the SM's clock, so that the clock's rate moves all ways alike.
__global__ void spin_kernel(long long cycles) {
  for (const long long end = clock64() + cycles; clock64() < end;) {
  }
}

class Fastest : public testing::Test {
 protected:
  void SetUp() override {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "no CUDA device";
  }
  // Chooses among ways that take so many cycles; one of none is refused.
  static std::optional<std::size_t> of(const std::vector<long long>& cycles) {
    return fastest(nullptr, cycles.size(), [&](std::size_t i) {
      if (cycles[i] == 0) throw std::runtime_error{"not supported"};
      spin_kernel<<<1, 1>>>(cycles[i]);
      check(cudaGetLastError());
    });
  }
};

TEST_F(Fastest, IsWhatTakesTheLeastTime) {
  EXPECT_EQ(of({400'000, 100'000, 200'000}), 1U);
  EXPECT_EQ(of({100'000, 400'000}), 0U);
  EXPECT_EQ(of({120'000, 110'000, 100'000}), 2U) << "a tenth is told apart";
}

TEST_F(Fastest, IsTheLibrarysFirstAmongEquals) { EXPECT_EQ(of({1'000'000, 1'000'000, 1'000'000}), 0U); }

TEST_F(Fastest, LeavesOutWhatTheLibraryRefuses) {
  EXPECT_EQ(of({0, 300'000, 100'000, 0}), 2U);
  EXPECT_EQ(of({0, 0}), std::nullopt);
  EXPECT_EQ(of({}), std::nullopt);
}

TEST_F(Fastest, EndsWithAnErrorOfTheDevice) {
  const auto fails = [](std::size_t) { throw CudaError{cudaErrorIllegalAddress, std::source_location::current()}; };
  EXPECT_THROW(fastest(nullptr, 2, fails), CudaError);
}

}  // namespace
}  // namespace aisp
