// SPDX-License-Identifier: Apache-2.0
#include "suite/records/resume.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "base/text.hpp"
#include "evidence/json.hpp"
#include "machine/needs.hpp"
#include "pair/code.hpp"
#include "pair/sizes.hpp"
#include "run/wire/blank.hpp"
#include "suite/records/records.hpp"

namespace aisp::suite {
namespace {

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
