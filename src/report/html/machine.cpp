// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "base/text.hpp"
#include "report/html/parts.hpp"
#include "report/html/text.hpp"

namespace aisp::report::html {
namespace {

using evidence::Manifest;

class FactRows {
 public:
  void add(std::string_view name, const std::string& value) {
    if (!value.empty()) text_ += "<tr><th scope=\"row\">" + escaped(name) + "</th>" + tag("td", escaped(value)) + "</tr>\n";
  }
  std::string text_;
};

std::string version(int cuda) { return cuda > 0 ? fmt::format("{}.{}", cuda / 1000, cuda % 1000 / 10) : ""; }

std::string gpu_text(const evidence::ManifestGpu& gpu) {
  // A public report has neither.
  const std::string which = gpu.uuid.empty() ? "" : fmt::format("; {}, {}", gpu.uuid, gpu.pci);
  return fmt::format("{}, sm_{}, {}, {} SMs, L2 {}, up to {} MHz, memory {} MHz, power limit {} W{}{}", gpu.name, gpu.sm,
                     base::human_bytes(static_cast<double>(gpu.memory_bytes)), gpu.sm_count,
                     base::human_bytes(static_cast<double>(gpu.l2_bytes)), gpu.sm_clock_max_mhz, gpu.memory_clock_max_mhz,
                     base::significant(gpu.power_limit_w), gpu.mig ? ", MIG" : "", which);
}

std::string program(const Manifest& m) {
  FactRows rows;
  rows.add("run", m.run_id);
  rows.add("started", m.started_utc);
  rows.add("aisp", m.aisp_version);
  rows.add("commit", m.commit + (m.dirty ? ", modified" : ""));
  rows.add("branch", m.branch);
  rows.add("build", base::join({m.build_type, m.compilers, m.cuda_architectures}, "; "));
  rows.add("command", base::join(m.command_line, " "));
  rows.add("targets", base::join(m.targets, " "));
  // The shards of a merged run drew their own.
  if (m.machines.empty() || m.seed != 0) rows.add("seed", std::to_string(m.seed));
  return rows.text_;
}

std::string machine(const Manifest& m) {
  FactRows rows;
  for (const evidence::ManifestGpu& gpu : m.gpus) rows.add(fmt::format("GPU {}", gpu.ordinal), gpu_text(gpu));
  rows.add("no GPU", m.gpus.empty() ? m.cuda_error : "");
  rows.add("driver", m.driver_version);
  rows.add("CUDA of the driver", version(m.driver_cuda_version));
  rows.add("CUDA runtime", version(m.runtime_cuda_version));
  rows.add("host", m.hostname);
  rows.add("system", m.system);
  rows.add("kernel", m.kernel);
  rows.add("CPU", m.cpu);
  rows.add("CPUs", fmt::format("{} usable of {}, {}", m.cpus_usable, m.cpus_online,
                               base::plural(static_cast<std::size_t>(std::max(m.numa_nodes, 0)), "NUMA node")));
  rows.add("memory", base::human_bytes(static_cast<double>(m.memory_bytes)));
  rows.add("container", m.container);
  rows.add("virtualization", m.virtualization);
  return rows.text_;
}

std::string map_rows(const std::map<std::string, std::string>& values) {
  FactRows rows;
  for (const auto& [name, value] : values) rows.add(name, value.empty() ? "(empty)" : value);
  return rows.text_;
}

std::string machine_part(const Manifest& m, const std::string& title) {
  std::string text = tag("h3", escaped(title)) + table("machine", {}, machine(m));
  if (!m.environment.empty()) text += folded("Environment", table("environment", {}, map_rows(m.environment)));
  if (!m.libraries.empty()) text += folded("Libraries", table("libraries", {}, map_rows(m.libraries)));
  return text;
}

}  // namespace

std::string manifest_section(const HtmlReport& report) {
  const Manifest& m = report.run.manifest;
  std::string settings;
  for (const evidence::Setting& setting : m.configuration)
    settings += row({escaped(setting.name), escaped(setting.value), escaped(setting.origin)});
  std::string text = tag("h2", "Manifest") + tag("h3", "Program") + table("program", {}, program(m));
  if (m.machines.empty()) text += machine_part(m, "Machine");
  for (const Manifest& shard : m.machines) text += machine_part(shard, "Machine " + shard.machine);
  if (!settings.empty()) text += folded("Settings", table("settings", {"setting", "value", "from"}, settings));
  return tag("section", text, "id=\"manifest\"") + "\n";
}

}  // namespace aisp::report::html
