// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

namespace aisp::base {

// Build facts of this executable; defined in one source file, because every commit changes them.
struct BuildInfo {
  std::string_view version;
  std::string_view git_commit;  // empty outside a repository
  std::string_view git_branch;
  bool git_dirty = false;
  std::string_view build_type;
  std::string_view cxx_compiler;
  std::string_view cuda_compiler;
  std::string_view cuda_architectures;
};
const BuildInfo& build_info();

}  // namespace aisp::base
