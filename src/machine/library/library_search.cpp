// SPDX-License-Identifier: Apache-2.0
#include "machine/library/library_search.hpp"

#include <glob.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>

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

}  // namespace aisp::machine
