// SPDX-License-Identifier: Apache-2.0
#include "report/html.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/digest.hpp"
#include "base/text.hpp"
#include "report/html_parts.hpp"
#include "report/html_text.hpp"
#include "report/numbers.hpp"
#include "report/sweep.hpp"

namespace aisp::report {
namespace html {
namespace {

using evidence::PairResult;
using evidence::Status;

evidence::SuiteResult suite_of(const HtmlReport& report) {
  evidence::SuiteResult suite;
  suite.pairs = report.run.pairs;
  return suite;
}

std::string tile(std::string_view figure, std::string_view words, std::string_view css_class = {}) {
  return fmt::format("<div class=\"tile {}\"><strong>{}</strong><span>{}</span></div>", css_class, figure, words);
}

std::string verdict_tiles(const HtmlReport& report) {
  int faster = 0, slower = 0, open = 0;
  for (const PairResult& pair : report.run.pairs)
    if (const evidence::VariantResult* best = evidence::best_variant(pair)) {
      const evidence::Verdict verdict = best->speedup->verdict;
      ++(verdict == evidence::Verdict::faster ? faster : verdict == evidence::Verdict::slower ? slower : open);
    }
  if (faster + slower + open == 0) return {};
  return tile(fmt::format("{} / {} / {}", faster, open, slower), "faster / cannot tell / slower");
}

std::string tiles(const HtmlReport& report) {
  const evidence::SuiteResult suite = suite_of(report);
  const evidence::Counts counts = count(suite);
  const SpeedupRange range = range_of_lessons(suite);
  std::string text;
  if (range.count > 0) {
    const auto link = [](const std::string& target) {
      return fmt::format("<a href=\"#{}\">{}</a>", id_of(target), escaped(target));
    };
    text += tile(base::significant(range.geometric_mean) + "x", "geometric mean of the lessons' speedups", "main");
    text += tile(base::significant(range.best) + "x", "most: " + link(range.best_target));
    text += tile(base::significant(range.worst) + "x", "least: " + link(range.worst_target));
    text += verdict_tiles(report);
  }
  text += tile(fmt::format("{} of {}", counts.passed, suite.pairs.size()), "pairs passed");
  const int wrong = counts.failed + counts.timeout + counts.crashed;
  if (wrong > 0)
    text += tile(std::to_string(wrong),
                 fmt::format("<a href=\"#problems\">{} failed, {} timed out, {} crashed</a>", counts.failed, counts.timeout,
                             counts.crashed),
                 "bad");
  if (counts.skipped > 0) text += tile(std::to_string(counts.skipped), "<a href=\"#problems\">skipped</a>");
  return tag("div", text, "class=\"tiles\"");
}

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
    const std::string where = problem.stage + (problem.variant.empty() ? "" : ", " + problem.variant) +
                              (problem.check.empty() ? "" : ", " + problem.check);
    items += tag(
        "li", tag("b", escaped(where)) + ": " + escaped(problem.message) +
                  (problem.advice.empty() ? "" : fmt::format("<br><span class=\"advice\">{}</span>", escaped(problem.advice))));
  }
  if (!pair.timeout_stage.empty())
    items += tag("li", escaped(fmt::format("stage {} ran {} of {} allowed", pair.timeout_stage,
                                           base::human_duration(pair.timeout_duration_seconds),
                                           base::human_duration(pair.timeout_limit_seconds))));
  for (const evidence::VariantResult& variant : pair.variants)
    if (variant.status != Status::passed && !variant.reason.empty() && pair.status != Status::skipped)
      items += tag("li", tag("b", escaped(variant.name)) + " " + badge(variant.status) + " " + escaped(variant.reason));
  for (const std::string& warning : pair.warnings) items += tag("li", "Warning: " + escaped(warning));
  return items;
}

std::string base64(const std::string& hex) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string result;
  unsigned bits = 0, count = 0;
  for (const char c : hex) {
    bits = bits << 4 | static_cast<unsigned>(c <= '9' ? c - '0' : c - 'a' + 10);
    if (count += 4; count < 6) continue;
    count -= 6;
    result += digits[bits >> count & 63];
  }
  if (count > 0) result += digits[bits << (6 - count) & 63];
  while (result.size() % 4 != 0) result += '=';
  return result;
}

std::string allowed(const std::string& content) { return "'sha256-" + base64(base::sha256_hex(content)) + "'"; }

// Nothing may be loaded, and no style or script may run but the page's own: text of a result that escaped its quotes would still
// do nothing.
std::string head(const HtmlReport& report) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src {}; script-src {}; "
      "base-uri 'none'; form-action 'none'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light "
      "dark\">\n"
      "<title>aisp {}</title>\n<style>{}</style>\n</head>\n",
      allowed(page_style) + " " + allowed(roofline_style), allowed(page_script), escaped(report.run.manifest.run_id), page_style);
}

}  // namespace

std::string summary_section(const HtmlReport& report) {
  const evidence::Manifest& m = report.run.manifest;
  double pairs_s = 0;
  for (const PairResult& pair : report.run.pairs) pairs_s += pair.wall_s;
  std::string lines = tag("p", escaped(machine_line(m)));
  lines += tag("p",
               escaped(fmt::format("Started {}, {} in pairs; aisp {} ({}{})", m.started_utc, base::human_duration(pairs_s),
                                   m.aisp_version, m.commit.substr(0, 12), m.dirty ? ", modified" : "")),
               "class=\"note\"");
  for (const std::string& warning : report.run.warnings) lines += tag("p", escaped(warning), "class=\"reason\"");
  return tag("header", tag("h1", "Run " + escaped(m.run_id)) + lines + tiles(report), "id=\"summary\"") + "\n";
}

std::string problems_section(const HtmlReport& report) {
  std::string blocks;
  for (const PairResult& pair : report.run.pairs) {
    const std::string items = problem_items(pair);
    if (pair.status == Status::passed && items.empty()) continue;
    blocks += tag("div",
                  tag("h3", fmt::format("<a href=\"#{}\">{}</a> ", id_of(label_in_run(pair)), escaped(label_of(pair))) +
                                badge(pair.status)) +
                      (pair.reason.empty() ? "" : tag("p", escaped(pair.reason))) + (items.empty() ? "" : tag("ul", items)),
                  fmt::format("class=\"problem {}\"", to_string(pair.status))) +
              "\n";
  }
  if (const std::vector<std::string> missing = without_result(report); !missing.empty())
    blocks +=
        tag("p",
            fmt::format("Selected but without a result: {}. The run was interrupted or goes on; aisp run --resume continues it.",
                        escaped(base::join(missing, ", "))),
            "class=\"reason\"");
  if (blocks.empty()) blocks = tag("p", "None: every pair passed without a warning.", "class=\"note\"");
  return tag("section", tag("h2", "Errors, warnings and skips") + blocks, "id=\"problems\"") + "\n";
}

std::string sweep_section(const HtmlReport& report) {
  std::string text;
  for (const SweepTable& sweep : sweep_tables(report.run.pairs)) {
    std::string rows;
    for (std::size_t i = 1; i < sweep.rows.size(); ++i) {
      std::vector<std::string> safe;
      for (const std::string& content : sweep.rows[i]) safe.push_back(escaped(content));
      rows += row(safe);
    }
    text += tag("h3", escaped(sweep.target)) + table("sweep of " + sweep.target, sweep.rows.front(), rows);
  }
  return text.empty() ? "" : tag("section", tag("h2", "Sweeps") + text, "id=\"sweeps\"") + "\n";
}

std::string roofline_section(const HtmlReport& report) {
  std::string text;
  for (const Roofline& roofline : report.rooflines) {
    if (roofline.drawn() > 0)
      text += tag("div", roofline_svg(roofline),
                  fmt::format("class=\"scroll figure\" tabindex=\"0\" role=\"region\" aria-label=\"roofline of {}\"",
                              escaped(roofline.hardware)));
    const std::vector<std::vector<std::string>> cells = roofline_rows(roofline);
    std::string rows;
    for (std::size_t i = 1; i < cells.size(); ++i) {
      std::vector<std::string> safe;
      for (const std::string& content : cells[i]) safe.push_back(escaped(content));
      rows += row(safe);
    }
    if (!rows.empty())
      text += folded(fmt::format("As a table: {}", escaped(roofline.hardware)),
                     table("rates on " + roofline.hardware, cells.front(), rows));
  }
  if (text.empty()) text = tag("p", "No pair passed and was timed, so there is nothing to draw.", "class=\"note\"");
  return tag("section", tag("h2", "Roofline") + text, "id=\"roofline\"") + "\n";
}

}  // namespace html

std::string html_report(const HtmlReport& report) {
  using namespace html;
  const std::string navigation =
      "<nav aria-label=\"sections\"><a href=\"#summary\">Summary</a><a href=\"#results\">Results</a><a "
      "href=\"#roofline\">Roofline</a>"
      "<a href=\"#pairs\">Pairs</a><a href=\"#problems\">Problems</a><a href=\"#manifest\">Manifest</a></nav>\n";
  return head(report) + "<body>\n" + navigation + "<main>\n" + summary_section(report) + results_section(report) +
         sweep_section(report) + roofline_section(report) + pairs_section(report) + problems_section(report) +
         manifest_section(report) + "</main>\n" + tag("script", page_script) + "\n</body>\n</html>\n";
}

}  // namespace aisp::report
