// SPDX-License-Identifier: Apache-2.0
// Folders that libraries may be in, those of toolkits and of Python's wheels, found without starting a program; and the versions
// of libraries there, found without opening them: that can take seconds, and the parent must not.
#pragma once
#include <aisp/library.hpp>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace aisp::machine {

struct SearchPlaces {
  std::filesystem::path root = "/";                     // below which absolute places are looked for
  std::filesystem::path executable;                     // the tree that it was built in may hold a toolkit (.cuda)
  std::function<std::string(const char*)> environment;  // value of a variable, empty when unset
};
SearchPlaces places_here();

// Existing folders, in order, each once: toolkits, the tree's own, wheels of the Pythons found.
std::vector<std::string> search_folders(const SearchPlaces& places);

// Returns the folders of aisp's own libraries: next to the executable, and ../lib/aisp where it is installed in a folder bin.
std::vector<std::string> own_folders(const SearchPlaces& places);

// The folders that the loader looks in before its cache (LD_LIBRARY_PATH) and after it.
std::vector<std::string> loader_folders(const SearchPlaces& places);
// Full path of `file_name` according to the bytes of /etc/ld.so.cache; empty when it is not there.
std::string find_in_loader_cache(std::string_view cache, std::string_view file_name);

// "13.1.0.3" of a library's file: from the name of the file that its links lead to (libcublas.so.13.1.0.3), else from the wheel
// that it came with (nvidia_cublas-13.1.0.3.dist-info, whose RECORD lists it). Empty where neither tells.
std::string library_version(const std::filesystem::path& file);

// Returns the file that would be opened, without opening it (opening cuBLAS can take seconds); empty when it is absent.
std::string locate(Library library) noexcept;

// Returns the names that a library may be installed by, best first: {"libcublas.so.13", "libcublas.so.12"}.
std::vector<std::string> file_names(Library library);

// Returns the folders to search after the loader's own places, in order. AISP_LIBRARY_PATH comes before the loader's.
std::vector<std::string> library_folders();

}  // namespace aisp::machine
