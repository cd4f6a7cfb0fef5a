// SPDX-License-Identifier: Apache-2.0
#include "base/system/cache_folder.hpp"

#include <cstdlib>

namespace aisp::base {

std::filesystem::path cache_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/')
    return std::filesystem::path{cache} / "aisp";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
    return std::filesystem::path{home} / ".cache" / "aisp";
  return {};
}

}  // namespace aisp::base
