// SPDX-License-Identifier: Apache-2.0
#include "suite/records.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/clock.hpp"
#include "evidence/json.hpp"
#include "report/artifacts.hpp"
#include "suite/manifest.hpp"

namespace aisp::suite {
namespace {

namespace fs = std::filesystem;

// What follows the last newline was cut short by a crash or a full disk; a new line must not be glued to it.
void drop_unfinished_line(const fs::path& file) {
  const std::string text = base::read_file(file);
  const std::size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  if (whole != text.size()) base::write_atomically(file, std::string_view{text}.substr(0, whole));
}

evidence::ResultsLog read_earlier(const fs::path& file) {
  std::error_code ignored;
  if (!fs::exists(file, ignored) || fs::file_size(file, ignored) == 0) return {};
  evidence::ResultsLog log = evidence::read_results_log(file);
  drop_unfinished_line(file);
  return log;
}

std::string indented(const nlohmann::json& json) { return evidence::json_text(json, 2) + '\n'; }

nlohmann::json configuration_json(const Task& task) {
  nlohmann::json json = effective(task.configuration, task.selected);
  json["schema_version"] = evidence::schema_version;
  nlohmann::json& targets = json["targets"] = nlohmann::json::array();
  for (const pair::Entry* entry : task.selected) targets.push_back(entry->target());
  return json;
}

}  // namespace

Records::Records(const fs::path& folder, const std::string& run_id, const Task& task, const std::vector<int>& gpus)
    : folder_{folder},
      earlier_{read_earlier(folder / evidence::results_log_file)},
      manifest_{make_manifest(task, gpus)},
      log_{folder / evidence::results_log_file} {
  manifest_.run_id = run_id;
  manifest_.started_utc = earlier_.started_utc.empty() ? base::utc_now() : earlier_.started_utc;
  if (earlier_.run_id.empty()) log_.append_line(evidence::header_line(run_id, manifest_.started_utc));
  base::write_atomically(folder_ / configuration_file, indented(configuration_json(task)));
  base::write_atomically(folder_ / manifest_file, indented(manifest_));
}

void Records::add(const evidence::PairResult& result) {
  log_.append_line(evidence::to_line(result));
  report::write_pair(folder_, result);
}

void Records::restore(const evidence::PairResult& result) const { report::write_pair(folder_, result); }

void Records::finish(const evidence::SuiteResult& suite) const { report::write_suite(folder_, suite, manifest_); }

std::string Records::log_name(const Placement& placement) const {
  const std::string own =
      evidence::folder_of({.chapter = std::string{placement.entry->chapter},
                           .name = std::string{placement.entry->name},
                           .sweep_case = placement.sweep_case == nullptr ? "" : std::string{placement.sweep_case->name}});
  base::make_directories(folder_ / own);
  return own + "/output.log";
}

}  // namespace aisp::suite
