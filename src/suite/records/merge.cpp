// SPDX-License-Identifier: Apache-2.0

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "base/text.hpp"
#include "evidence/json.hpp"
#include "evidence/run_summary.hpp"
#include "report/artifacts.hpp"
#include "suite/records/records.hpp"

namespace aisp::suite {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::Exit;
using evidence::Manifest;
using evidence::RunRecord;

struct ReadShard {
  RunRecord run;
  evidence::LogCommand command;
};

[[noreturn]] void refuse(const std::string& what) { throw Error{Exit::usage, "cannot merge " + what}; }

ReadShard read_shard(const fs::path& folder) {
  demand_free(folder, "merge");
  ReadShard shard{.run = evidence::read_run(folder), .command = {}};
  if (!shard.run.manifest.machines.empty()) refuse(fmt::format("{}: it is a merged run itself", folder.string()));
  if (!shard.run.manifest.shard)
    refuse(fmt::format("{}: it is no shard; runs of aisp run --shard can be merged, and aisp analyze reads several others",
                       folder.string()));
  const evidence::Shard& number = *shard.run.manifest.shard;
  if (number.index < 1 || number.index > number.count)
    refuse(fmt::format("{}: there is no shard {}; the file was changed by hand", folder.string(), to_string(number)));
  const auto header = evidence::try_read_log_header(folder / evidence::results_log_file);
  shard.command = header ? header->command : evidence::LogCommand::run;
  return shard;
}

// Whether shards may differ in a setting: where and how a shard runs, and the random seed of each.
bool may_differ(const std::string& setting) {
  constexpr auto own =
      std::to_array<std::string_view>({"artifacts-dir", "gpus", "jobs", "run-id", "seed", "shard", "suite-timeout"});
  return std::ranges::find(own, setting) != own.end();
}

std::map<std::string, std::string> common_settings(const Manifest& manifest) {
  std::map<std::string, std::string> common;
  for (const evidence::Setting& setting : manifest.configuration)
    if (!may_differ(setting.name)) common.emplace(setting.name, setting.value);
  return common;
}

std::string build_of(const Manifest& m) {
  return base::join({fmt::format("aisp {} {}{}", m.aisp_version, m.commit, m.dirty ? "+changes" : ""), m.build_type, m.compilers,
                     m.cuda_architectures},
                    ", ");
}

// Returns why the two cannot be shards of one run; empty if they can.
std::string misfit(const ReadShard& first, const ReadShard& other) {
  const Manifest &a = first.run.manifest, &b = other.run.manifest;
  if (build_of(a) != build_of(b)) return fmt::format("of other builds ({}; {})", build_of(a), build_of(b));
  if (first.command != other.command)
    return fmt::format("of aisp {} and of aisp {}", to_string(first.command), to_string(other.command));
  if (a.shard->count != b.shard->count) return fmt::format("shards {} and {}", to_string(*a.shard), to_string(*b.shard));
  if (a.shard->index == b.shard->index) return fmt::format("both shard {}", to_string(*a.shard));
  const auto one = common_settings(a), two = common_settings(b);
  for (const auto& [name, value] : one)
    if (const auto found = two.find(name); found == two.end() || found->second != value)
      return fmt::format("measured with {} '{}' and '{}'", name, value, found == two.end() ? "" : found->second);
  if (a.shard->cut != b.shard->cut) return "cut differently: other pairs, other code, or other recorded times";
  return {};
}

void demand_fitting(const std::vector<ReadShard>& shards) {
  for (std::size_t i = 0; i < shards.size(); ++i)
    for (std::size_t j = i + 1; j < shards.size(); ++j)
      if (const std::string why = misfit(shards[i], shards[j]); !why.empty())
        refuse(fmt::format("{} and {}: they are {}", shards[i].run.folder.string(), shards[j].run.folder.string(), why));
}

void demand_all(const std::vector<ReadShard>& shards) {
  const int count = shards.front().run.manifest.shard->count;
  std::set<int> open;
  for (int index = 1; index <= count; ++index) open.insert(index);
  for (const ReadShard& shard : shards) open.erase(shard.run.manifest.shard->index);
  std::vector<std::string> missing;
  for (const int index : open) missing.push_back(fmt::format("{}/{}", index, count));
  if (missing.empty()) return;
  const bool one = missing.size() == 1;
  refuse(fmt::format("{} of {}: {} {} missing; name {} too", base::plural(shards.size(), "run"),
                     base::plural(static_cast<std::size_t>(count), "shard"), base::join(missing, ", "), one ? "is" : "are",
                     one ? "its run" : "their runs"));
}

// Returns the fields on which all manifests agree; the others are empty.
Manifest common_part(const std::vector<ReadShard>& shards) {
  const nlohmann::json nothing = Manifest{};
  nlohmann::json common = shards.front().run.manifest;
  common.erase("shard");
  for (const ReadShard& shard : shards) {
    const nlohmann::json other = shard.run.manifest;
    for (auto& [field, value] : common.items())
      if (field != "configuration" && value != other.at(field)) value = nothing.at(field);
  }
  Manifest manifest = common.get<Manifest>();
  for (const ReadShard& shard : shards)
    std::erase_if(manifest.configuration, [&](const evidence::Setting& setting) {
      return std::ranges::none_of(shard.run.manifest.configuration, [&](const evidence::Setting& other) {
        return other.name == setting.name && other.value == setting.value;
      });
    });
  return manifest;
}

// Returns the host's name, with the shard's number if several ran on hosts of that name, which may be one machine or not.
std::string machine_name(const Manifest& shard, const std::vector<ReadShard>& shards) {
  const auto same = std::ranges::count(shards, shard.hostname, [](const ReadShard& s) { return s.run.manifest.hostname; });
  return same == 1 && !shard.hostname.empty() ? shard.hostname : fmt::format("{} ({})", shard.hostname, to_string(*shard.shard));
}

void add_shard(MergedRun& merged, RunRecord run, const std::string& machine) {
  std::set<std::string> with_result;
  for (evidence::PairResult& pair : run.pairs) {
    with_result.insert(evidence::label_in_run(pair));
    pair.machine = machine;
    merged.suite.pairs.push_back(pair);
  }
  Manifest& own = run.manifest;
  for (const std::string& target : own.targets) {
    merged.manifest.targets.push_back(target);
    std::vector<std::string> labels{target};
    if (const auto cases = own.cases.find(target); cases != own.cases.end()) {
      merged.manifest.cases.insert(*cases);
      labels.clear();
      for (const std::string& name : cases->second)
        labels.push_back(evidence::label_in_run({.target = target, .sweep_case = name}));
    }
    for (const std::string& label : labels)
      if (!with_result.contains(label)) merged.missing.push_back(label);
  }
  own.machine = machine;
  merged.manifest.machines.push_back(own);
  merged.shards.push_back(std::move(run));
}

void copy_tree(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::copy(from, to, fs::copy_options::recursive | fs::copy_options::overwrite_existing, error);
  if (error) throw Error{Exit::unfit, fmt::format("cannot copy {} to {}: {}", from.string(), to.string(), error.message())};
}

void copy_files(const RunRecord& shard, const fs::path& folder) {
  std::error_code ignored;
  for (const evidence::PairResult& pair : shard.pairs)
    if (const fs::path own = shard.folder / evidence::folder_of(pair); fs::is_directory(own, ignored))
      copy_tree(own, folder / evidence::folder_of(pair));
  for (const auto& entry : fs::directory_iterator{shard.folder, ignored})
    if (const std::string name = entry.path().filename().string(); name.starts_with(evidence::confirmation_prefix))
      copy_tree(entry.path(), folder / fmt::format("{}_{}", name, shard.manifest.shard->index));
}

// Moves all that is in a folder to another one, `last` behind everything else.
void move_entries(const fs::path& from, const fs::path& to, const std::string& last) {
  std::vector<fs::path> names;
  for (const auto& entry : fs::directory_iterator{from})
    if (entry.path().filename() != last) names.push_back(entry.path().filename());
  names.emplace_back(last);
  for (const fs::path& name : names) fs::rename(from / name, to / name);
}

// A merge that is killed leaves a scratch folder alone, so that it can be repeated under its name.
void write_files(const MergedRun& merged, const RunFolder& folder) {
  const fs::path scratch = folder.path() / (std::string{scratch_prefix} + "merge");
  base::make_directories(scratch);
  for (const RunRecord& shard : merged.shards) copy_files(shard, scratch);
  std::string log =
      evidence::header_line({.run_id = folder.id(), .started_utc = merged.suite.started_utc, .command = merged.command}) + '\n';
  for (const evidence::PairResult& pair : merged.suite.pairs) {
    log += evidence::to_line(pair) + '\n';
    // Pairs that are not built have no folder.
    if (fs::is_directory(scratch / evidence::folder_of(pair))) report::write_pair(scratch, pair);
  }
  base::write_atomically(scratch / manifest_file, evidence::json_text(merged.manifest, 2) + '\n');
  report::write_suite(scratch, merged.suite, merged.manifest);
  base::write_atomically(scratch / evidence::results_log_file, log);
  move_entries(scratch, folder.path(), evidence::results_log_file);
  base::remove_tree(scratch);
}

}  // namespace

MergedRun merge_shards(const std::vector<fs::path>& folders) {
  std::vector<ReadShard> shards;
  for (const fs::path& folder : folders) shards.push_back(read_shard(folder));
  demand_fitting(shards);
  demand_all(shards);
  std::ranges::sort(shards, {}, [](const ReadShard& shard) { return shard.run.manifest.shard->index; });
  MergedRun merged{.manifest = common_part(shards), .suite = {}, .command = shards.front().command};
  merged.manifest.targets.clear();
  merged.manifest.cases.clear();
  merged.manifest.started_utc = std::ranges::min(shards, {}, [](const ReadShard& shard) {
                                  return shard.run.manifest.started_utc;
                                }).run.manifest.started_utc;
  std::vector<std::string> names;
  for (const ReadShard& shard : shards) names.push_back(machine_name(shard.run.manifest, shards));
  for (std::size_t i = 0; i < shards.size(); ++i) add_shard(merged, std::move(shards[i].run), names[i]);
  merged.suite.started_utc = merged.manifest.started_utc;
  merged.suite.wall_s = evidence::wall_s_of(merged.suite.pairs);
  std::ranges::sort(merged.suite.pairs, {}, evidence::label_in_run);
  std::ranges::sort(merged.manifest.targets);
  return merged;
}

void write_merged(const MergedRun& merged, const RunFolder& folder) {
  try {
    write_files(merged, folder);
  } catch (const std::exception&) {
    base::remove_tree(folder.path());
    throw;
  }
}

}  // namespace aisp::suite
