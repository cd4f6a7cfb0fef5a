// SPDX-License-Identifier: Apache-2.0
// The choice of a library's algorithm by the clock, on kernels whose times are known.
#include <gtest/gtest.h>
#include <aisp/check.hpp>
#include <aisp/libraries/fastest.hpp>

#include <array>
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

// Follows a chain through memory that fits into the L2: quick once it is there.
__global__ void follow_kernel(const unsigned* chain, int steps, unsigned* end) {
  unsigned at = 0;
  for (int i = 0; i < steps; ++i) at = chain[at];
  *end = at;
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

TEST_F(Fastest, WaitsForACandidateThatWaitsForTheGpu) {
  const auto run = [](std::size_t i) {
    spin_kernel<<<1, 1>>>(i == 0 ? 4'000'000 : 1'000'000);
    check(cudaGetLastError());
    if (i == 1) check(cudaStreamSynchronize(nullptr));
  };
  EXPECT_EQ(fastest(nullptr, 2, run), 1U);
}

TEST_F(Fastest, LeavesOutWhatTheLibraryRefuses) {
  EXPECT_EQ(of({0, 300'000, 100'000, 0}), 2U);
  EXPECT_EQ(of({0, 0}), std::nullopt);
  EXPECT_EQ(of({}), std::nullopt);
}

// A step takes some 270 cycles from the L2 and 600 and more from memory; warm and one after the other the chain would win.
TEST_F(Fastest, IsWhatIsFastestWithAColdCache) {
  constexpr unsigned words = 1u << 20, stride = 65537, steps = 2000;
  std::vector<unsigned> next(words);
  for (unsigned i = 0; i < words; ++i) next[i] = (i + stride) % words;
  unsigned* chain = nullptr;
  check(cudaMalloc(&chain, (words + 1) * sizeof(unsigned)));
  check(cudaMemcpy(chain, next.data(), words * sizeof(unsigned), cudaMemcpyHostToDevice));
  std::array<float, 2> times_ms{};
  const auto run = [&](std::size_t i) {
    if (i == 0) follow_kernel<<<1, 1>>>(chain, steps, chain + words);
    else spin_kernel<<<1, 1>>>(430 * steps);
    check(cudaGetLastError());
  };
  EXPECT_EQ(fastest(nullptr, 2, run, times_ms), 1U) << times_ms[0] << " ms, " << times_ms[1] << " ms";
  cudaFree(chain);
}

TEST_F(Fastest, EndsWithAnErrorOfTheDevice) {
  const auto fails = [](std::size_t) { throw CudaError{cudaErrorIllegalAddress, std::source_location::current()}; };
  EXPECT_THROW(fastest(nullptr, 2, fails), CudaError);
}

}  // namespace
}  // namespace aisp
