// SPDX-License-Identifier: Apache-2.0
// For pairs whose kernels launch kernels or graphs, or change nodes of a graph. The build compiles a pair that has this line,
// #include <aisp/device_runtime.hpp>, to relocatable device code, and links it separately with the device runtime.
#pragma once
#include <cuda_runtime.h>

#ifdef AISP_DEVICE_RUNTIME
// nvcc names the kernels of an anonymous namespace after the first function that a file exports. Without one it uses its process
// id, and every build would give different code.
namespace aisp::device_runtime {
void AISP_DEVICE_RUNTIME() {}
}  // namespace aisp::device_runtime
#elif defined(__NVCC__)
#error "the build does not know yet that this pair needs the device runtime: run cmake again"
#endif
