// SPDX-License-Identifier: Apache-2.0
#include <cutlass/version.h>
#include <aisp/libraries/cutlass.hpp>

#include <string>

namespace aisp {

std::string_view cutlass_version() {
  static const std::string text =
      std::to_string(CUTLASS_MAJOR) + "." + std::to_string(CUTLASS_MINOR) + "." + std::to_string(CUTLASS_PATCH);
  return text;
}

}  // namespace aisp
