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

Recorded recorded_of(const PairResult& pair, const Manifest& manifest) { return expected_of(pair, manifest, nullptr).recorded; }

}  // namespace aisp::evidence
