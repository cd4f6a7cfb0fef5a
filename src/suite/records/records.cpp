// SPDX-License-Identifier: Apache-2.0
#include "suite/records/records.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/system/clock.hpp"
#include "evidence/json.hpp"
#include "report/artifacts.hpp"
#include "suite/records/resume.hpp"
#include "suite/records/run_folder.hpp"

namespace aisp::suite {
namespace {

namespace fs = std::filesystem;

// Drops the text after the last newline, which a crash or a full disk cut short; a new line must not be glued to it.
std::string whole_lines(const std::string& text) {
  const std::size_t last = text.rfind('\n');
  return last == std::string::npos ? std::string{} : text.substr(0, last + 1);
}

std::string log_text(const fs::path& file) {
  std::error_code ignored;
  return fs::exists(file, ignored) ? base::read_file(file) : std::string{};
}

evidence::ResultsLog read_earlier(const std::string& text, const std::string& run_id, const fs::path& file) {
  if (evidence::is_unfinished_header(text, run_id)) return {};
  evidence::ResultsLog log = evidence::parse_results_log(text, file.string());
  if (log.command != evidence::LogCommand::run)
    throw base::Error{base::Exit::usage,
                      fmt::format("cannot continue {}: aisp {} made it, which times nothing; start a run of its own",
                                  file.parent_path().string(), to_string(log.command))};
  return log;
}

std::string indented(const nlohmann::json& json) { return evidence::json_text(json, 2) + '\n'; }

nlohmann::json configuration_json(const Task& task) {
  nlohmann::json json = effective(task.configuration, task.selected);
  json["schema_version"] = evidence::schema_version;
  nlohmann::json& targets = json["targets"] = nlohmann::json::array();
  // Keeps the whole selection: a continued shard is cut again.
  for (const pair::Entry* entry : task.shard ? task.all : task.selected) targets.push_back(entry->target());
  return json;
}

std::string trouble_with(base::AppendFile::Place place, const fs::path& log) {
  switch (place) {
    case base::AppendFile::Place::here: return {};
    case base::AppendFile::Place::gone:
      return fmt::format("{} was removed or moved away while the run went on, and is written anew", log.string());
    case base::AppendFile::Place::taken:
      return fmt::format("{} was replaced by another file while the run went on, and nothing more is written there",
                         log.string());
  }
  return {};
}

void demand_same_place(const fs::path& folder, const evidence::Manifest& now) {
  const std::string other = elsewhere(evidence::read_manifest(folder / manifest_file), now);
  if (other.empty()) return;
  throw base::Error{
      base::Exit::unfit,
      fmt::format("cannot continue {}: it was measured elsewhere ({}), and a run's results are of one machine and one "
                  "program; start a run of its own",
                  folder.string(), other)};
}

}  // namespace

void demand_continuable(const fs::path& folder, const Task& task) {
  demand_free(folder);
  const fs::path log = folder / evidence::results_log_file;
  if (!read_earlier(log_text(log), folder.filename().string(), log).results.empty())
    demand_same_place(folder, make_manifest(task, task.gpus));
}

Records::Records(const fs::path& folder, const std::string& run_id, const Task& task, const std::vector<int>& gpus)
    : folder_{folder},
      configuration_{indented(configuration_json(task))},
      lines_{log_text(folder / evidence::results_log_file)},
      earlier_{read_earlier(lines_, run_id, folder / evidence::results_log_file)},
      manifest_{make_manifest(task, gpus)} {
  manifest_.run_id = run_id;
  manifest_.started_utc = earlier_.started_utc.empty() ? base::utc_now() : earlier_.started_utc;
  if (!earlier_.results.empty()) demand_same_place(folder_, manifest_);
  // Writes settings before the log, so that every result has its settings.
  write_settings();
  const std::string whole = whole_lines(lines_);
  if (whole != lines_) base::write_atomically(folder_ / evidence::results_log_file, whole);
  lines_ = whole;
  log_.emplace(folder_ / evidence::results_log_file);
  if (lines_.empty())
    append(evidence::header_line(
        {.run_id = run_id,
         .started_utc = manifest_.started_utc,
         .command = task.configuration.verify_only ? evidence::LogCommand::verify : evidence::LogCommand::run}));
}

void Records::write_settings() const {
  base::write_atomically(folder_ / configuration_file, configuration_);
  base::write_atomically(folder_ / manifest_file, indented(manifest_));
}

void Records::append(const std::string& line) {
  lines_ += line + '\n';
  if (const std::string trouble = trouble_with(log_->place(), log_->path()); !trouble.empty())
    throw base::Error{base::Exit::unfit, trouble};
  log_->append_line(line);
}

void Records::note(const evidence::PairResult& result) { append(evidence::to_line(result)); }

void Records::add(const evidence::PairResult& result) {
  append(evidence::to_line(result));
  report::write_pair(folder_, result);
}

void Records::restore(const evidence::PairResult& result) const { report::write_pair(folder_, result); }

void Records::write_anew(const evidence::SuiteResult& suite) const {
  base::write_atomically(folder_ / evidence::results_log_file, lines_);
  for (const evidence::PairResult& pair : suite.pairs)
    if (pair.complete || pair.status != evidence::Status::skipped) restore(pair);
}

Records::Closing Records::finish(const evidence::SuiteResult& suite) const {
  const base::AppendFile::Place place = log_->place();
  const bool ours = place != base::AppendFile::Place::taken;
  Closing closing{.trouble = trouble_with(place, log_->path()), .place = place};
  try {
    const bool gone = place == base::AppendFile::Place::gone;
    if (ours && (gone || !fs::exists(folder_ / manifest_file) || !fs::exists(folder_ / configuration_file))) write_settings();
    if (gone) write_anew(suite);
    if (ours) report::write_suite(folder_, suite, manifest_);
  } catch (const base::Error& error) {
    closing.trouble = error.what();
  }
  return closing;
}

std::string Records::log_name(const Placement& placement) const {
  const std::string own = evidence::folder_of({.chapter = std::string{placement.entry->chapter},
                                               .name = std::string{placement.entry->name},
                                               .sweep_case = placement.point.name});
  base::make_directories(folder_ / own);
  return own + "/output.log";
}

}  // namespace aisp::suite
