// SPDX-License-Identifier: Apache-2.0
// The description of a run: program, machine, settings. Plain data, filled by code that knows the machine.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace aisp::evidence {

struct ManifestGpu {
  int ordinal = 0;
  std::string name, uuid, pci;
  int sm = 0;
  std::uint64_t memory_bytes = 0;
  int sm_count = 0;
  std::uint64_t l2_bytes = 0;
  int sm_clock_max_mhz = 0;
  int memory_clock_max_mhz = 0;
  double power_limit_w = 0;
  bool mig = false;
  std::string host;  // of the process that used it, if it is not process 0's
};

// One value of the configuration and where it came from: "default", "pair", "file aisp.toml", "flag".
struct Setting {
  std::string name, value, origin;
};

// The part of a selection that a run measured.
struct Shard {
  int index = 1, count = 1;  // the second of three: 2, 3
  std::string cut;           // digest of the pairs, their code and the shard of each: shards with the same one fit together
};
// "2/3"
std::string to_string(const Shard& shard);

struct Manifest {
  int schema_version = 1;
  std::string run_id;
  std::string started_utc;
  std::string aisp_version, commit, branch, build_type, compilers, cuda_architectures;
  bool dirty = false;
  std::vector<std::string> command_line;
  std::vector<std::string> targets;
  std::map<std::string, std::vector<std::string>> cases;  // target -> cases of its sweep; empty without --sweep
  std::uint64_t seed = 0;
  std::vector<ManifestGpu> gpus;
  std::string cuda_error;  // why no GPU was found
  std::string driver_version;
  int driver_cuda_version = 0, runtime_cuda_version = 0;
  std::map<std::string, std::string> libraries;         // name -> file found, or version compiled in
  std::map<std::string, std::string> library_versions;  // versions of those whose files state one
  std::string hostname, system, kernel, cpu, container, virtualization;
  int cpus_online = 0, cpus_usable = 0, numa_nodes = 0;
  std::optional<double> cpu_quota{};  // CPUs granted by the control group; nothing: no limit
  std::uint64_t memory_bytes = 0;
  std::map<std::string, std::string> environment;  // allow-listed variables
  std::vector<Setting> configuration;
  std::optional<Shard> shard;
  std::vector<std::string> processes;  // the host of each, of a run that a launcher started; rank i of a pair ran in the i-th
  // For a run that `aisp merge` made: the manifests of its parts, each with its machine's name, unique in the run. The fields
  // outside hold what all have in common.
  std::vector<Manifest> machines;
  std::string machine;
};

void to_json(nlohmann::json& json, const ManifestGpu& gpu);
void from_json(const nlohmann::json& json, ManifestGpu& gpu);
void to_json(nlohmann::json& json, const Manifest& manifest);
void from_json(const nlohmann::json& json, Manifest& manifest);
void to_json(nlohmann::json& json, const Setting& setting);

inline constexpr std::size_t largest_manifest_bytes = std::size_t{16} << 20;
// Returns the manifest of the run that measured the pair: one of `machines` in a merged run, otherwise `manifest` itself.
struct PairResult;  // evidence/result.hpp
const Manifest& manifest_of(const PairResult& pair, const Manifest& manifest);

// Parses a manifest; throws base::Error (usage) naming the source and the place in it.
Manifest parse_manifest(std::string_view text, const std::string& source);
Manifest read_manifest(const std::filesystem::path& file);

// Whether a variable's value changes measurements and holds no secret: CUDA_*, NVIDIA_*, NCCL_*, OMP_*, AISP_*, LD_LIBRARY_PATH
// and few others.
bool is_recorded_variable(const std::string& name);
std::map<std::string, std::string> recorded_environment(const char* const* environment);

struct ManifestDifference {
  std::string field, before, after;
};
// Returns the fields that differ, for "Why did it change?", without start time, run id and command line.
std::vector<ManifestDifference> differences(const Manifest& before, const Manifest& after);

}  // namespace aisp::evidence
