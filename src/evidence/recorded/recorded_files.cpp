// SPDX-License-Identifier: Apache-2.0
#include "evidence/recorded/recorded_files.hpp"

#include <algorithm>

namespace aisp::evidence {

namespace fs = std::filesystem;

fs::path record_path(const fs::path& folder, const std::string& hardware, std::string_view kind, const std::string& target) {
  std::string name = target;
  std::ranges::replace(name, ':', '_');
  return folder / hardware / kind / (name + ".json");
}

std::vector<fs::path> record_files(const fs::path& folder, std::string_view kind) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator hardware{folder, error}, end; !error && hardware != end; hardware.increment(error)) {
    std::error_code none;
    for (fs::directory_iterator file{hardware->path() / kind, none}; !none && file != end; file.increment(none))
      if (file->path().extension() == ".json") files.push_back(file->path());
  }
  std::ranges::sort(files);
  return files;
}

Recorded recorded_of(const PairResult& pair, const Manifest& manifest) { return expected_of(pair, manifest, nullptr).recorded; }

}  // namespace aisp::evidence
