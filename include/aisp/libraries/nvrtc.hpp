// SPDX-License-Identifier: Apache-2.0
// CUDA C++ that is compiled at run time by NVRTC, for the GPU that is there. Opened at run time: nothing of it is linked. A
// variant that uses it says `.needs = {.libraries = {Library::nvrtc}}`, has a member `Opened<Nvrtc>` made by `nvrtc_{setup}`, and
// compiles in its prepare:
//   fused_ = nvrtc_->kernel<void(const uint4*, uint4*, unsigned)>({.name = "fused.cu", .text = text, .kernel = "fused_kernel"});
#pragma once
#include <aisp/compiled.hpp>
#include <aisp/library.hpp>
#include <aisp/opened.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace aisp {

struct NamedText {
  std::string name, text;
};

// Source text that can include <aisp/device/...> and the headers of chapters by their paths below the folder chapters or
// chapters/shared: #include "ch14/softmax_rows.cuh". CUDA's own headers and the standard library's are absent; built-in
// substitutes have the few types and traits that device headers use. Functions are __device__ unless they say otherwise.
struct KernelSource {
  std::string name;  // its name in the compiler's messages: "fused.cu"
  std::string text;
  std::string kernel{};                // as C++ names it, "softmax_kernel<3584>"; empty: functions for a linker
  std::vector<std::string> options{};  // beyond the architecture and C++20: "-DWIDTH=3584"
  std::vector<NamedText> headers{};    // made at run time
};

namespace compile {
class Store;
}

// Compiles device code and keeps it, in memory and in the folder of aisp's cache, for the next call with the same source, headers
// and options, version of NVRTC and architecture. May be used by several threads at once.
class Nvrtc {
 public:
  static constexpr Library library = Library::nvrtc;

  Nvrtc();  // for the current GPU
  // For a GPU of this compute capability (times ten), which need not be there; an empty folder: nothing is kept on disk.
  Nvrtc(int sm, const std::filesystem::path& cache);

  // Throws std::runtime_error with one clear line, followed by the compiler's whole log.
  CompiledCode cubin(const KernelSource& source) const;
  // Leaves calls to other code unresolved, for NvJitLink.
  CompiledCode relocatable(const KernelSource& source) const;
  CompiledCode lto_ir(const KernelSource& source) const;
  CompiledCode ptx(const KernelSource& source) const;  // for reading the compiled code

  template <class F>
  CompiledKernel<F> kernel(const KernelSource& source) const {
    return load<F>(cubin(source));
  }

  const std::string& architecture() const { return architecture_; }  // "sm_90a"
  int version() const { return version_; }                           // as 13000 for 13.0

 private:
  enum class Form : std::uint8_t { cubin, relocatable, lto_ir, ptx };
  CompiledCode code(const KernelSource& source, Form form) const;

  std::string architecture_;
  int version_ = 0;
  std::shared_ptr<compile::Store> store_;
};

}  // namespace aisp
