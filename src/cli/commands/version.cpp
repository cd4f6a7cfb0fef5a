// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "base/build_info.hpp"
#include "cli/command.hpp"
#include "suite/selection/select.hpp"

namespace aisp::cli {

std::string version_text() {
  const base::BuildInfo& build = base::build_info();
  const std::string part = suite::built_part();
  return fmt::format("aisp {}\ncommit        {}{}\nCUDA          {}\narchitectures {}\ncompiler      {}, {}\n{}", build.version,
                     build.git_commit.empty() ? "unknown" : build.git_commit, build.git_dirty ? ", with local changes" : "",
                     build.cuda_compiler, build.cuda_architectures, build.cxx_compiler, build.build_type,
                     part.empty() ? "" : fmt::format("pairs         {}\n", part));
}

}  // namespace aisp::cli
