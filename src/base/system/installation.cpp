// SPDX-License-Identifier: Apache-2.0
#include "base/system/installation.hpp"

#include <system_error>

#include "base/system/files.hpp"

namespace aisp::base {

namespace fs = std::filesystem;

fs::path installed_data(const fs::path& executable) {
  // CMakeLists.txt defines the way from the folder of executables to that of the data.
  fs::path folder = (executable.parent_path() / AISP_DATA_FROM_EXECUTABLE).lexically_normal();
  std::error_code ignored;
  if (fs::is_directory(folder, ignored)) return folder;
  return {};
}

std::string script(std::string_view name) {
  const fs::path data = installed_data(self_path());
  return ((data.empty() ? fs::path{"scripts"} : data / "scripts") / name).string();
}

}  // namespace aisp::base
