// SPDX-License-Identifier: Apache-2.0
#include "suite/suite.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/text.hpp"

namespace aisp::suite {
namespace {

const machine::Gpu& gpu_at(const machine::Machine& machine, int ordinal) {
  return machine.gpus[static_cast<std::size_t>(ordinal)];
}

std::vector<std::string> foreign_processes(const machine::Machine& machine, const std::vector<int>& gpus) {
  std::vector<std::string> lines;
  for (const int ordinal : gpus) {
    const machine::Gpu& gpu = gpu_at(machine, ordinal);
    if (!gpu.condition) continue;
    for (const machine::GpuProcess& process : gpu.condition->processes) {
      if (process.pid == static_cast<int>(::getpid())) continue;  // this is a program that measures functions of its own
      lines.push_back(fmt::format("GPU {} is also used by process {}{} ({})", ordinal, process.pid,
                                  process.name.empty() ? "" : " " + process.name,
                                  base::human_bytes(static_cast<double>(process.memory_bytes))));
    }
  }
  return lines;
}

void add_once(std::vector<std::string>& list, const std::string& line) {
  if (std::find(list.begin(), list.end(), line) == list.end()) list.push_back(line);
}

}  // namespace

std::vector<std::string> environment_warnings(const machine::Machine& machine, const std::vector<int>& gpus) {
  std::vector<std::string> lines = foreign_processes(machine, gpus);
  for (std::string& line : lines) line += "; times will suffer";
  if (!gpus.empty() && !machine.nvml_error.empty())
    lines.push_back(fmt::format("no clocks, power or temperature beside the results: {}", machine.nvml_error));
  return lines;
}

void add_environment(evidence::PairResult& result, const machine::Machine& machine, const std::vector<int>& gpus) {
  for (const std::string& line : foreign_processes(machine, gpus)) add_once(result.warnings, line);
  const std::string nvml = fmt::format("no NVML: {}", machine.nvml_error);
  if (!gpus.empty() && !machine.nvml_error.empty() &&
      std::ranges::find(result.lost, nvml, &evidence::Lost::text) == result.lost.end())
    result.lost.push_back({evidence::LostKind::other, nvml});
}

void add_time_of_others(evidence::PairResult& result, const std::optional<machine::CpuTimes>& before,
                        const std::optional<machine::CpuTimes>& after) {
  const bool timed =
      std::any_of(result.variants.begin(), result.variants.end(), [](const auto& v) { return v.timing.has_value(); });
  if (!timed || !before || !after) return;
  for (const std::string& clause : {machine::stolen_time(*before, *after), machine::time_of_others(*before, *after)})
    if (!clause.empty()) add_once(result.warnings, clause + ": what the host does, launches and copies too, took longer");
}

void add_quota(evidence::PairResult& result, double cpu_quota, const machine::GroupEvents& before,
               const machine::GroupEvents& after) {
  if (cpu_quota <= 0 || after.throttled <= before.throttled) return;
  add_once(result.warnings,
           fmt::format("the control group's quota of {:g} CPUs was used up in {} of {} periods: nothing ran until the next "
                       "one",
                       cpu_quota, after.throttled - before.throttled, after.periods - before.periods));
}

}  // namespace aisp::suite
