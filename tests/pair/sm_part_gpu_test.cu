// SPDX-License-Identifier: Apache-2.0
// Streams on some of the SMs: where their kernels run.
#include <gtest/gtest.h>
#include <aisp/check.hpp>

#include <set>
#include <stdexcept>
#include <vector>

#include "pair/sm_part.hpp"

namespace aisp::pair {
namespace {

// Long enough for all blocks to be there at once.
__global__ void where_kernel(unsigned* sm_of_block) {
  unsigned sm = 0;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  sm_of_block[blockIdx.x] = sm;
  for (const long long end = clock64() + 200'000; clock64() < end;) {
  }
}

std::set<unsigned> sms_of(cudaStream_t stream) {
  constexpr unsigned blocks = 2048;
  unsigned* found = nullptr;
  check(cudaMalloc(&found, blocks * sizeof *found));
  where_kernel<<<blocks, 256, 0, stream>>>(found);
  check(cudaGetLastError());
  check(cudaStreamSynchronize(stream));
  std::vector<unsigned> sms(blocks);
  check(cudaMemcpy(sms.data(), found, blocks * sizeof *found, cudaMemcpyDefault));
  check(cudaFree(found));
  return {sms.begin(), sms.end()};
}

TEST(SmPartGpu, KernelsKeepToTheirOwnSms) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "no CUDA device";
  int driver = 0;
  check(cudaDriverGetVersion(&driver));
  if (driver < 12050) GTEST_SKIP() << "the driver sets no SMs apart";
  cudaStream_t everywhere = nullptr;
  check(cudaStreamCreateWithFlags(&everywhere, cudaStreamNonBlocking));
  SmParts parts;
  const SmPart& first = parts.add(0, 16);
  const SmPart& second = parts.add(0, 3);
  EXPECT_GE(first.sms(), 16);
  EXPECT_LT(first.sms(), 32);
  EXPECT_GE(second.sms(), 3);
  const std::set<unsigned> of_first = sms_of(first.stream()), of_second = sms_of(second.stream());
  EXPECT_EQ(of_first.size(), static_cast<std::size_t>(first.sms()));
  EXPECT_EQ(of_second.size(), static_cast<std::size_t>(second.sms()));
  for (const unsigned sm : of_second) EXPECT_FALSE(of_first.contains(sm)) << sm;
  int all = 0;
  check(cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, 0));
  EXPECT_EQ(sms_of(everywhere).size(), static_cast<std::size_t>(all)) << "who was there before uses all of them";
  EXPECT_THROW(parts.add(0, all), Unsupported) << "some are taken";
  const int left = all - first.sms() - second.sms();
  const SmPart& rest = parts.add(0, left);
  EXPECT_EQ(rest.sms(), left) << "all that are left, be they a whole number of the chip's groups or not";
  const std::set<unsigned> of_rest = sms_of(rest.stream());
  EXPECT_EQ(of_rest.size(), static_cast<std::size_t>(left));
  for (const unsigned sm : of_rest) EXPECT_FALSE(of_first.contains(sm) || of_second.contains(sm)) << sm;
  EXPECT_THROW(parts.add(0, 1), Unsupported) << "none is left";
  EXPECT_THROW(parts.add(0, 0), std::logic_error);
  check(cudaStreamDestroy(everywhere));
}

}  // namespace
}  // namespace aisp::pair
