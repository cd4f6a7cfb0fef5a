// SPDX-License-Identifier: Apache-2.0
// Where libraries may lie: folders of toolkits and of Python's wheels, without starting a program to ask.
#pragma once
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

// The folders that the loader looks in before its cache (LD_LIBRARY_PATH) and after it.
std::vector<std::string> loader_folders(const SearchPlaces& places);
// Full path of `file_name` according to the bytes of /etc/ld.so.cache; empty when it is not there.
std::string find_in_loader_cache(std::string_view cache, std::string_view file_name);

}  // namespace aisp::machine
