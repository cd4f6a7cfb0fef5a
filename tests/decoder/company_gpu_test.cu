// SPDX-License-Identifier: Apache-2.0
// A product has the same bits next to kernels of another stream, which share its SMs and hold its warps up.
#include <decoder/product.hpp>

#include <vector>

#include "device/gpu_test.hpp"

namespace aisp::decoder::test {
namespace {

class CompanyGpu : public GpuTest<9, 99> {};

constexpr int outputs = 4096, depth = 4096, rows = 64, products = 40;

// Reads shared memory for so long, all lanes of a warp from one bank: other reads of the SM wait behind these.
__global__ void crowd_kernel(unsigned microseconds) {
  constexpr int lanes = 32;
  __shared__ volatile unsigned words[lanes * lanes];
  for (unsigned i = threadIdx.x; i < lanes * lanes; i += blockDim.x) words[i] = i;
  __syncthreads();
  const unsigned at = threadIdx.x % lanes * lanes;
  unsigned sum = 0;
  for (const std::uint64_t end = now_ns() + microseconds * std::uint64_t{1000}; now_ns() < end;)
    for (unsigned i = 0; i < 64; ++i) sum += words[(at + sum % lanes) % (lanes * lanes)];
  if (sum == 1) words[0] = sum;
}

// Returns how many elements of so many products differ from those of a product alone.
unsigned different(int warps, bool in_company) {
  constexpr std::size_t weights = std::size_t{outputs} * depth, inputs = std::size_t{rows} * depth,
                        results = std::size_t{rows} * outputs;
  const OnGpu<bf16> w{std::vector<bf16>(weights)}, x{std::vector<bf16>(inputs)}, y{std::vector<bf16>(results)},
      alone{std::vector<bf16>(results)};
  const OnGpu<unsigned> count{std::vector<unsigned>(1)};
  fill_kernel<<<1024, 256>>>(w.get(), weights);
  fill_kernel<<<1024, 256>>>(x.get(), inputs);
  const int sms = static_cast<int>(multiprocessors());
  const auto multiply = [&](cudaStream_t stream, const OnGpu<bf16>& to) {
    multiply_skinny(stream, {w.get(), outputs, depth, 1}, 0, x.get(), to.get(), rows, warps, false, sms);
  };
  multiply(nullptr, alone);
  check(cudaDeviceSynchronize());
  cudaStream_t own, others;
  for (cudaStream_t* each : {&own, &others}) check(cudaStreamCreateWithFlags(each, cudaStreamNonBlocking));
  if (in_company) crowd_kernel<<<2 * sms, 512, 0, others>>>(10'000);
  for (int i = 0; i < products; ++i) {
    check(cudaMemsetAsync(y.get(), 0xff, results * sizeof(bf16), own));
    multiply(own, y);
    using Word = unsigned short;
    count_different_kernel<<<256, 256, 0, own>>>(reinterpret_cast<const Word*>(alone.get()),
                                                 reinterpret_cast<const Word*>(y.get()), results, count.get());
  }
  check(cudaDeviceSynchronize());
  for (const cudaStream_t each : {own, others}) check(cudaStreamDestroy(each));
  return count.host()[0];
}

TEST_F(CompanyGpu, AProductHasTheSameBitsNextToOtherKernels) {
  for (const int warps : {1, 2, 4}) {
    EXPECT_EQ(different(warps, false), 0u) << warps << " warps, alone";
    EXPECT_EQ(different(warps, true), 0u) << warps << " warps";
  }
}

}  // namespace
}  // namespace aisp::decoder::test
