// SPDX-License-Identifier: Apache-2.0
#include "report/html/html.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "base/deflate.hpp"
#include "base/digest.hpp"
#include "base/text.hpp"
#include "evidence/run_summary.hpp"
#include "report/html/parts.hpp"
#include "report/html/text.hpp"
#include "report/warnings.hpp"

namespace aisp::report {

std::string filled(std::string_view text, const std::map<std::string, std::string, std::less<>>& values) {
  std::string result;
  std::size_t done = 0;
  for (std::size_t open = text.find("{{"); open != std::string_view::npos; open = text.find("{{", done)) {
    const std::size_t close = text.find("}}", open);
    const std::string_view name = text.substr(open + 2, close - open - 2);
    const auto value = values.find(name);
    if (close == std::string_view::npos || value == values.end())
      throw std::logic_error{"the page asks for '" + std::string{name} + "', which nobody gives"};
    result.append(text.substr(done, open - done)).append(value->second);
    done = close + 2;
  }
  return result.append(text.substr(done));
}

namespace html {
namespace {

using evidence::PairResult;
using evidence::Status;

std::string machine_line(const evidence::Manifest& m) {
  std::map<std::string, int> gpus;
  for (const evidence::ManifestGpu& gpu : m.gpus) ++gpus[gpu.name];
  std::string text;
  for (const auto& [name, number] : gpus)
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", number > 1 ? fmt::format("{} x ", number) : "", name);
  if (text.empty()) text = m.cuda_error.empty() ? "no GPU" : "no GPU (" + m.cuda_error + ")";
  else text += ", driver " + m.driver_version;
  return fmt::format("{}; {}, {} usable", text, m.cpu, base::plural(static_cast<std::size_t>(std::max(m.cpus_usable, 0)), "CPU"));
}

std::vector<std::string> without_result(const HtmlReport& report) {
  std::set<std::string> ended;
  for (const PairResult& pair : report.run.pairs) ended.insert(pair.target);
  std::vector<std::string> missing;
  for (const std::string& target : report.run.manifest.targets)
    if (!ended.contains(target)) missing.push_back(target);
  return missing;
}

std::string problem_items(const PairResult& pair) {
  std::string items;
  for (const evidence::Problem& problem : pair.problems) {
    const std::string where = place_of(problem) + (problem.check.empty() ? "" : ", " + problem.check);
    items += tag(
        "li", tag("b", escaped(where)) + ": " + escaped(problem.message) +
                  (problem.advice.empty() ? "" : fmt::format("<br><span class=\"advice\">{}</span>", escaped(problem.advice))));
  }
  if (pair.timeout_stage != evidence::Stage::none)
    items += tag("li", escaped(fmt::format("stage {} ran {} of {} allowed", to_string(pair.timeout_stage),
                                           base::human_duration(pair.timeout_duration_seconds),
                                           base::human_duration(pair.timeout_limit_seconds))));
  for (const evidence::VariantResult& variant : pair.variants)
    if (variant.status != Status::passed && !variant.reason.empty() && pair.status != Status::skipped)
      items += tag("li", tag("b", escaped(variant.name)) + " " + badge(variant.status) + " " + escaped(variant.reason));
  return items;
}

std::string bytes_of(const std::string& hex) {
  const auto value = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) bytes += static_cast<char>(value(hex[i]) << 4 | value(hex[i + 1]));
  return bytes;
}

struct Section {
  const char *id, *title;
  std::string content;  // empty: left out
};

std::string allowed(const std::string& content) { return "'sha256-" + base::base64(bytes_of(base::sha256_hex(content))) + "'"; }

}  // namespace

std::string summary_part(const HtmlReport& report) {
  const evidence::Manifest& m = report.run.manifest;
  std::string lines;
  if (m.machines.empty()) lines = tag("p", escaped(machine_line(m)));
  for (const evidence::Manifest& machine : m.machines) lines += tag("p", escaped(machine.machine + ": " + machine_line(machine)));
  lines += tag("p",
               escaped(fmt::format("Started {}, took {}; aisp {} ({}{})", m.started_utc,
                                   base::human_duration(evidence::wall_s_of(report.run.pairs)), m.aisp_version,
                                   m.commit.substr(0, 12), m.dirty ? ", modified" : "")),
               "class=\"note\"");
  if (report.is_public)
    lines += tag("p", "Host names, users, paths, environment and serial numbers were left out of this report.", "class=\"note\"");
  for (const std::string& warning : report.run.warnings) lines += tag("p", escaped(warning), "class=\"reason\"");
  return lines + overview_part(report);
}

std::vector<const PairResult*> by_chapter(const HtmlReport& report) {
  std::vector<const PairResult*> pairs;
  for (const PairResult& pair : report.run.pairs) pairs.push_back(&pair);
  std::ranges::stable_sort(pairs, {}, [](const PairResult* pair) {
    return std::pair{pair->chapter, pair->status == Status::skipped};
  });
  return pairs;
}

std::string linked(const PairResult& pair) {
  return fmt::format("<a href=\"#{}\">{}</a>", id_of(label_in_run(pair)), escaped(label_of(pair)));
}

std::string links_to(const std::vector<const PairResult*>& pairs) {
  std::vector<std::string> links;
  for (const PairResult* pair : pairs) links.push_back(linked(*pair));
  return base::join(links, ", ");
}

// A machine without a GPU skips two hundred pairs for one reason, which is said once.
std::string skips_by_reason(const std::vector<const PairResult*>& pairs) {
  std::vector<Said> reasons;
  for (const PairResult* pair : pairs) {
    if (pair->status != Status::skipped || !problem_items(*pair).empty()) continue;
    auto known = std::ranges::find(reasons, pair->reason, &Said::text);
    if (known == reasons.end()) known = reasons.insert(reasons.end(), {pair->reason, {}});
    known->pairs.push_back(pair);
  }
  std::string blocks;
  for (const Said& skips : reasons)
    blocks += tag("div",
                  tag("h3", badge(Status::skipped) + " " + base::plural(skips.pairs.size(), "pair")) +
                      tag("p", escaped(skips.text)) + tag("p", links_to(skips.pairs)),
                  "class=\"problem skipped\"") +
              "\n";
  return blocks;
}

std::string said_blocks(const std::vector<Said>& all, std::string_view heading) {
  std::string blocks;
  for (const Said& said : all) {
    const std::string many = base::plural(said.pairs.size(), "pair");
    blocks += tag("div",
                  tag("h3", fmt::format("<span class=\"badge unclear\">{}</span> {}", heading, many)) +
                      tag("p", escaped(said.text)) + tag("p", links_to(said.pairs)),
                  "class=\"problem\"") +
              "\n";
  }
  return blocks;
}

// Lists problems before warnings, each sentence once, and both before what was not run.
std::string problems_section(const HtmlReport& report) {
  std::string blocks;
  std::vector<const PairResult*> pairs = by_chapter(report);
  std::stable_partition(pairs.begin(), pairs.end(), [](const PairResult* pair) { return pair->status != Status::passed; });
  for (const PairResult* listed : pairs) {
    const PairResult& pair = *listed;
    const std::string items = problem_items(pair);
    if (items.empty() && (pair.status == Status::passed || pair.status == Status::skipped)) continue;
    blocks += tag("div",
                  tag("h3", linked(pair) + " " + badge(pair.status)) +
                      (pair.reason.empty() ? "" : tag("p", escaped(pair.reason))) + (items.empty() ? "" : tag("ul", items)),
                  fmt::format("class=\"problem {}\"", to_string(pair.status))) +
              "\n";
  }
  blocks += said_blocks(warnings_of(report.run.pairs), "warning") + skips_by_reason(pairs);
  if (const std::string notes = said_blocks(notes_of(report.run.pairs), "note"); !notes.empty())
    blocks += folded("Notes, which change nothing in the results", notes);
  if (const std::vector<std::string> missing = without_result(report); !missing.empty())
    blocks +=
        tag("p",
            fmt::format("Selected but without a result: {}. The run was interrupted or goes on; aisp run --resume continues it.",
                        escaped(base::join(missing, ", "))),
            "class=\"reason\"");
  if (blocks.empty()) blocks = tag("p", "None: every pair passed without a warning.", "class=\"note\"");
  return tag("section", tag("h2", "Errors, warnings and skips") + blocks, "id=\"problems\"") + "\n";
}

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

}  // namespace html

std::string html_report(const HtmlReport& report) {
  using namespace html;
  using svg::with_micro_sign;
  // The source of pairs and the manifest are shown as they are.
  const std::vector<Section> sections = {
      {"results", "Results", with_micro_sign(results_section(report))},
      {"sweeps", "Sweeps", with_micro_sign(sweep_section(report))},
      {"roofline", "Rooflines", report.is_brief ? "" : with_micro_sign(roofline_section(report))},
      {"against", "Against", with_micro_sign(against_section(report))},
      {"history", "History", with_micro_sign(history_section(report))},
      {"pairs", "Pairs", pairs_section(report)},
      {"problems", "Problems", with_micro_sign(problems_section(report))},
      {"manifest", "Manifest", manifest_section(report)}};
  std::string navigation = "<a href=\"#summary\">Summary</a>", body;
  for (const Section& section : sections) {
    if (section.content.empty()) continue;
    navigation += fmt::format("<a href=\"#{}\">{}</a>", section.id, section.title);
    body += section.content;
  }
  return filled(page_frame, {{"style-digest", allowed(page_style)},
                             {"picture-style-digest", allowed(picture_style)},
                             {"script-digest", allowed(page_script)},
                             {"run", escaped(report.run.manifest.run_id)},
                             {"style", page_style},
                             {"picture-style", picture_style},
                             {"script", page_script},
                             {"navigation", navigation},
                             {"summary", with_micro_sign(summary_part(report))},
                             {"sections", body}});
}

}  // namespace aisp::report
