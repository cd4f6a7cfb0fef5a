// SPDX-License-Identifier: Apache-2.0
// Machine code that is made at run time, by NVRTC (libraries/nvrtc.hpp) or nvJitLink (libraries/nvjitlink.hpp).
#pragma once
#include <aisp/workload.hpp>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

namespace aisp {

// The metric, in ms, of a variant whose kernels are made at run time: the result adds after how many calls they have gained it
// back.
inline constexpr const char* compile_time = "compile";

struct CompiledCode {
  enum class From : std::uint8_t { compiled, disk, memory };

  std::string bytes;      // a cubin, or LTO IR
  std::string symbol;     // what the kernel is called in it
  std::string log;        // the compiler's warnings; not kept on disk
  double compile_ms = 0;  // that making it took, whenever that was
  From from = From::compiled;
};

// A kernel of such code, which is loaded for all GPUs of this process and stays: launch(kernel.entry, {blocks, threads}, ...).
template <class F>
struct CompiledKernel;
template <class... Parameters>
struct CompiledKernel<void(Parameters...)> {
  void (*entry)(Parameters...) = nullptr;  // a handle that launches and their helpers take; it cannot be called
  double compile_ms = 0;

  explicit operator bool() const { return entry != nullptr; }
  // In metrics() of the variant that runs it.
  void report(Metrics& metrics) const { metrics.report(compile_time, compile_ms, "ms", Metrics::Better::lower); }
};

namespace detail {

// Throws std::logic_error where the kernel's parameters have other sizes.
const void* load_kernel(const CompiledCode& code, std::initializer_list<std::size_t> parameter_bytes);

template <class F>
struct Loader;
template <class... Parameters>
struct Loader<void(Parameters...)> {
  static CompiledKernel<void(Parameters...)> load(const CompiledCode& code) {
    const void* kernel = load_kernel(code, {sizeof(Parameters)...});
    return {reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(kernel)), code.compile_ms};
  }
};

}  // namespace detail

template <class F>
CompiledKernel<F> load(const CompiledCode& code) {
  return detail::Loader<F>::load(code);
}

// Kernels that the build has compiled to be linked at run time: those of a file in a folder lto, FOLDER/chNN/lto/NAME.cu, here
// named "chNN/lto/NAME.cu". A fatbin of LTO IR, and of PTX for links without it; one for all GPUs.
std::string_view prebuilt_kernels(std::string_view file);

}  // namespace aisp
