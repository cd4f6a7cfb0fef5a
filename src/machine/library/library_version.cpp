// SPDX-License-Identifier: Apache-2.0
#include "machine/library/library_search.hpp"

#include <algorithm>
#include <vector>

#include "base/system/files.hpp"

namespace aisp::machine {
namespace {

namespace fs = std::filesystem;

// site-packages/nvidia/cu13/lib/libcublas.so.13
constexpr int levels_up = 4;
constexpr std::size_t largest_record_bytes = std::size_t{8} << 20;
constexpr std::string_view wheel_suffix = ".dist-info";

// "13.1.0.3" of libcublas.so.13.1.0.3; empty for libcublas.so.13, which is the interface's number.
std::string version_in(const std::string& file_name) {
  const std::size_t at = file_name.find(".so.");
  if (at == std::string::npos) return {};
  const std::string version = file_name.substr(at + 4);
  const bool is_number = version.find_first_not_of("0123456789.") == std::string::npos;
  return is_number && version.find('.') != std::string::npos ? version : std::string{};
}

std::vector<fs::path> wheels_in(const fs::path& folder) {
  std::vector<fs::path> wheels;
  std::error_code error;
  for (fs::directory_iterator entry{folder, error}, end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("nvidia_") && name.ends_with(wheel_suffix)) wheels.push_back(entry->path());
  }
  std::sort(wheels.begin(), wheels.end());
  return wheels;
}

// Returns the version of the wheel in `folder` that lists the file.
std::string version_by_wheel(const fs::path& folder, const std::string& file_name) {
  for (const fs::path& wheel : wheels_in(folder)) {
    const std::string record = base::try_read_file(wheel / "RECORD", largest_record_bytes).value_or("");
    if (record.find("/" + file_name + ",") == std::string::npos) continue;
    const std::string name = wheel.filename().string();
    const std::size_t dash = name.find('-');
    if (dash != std::string::npos) return name.substr(dash + 1, name.size() - dash - 1 - wheel_suffix.size());
  }
  return {};
}

}  // namespace

std::string library_version(const fs::path& file) {
  std::error_code error;
  const fs::path real = fs::canonical(file, error);
  if (error) return {};
  if (std::string version = version_in(real.filename().string()); !version.empty()) return version;
  fs::path folder = real.parent_path();
  for (int level = 0; level < levels_up && folder.has_relative_path(); ++level, folder = folder.parent_path())
    // Wheels that were unpacked into one folder leave what they say of themselves in dist-info there.
    for (const fs::path& place : {folder, folder / "dist-info"})
      if (std::string version = version_by_wheel(place, real.filename().string()); !version.empty()) return version;
  return {};
}

}  // namespace aisp::machine
