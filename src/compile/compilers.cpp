// SPDX-License-Identifier: Apache-2.0
#include "compile/compilers.hpp"

#include <fmt/format.h>
#include <aisp/device_attribute.hpp>

#include <filesystem>
#include <system_error>

#include "base/text.hpp"

namespace aisp::compile {
namespace {

constexpr int first_with_features_of_its_own = 90;

}  // namespace

std::string failure_text(std::string_view what, std::string_view log) {
  std::string first;
  for (const std::string& line : base::split(log, '\n')) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const bool is_error = line.find("error") != std::string::npos || line.find("fatal") != std::string::npos;
    if (first.empty() || is_error) first = line;
    if (is_error) break;
  }
  if (first.empty()) return fmt::format("{}, and gives no reason", what);
  return fmt::format("{}: {}\n{}", what, first, log);
}

std::string architecture_name(int sm) { return fmt::format("sm_{}{}", sm, sm >= first_with_features_of_its_own ? "a" : ""); }

int current_sm() {
  return 10 * device_attribute(cudaDevAttrComputeCapabilityMajor) + device_attribute(cudaDevAttrComputeCapabilityMinor);
}

std::string stamp_of(const SharedLibrary& library) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(library.path(), error);
  return fmt::format("{} {}", library.file_name(), error ? 0 : bytes);
}

}  // namespace aisp::compile
