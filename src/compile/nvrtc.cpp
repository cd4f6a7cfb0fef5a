// SPDX-License-Identifier: Apache-2.0
#include <aisp/libraries/nvrtc.hpp>

#include <fmt/format.h>
#include <nvrtc.h>

#include <algorithm>
#include <stdexcept>

#include "base/text.hpp"
#include "compile/headers.hpp"
#include "compile/store.hpp"

namespace aisp {
namespace {

template <class F>
F* nvrtc_function(const char* name) {
  return SharedLibrary::open(Library::nvrtc).function<F>(name);
}

void check(nvrtcResult status, const char* what) {
  if (status != NVRTC_SUCCESS)
    throw std::runtime_error{fmt::format("{} of NVRTC failed: {}", what,
                                         nvrtc_function<decltype(nvrtcGetErrorString)>("nvrtcGetErrorString")(status))};
}

std::vector<const char*> pointers(const std::vector<std::string>& texts) {
  std::vector<const char*> result;
  for (const std::string& text : texts) result.push_back(text.c_str());
  return result;
}

class Program {
 public:
  Program(const KernelSource& source, const std::vector<NamedText>& headers) {
    std::vector<const char*> names, texts;
    for (const NamedText& header : headers) names.push_back(header.name.c_str()), texts.push_back(header.text.c_str());
    check(nvrtc_function<decltype(nvrtcCreateProgram)>("nvrtcCreateProgram")(
              &program_, source.text.c_str(), source.name.c_str(), static_cast<int>(headers.size()), texts.data(), names.data()),
          "nvrtcCreateProgram");
    if (!source.kernel.empty())
      check(nvrtc_function<decltype(nvrtcAddNameExpression)>("nvrtcAddNameExpression")(program_, source.kernel.c_str()),
            "nvrtcAddNameExpression");
  }
  ~Program() { nvrtc_function<decltype(nvrtcDestroyProgram)>("nvrtcDestroyProgram")(&program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  nvrtcResult compile(const std::vector<std::string>& options) {
    const std::vector<const char*> all = pointers(options);
    return nvrtc_function<decltype(nvrtcCompileProgram)>("nvrtcCompileProgram")(program_, static_cast<int>(all.size()),
                                                                                all.data());
  }
  std::string lowered(const std::string& kernel) const {
    const char* name = nullptr;
    check(nvrtc_function<decltype(nvrtcGetLoweredName)>("nvrtcGetLoweredName")(program_, kernel.c_str(), &name),
          "nvrtcGetLoweredName");
    return name;
  }
  std::string log() const {
    std::string text = bytes("nvrtcGetProgramLogSize", "nvrtcGetProgramLog");
    text.erase(std::find(text.begin(), text.end(), '\0'), text.end());
    return text;
  }
  // Returns the bytes that a program's functions `size` and `get` give.
  std::string bytes(const char* size, const char* get) const {
    std::size_t count = 0;
    check(nvrtc_function<nvrtcResult(nvrtcProgram, std::size_t*)>(size)(program_, &count), size);
    std::string result(count, '\0');
    check(nvrtc_function<nvrtcResult(nvrtcProgram, char*)>(get)(program_, result.data()), get);
    return result;
  }

 private:
  nvrtcProgram program_ = nullptr;
};

int version_of_nvrtc() {
  int major = 0, minor = 0;
  check(nvrtc_function<decltype(nvrtcVersion)>("nvrtcVersion")(&major, &minor), "nvrtcVersion");
  return 1000 * major + 10 * minor;
}

std::vector<int> supported_architectures() {
  int count = 0;
  check(nvrtc_function<decltype(nvrtcGetNumSupportedArchs)>("nvrtcGetNumSupportedArchs")(&count), "nvrtcGetNumSupportedArchs");
  std::vector<int> all(static_cast<std::size_t>(count));
  check(nvrtc_function<decltype(nvrtcGetSupportedArchs)>("nvrtcGetSupportedArchs")(all.data()), "nvrtcGetSupportedArchs");
  return all;
}

std::shared_ptr<compile::Store> store_in(const std::filesystem::path& cache) { return std::make_shared<compile::Store>(cache); }

}  // namespace

Nvrtc::Nvrtc() : Nvrtc{compile::current_sm(), {}} { store_ = compile::common_store(); }

Nvrtc::Nvrtc(int sm, const std::filesystem::path& cache)
    : architecture_{compile::architecture_name(sm)}, version_{version_of_nvrtc()}, store_{store_in(cache)} {
  const std::vector<int> all = supported_architectures();
  if (std::ranges::find(all, sm) == all.end())
    throw Unsupported{fmt::format("NVRTC {}.{} ({}) compiles nothing for sm_{}; a newer one is needed", version_ / 1000,
                                  version_ % 1000 / 10, SharedLibrary::open(Library::nvrtc).path(), sm)};
}

CompiledCode Nvrtc::cubin(const KernelSource& source) const { return code(source, Form::cubin); }
CompiledCode Nvrtc::relocatable(const KernelSource& source) const { return code(source, Form::relocatable); }
CompiledCode Nvrtc::lto_ir(const KernelSource& source) const { return code(source, Form::lto_ir); }
CompiledCode Nvrtc::ptx(const KernelSource& source) const { return code(source, Form::ptx); }

CompiledCode Nvrtc::code(const KernelSource& source, Form form) const {
  // A virtual architecture has no machine code, whose generation takes most of the time.
  const std::string target = form == Form::ptx ? "compute" + architecture_.substr(architecture_.find('_')) : architecture_;
  std::vector<std::string> options{"-arch=" + target, "-std=c++20", "-default-device"};
  if (form == Form::relocatable) options.emplace_back("-rdc=true");
  if (form == Form::lto_ir) options.emplace_back("-dlto");
  options.insert(options.end(), source.options.begin(), source.options.end());
  const std::vector<NamedText> headers = compile::reached_headers(source);

  std::string all_headers;
  for (const NamedText& header : headers) all_headers += compile::key_of({header.name, header.text});
  // Updates of one version differ in the library's size.
  const std::string stamp = compile::stamp_of(SharedLibrary::open(Library::nvrtc));
  const std::string key = compile::key_of({"NVRTC", std::to_string(static_cast<int>(form)), std::to_string(version_), stamp,
                                           base::join(options, "\n"), source.name, source.kernel, source.text, all_headers});
  return store_->get(key, [&] {
    Program program{source, headers};
    const nvrtcResult status = program.compile(options);
    CompiledCode made{.log = program.log()};
    if (status == NVRTC_ERROR_COMPILATION || status == NVRTC_ERROR_INVALID_OPTION)
      throw std::runtime_error{compile::failure_text("NVRTC cannot compile " + source.name + " for " + architecture_, made.log)};
    check(status, "nvrtcCompileProgram");
    made.bytes = form == Form::lto_ir ? program.bytes("nvrtcGetLTOIRSize", "nvrtcGetLTOIR")
                 : form == Form::ptx  ? program.bytes("nvrtcGetPTXSize", "nvrtcGetPTX")
                                      : program.bytes("nvrtcGetCUBINSize", "nvrtcGetCUBIN");
    if (!source.kernel.empty()) made.symbol = program.lowered(source.kernel);
    return made;
  });
}

}  // namespace aisp
