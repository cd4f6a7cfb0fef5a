// SPDX-License-Identifier: Apache-2.0
#include "suite/records/records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "base/system/clock.hpp"
#include "base/system/files.hpp"
#include "base/text.hpp"
#include "evidence/json.hpp"
#include "machine/needs.hpp"
#include "pair/code.hpp"
#include "pair/sizes.hpp"
#include "report/artifacts.hpp"
#include "run/wire/blank.hpp"
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

std::string as_text(const nlohmann::json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

std::vector<std::string> as_values(const nlohmann::json& value) {
  if (!value.is_array()) return {as_text(value)};
  std::vector<std::string> values;
  for (const nlohmann::json& item : value) values.push_back(as_text(item));
  return values;
}

bool was_set(const nlohmann::json& setting) { return setting.is_object() && setting.value("origin", "default") != "default"; }

// Accounts for small GPUs, which scale the workload down further.
bool has_scale(const evidence::PairResult& earlier, const Placement& placement, double scale, const machine::Machine& machine) {
  if (placement.choices.empty()) return earlier.scale == scale;
  return std::ranges::any_of(placement.choices, [&](const std::vector<int>& gpus) {
    return earlier.scale == scale * machine::memory_scale(machine, gpus);
  });
}

bool has_sizes(const evidence::PairResult& earlier, const Pair& pair, const run::Request& request) {
  std::map<std::string, std::uint64_t> sizes = earlier.sizes;
  // The machine decides them, which is the same, or the number of processes that a launcher starts.
  sizes.erase(run::size_of_ranks);
  sizes.erase(run::size_of_machines);
  return earlier.sizes_set == !request.sizes.empty() && sizes == pair::sizes_in_effect(pair, request.sizes, earlier.scale);
}

constexpr std::size_t largest_configuration_bytes = std::size_t{64} << 20;

// Lets the JSON library's exceptions for values of other types pass.
Resumed take_settings(const nlohmann::json& json) {
  Resumed resumed;
  json.at("targets").get_to(resumed.targets);
  for (const SettingRow& setting : settings()) {
    // The run's place is known, and the name of a new one has no meaning here.
    if (setting.name == "artifacts-dir" || setting.name == "run-id") continue;
    const auto found = json.find(std::string{setting.name});
    if (found != json.end() && was_set(*found))
      apply(resumed.configuration, setting.name, as_values(found->at("value")), "resumed run");
  }
  return resumed;
}

// Returns "NVIDIA H200, NVIDIA A100": the kinds of the GPUs, each once.
std::string gpu_names(const evidence::Manifest& manifest) {
  std::set<std::string> names;
  for (const evidence::ManifestGpu& gpu : manifest.gpus) names.insert(gpu.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

void refuse_merged(const std::filesystem::path& folder) {
  evidence::Manifest manifest;
  try {
    manifest = evidence::read_manifest(folder / manifest_file);
  } catch (const base::Error&) {
    // Without results it is not needed; with results its reader reports what is wrong.
  }
  if (!manifest.machines.empty())
    throw base::Error{
        base::Exit::usage,
        fmt::format("cannot continue {}: aisp merge made it; continue its shards and merge them again", folder.string())};
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

std::string other_settings(const evidence::PairResult& earlier, const Placement& placement, const run::Request& request,
                           const machine::Machine& machine) {
  std::vector<std::string> others;
  if (!has_scale(earlier, placement, request.scale, machine)) others.push_back(fmt::format("scale {}", earlier.scale));
  if (!has_sizes(earlier, *placement.entry->pair, request))
    others.push_back(earlier.sizes.empty() ? "sizes not known" : fmt::format("sizes {}", evidence::sizes_text(earlier)));
  if (earlier.seed != request.seed) others.push_back(fmt::format("seed {}", earlier.seed));
  if (earlier.timing_mode != request.mode) others.push_back(fmt::format("mode {}", to_string(earlier.timing_mode)));
  if (earlier.reproducible != request.reproducible)
    others.emplace_back(request.reproducible ? "not reproducible" : "reproducible");
  if (earlier.alternated != request.alternate) others.emplace_back(request.alternate ? "not alternating" : "alternating");
  if (!pair::has_digest(pair::code_of(*placement.entry), earlier.source_digest)) others.emplace_back("other code");
  return base::join(others, ", ");
}

Resumed read_resumed(const std::filesystem::path& folder, const std::vector<std::string>& targets) {
  refuse_merged(folder);
  const std::string file = (folder / configuration_file).string();
  std::string text;
  try {
    text = base::read_file(file, largest_configuration_bytes);
  } catch (const base::Error& error) {
    if (!targets.empty()) return {.targets = targets};
    throw base::Error{base::Exit::usage,
                      fmt::format("cannot continue {}: nobody knows what it was to measure: {}; name its pairs "
                                  "with --targets, and settings that are not the defaults",
                                  folder.string(), error.what())};
  }
  try {
    const nlohmann::json json = evidence::parse_json(text, file);
    evidence::demand_schema_version(json, file);
    Resumed resumed = take_settings(json);
    if (resumed.targets.empty()) throw base::Error{base::Exit::usage, file + ": it names no targets"};
    resumed.targets.insert(resumed.targets.end(), targets.begin(), targets.end());
    return resumed;
  } catch (const std::exception& error) {
    throw base::Error{base::Exit::usage,
                      fmt::format("cannot continue {}: {} is damaged ({}); remove that file and name the pairs "
                                  "with --targets",
                                  folder.string(), configuration_file, error.what())};
  }
}

std::string elsewhere(const evidence::Manifest& earlier, const evidence::Manifest& now) {
  std::vector<std::string> others;
  const auto compare = [&](const char* what, const std::string& before, const std::string& after) {
    if (before != after) others.push_back(fmt::format("{} {}", what, before.empty() ? "unknown" : before));
  };
  compare("CPU", earlier.cpu, now.cpu);
  compare("usable CPUs", std::to_string(earlier.cpus_usable), std::to_string(now.cpus_usable));
  // Without a GPU only host pairs were measured, which name none.
  if (!earlier.gpus.empty()) {
    compare("GPU", gpu_names(earlier), gpu_names(now));
    compare("driver", earlier.driver_version, now.driver_version);
  }
  compare("aisp", fmt::format("{} {}", earlier.aisp_version, earlier.commit), fmt::format("{} {}", now.aisp_version, now.commit));
  compare("built as", earlier.build_type, now.build_type);
  compare("compilers", earlier.compilers, now.compilers);
  const auto shard_text = [](const evidence::Manifest& manifest) {
    return manifest.shard ? fmt::format("{} of cut {}", to_string(*manifest.shard), manifest.shard->cut) : "none";
  };
  compare("shard", shard_text(earlier), shard_text(now));
  return base::join(others, ", ");
}

EarlierPart take_over(const evidence::ResultsLog& earlier, const std::vector<Placement>& placements,
                      const Configuration& configuration, const machine::Machine& machine) {
  std::map<std::string, const evidence::PairResult*> results;
  for (const evidence::PairResult& result : earlier.results) results[evidence::label_in_run(result)] = &result;
  EarlierPart part{.notes = earlier.warnings};
  std::vector<std::string> not_passed, others;
  for (const Placement& placement : placements) {
    const auto found = results.find(placement.label());
    // A skipped pair is asked again: the library may be there now.
    if (found == results.end() || found->second->status == evidence::Status::skipped) continue;
    const evidence::PairResult& result = *found->second;
    const run::Request request = request_for(*placement.entry, configuration, placement.point);
    if (result.status != evidence::Status::passed || !result.complete) {
      not_passed.push_back(fmt::format("{} ({})", placement.label(), evidence::to_string(result.status)));
    } else if (const std::string other = other_settings(result, placement, request, machine); !other.empty()) {
      others.push_back(fmt::format("{} ({})", placement.label(), other));
    } else {
      part.kept.emplace_back(placement.index, result);
    }
  }
  if (!part.kept.empty())
    part.notes.push_back(fmt::format("resumed: {} of {} pairs were done already", part.kept.size(), placements.size()));
  const auto again = [&](const std::vector<std::string>& labels, const std::string& why) {
    if (!labels.empty())
      part.notes.push_back(fmt::format("resumed: measured again, because {}: {}", why, base::join(labels, ", ")));
  };
  again(not_passed, "they did not pass");
  again(others, "done with other settings");
  return part;
}

}  // namespace aisp::suite
