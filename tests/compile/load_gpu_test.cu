// SPDX-License-Identifier: Apache-2.0
// Code that is compiled at run time runs.
#include <aisp/libraries/nvjitlink.hpp>
#include <aisp/libraries/nvrtc.hpp>

#include <gtest/gtest.h>
#include <aisp/launch.hpp>

#include <cstdint>
#include <vector>

#include "base/system/files.hpp"
#include "device/on_gpu.hpp"

namespace aisp {
namespace {

constexpr unsigned threads = 32;

const KernelSource doubling{.name = "doubling.cu",
                            .text = R"(
template <int factor>
__global__ void scale_kernel(float* values, unsigned count) {
  extern __shared__ float box[];
  if (threadIdx.x < count) box[threadIdx.x] = values[threadIdx.x] * factor;
  __syncthreads();
  if (threadIdx.x < count) values[threadIdx.x] = box[threadIdx.x];
}
)",
                            .kernel = "scale_kernel<2>"};

class Compiled : public testing::Test {
 protected:
  void SetUp() override {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "no CUDA device";
    for (const Library library : {Library::nvrtc, Library::nvjitlink})
      if (!SharedLibrary::available(library)) GTEST_SKIP() << name_of(library) << " is not installed";
    sm_ = std::stoi(Nvrtc{}.architecture().substr(3));
  }
  std::vector<float> numbers() const {
    std::vector<float> values(threads);
    for (unsigned i = 0; i < threads; ++i) values[i] = static_cast<float>(i);
    return values;
  }

  base::ScratchDirectory cache_;
  int sm_ = 0;
};

TEST_F(Compiled, KernelsAreLaunchedLikeOthers) {
  const auto scale = Nvrtc{sm_, cache_.path()}.kernel<void(float*, unsigned)>(doubling);
  const OnGpu<float> values{numbers()};
  // More dynamic shared memory than a kernel has by itself is asked for through the same handle.
  for (const std::size_t shared_bytes : {threads * sizeof(float), std::size_t{64} << 10})
    launch_kernel(nullptr, scale.entry, {.blocks = 1, .threads = threads, .shared_bytes = shared_bytes}, values.get(), threads);
  check(cudaDeviceSynchronize());
  const std::vector<float> result = values.host();
  for (unsigned i = 0; i < threads; ++i) EXPECT_EQ(result[i], 4.0f * static_cast<float>(i));
}

TEST_F(Compiled, AttributesAreThoseOfTheKernel) {
  const auto scale = Nvrtc{sm_, cache_.path()}.kernel<void(float*, unsigned)>(doubling);
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(scale.entry)));
  EXPECT_GT(attributes.numRegs, 0);
}

TEST_F(Compiled, ParametersOfOtherSizesAreRefused) {
  const Nvrtc nvrtc{sm_, cache_.path()};
  EXPECT_THROW(nvrtc.kernel<void(float*, std::uint64_t)>(doubling), std::logic_error);
  EXPECT_THROW(nvrtc.kernel<void(float*)>(doubling), std::logic_error);
  EXPECT_THROW(nvrtc.kernel<void(float*, unsigned, int)>(doubling), std::logic_error);
}

TEST_F(Compiled, LinkedKernelsCallWhatIsLinked) {
  const KernelSource square{.name = "square.cu", .text = R"(extern "C" __device__ float term(float x) { return x * x; })"};
  const Nvrtc nvrtc{sm_, cache_.path()};
  const NvJitLink linker{sm_, cache_.path()};
  const LinkInput kernels{LinkInput::Kind::fatbin, "sums.cu", prebuilt_kernels("ch90/lto/sums.cu")};
  const CompiledCode ir = nvrtc.lto_ir(square), machine_code = nvrtc.relocatable(square);
  using Sum = void(const float*, float*, unsigned);
  for (const CompiledKernel<Sum>& sum :
       {linker.kernel<Sum>("sum_kernel", {kernels, {LinkInput::Kind::lto_ir, "square.cu", ir.bytes}}, LinkMode::optimized),
        linker.kernel<Sum>("sum_kernel", {kernels, {LinkInput::Kind::cubin, "square.cu", machine_code.bytes}},
                           LinkMode::machine_code)}) {
    const OnGpu<float> values{numbers()};
    const OnGpu<float> sums{std::vector<float>(threads)};
    launch_kernel(nullptr, sum.entry, {.blocks = 1, .threads = threads}, values.get(), sums.get(), threads);
    check(cudaDeviceSynchronize());
    const std::vector<float> result = sums.host();
    for (unsigned i = 0; i < threads; ++i) EXPECT_EQ(result[i], static_cast<float>(i * i));
  }
}

}  // namespace
}  // namespace aisp
