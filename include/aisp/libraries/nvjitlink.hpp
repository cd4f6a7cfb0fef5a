// SPDX-License-Identifier: Apache-2.0
// Code of several compilations linked at run time by nvJitLink, also across their borders (link-time optimization). Opened at run
// time, as NVRTC is (nvrtc.hpp): `.needs = {.libraries = {Library::nvrtc, Library::nvjitlink}}`, `Opened<NvJitLink>`.
#pragma once
#include <aisp/compiled.hpp>
#include <aisp/library.hpp>
#include <aisp/opened.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace aisp {

namespace compile {
class Store;
}

struct LinkInput {
  enum class Kind : std::uint8_t { cubin, lto_ir, fatbin };
  Kind kind;
  std::string name;  // in messages of the linker
  std::string_view bytes;
};

enum class LinkMode : std::uint8_t { machine_code, optimized };  // optimized: all inputs have LTO IR, and are compiled as one

// Links device code; results are kept as those of NVRTC are.
class NvJitLink {
 public:
  static constexpr Library library = Library::nvjitlink;

  NvJitLink();  // for the current GPU
  NvJitLink(int sm, const std::filesystem::path& cache);

  // Throws std::runtime_error with one clear line, followed by the linker's whole log.
  CompiledCode link(const std::string& kernel, const std::vector<LinkInput>& inputs, LinkMode mode) const;

  template <class F>
  CompiledKernel<F> kernel(const std::string& name, const std::vector<LinkInput>& inputs, LinkMode mode) const {
    return load<F>(link(name, inputs, mode));
  }

  int version() const { return version_; }  // as 13000 for 13.0

 private:
  std::string architecture_;
  int version_ = 0;
  std::shared_ptr<compile::Store> store_;
};

}  // namespace aisp
