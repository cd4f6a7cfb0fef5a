// SPDX-License-Identifier: Apache-2.0
// The program that scripts/tcgen05-probe builds: one product of 128 x 64 x 64 by tcgen05 on each GPU, compared with the exact
// one.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <string>
#include <vector>

#include "machine/chips.hpp"
#include "machine/doctor/tcgen05_launch.hpp"

namespace {

using aisp::machine::Tcgen05;

enum Status { right = 0, wrong = 1, no_gpu = 4 };

const char* why_not(Tcgen05 answer) {
  if (answer == Tcgen05::lacking_on_blackwell)
    return "Blackwell without tensor memory: its tensor cores are driven by mma.sync (GB10, RTX 50)";
  return answer == Tcgen05::none ? "older than Blackwell" : "a generation that this probe does not know";
}

Status try_on(int ordinal) {
  cudaDeviceProp gpu{};
  if (cudaGetDeviceProperties(&gpu, ordinal) != cudaSuccess || cudaSetDevice(ordinal) != cudaSuccess) return wrong;
  std::printf("GPU %d: %s, compute capability %d.%d: ", ordinal, gpu.name, gpu.major, gpu.minor);
  if (const Tcgen05 answer = aisp::machine::chip_of(gpu.major * 10 + gpu.minor).tcgen05; answer != Tcgen05::present) {
    std::printf("no tcgen05, %s\n", why_not(answer));
    return no_gpu;
  }
  std::vector<float> c;
  const cudaError_t status = aisp::machine::multiply_by_tcgen05(c);
  const std::string fault = status == cudaSuccess ? aisp::machine::judge_product(c) : cudaGetErrorString(status);
  std::printf("tcgen05 %s%s\n", fault.empty() ? "works: the product is right" : "fails: ", fault.c_str());
  return fault.empty() ? right : wrong;
}

}  // namespace

int main() {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess || count == 0) {
    std::printf("no GPU: %s\n", status == cudaSuccess ? "none is there" : cudaGetErrorString(status));
    return no_gpu;
  }
  bool any_right = false;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    const Status status = try_on(ordinal);
    if (status == wrong) return wrong;
    any_right = any_right || status == right;
  }
  return any_right ? right : no_gpu;
}
