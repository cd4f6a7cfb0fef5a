// SPDX-License-Identifier: Apache-2.0
#include "machine/doctor/doctor.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/build_info.hpp"
#include "base/json_fields.hpp"
#include "base/system/terminal.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/commands/peak_links.hpp"
#include "cli/flags.hpp"
#include "cli/output.hpp"
#include "cli/suite_flags.hpp"
#include "evidence/json.hpp"
#include "machine/doctor/tcgen05.hpp"
#include "machine/machine.hpp"
#include "machine/topology/topology.hpp"
#include "suite/placement.hpp"

namespace aisp::cli {
namespace {

using machine::Level;

std::string painted(Level level, const base::Painter& paint) {
  const std::string text{base::word_for(level)};
  switch (level) {
    case Level::ok: return paint(base::Style::green, text);
    case Level::warning: return paint(base::Style::yellow, text);
    case Level::problem: return paint(base::Style::red, text);
    case Level::info: break;
  }
  return text;
}

std::string table(const std::vector<machine::Diagnosis>& findings, const base::Painter& paint) {
  std::vector<std::vector<std::string>> rows;
  for (const machine::Diagnosis& finding : findings) {
    rows.push_back({painted(finding.level, paint), finding.name, finding.what});
    if (!finding.advice.empty()) rows.push_back({"", "", "-> " + finding.advice});
  }
  return columns(rows);
}

std::string verdict(const std::vector<machine::Diagnosis>& findings) {
  const auto count = [&](Level level) {
    return static_cast<std::size_t>(
        std::count_if(findings.begin(), findings.end(), [&](const machine::Diagnosis& f) { return f.level == level; }));
  };
  return fmt::format("{}, {}\n", base::plural(count(Level::problem), "problem"), base::plural(count(Level::warning), "warning"));
}

nlohmann::json as_json(const machine::Machine& machine, const std::vector<machine::Diagnosis>& findings) {
  nlohmann::json list = nlohmann::json::array();
  for (const machine::Diagnosis& finding : findings) list.push_back(base::json_of(finding));
  return {{"schema_version", evidence::schema_version},
          {"machine", machine},
          {"findings", list},
          {"worst", base::word_for(machine::worst(findings))}};
}

base::Exit examine_machine(const machine::Machine& machine, bool as_json_text, const std::string& artifacts,
                           const base::Painter& paint) {
  machine::Surroundings surroundings;
  surroundings.artifacts = artifacts;
  surroundings.built = base::build_info().cuda_architectures;
  if (const auto ptxas = machine::find_assembler(machine::toolkit_homes()))
    surroundings.assembles_tcgen05 = [ptxas](std::string_view target) { return machine::assembles_tcgen05(*ptxas, target); };
  const machine::ProductAnswers products = machine::probe_tcgen05(machine, surroundings.built);
  surroundings.tcgen05_product = [&products](int ordinal) { return products.of(ordinal); };
  const std::vector<machine::Diagnosis> findings = machine::examine(machine, surroundings);
  if (as_json_text) print(evidence::json_text(as_json(machine, findings), 2) + '\n');
  else show(table(findings, paint) + verdict(findings));
  return machine::worst(findings) == Level::problem ? base::Exit::unfit : base::Exit::good;
}

base::Exit show_topology(bool as_json_text, const base::Painter& paint) {
  const machine::Topology topology = machine::probe_topology();
  nlohmann::json links;
  const std::string known = known_links(topology, links);
  if (as_json_text) {
    nlohmann::json json = machine::topology_json(topology);
    json["schema_version"] = evidence::schema_version;
    json["links"] = std::move(links);
    print(evidence::json_text(json, 2) + '\n');
  } else show(machine::topology_text(topology, paint) + known);
  return base::Exit::good;
}

}  // namespace

void add_doctor(CLI::App& app, Action& action) {
  struct DoctorOptions {
    bool json = false;
    bool topology = false;
    std::string color = "auto";
    std::string artifacts_dir = "artifacts";
    std::vector<std::string> require;
  };
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = app.add_subcommand("doctor", "find problems that make benchmarks fail, be skipped or mislead");
  command->add_flag("--json", options->json, "as JSON, with everything known about the machine");
  command->add_flag("--topology", options->topology,
                    "what the GPUs are made of and how they are connected: GPCs, SMs, memory, PCIe and NVLink, as found");
  command->add_option("--artifacts-dir", options->artifacts_dir, "where runs are written [artifacts]")->type_name("DIR");
  add_require(*command, options->require, "exit 4 unless there is a GPU (gpu), or this hardware (h200, 2x_h100); repeats");
  command->add_option("--color", options->color, "auto, always or never [auto]")->type_name("WHEN");
  command->callback([options, &action] {
    action = [options] {
      const base::Painter paint{color_flag(options->color), STDOUT_FILENO};
      const Requirements required{options->require};
      required.demand_no_pairs();
      const machine::Machine machine = machine::probe();
      const base::Exit exit = options->topology ? show_topology(options->json, paint)
                                                : examine_machine(machine, options->json, options->artifacts_dir, paint);
      required.demand_possible(machine, suite::choose_gpus(machine, {}));
      return exit;
    };
  });
}

}  // namespace aisp::cli
