// SPDX-License-Identifier: Apache-2.0
// The code of shipped pairs, from the source tree.
#pragma once
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "places.hpp"
#include "report/html/html.hpp"

namespace aisp::report::sample {

inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream file{path};
  return {std::istreambuf_iterator<char>{file}, {}};
}

// The pair's file and those of chapters that it includes, as they are beside its measurement.
inline std::vector<SourceText> files_of(const std::filesystem::path& source) {
  const std::filesystem::path root = source_folder();
  std::vector<SourceText> files{{source.string(), text_of(root / source)}};
  std::set<std::filesystem::path> known{source};
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::istringstream lines{files[i].text};
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("#include \"")) continue;
      const std::string name = line.substr(10, line.find('"', 10) - 10);
      for (const std::filesystem::path& folder :
           {std::filesystem::path{files[i].path}.parent_path(), std::filesystem::path{"chapters/shared"}}) {
        const std::filesystem::path path = (folder / name).lexically_normal();
        if (!std::filesystem::exists(root / path) || !known.insert(path).second) continue;
        files.push_back({path.string(), text_of(root / path)});
        break;
      }
    }
  }
  return files;
}

}  // namespace aisp::report::sample
