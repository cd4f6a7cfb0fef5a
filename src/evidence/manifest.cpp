// SPDX-License-Identifier: Apache-2.0
#include "evidence/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "base/text.hpp"
#include "evidence/fields.hpp"
#include "evidence/json.hpp"
#include "evidence/names.hpp"

namespace aisp::evidence {

template <class Visitor>
void describe(ManifestGpu& g, Visitor& visit) {
  AISP_VISIT(visit, g, ordinal, name, uuid, pci, sm, memory_bytes, sm_count, l2_bytes, sm_clock_max_mhz, memory_clock_max_mhz,
             power_limit_w, mig);
  describe_unless_empty("host", g.host, visit);
}

AISP_DESCRIBE(Setting, name, value, origin)
AISP_DESCRIBE(Shard, index, count, cut)

template <class Visitor>
void describe(Manifest& m, Visitor& visit) {
  AISP_VISIT(visit, m, schema_version, run_id, started_utc, aisp_version, commit, branch, dirty, build_type, compilers,
             cuda_architectures, command_line, targets, cases, seed, gpus, cuda_error, driver_version, driver_cuda_version,
             runtime_cuda_version, libraries, library_versions, hostname, system, kernel, cpu, container, virtualization,
             cpus_online, cpus_usable, numa_nodes, cpu_quota, memory_bytes, environment, configuration, shard);
  describe_unless_empty("processes", m.processes, visit);
  describe_unless_empty("machines", m.machines, visit);
  describe_unless_empty("machine", m.machine, visit);
}

void to_json(json& to, const ManifestGpu& gpu) { to = base::json_of(gpu); }
void from_json(const json& from, ManifestGpu& gpu) {
  Reader reader{from, "gpu"};
  describe(gpu, reader);
}

void to_json(json& to, const Manifest& manifest) { to = base::json_of(manifest); }
void from_json(const json& from, Manifest& manifest) {
  Reader reader{from, "manifest"};
  describe(manifest, reader);
}

// Checks names that tables and messages show.
static void check_names(const Manifest& manifest, const std::string& source) {
  const auto refuse = [&](const std::string& name, const char* what) {
    throw base::Error{base::Exit::usage,
                      fmt::format("{}: '{}' is no {}; the file was changed by hand", source, base::one_line(name, 80), what)};
  };
  for (const std::string& target : manifest.targets)
    if (!is_target(target)) refuse(target, "target");
  for (const auto& [target, names] : manifest.cases) {
    if (!is_target(target)) refuse(target, "target");
    for (const std::string& name : names)
      if (!is_plain(name)) refuse(name, "case of a sweep");
  }
  for (const Manifest& machine : manifest.machines) check_names(machine, source);
}

Manifest parse_manifest(std::string_view text, const std::string& source) {
  const json document = parse_json(text, source);
  Manifest manifest;
  Reader reader{document, source};
  describe(manifest, reader);
  demand_schema_version(document, source);
  check_names(manifest, source);
  return manifest;
}

Manifest read_manifest(const std::filesystem::path& file) {
  return parse_manifest(base::read_file(file, largest_manifest_bytes), file.string());
}

std::string to_string(const Shard& shard) { return fmt::format("{}/{}", shard.index, shard.count); }

const Manifest& manifest_of(const PairResult& pair, const Manifest& manifest) {
  const auto found = std::ranges::find(manifest.machines, pair.machine, &Manifest::machine);
  return found == manifest.machines.end() ? manifest : *found;
}

void to_json(json& to, const Setting& setting) { to = base::json_of(setting); }

bool is_recorded_variable(const std::string& name) {
  static const std::set<std::string> names{"LD_LIBRARY_PATH", "LD_PRELOAD", "MALLOC_ARENA_MAX", "GOMP_CPU_AFFINITY", "TMPDIR"};
  if (names.contains(name)) return true;
  for (const std::string_view prefix : {"CUDA_", "NVIDIA_", "NCCL_", "OMP_", "AISP_", "CUBLAS", "CUDNN_"})
    if (name.starts_with(prefix)) return true;
  return false;
}

// Users keep keys and tokens in variables of these families too. Variables that change measurements have none of these words in
// their names; in NVIDIA_*, which other programs use too, only those that the container toolkit and the libraries read are known
// to be harmless.
static bool may_be_secret(const std::string& name) {
  constexpr auto words =
      std::to_array<std::string_view>({"KEY", "TOKEN", "SECRET", "PASS", "PWD", "CRED", "AUTH", "PROXY", "LICENSE"});
  const auto has = [&](std::string_view word) { return name.find(word) != std::string::npos; };
  if (std::any_of(words.begin(), words.end(), has)) return true;
  constexpr auto harmless = std::to_array<std::string_view>(
      {"VISIBLE_DEVICES", "DRIVER_CAPABILITIES", "DISABLE_REQUIRE", "REQUIRE_CUDA", "REQUIRE_DRIVER", "TF32_OVERRIDE",
       "MIG_CONFIG_DEVICES", "MIG_MONITOR_DEVICES", "IMEX_CHANNELS", "GDRCOPY", "GDS", "MOFED", "NVSWITCH"});
  constexpr std::string_view family = "NVIDIA_";
  return name.starts_with(family) &&
         std::find(harmless.begin(), harmless.end(), std::string_view{name}.substr(family.size())) == harmless.end();
}

// An address with a user's name, and so perhaps a password: postgres://ada:secret@host/
static bool holds_login(std::string_view value) {
  for (std::size_t at = value.find("://"); at != std::string_view::npos; at = value.find("://", at + 1)) {
    const std::string_view rest = value.substr(at + 3);
    if (rest.substr(0, rest.find_first_of("/ \t?#")).find('@') != std::string_view::npos) return true;
  }
  return false;
}

std::map<std::string, std::string> recorded_environment(const char* const* environment) {
  std::map<std::string, std::string> recorded;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry{*environment};
    const std::string name{entry.substr(0, entry.find('='))};
    if (!is_recorded_variable(name) || name.size() == entry.size()) continue;
    const std::string_view value = entry.substr(name.size() + 1);
    recorded[name] = may_be_secret(name) || holds_login(value) ? std::string_view{"(set)"} : value;
  }
  return recorded;
}

namespace {

void compare_values(const std::string& place, const json& before, const json& after,
                    std::vector<ManifestDifference>& differences) {
  if (before == after) return;
  if (before.is_object() && after.is_object()) {
    std::set<std::string> names;
    for (const auto& item : before.items()) names.insert(item.key());
    for (const auto& item : after.items()) names.insert(item.key());
    for (const std::string& name : names)
      compare_values(place.empty() ? name : place + "." + name, before.value(name, json{}), after.value(name, json{}),
                     differences);
    return;
  }
  if (before.is_array() && after.is_array() && before.size() == after.size()) {
    for (std::size_t i = 0; i < before.size(); ++i)
      compare_values(fmt::format("{}[{}]", place, i), before[i], after[i], differences);
    return;
  }
  const auto text = [](const json& value) {
    return value.is_null() ? std::string{"absent"} : value.is_string() ? value.get<std::string>() : value.dump();
  };
  differences.push_back({place, text(before), text(after)});
}

// By name, so that an added setting does not shift all others.
json comparable(const Manifest& manifest) {
  json fields = manifest;
  for (const char* name : {"schema_version", "run_id", "started_utc", "command_line", "shard", "machines", "machine"})
    fields.erase(name);
  json settings = json::object();
  for (const Setting& setting : manifest.configuration) settings[setting.name] = setting.value;
  fields["configuration"] = std::move(settings);
  return fields;
}

}  // namespace

std::vector<ManifestDifference> differences(const Manifest& before, const Manifest& after) {
  std::vector<ManifestDifference> found;
  compare_values("", comparable(before), comparable(after), found);
  return found;
}

}  // namespace aisp::evidence
