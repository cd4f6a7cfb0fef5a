// SPDX-License-Identifier: Apache-2.0
#include "places.hpp"

#include <cstdlib>

namespace aisp {

std::filesystem::path source_folder() { return AISP_SOURCE_DIR; }

std::string aisp_path() {
  const char* path = std::getenv("AISP_PATH");
  return path != nullptr ? path : AISP_BUILT;
}

std::string fixtures_path() { return AISP_FIXTURES_BUILT; }

}  // namespace aisp
