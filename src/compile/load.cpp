// SPDX-License-Identifier: Apache-2.0
#include <aisp/compiled.hpp>

#include <cuda.h>
#include <fmt/format.h>
#include <aisp/check.hpp>
#include <aisp/driver_function.hpp>

#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "base/digest.hpp"
#include "base/system/process_memory.hpp"
#include "pair/code.hpp"

namespace aisp {
namespace {

using ParameterInfo = CUresult(CUkernel, std::size_t, std::size_t*, std::size_t*);

// Since CUDA 12.4; null with an older driver.
ParameterInfo* parameter_info() { return driver_function<ParameterInfo>("cuKernelGetParamInfo", 12040); }

// A launch cannot see that the arguments are not those of the kernel.
void check_parameters(cudaKernel_t kernel, const std::string& symbol, std::initializer_list<std::size_t> parameter_bytes) {
  ParameterInfo* const info = parameter_info();
  if (info == nullptr) return;
  std::size_t index = 0, offset = 0, bytes = 0;
  for (const std::size_t expected : parameter_bytes) {
    const CUresult status = info(reinterpret_cast<CUkernel>(kernel), index, &offset, &bytes);
    if (status == CUDA_ERROR_INVALID_VALUE)
      throw std::logic_error{fmt::format("{} has {} parameters, and is launched with {}", symbol, index, parameter_bytes.size())};
    if (status != CUDA_SUCCESS) return;
    if (bytes != expected)
      throw std::logic_error{
          fmt::format("parameter {} of {} has {} bytes, and is launched with {}", index + 1, symbol, bytes, expected)};
    ++index;
  }
  // A call that fails is all that tells the end, and memory checkers report it.
  if (base::under_memory_checker()) return;
  if (info(reinterpret_cast<CUkernel>(kernel), index, &offset, &bytes) == CUDA_SUCCESS)
    throw std::logic_error{fmt::format("{} has more parameters than the {} it is launched with", symbol, index)};
}

}  // namespace

const void* detail::load_kernel(const CompiledCode& code, std::initializer_list<std::size_t> parameter_bytes) {
  // Kept to the end: others know the kernel by its address.
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::string>, cudaKernel_t> loaded;
  const std::scoped_lock lock{mutex};
  const std::pair name{base::sha256_hex(code.bytes), code.symbol};
  if (const auto known = loaded.find(name); known != loaded.end()) {
    check_parameters(known->second, code.symbol, parameter_bytes);
    return known->second;
  }
  cudaLibrary_t library = nullptr;
  cudaKernel_t kernel = nullptr;
  check(cudaLibraryLoadData(&library, code.bytes.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  check(cudaLibraryGetKernel(&kernel, library, code.symbol.c_str()));
  check_parameters(kernel, code.symbol, parameter_bytes);
  return loaded.emplace(name, kernel).first->second;
}

std::string_view prebuilt_kernels(std::string_view file) {
  for (const pair::LinkableKernels& kernels : pair::linked_kernels())
    if (kernels.path == file) return {kernels.begin, kernels.end};
  throw std::logic_error{fmt::format("the build has made no kernels of {} to be linked at run time", file)};
}

}  // namespace aisp
