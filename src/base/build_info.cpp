// SPDX-License-Identifier: Apache-2.0
#include "base/build_info.hpp"

#include "aisp_version.hpp"

namespace aisp::base {

const BuildInfo& build_info() {
  namespace built = aisp::build_info;
  static constexpr BuildInfo info{built::version,    built::git_commit,   built::git_branch,    built::git_dirty,
                                  built::build_type, built::cxx_compiler, built::cuda_compiler, built::cuda_architectures};
  return info;
}

}  // namespace aisp::base
