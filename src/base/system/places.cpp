// SPDX-License-Identifier: Apache-2.0
#include "base/system/places.hpp"

#include <cstdlib>
#include <system_error>

#include "base/system/files.hpp"

namespace aisp::base {

namespace fs = std::filesystem;

namespace {

fs::path& named() {
  static fs::path executable;
  return executable;
}

}  // namespace

void embed(const fs::path& executable) { named() = executable; }
bool embedded() { return !named().empty(); }
std::string program() { return embedded() ? named().string() : "/proc/self/exe"; }

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

fs::path cache_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') return fs::path{cache} / "aisp";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') return fs::path{home} / ".cache" / "aisp";
  return {};
}

}  // namespace aisp::base
