// SPDX-License-Identifier: Apache-2.0
#include "suite/selection/not_built.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/system/clock.hpp"
#include "base/text.hpp"
#include "evidence/expectations/analysis.hpp"

namespace aisp::suite {

std::string build_command(const std::vector<std::string>& targets) {
  if (targets.empty() || std::ranges::find(targets, "all") != targets.end()) return "./setup.sh";
  std::vector<std::string> wanted = base::split(pair::chosen_at_build(), ',');
  for (const std::string& target : targets)
    if (std::ranges::find(wanted, target) == wanted.end()) wanted.push_back(target);
  std::erase(wanted, "");
  const std::string list = base::join(wanted, ",");
  return "./setup.sh --chapters " + (list.find_first_of("*?[ ") == std::string::npos ? list : "'" + list + "'");
}

std::string not_built_reason(const std::vector<std::string>& targets) {
  return fmt::format("{}; {} builds it", evidence::not_built, build_command(targets));
}

std::string built_part() {
  const std::size_t here = pair::registry().size(), left_out = pair::not_built().size();
  if (left_out == 0) return {};
  return fmt::format("{} of {}, chosen with --chapters {}", here, here + left_out, pair::chosen_at_build());
}

void demand_built(const Selection& selection, const std::vector<std::string>& targets) {
  if (!selection.built.empty() || selection.not_built.empty()) return;
  const std::size_t more = selection.not_built.size() - 1;
  throw base::Error{base::Exit::nothing, fmt::format("{}{} not built; {} builds {}", selection.not_built.front()->target(),
                                                     more == 0 ? " is" : fmt::format(" and {} more are", more),
                                                     build_command(targets), more == 0 ? "it" : "them")};
}

std::vector<evidence::PairResult> results_of_not_built(const Selection& selection, const std::vector<std::string>& targets) {
  std::vector<evidence::PairResult> results;
  for (const pair::NotBuilt* pair : selection.not_built) {
    evidence::PairResult result;
    result.target = pair->target();
    result.chapter = pair->chapter;
    result.name = pair->name;
    result.status = evidence::Status::skipped;
    result.reason = not_built_reason(targets);
    result.started_utc = base::utc_now();
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace aisp::suite
