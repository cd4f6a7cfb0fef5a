// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <map>
#include <set>

#include "base/text.hpp"
#include "report/markdown/markdown.hpp"
#include "report/markdown/sweep_markdown.hpp"
#include "report/numbers.hpp"
#include "report/quote.hpp"
#include "report/run_end.hpp"

namespace aisp::report {
namespace {

using evidence::PairResult;
using evidence::Status;
using evidence::SuiteResult;
using evidence::VariantResult;

std::string overview(const SuiteResult& suite) {
  const evidence::Counts counts = count(suite);
  std::set<std::string> chapters;
  for (const PairResult& pair : suite.pairs) chapters.insert(pair.chapter);
  MarkdownTable table{{"figure", "value"}};
  table.add({"chapters", std::to_string(chapters.size())});
  table.add({"pairs", std::to_string(suite.pairs.size())});
  table.add({"passed", std::to_string(counts.passed)});
  table.add({"failed", std::to_string(counts.failed)});
  table.add({"timed out", std::to_string(counts.timeout)});
  table.add({"crashed", std::to_string(counts.crashed)});
  table.add({"skipped", std::to_string(counts.skipped)});
  const SpeedupRange range = range_of_lessons(suite);
  if (range.count > 0) {
    table.add({"geometric mean of the lessons' speedups", base::significant(range.geometric_mean) + "x"});
    table.add({"best", fmt::format("{}x ({})", base::significant(range.best), range.best_target)});
    table.add({"worst", fmt::format("{}x ({})", base::significant(range.worst), range.worst_target)});
  }
  table.add({"time", base::human_duration(suite.wall_s)});
  return table.text();
}

std::string program_text(const evidence::Manifest& manifest) {
  return fmt::format("aisp {} ({}{})", manifest.aisp_version, manifest.commit.substr(0, 12), manifest.dirty ? ", modified" : "");
}

std::string machine_line(const evidence::Manifest& manifest) {
  std::vector<std::string> gpus;
  for (const evidence::ManifestGpu& gpu : manifest.gpus) gpus.push_back(gpu.name);
  const std::string gpu_text =
      gpus.empty() ? "no GPU (" + manifest.cuda_error + ")" : base::join(gpus, ", ") + ", driver " + manifest.driver_version;
  return fmt::format("{}; {}, {}", gpu_text, manifest.cpu, base::plural(static_cast<std::size_t>(manifest.cpus_usable), "CPU"));
}

std::string machine_lines(const evidence::Manifest& manifest) {
  if (manifest.machines.empty())
    return markdown_text(fmt::format("{}; {}", machine_line(manifest), program_text(manifest))) + '\n';
  std::string lines =
      markdown_text(fmt::format("Merged from {}; {}", base::plural(manifest.machines.size(), "shard"), program_text(manifest))) +
      "\n\n";
  for (const evidence::Manifest& machine : manifest.machines)
    lines += fmt::format("- {}\n", markdown_text(fmt::format("{}: {}", machine.machine, machine_line(machine))));
  return lines;
}

// Without the chapter.
std::string short_label(const PairResult& pair) { return label_of(pair).substr(pair.chapter.size() + 1); }

void add_rows(const PairResult& pair, MarkdownTable& table) {
  if (pair.status != Status::passed)
    return table.add({short_label(pair), "", "", "", "", "", "", "", std::string{to_string(pair.status)} + ": " + pair.reason});
  const std::string baseline = pair.variants.empty() ? "-" : median_text(pair.variants.front());
  for (const VariantResult& variant : pair.variants) {
    if (variant.role == evidence::VariantRole::baseline) continue;
    const evidence::Speedup* speedup = claimable(pair, variant);
    const std::string standing = standing_text(pair, variant);
    table.add({short_label(pair), variant.name + (standing.empty() ? "" : " (" + standing + ")"), baseline, median_text(variant),
               speedup != nullptr ? speedup_text(*speedup) : "-", gain_text(pair, variant), share_text(pair, variant),
               variant.floor ? floor_text(*variant.floor) : "",
               speedup != nullptr ? std::string{to_string(speedup->verdict)} : variant.reason});
  }
}

std::string chapters(const SuiteResult& suite) {
  std::map<std::string, MarkdownTable> tables;
  for (const PairResult& pair : suite.pairs) {
    const auto [table, added] = tables.try_emplace(
        pair.chapter, std::vector<std::string>{"pair", "variant", "baseline", "median", "speedup, 95 % interval", "gain",
                                               "of the library", "of its lower bound", "verdict"});
    add_rows(pair, table->second);
  }
  std::string text;
  const std::map<std::string, std::string> lines = chapter_sentences(suite);
  for (const auto& [chapter, table] : tables)
    text += fmt::format("\n## {}\n\n{}\n\n{}", chapter, markdown_text(lines.at(chapter)), table.text());
  return text;
}

std::string problems(const SuiteResult& suite) {
  MarkdownTable table{{"pair", "variant", "stage", "check", "what", "what to do"}};
  for (const PairResult& pair : suite.pairs)
    for (const evidence::Problem& problem : pair.problems)
      table.add({label_of(pair), problem.variant, std::string{to_string(problem.stage)}, problem.check, problem.message,
                 problem.advice});
  return table.empty() ? "" : "\n## Problems\n" + table.text();
}

std::string skips(const SuiteResult& suite) {
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const PairResult& pair : suite.pairs)
    if (pair.status == Status::skipped) by_reason[pair.reason].push_back(label_of(pair));
  std::string text;
  for (const auto& [reason, targets] : by_reason)
    text += fmt::format("- {}\n", markdown_text(reason + ": " + base::join(targets, ", ")));
  return text.empty() ? "" : "\n## Skipped\n" + text;
}

std::string losses(const SuiteResult& suite) {
  std::set<std::string> lost;
  for (const PairResult& pair : suite.pairs)
    for (const evidence::Lost& each : pair.lost) lost.insert(each.text);
  std::string text;
  for (const std::string& what : lost) text += fmt::format("- {}\n", markdown_text(what));
  return text.empty() ? "" : "\n## Not available on this machine\n" + text;
}

}  // namespace

std::string suite_markdown(const SuiteResult& suite, const evidence::Manifest& manifest) {
  return fmt::format("# aisp run {}\n\n{}\n{}{}{}{}{}{}{}", suite.run_id, machine_lines(manifest),
                     suite.interrupted ? "The run was interrupted; this is what was done until then.\n\n" : "", overview(suite),
                     sweep_markdown(suite), chapters(suite), problems(suite), skips(suite), losses(suite));
}

}  // namespace aisp::report
