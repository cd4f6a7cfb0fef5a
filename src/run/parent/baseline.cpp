// SPDX-License-Identifier: Apache-2.0
#include "run/parent/baseline.hpp"

#include <nlohmann/json.hpp>
#include <optional>
#include <variant>

#include "base/system/files.hpp"
#include "base/system/process.hpp"

namespace aisp::run {

std::vector<double> time_baseline(Request request, const BaselineWanted& wanted, const std::string& executable,
                                  const std::vector<std::pair<std::string, std::string>>& environment) {
  const base::ScratchDirectory own_folder{"aisp-own-"};
  request.own_folder = own_folder.path().string();
  request.running_variant_page.clear();
  request.baseline_runs = wanted.runs;
  request.cold_start = false;
  request.seed = wanted.seed;
  std::vector<double> times_ms;
  LineSplitter lines;
  const auto receive = [&](std::string_view line) {
    const std::optional<Message> message = parse_message(line);
    if (!message) return;
    if (const auto* times = std::get_if<BaselineTimes>(&*message)) times_ms = times->ms;
  };
  const base::ChildOutcome outcome = base::ask({.executable = executable,
                                                .command = "__child",
                                                .input = nlohmann::json(request).dump(),
                                                .environment = environment,
                                                .limit_s = wanted.limit_s,
                                                .interrupted = "interrupted"},
                                               [&](std::string_view bytes) { lines.feed(bytes, receive); });
  return outcome.in_time ? times_ms : std::vector<double>{};
}

}  // namespace aisp::run
