// SPDX-License-Identifier: Apache-2.0
#include "suite/records/records.hpp"

#include <unistd.h>

#include <aisp/check.hpp>
#include <aisp/libraries/cutlass.hpp>
#include <aisp/library.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "base/build_info.hpp"
#include "machine/library/library_search.hpp"

namespace aisp::suite {

evidence::ManifestGpu describe(const machine::Gpu& gpu) {
  const machine::GpuCondition condition = gpu.condition.value_or(machine::GpuCondition{});
  evidence::ManifestGpu described;
  described.ordinal = gpu.ordinal;
  described.name = gpu.name;
  described.uuid = gpu.uuid;
  described.pci = gpu.pci;
  described.sm = gpu.sm;
  described.memory_bytes = gpu.memory_bytes;
  described.sm_count = gpu.sm_count;
  described.l2_bytes = gpu.l2_bytes;
  described.sm_clock_max_mhz = condition.sm_clock_max_mhz.value_or(gpu.clock_khz / 1000);
  described.memory_clock_max_mhz = condition.memory_clock_max_mhz.value_or(gpu.memory_clock_khz / 1000);
  described.power_limit_w = condition.power_limit_w.value_or(0);
  described.mig = gpu.mig;
  return described;
}

namespace {

void add_build(evidence::Manifest& manifest) {
  const base::BuildInfo& build = base::build_info();
  manifest.aisp_version = build.version;
  manifest.commit = build.git_commit;
  manifest.branch = build.git_branch;
  manifest.dirty = build.git_dirty;
  manifest.build_type = build.build_type;
  manifest.compilers = std::string{build.cxx_compiler} + ", nvcc " + std::string{build.cuda_compiler};
  manifest.cuda_architectures = build.cuda_architectures;
}

void add_processes(evidence::Manifest& manifest, const std::vector<run::Process>& processes) {
  for (const run::Process& process : processes) {
    manifest.processes.push_back(process.host);
    if (process.gpu.uuid.empty() ||
        std::ranges::find(manifest.gpus, process.gpu.uuid, &evidence::ManifestGpu::uuid) != manifest.gpus.end())
      continue;
    manifest.gpus.push_back(process.gpu);
    manifest.gpus.back().host = process.host;
  }
}

void add_machine(evidence::Manifest& manifest, const machine::Machine& machine, const std::vector<int>& gpus) {
  for (const int ordinal : gpus) manifest.gpus.push_back(describe(machine.gpus[static_cast<std::size_t>(ordinal)]));
  manifest.cuda_error = machine.cuda_error;
  manifest.driver_version = machine.driver_version;
  manifest.driver_cuda_version = machine.driver_cuda_version;
  manifest.runtime_cuda_version = machine.runtime_cuda_version;
  const machine::Host& host = machine.host;
  manifest.hostname = host.hostname;
  manifest.system = host.system;
  manifest.kernel = host.kernel;
  manifest.cpu = host.cpu;
  manifest.container = host.container;
  manifest.virtualization = host.virtualization;
  manifest.cpus_online = host.cpus_online;
  manifest.cpus_usable = host.cpus_usable;
  if (host.cpu_quota > 0) manifest.cpu_quota = host.cpu_quota;
  manifest.numa_nodes = static_cast<int>(host.numa.size());
  manifest.memory_bytes = host.memory_bytes;
}

// Returns every library that a pair can need and that is installed.
std::map<std::string, std::string> libraries() {
  std::map<std::string, std::string> found;
  for (int number = 1; number <= static_cast<int>(last_library); ++number) {
    const auto library = static_cast<Library>(number);
    if (std::string file = machine::locate(library); !file.empty()) found.emplace(name_of(library), std::move(file));
  }
  return found;
}

std::map<std::string, std::string> versions_of(const std::map<std::string, std::string>& files) {
  std::map<std::string, std::string> versions;
  for (const auto& [name, file] : files)
    if (std::string version = machine::library_version(file); !version.empty()) versions.emplace(name, std::move(version));
  try {
    versions.emplace(name_of(Library::cutlass), cutlass_version());
  } catch (const Unsupported&) {  // absent, or reported with a reason by the variant that needs it
  }
  return versions;
}

std::vector<evidence::Setting> flat_configuration(const Configuration& configuration) {
  std::vector<evidence::Setting> list;
  for (const SettingRow& setting : settings()) {
    const auto origin = configuration.origins.find(setting.name);
    const nlohmann::json value = setting.show(configuration);
    list.push_back({std::string{setting.name}, value.is_string() ? value.get<std::string>() : value.dump(),
                    origin == configuration.origins.end() ? std::string{"default"} : origin->second});
  }
  return list;
}

}  // namespace

evidence::Manifest make_manifest(const Task& task, const std::vector<int>& gpus) {
  evidence::Manifest manifest;
  add_build(manifest);
  add_machine(manifest, task.machine, gpus);
  manifest.command_line = task.command_line;
  for (const pair::Entry* entry : task.selected) manifest.targets.push_back(entry->target());
  for (const Placement& placement : task.placements)
    if (!placement.point.name.empty()) manifest.cases[placement.entry->target()].push_back(placement.point.name);
  manifest.seed = task.configuration.seed;
  manifest.libraries = libraries();
  manifest.library_versions = versions_of(manifest.libraries);
  manifest.environment = evidence::recorded_environment(environ);
  manifest.configuration = flat_configuration(task.configuration);
  manifest.shard = task.shard;
  if (task.world != nullptr) add_processes(manifest, task.world->processes());
  return manifest;
}

}  // namespace aisp::suite
