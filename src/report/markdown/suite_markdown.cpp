// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <map>
#include <set>

#include "base/text.hpp"
#include "report/markdown/markdown.hpp"
#include "report/numbers.hpp"
#include "report/quote.hpp"
#include "report/run_end.hpp"
#include "report/warnings.hpp"

namespace aisp::report {
namespace {

using evidence::PairResult;
using evidence::Status;
using evidence::SuiteResult;
using evidence::VariantResult;

// "3.18x", "-" without any.
std::string mean_text(const evidence::SpeedupRange& range) {
  return range.count > 0 ? base::significant(range.geometric_mean) + "x" : "-";
}

std::string end_text(double speedup, const std::string& target) {
  return target.empty() ? "-" : fmt::format("{}x ({})", base::significant(speedup), target);
}

std::string overview(const evidence::RunSummary& summary) {
  const evidence::Outcomes& outcomes = summary.outcomes;
  MarkdownTable table{{"figure", "value"}};
  table.add({"chapters tested", fmt::format("{} of {}", summary.chapters_tested(), summary.chapters.size())});
  for (const auto& [words, number] : {std::pair{"pairs selected", outcomes.selected},
                                      {"passed", outcomes.passed},
                                      {"failed", outcomes.failed},
                                      {"timed out", outcomes.timed_out},
                                      {"crashed", outcomes.crashed},
                                      {"skipped", outcomes.skipped},
                                      {"interrupted", outcomes.interrupted},
                                      {"not started", outcomes.not_started}})
    table.add({words, std::to_string(number)});
  const evidence::SpeedupRange& all = summary.speedups;
  if (all.count > 0) {
    table.add({"geometric mean of the lessons' speedups", mean_text(all)});
    if (summary.gpu_speedups.count > 0 && summary.host_speedups.count > 0)
      table.add({"of GPU pairs, of host pairs", mean_text(summary.gpu_speedups) + ", " + mean_text(summary.host_speedups)});
    table.add({"best", end_text(all.best, all.best_target)});
    table.add({"worst", end_text(all.worst, all.worst_target)});
    table.add({"faster, cannot tell, slower", fmt::format("{}, {}, {}", summary.faster, summary.cannot_tell, summary.slower)});
  }
  const auto left_out = [](int number, std::string_view why) {
    return number > 0 ? fmt::format("; {} not counted: {}", number, why) : std::string{};
  };
  if (summary.limit.of + summary.limit.guessed > 0)
    table.add({fmt::format("best variants at {:.0f} % of their lower bound or more", evidence::near_limit_percent),
               fmt::format("{} of {}{}", summary.limit.near, summary.limit.of,
                           left_out(summary.limit.guessed, "the ceiling is a guess"))});
  if (summary.library.of + summary.library.slow_libraries > 0)
    table.add(
        {"best variants level with a library or faster",
         fmt::format("{} of {}{}", summary.library.level, summary.library.of,
                     left_out(summary.library.slow_libraries, "the library is slower than the baseline or does other work"))});
  table.add({"time", base::human_duration(summary.wall_s)});
  return table.text();
}

// A line a chapter; a run of one chapter has said all.
std::string chapter_overview(const evidence::RunSummary& summary) {
  if (summary.chapters.size() < 2) return {};
  MarkdownTable table{{"chapter", "pairs", "passed", "failed", "skipped", "geometric mean", "best", "worst"}};
  for (const evidence::ChapterSummary& chapter : summary.chapters) {
    const evidence::Outcomes& o = chapter.outcomes;
    const evidence::SpeedupRange& range = chapter.speedups;
    table.add({chapter.chapter, std::to_string(o.selected), std::to_string(o.passed),
               std::to_string(o.failed + o.timed_out + o.crashed), std::to_string(o.skipped + o.unfinished()), mean_text(range),
               end_text(range.best, range.best_target), end_text(range.worst, range.worst_target)});
  }
  return "\n" + table.text();
}

// Sentences that a reader must know before the figures.
std::string banners(const evidence::RunSummary& summary) {
  std::string text;
  for (const std::string& sentence : {ended_early_text(summary), guessed_ceilings_text(summary)})
    if (!sentence.empty()) text += fmt::format("**{}**\n\n", markdown_text(sentence + "."));
  return text;
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
    return table.add({short_label(pair), "", "", "", "", "", "", "", std::string{outcome_of(pair)} + ": " + pair.reason});
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

std::string chapters(const SuiteResult& suite, const evidence::RunSummary& summary) {
  std::map<std::string, MarkdownTable> tables;
  for (const PairResult& pair : suite.pairs) {
    const auto [table, added] = tables.try_emplace(
        pair.chapter, std::vector<std::string>{"pair", "variant", "baseline", "median", "speedup, 95 % interval", "gain",
                                               "of the library", "of its lower bound", "verdict"});
    add_rows(pair, table->second);
  }
  std::string text;
  for (const evidence::ChapterSummary& chapter : summary.chapters)
    if (const auto table = tables.find(chapter.chapter); table != tables.end())
      text += fmt::format("\n## {}\n\n{}\n\n{}", chapter.chapter, markdown_text(chapter_sentence(chapter)), table->second.text());
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

std::string remarks(std::string_view title, const std::vector<Said>& all) {
  std::string text;
  for (const Said& each : all) {
    std::vector<std::string> labels;
    for (const PairResult* pair : each.pairs) labels.push_back(label_of(*pair));
    text += fmt::format("- {}\n", markdown_text(fmt::format("{} ({})", each.text, base::join(labels, ", "))));
  }
  return text.empty() ? "" : fmt::format("\n## {}\n{}", title, text);
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
  const evidence::RunSummary summary = evidence::summarize(suite, manifest);
  return fmt::format("# aisp run {}\n\n{}{}\nStarted {}.\n\n{}{}{}{}{}{}{}{}{}", suite.run_id, banners(summary),
                     machine_lines(manifest), suite.started_utc, overview(summary), chapter_overview(summary),
                     sweep_markdown(suite), chapters(suite, summary), problems(suite), skips(suite),
                     remarks("Warnings", warnings_of(suite.pairs)), remarks("Notes", notes_of(suite.pairs)), losses(suite));
}

}  // namespace aisp::report
