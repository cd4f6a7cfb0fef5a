// SPDX-License-Identifier: Apache-2.0
#include "machine/library/library_search.hpp"

#include <glob.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <vector>

#include "base/system/files.hpp"
#include "base/text.hpp"

namespace aisp::machine {
namespace {

namespace fs = std::filesystem;

// Names of this machine's library folders in toolkits and distributions.
#if defined(__aarch64__)
constexpr const char* toolkit_target = "targets/sbsa-linux/lib";
constexpr const char* multiarch = "aarch64-linux-gnu";
#else
constexpr const char* toolkit_target = "targets/x86_64-linux/lib";
constexpr const char* multiarch = "x86_64-linux-gnu";
#endif

class Folders {
 public:
  explicit Folders(fs::path root) : root_{std::move(root)} {}

  // `pattern` is a path with * in it; every existing folder that matches is added, the highest version first.
  void add(const fs::path& pattern) {
    if (pattern.empty()) return;
    glob_t found{};
    const fs::path below = pattern.string().starts_with(root_.string()) ? pattern : root_ / pattern.relative_path();
    if (::glob(below.c_str(), 0, nullptr, &found) == 0)
      for (std::size_t i = found.gl_pathc; i-- > 0;) add_folder(found.gl_pathv[i]);
    ::globfree(&found);
  }

  std::vector<std::string> take() { return std::move(folders_); }

 private:
  void add_folder(const fs::path& folder) {
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored)) return;
    std::string name = folder.lexically_normal().string();
    if (std::find(folders_.begin(), folders_.end(), name) == folders_.end()) folders_.push_back(std::move(name));
  }

  fs::path root_;
  std::vector<std::string> folders_;
};

void add_toolkit(Folders& folders, const fs::path& toolkit) {
  if (toolkit.empty()) return;
  for (const char* part : {"lib64", "lib", toolkit_target, "extras/CUPTI/lib64"}) folders.add(toolkit / part);
}

// `lib` holds python3.N/site-packages or dist-packages.
void add_wheels(Folders& folders, const fs::path& packages) {
  for (const char* part : {"nvidia/cu13/lib", "nvidia/*/lib", "torch/lib"}) folders.add(packages / part);
}

void add_python(Folders& folders, const fs::path& prefix) {
  for (const char* packages : {"lib/python3*/site-packages", "lib/python3*/dist-packages"})
    add_wheels(folders, prefix / packages);
}

void add_pythons_on_path(Folders& folders, const SearchPlaces& places) {
  for (const std::string& entry : base::split(places.environment("PATH"), ':')) {
    const fs::path folder = entry;
    std::error_code error;
    if (entry.empty() || !fs::exists(places.root / folder.relative_path() / "python3", error)) continue;
    // A virtual environment's interpreter is a link; the packages lie beside the link, the base system's beside its target.
    add_python(folders, folder.parent_path());
    if (folder.filename() == "shims") add_python(folders, folder.parent_path() / "versions" / "*");
    const fs::path target = fs::canonical(places.root / folder.relative_path() / "python3", error);
    if (!error) add_python(folders, target.parent_path().parent_path());
  }
}

// Returns the folder with the setup.sh that made .cuda, for build/release/aisp, build/aisp or bin/aisp. Never a folder above the
// tree, in which others may put libraries.
fs::path tree_of(const fs::path& executable) {
  fs::path folder = executable.parent_path();
  std::error_code ignored;
  for (int up = 0; up < 3 && folder.has_relative_path(); ++up, folder = folder.parent_path())
    if (fs::is_regular_file(folder / "setup.sh", ignored) && fs::is_regular_file(folder / "CMakeLists.txt", ignored))
      return folder;
  return {};
}

// The virtual environment that pip installed the executable into, which need not be on PATH.
fs::path environment_of(const fs::path& executable) {
  const fs::path folder = executable.parent_path();
  std::error_code ignored;
  const bool is_one = folder.filename() == "bin" && fs::is_regular_file(folder.parent_path() / "pyvenv.cfg", ignored);
  return is_one ? folder.parent_path() : fs::path{};
}

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

SearchPlaces places_here() {
  return {.root = "/", .executable = base::self_path(), .environment = [](const char* name) {
            const char* value = std::getenv(name);
            return std::string{value == nullptr ? "" : value};
          }};
}

std::vector<std::string> search_folders(const SearchPlaces& places) {
  Folders folders{places.root};
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) add_toolkit(folders, places.environment(variable));
  if (const fs::path tree = tree_of(places.executable); !tree.empty()) {
    add_toolkit(folders, tree / ".cuda");
    add_wheels(folders, tree / ".cuda");
    add_python(folders, tree / ".cuda");
  }
  add_toolkit(folders, "/usr/local/cuda");
  add_toolkit(folders, "/usr/local/cuda-13*");
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const std::string prefix = places.environment(variable); !prefix.empty()) add_python(folders, prefix);
  for (const std::string& entry : base::split(places.environment("PYTHONPATH"), ':'))
    if (!entry.empty()) add_wheels(folders, entry);
  add_pythons_on_path(folders, places);
  if (const fs::path environment = environment_of(places.executable); !environment.empty()) add_python(folders, environment);
  for (const char* prefix : {"/usr/local", "/usr", "/opt/*/.venv", "/opt/*"}) add_python(folders, prefix);
  add_wheels(folders, "/usr/lib/python3/dist-packages");
  if (const std::string home = places.environment("HOME"); !home.empty()) add_python(folders, fs::path{home} / ".local");
  folders.add("/usr/lib/wsl/lib");
  return folders.take();
}

std::vector<std::string> own_folders(const SearchPlaces& places) {
  Folders folders{places.root};
  const fs::path folder = places.executable.parent_path();
  folders.add(folder);
  if (folder.filename() == "bin") folders.add(folder.parent_path() / "lib" / "aisp");
  return folders.take();
}

std::vector<std::string> loader_folders(const SearchPlaces& places) {
  Folders folders{places.root};
  for (const std::string& entry : base::split(places.environment("LD_LIBRARY_PATH"), ':'))
    if (!entry.empty()) folders.add(entry);
  for (const char* folder : {"/lib", "/usr/lib"}) folders.add(fs::path{folder} / multiarch);
  for (const char* folder : {"/lib64", "/usr/lib64", "/lib", "/usr/lib"}) folders.add(folder);
  return folders.take();
}

// The cache holds its paths as zero-terminated strings; no other string in it ends with a slash and a library's name.
std::string find_in_loader_cache(std::string_view cache, std::string_view file_name) {
  const std::string ending = "/" + std::string{file_name} + '\0';
  for (std::size_t at = cache.find(ending); at != std::string_view::npos; at = cache.find(ending, at + 1)) {
    const std::size_t before = cache.rfind('\0', at);
    const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
    const std::string path{cache.substr(begin, at + ending.size() - 1 - begin)};
    if (path.starts_with('/')) return path;
  }
  return {};
}

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
