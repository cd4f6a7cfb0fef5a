// SPDX-License-Identifier: Apache-2.0
#include "cli/recording.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "cli/output.hpp"
#include "evidence/expectations.hpp"

namespace aisp::cli {

void record_expectations(const evidence::SuiteResult& suite, const evidence::Manifest& manifest, const std::string& folder) {
  const evidence::Recording recording = evidence::record(folder, suite, manifest);
  std::size_t skipped = 0;
  for (const auto& [target, why] : recording.left_out) {
    const auto of_target = [&name = target](const evidence::PairResult& pair) { return pair.target == name; };
    const auto pair = std::find_if(suite.pairs.begin(), suite.pairs.end(), of_target);
    if (pair != suite.pairs.end() && pair->status == evidence::Status::skipped) ++skipped;
    else note(fmt::format("aisp: {} is not recorded: {}", target, why));
  }
  note(fmt::format("aisp: recorded {} in {}{}", base::plural(recording.recorded.size(), "expectation"), folder,
                   skipped == 0 ? "" : fmt::format(" ({} skipped)", skipped)));
}

}  // namespace aisp::cli
