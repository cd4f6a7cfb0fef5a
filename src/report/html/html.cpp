// SPDX-License-Identifier: Apache-2.0
#include "report/html/html.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/deflate.hpp"
#include "base/digest.hpp"
#include "base/text.hpp"
#include "evidence/run_summary.hpp"
#include "report/html/page_frame.hpp"
#include "report/html/parts.hpp"
#include "report/html/text.hpp"

namespace aisp::report {
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
  for (const std::string& warning : pair.warnings) items += tag("li", "Warning: " + escaped(warning));
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

// A machine without a GPU skips two hundred pairs for one reason, which is said once.
std::string skips_by_reason(const std::vector<const PairResult*>& pairs) {
  std::vector<std::pair<std::string, std::vector<std::string>>> reasons;
  for (const PairResult* pair : pairs) {
    if (pair->status != Status::skipped || !problem_items(*pair).empty()) continue;
    const auto known = std::ranges::find(reasons, pair->reason, [](const auto& entry) { return entry.first; });
    auto& entry = known != reasons.end() ? *known : reasons.emplace_back(pair->reason, std::vector<std::string>{});
    entry.second.push_back(linked(*pair));
  }
  std::string blocks;
  for (const auto& [reason, links] : reasons)
    blocks += tag("div",
                  tag("h3", badge(Status::skipped) + " " + base::plural(links.size(), "pair")) + tag("p", escaped(reason)) +
                      tag("p", base::join(links, ", ")),
                  "class=\"problem skipped\"") +
              "\n";
  return blocks;
}

// Lists problems before warnings, and both before what was not run.
std::string problems_section(const HtmlReport& report) {
  std::string blocks;
  std::vector<const PairResult*> pairs = by_chapter(report);
  std::stable_partition(pairs.begin(), pairs.end(), [](const PairResult* pair) { return pair->status != Status::passed; });
  for (const PairResult* listed : pairs) {
    const PairResult& pair = *listed;
    const std::string items = problem_items(pair);
    if (items.empty() && (pair.status == Status::passed || pair.status == Status::skipped)) continue;
    blocks +=
        tag("div",
            tag("h3", linked(pair) + " " +
                          (pair.status == Status::passed ? "<span class=\"badge unclear\">warning</span>" : badge(pair.status))) +
                (pair.reason.empty() ? "" : tag("p", escaped(pair.reason))) + (items.empty() ? "" : tag("ul", items)),
            fmt::format("class=\"problem {}\"", to_string(pair.status))) +
        "\n";
  }
  blocks += skips_by_reason(pairs);
  if (const std::vector<std::string> missing = without_result(report); !missing.empty())
    blocks +=
        tag("p",
            fmt::format("Selected but without a result: {}. The run was interrupted or goes on; aisp run --resume continues it.",
                        escaped(base::join(missing, ", "))),
            "class=\"reason\"");
  if (blocks.empty()) blocks = tag("p", "None: every pair passed without a warning.", "class=\"note\"");
  return tag("section", tag("h2", "Errors, warnings and skips") + blocks, "id=\"problems\"") + "\n";
}

}  // namespace html

std::string html_report(const HtmlReport& report) {
  using namespace html;
  using svg::with_micro_sign;
  // The source of pairs and the manifest are shown as they are.
  const std::vector<Section> sections = {{"results", "Results", with_micro_sign(results_section(report))},
                                         {"sweeps", "Sweeps", with_micro_sign(sweep_section(report))},
                                         {"roofline", "Rooflines", with_micro_sign(roofline_section(report))},
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
