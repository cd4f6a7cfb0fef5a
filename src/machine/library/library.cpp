// SPDX-License-Identifier: Apache-2.0
#include <aisp/check.hpp>
#include <aisp/libraries/cutlass.hpp>
#include <aisp/library.hpp>

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/system/files.hpp"
#include "base/text.hpp"
#include "machine/library/library_search.hpp"

namespace aisp {
namespace {

namespace fs = std::filesystem;
using machine::file_names;
using machine::library_folders;

constexpr std::size_t library_count = static_cast<std::size_t>(last_library) + 1;

struct LibraryFacts {
  // Other major versions only where what is used of them is the same; CUPTI's records and nvJitLink's names change with the
  // version.
  std::vector<std::string> names;  // best first
  const char* wheel = "";
  // To load first, from the same folder if they are there: wheels do not find each other by themselves.
  std::vector<Library> dependencies{};
};

const LibraryFacts& library_facts(Library library) {
  using enum Library;
  static const std::array<LibraryFacts, library_count> facts{{
      {},
      {{"libcublas.so.13", "libcublas.so.12"}, "nvidia-cublas", {cublaslt}},
      {{"libcublasLt.so.13", "libcublasLt.so.12"}, "nvidia-cublas"},
      {{"libcudnn.so.9"}, "nvidia-cudnn-cu13", {cublaslt, cublas, nvrtc}},
      {{"libnccl.so.2"}, "nvidia-nccl-cu13"},
      {{"libnvrtc.so.13", "libnvrtc.so.12"}, "nvidia-cuda-nvrtc"},
      {{"libnvJitLink.so.13"}, "nvidia-nvjitlink"},
      {{"libcufft.so.12", "libcufft.so.11"}, "nvidia-cufft"},
      {{"libcusparse.so.12"}, "nvidia-cusparse", {nvjitlink}},
      {{"libcusparseLt.so.0"}, "nvidia-cusparselt-cu13", {nvjitlink, cusparse}},
      {{"libcusolver.so.12", "libcusolver.so.11"}, "nvidia-cusolver", {nvjitlink, cublaslt, cublas, cusparse}},
      {{"libcufile.so.0"}, "nvidia-cufile"},
      {{"libcupti.so.13"}, "nvidia-cuda-cupti"},
      {{"libnvidia-ml.so.1"}},
      {{"libaisp_cutlass.so"}},
  }};
  return facts.at(static_cast<std::size_t>(library));
}

std::string remedy(Library library) {
  if (library == Library::nvml) return "install the NVIDIA driver";
  if (library == Library::cutlass) return std::string{get_cutlass};
  return "install " + std::string{name_of(library)} + " (for example: pip install " + library_facts(library).wheel +
         ") or set AISP_LIBRARY_PATH to the folder that holds it";
}

std::vector<std::string> stated_folders() {
  const char* value = std::getenv("AISP_LIBRARY_PATH");
  std::vector<std::string> folders;
  for (std::string& folder : base::split(value == nullptr ? "" : value, ':'))
    if (!folder.empty()) folders.push_back(std::move(folder));
  return folders;
}

// AISP_WITHOUT_LIBRARIES=cuDNN,NCCL: as if they were not installed, for tools under which they crash.
bool is_unwanted(Library library) {
  const char* value = std::getenv("AISP_WITHOUT_LIBRARIES");
  if (value == nullptr || *value == '\0') return false;
  const std::vector<std::string> names = base::split(base::lower(value), ',');
  return std::ranges::find(names, base::lower(name_of(library))) != names.end();
}

// One that aisp's own build makes: an older one must not come from where the loader or Python would find it.
bool is_own(Library library) { return library == Library::cutlass; }

const std::vector<std::string>& folders_of(Library library) {
  static const std::vector<std::string> own = machine::own_folders(machine::places_here()), all = library_folders();
  return is_own(library) ? own : all;
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

void* load(const std::string& name, std::string& trouble) {
  void* handle = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr)
    if (const char* text = ::dlerror(); text != nullptr) trouble = text;
  return handle;
}

void* load_from(const fs::path& folder, Library library, const std::string& file_name, std::string& trouble) {
  if (!is_file(folder / file_name)) return nullptr;
  for (const Library dependency : library_facts(library).dependencies) {
    bool loaded = false;
    std::string unimportant;
    for (const std::string& name : file_names(dependency))
      loaded = loaded || load_from(folder, dependency, name, unimportant) != nullptr;
    if (loaded) continue;
    try {
      SharedLibrary::open(dependency);
    } catch (const Unsupported&) {  // the loader will say so if it is really needed
    }
  }
  return load((folder / file_name).string(), trouble);
}

struct Found {
  void* handle = nullptr;
  std::string file_name;
};

Found find_and_load(Library library, std::string& trouble) {
  for (const std::string& name : file_names(library)) {
    for (const std::string& folder : stated_folders())
      if (void* handle = load_from(folder, library, name, trouble)) return {handle, name};
    std::string not_in_loader_path;
    if (!is_own(library))
      if (void* handle = load(name, not_in_loader_path)) return {handle, name};
    for (const std::string& folder : folders_of(library))
      if (void* handle = load_from(folder, library, name, trouble)) return {handle, name};
  }
  return {};
}

std::string search(Library library) {
  if (is_unwanted(library)) return {};
  const machine::SearchPlaces places = machine::places_here();
  const std::string cache = base::try_read_file("/etc/ld.so.cache", std::size_t{16} << 20).value_or("");
  for (const std::string& name : file_names(library)) {
    const auto first_in = [&](const std::vector<std::string>& folders) {
      for (const std::string& folder : folders)
        if (is_file(fs::path{folder} / name)) return (fs::path{folder} / name).string();
      return std::string{};
    };
    if (std::string path = first_in(stated_folders()); !path.empty()) return path;
    if (!is_own(library)) {
      if (std::string path = machine::find_in_loader_cache(cache, name); !path.empty() && is_file(path)) return path;
      if (std::string path = first_in(machine::loader_folders(places)); !path.empty()) return path;
    }
    if (std::string path = first_in(folders_of(library)); !path.empty()) return path;
  }
  return {};
}

std::string path_of(void* handle, const std::string& otherwise) {
  link_map* map = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || map->l_name == nullptr) return otherwise;
  return *map->l_name == '\0' ? otherwise : map->l_name;
}

std::recursive_mutex& opening() {
  static std::recursive_mutex mutex;
  return mutex;
}

}  // namespace

namespace machine {

std::vector<std::string> file_names(Library library) { return library_facts(library).names; }

std::vector<std::string> library_folders() {
  static const std::vector<std::string> folders = machine::search_folders(machine::places_here());
  return folders;
}

std::string locate(Library library) noexcept try {
  // Asked for every variant of every pair, hence remembered.
  static std::map<std::pair<Library, std::vector<std::string>>, std::string> known;
  const std::scoped_lock lock{opening()};
  const auto [entry, is_new] = known.try_emplace({library, stated_folders()});
  if (is_new) entry->second = search(library);
  return entry->second;
} catch (...) {
  return {};
}

}  // namespace machine

bool SharedLibrary::available(Library library) noexcept { return !machine::locate(library).empty(); }

const SharedLibrary& SharedLibrary::open(Library library) {
  static std::array<const SharedLibrary*, library_count>
      opened{};  // kept to the end: libraries with threads do not survive dlclose
  const std::scoped_lock lock{opening()};
  const std::vector<std::string> names = file_names(library);
  if (names.empty()) throw Unsupported{std::string{name_of(library)} + " is no library to open"};
  const SharedLibrary*& slot = opened.at(static_cast<std::size_t>(library));
  if (slot != nullptr) return *slot;
  if (is_unwanted(library)) throw Unsupported{names.front() + " not found, because AISP_WITHOUT_LIBRARIES names it"};
  std::string trouble;
  const Found found = find_and_load(library, trouble);
  if (found.handle == nullptr) {
    const std::string what =
        trouble.empty() ? names.front() + " not found" : names.front() + " cannot be loaded (" + trouble + ")";
    throw Unsupported{what + "; " + remedy(library)};
  }
  slot = new SharedLibrary{library, found.handle, ::strdup(found.file_name.c_str())};
  return *slot;
}

SharedLibrary::SharedLibrary(Library library, void* handle, const char* file_name)
    : library_{library}, handle_{handle}, file_name_{file_name}, path_{::strdup(path_of(handle, file_name).c_str())} {}

bool SharedLibrary::has(const char* name) const noexcept { return ::dlsym(handle_, name) != nullptr; }

void* SharedLibrary::symbol(const char* name) const {
  if (void* address = ::dlsym(handle_, name)) return address;
  throw Unsupported{std::string{path_} + " has no " + name + "; a newer " + std::string{name_of(library_)} + " is needed"};
}

}  // namespace aisp
