// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdlib>
#include <string>

namespace aisp {

// The executable that tests start. The environment says where it lies when tests run on another machine than they were built on.
inline std::string aisp_path() {
  const char* path = std::getenv("AISP_PATH");
  return path != nullptr ? path : AISP_PATH;
}

}  // namespace aisp
