// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "base/build_info.hpp"
#include "cli/command.hpp"

namespace aisp::cli {

std::string version_text() {
  const base::BuildInfo& build = base::build_info();
  return fmt::format("aisp {}\ncommit        {}{}\nCUDA          {}\narchitectures {}\ncompiler      {}, {}\n", build.version,
                     build.git_commit.empty() ? "unknown" : build.git_commit, build.git_dirty ? ", with local changes" : "",
                     build.cuda_compiler, build.cuda_architectures, build.cxx_compiler, build.build_type);
}

}  // namespace aisp::cli
