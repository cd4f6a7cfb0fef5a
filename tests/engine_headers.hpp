// SPDX-License-Identifier: Apache-2.0
// An engine's device headers, for kernels that tests compile by NVRTC: under the names by which such kernels include them, and by
// which they include each other.
#pragma once
#include <aisp/libraries/nvrtc.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include "base/system/files.hpp"
#include "places.hpp"

namespace aisp {

inline std::vector<NamedText> engine_headers(const std::string& engine) {
  std::vector<NamedText> headers;
  for (const auto& entry : std::filesystem::directory_iterator{source_folder() / "chapters/shared" / engine}) {
    if (entry.path().extension() != ".cuh") continue;
    const std::string name = entry.path().filename().string();
    for (const std::string& called : {name, engine + "/" + name}) headers.push_back({called, base::read_file(entry.path())});
  }
  return headers;
}

}  // namespace aisp
