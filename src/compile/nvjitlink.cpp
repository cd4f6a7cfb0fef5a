// SPDX-License-Identifier: Apache-2.0
#include <aisp/libraries/nvjitlink.hpp>

#include <fmt/format.h>
#define NVJITLINK_NO_INLINE  // its functions are called by name
#include <nvJitLink.h>

#include <array>
#include <stdexcept>

#include "compile/store.hpp"

namespace aisp {
namespace {

// Names without a version stand for the newest interface of the library, which since 12.0 has only grown.
template <class F>
F* nvjitlink_function(const char* name) {
  return SharedLibrary::open(Library::nvjitlink).function<F>(name);
}

class Link {
 public:
  explicit Link(const std::vector<const char*>& options) {
    std::vector<const char*> given = options;
    check(nvjitlink_function<nvJitLinkResult(nvJitLinkHandle*, std::uint32_t, const char**)>("nvJitLinkCreate")(
              &handle_, static_cast<std::uint32_t>(given.size()), given.data()),
          "set up");
  }
  ~Link() { nvjitlink_function<nvJitLinkResult(nvJitLinkHandle*)>("nvJitLinkDestroy")(&handle_); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  void add(const LinkInput& input) {
    check(nvjitlink_function<nvJitLinkResult(nvJitLinkHandle, nvJitLinkInputType, const void*, std::size_t, const char*)>(
              "nvJitLinkAddData")(handle_, type_of(input.kind), input.bytes.data(), input.bytes.size(), input.name.c_str()),
          "link " + input.name);
  }
  CompiledCode complete(const std::string& kernel) {
    check(nvjitlink_function<nvJitLinkResult(nvJitLinkHandle)>("nvJitLinkComplete")(handle_), "link " + kernel);
    return {.bytes = bytes("nvJitLinkGetLinkedCubinSize", "nvJitLinkGetLinkedCubin"),
            .symbol = kernel,
            .log = log("nvJitLinkGetInfoLogSize", "nvJitLinkGetInfoLog")};
  }

 private:
  static nvJitLinkInputType type_of(LinkInput::Kind kind) {
    constexpr std::array types{NVJITLINK_INPUT_CUBIN, NVJITLINK_INPUT_LTOIR, NVJITLINK_INPUT_FATBIN};
    return types.at(static_cast<std::size_t>(kind));
  }
  void check(nvJitLinkResult status, const std::string& what) const {
    if (status == NVJITLINK_SUCCESS) return;
    const std::string failed = fmt::format("nvJitLink cannot {} (status {})", what, static_cast<int>(status));
    if (status == NVJITLINK_ERROR_OUTDATED_LIBRARY) throw Unsupported{failed + ": it is older than what it would link"};
    if (handle_ == nullptr) throw std::runtime_error{failed};
    throw std::runtime_error{compile::failure_text(failed, log("nvJitLinkGetErrorLogSize", "nvJitLinkGetErrorLog"))};
  }
  // Returns the bytes that a link's functions `size` and `get` give.
  std::string bytes(const char* size, const char* get) const {
    std::size_t count = 0;
    if (nvjitlink_function<nvJitLinkResult(nvJitLinkHandle, std::size_t*)>(size)(handle_, &count) != NVJITLINK_SUCCESS) return {};
    std::string result(count, '\0');
    if (count > 0) nvjitlink_function<nvJitLinkResult(nvJitLinkHandle, void*)>(get)(handle_, result.data());
    return result;
  }
  std::string log(const char* size, const char* get) const {
    std::string text = bytes(size, get);
    if (const std::size_t end = text.find('\0'); end != std::string::npos) text.resize(end);
    return text;
  }

  nvJitLinkHandle handle_ = nullptr;
};

int version_of_nvjitlink() {
  unsigned major = 0, minor = 0;
  if (nvjitlink_function<nvJitLinkResult(unsigned*, unsigned*)>("nvJitLinkVersion")(&major, &minor) != NVJITLINK_SUCCESS)
    throw Unsupported{"nvJitLink does not tell its version"};
  return static_cast<int>(1000 * major + 10 * minor);
}

}  // namespace

NvJitLink::NvJitLink() : NvJitLink{compile::current_sm(), {}} { store_ = compile::common_store(); }

NvJitLink::NvJitLink(int sm, const std::filesystem::path& cache)
    : architecture_{compile::architecture_name(sm)},
      version_{version_of_nvjitlink()},
      store_{std::make_shared<compile::Store>(cache)} {
  // It reads LTO IR of its own major version, no newer than itself: what the build has made, and what NVRTC makes.
  if (version_ < CUDART_VERSION / 10 * 10)
    throw Unsupported{fmt::format("nvJitLink {}.{} is older than the {}.{} of the kernels that it would link", version_ / 1000,
                                  version_ % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10)};
}

CompiledCode NvJitLink::link(const std::string& kernel, const std::vector<LinkInput>& inputs, LinkMode mode) const {
  const std::string architecture = "-arch=" + architecture_;
  std::vector<const char*> options{architecture.c_str()};
  if (mode == LinkMode::optimized) options.push_back("-lto");
  std::string all_inputs;
  for (const LinkInput& input : inputs)
    all_inputs += compile::key_of({std::to_string(static_cast<int>(input.kind)), input.name, input.bytes});
  const std::string key =
      compile::key_of({"nvJitLink", std::to_string(version_), compile::stamp_of(SharedLibrary::open(Library::nvjitlink)),
                       architecture, mode == LinkMode::optimized ? "optimized" : "machine code", kernel, all_inputs});
  return store_->get(key, [&] {
    Link link{options};
    for (const LinkInput& input : inputs) link.add(input);
    return link.complete(kernel);
  });
}

}  // namespace aisp
