// SPDX-License-Identifier: Apache-2.0
// Machine code that is made at run time, by NVRTC (libraries/nvrtc.hpp) or nvJitLink (libraries/nvjitlink.hpp).
#pragma once
#include <aisp/workload.hpp>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

namespace aisp {

// The metric, in ms, of a variant whose kernels are compiled at run time; the result adds how many calls it takes to gain that
// time back.
inline constexpr const char* compile_time = "compile";

struct CompiledCode {
  enum class From : std::uint8_t { compiled, disk, memory };

  std::string bytes;      // a cubin, or LTO IR
  std::string symbol;     // the kernel's mangled name in it
  std::string log;        // the compiler's warnings; not kept on disk
  double compile_ms = 0;  // time that compiling took, in this process or an earlier one
  From from = From::compiled;
};

// A kernel of such code, which is loaded for all GPUs of this process and stays loaded: launch(kernel.entry, {blocks, threads},
// ...).
template <class F>
struct CompiledKernel;
template <class... Parameters>
struct CompiledKernel<void(Parameters...)> {
  void (*entry)(Parameters...) = nullptr;  // a handle for launches and their helpers; it cannot be called
  double compile_ms = 0;

  explicit operator bool() const { return entry != nullptr; }
  // Call it in metrics() of the variant that runs the kernel.
  void report(Metrics& metrics) const { metrics.report(compile_time, compile_ms, "ms", Metrics::Better::lower); }
};

namespace detail {

// Throws std::logic_error if the kernel's parameters have other sizes.
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

// Returns kernels that the build has compiled for linking at run time: those of the file FOLDER/chNN/lto/NAME.cu, here named
// "chNN/lto/NAME.cu". They are a fatbin of LTO IR, and of PTX for links without it; one for all GPUs.
std::string_view prebuilt_kernels(std::string_view file);

}  // namespace aisp
