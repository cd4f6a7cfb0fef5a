// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "evidence/profile/profile_difference.hpp"
#include "evidence/quantities.hpp"
#include "report/html/parts.hpp"
#include "report/html/text.hpp"
#include "report/markdown/markdown.hpp"
#include "report/numbers.hpp"

namespace aisp::report::html {
namespace {

using evidence::PairResult;
using evidence::VariantResult;

std::string error_text(double value) { return value > 0 ? fmt::format("{:.2e}", value) : "0"; }

std::string accuracy_text(const VariantResult& variant) {
  if (!variant.accuracy) return {};
  const evidence::Accuracy& a = *variant.accuracy;
  std::string text = fmt::format("{} (limit {})", error_text(a.relative_l2), error_text(a.limit_relative_l2));
  if (variant.changes_precision) text += fmt::format(", unquantized {}", error_text(a.unquantized_l2));
  return text;
}

// If a variant has no time, the reason takes the place of its figures.
std::string variant_row(const PairResult& pair, const VariantResult& variant) {
  const auto unbroken = [](const std::string& content) { return tag("td", content, "class=\"number\""); };
  std::string name = tag("b", breakable(variant.name));
  if (const std::string_view role = role_text(variant.role); !role.empty()) name += " " + tag("small", role);
  if (variant.not_run) name += " " + tag("small", not_run_text(variant));
  std::string cells = tag("td", name);
  if (!variant.timing && !variant.reason.empty())
    return tag("tr", cells + tag("td", badge(variant.status) + " " + escaped(variant.reason), "colspan=\"7\"")) + "\n";
  const evidence::Speedup* speedup = claimable(pair, variant);
  cells += unbroken(variant.timing ? time_text(variant.timing->summary.median) : "-");
  cells += unbroken(speedup != nullptr ? escaped(speedup_text(*speedup)) : "");
  cells += tag("td", speedup != nullptr ? badge(speedup->verdict)
                                        : badge(variant.status) + (variant.reason.empty() ? "" : " " + escaped(variant.reason)));
  cells += tag("td", variant.floor ? escaped(floor_text(*variant.floor)) : "");
  cells += tag("td", variant.floor ? escaped(variant.floor->held_back_by) : "");
  cells += unbroken(variant.prepare_ms > 0 ? time_text(variant.prepare_ms) : "");
  return tag("tr", cells + tag("td", accuracy_text(variant))) + "\n";
}

std::string variants_table(const PairResult& pair) {
  std::string rows;
  for (const VariantResult& variant : pair.variants) rows += variant_row(pair, variant);
  return table("variants of " + pair.target,
               {"variant", "median", "speedup, 95\u00a0% interval", "verdict", "of the lower bound", "limited by", "prepare",
                "relative error"},
               rows);
}

// Folded away; nothing without a result of that kind.
std::string folded_table(const PairResult& pair, std::string_view title, std::string_view label, const Rows& cells) {
  const std::string text = text_table(fmt::format("{} of {}", label, pair.target), cells);
  return text.empty() ? "" : folded(title, text);
}

Rows metric_rows(const PairResult& pair) {
  Rows rows{{"variant", "metric", "median", "better"}};
  for (const VariantResult& variant : pair.variants)
    for (const evidence::Metric& metric : variant.metrics)
      rows.push_back({variant.name, metric.name, base::significant(metric.summary.median, 4) + " " + metric.unit,
                      std::string{to_string(metric.better)}});
  return rows;
}

std::string how(const PairResult& pair) {
  const std::string text = timed_text(pair);
  return text.empty() ? "" : tag("p", escaped(text), "class=\"note\"");
}

// Best speedup, or how it ended, in a few words beside the name.
std::string result_in_short(const PairResult& pair) {
  if (pair.status != evidence::Status::passed) return badge(pair.status);
  const VariantResult* best = headline(pair);
  if (best == nullptr) return badge(pair.status);
  return badge(best->speedup->verdict) +
         fmt::format(" <span class=\"figure\">{}x</span>", base::significant(best->speedup->value));
}

std::string notes(const PairResult& pair) {
  std::string items;
  for (const evidence::Problem& problem : pair.problems)
    items += tag("li", tag("b", escaped(place_of(problem))) + ": " + escaped(problem.message) +
                           (problem.advice.empty() ? "" : "; " + escaped(problem.advice)));
  for (const std::string& warning : pair.warnings) items += tag("li", "Warning: " + escaped(warning));
  for (const std::string& note : pair.notes) items += tag("li", "Note: " + escaped(note));
  for (const evidence::Lost& lost : pair.lost) items += tag("li", "Not available here: " + escaped(lost.text));
  return items.empty() ? "" : tag("ul", items, "class=\"notes\"");
}

// A chapter's README tells of each of its pairs; pairs of one's own need not have one.
std::string lesson_place(const PairSource& source) {
  const auto of_a_chapter = [](const PaneSource& file) { return file.path.starts_with("chapters/"); };
  const auto file = std::ranges::find_if(source.files, of_a_chapter);
  if (file == source.files.end()) return {};
  const std::string folder = file->path.substr(0, file->path.rfind('/'));
  return tag("p", fmt::format("The lesson in full: <code>{}/README.md</code>", escaped(folder)), "class=\"note\"");
}

// Returns the parts that are large, and that readers open for a few of many pairs.
std::string inside(const PairResult& pair, const HtmlReport& report) {
  std::string text = pair.variants.empty() ? "" : variants_table(pair);
  text += profile_sentence_part(pair) + how(pair);
  if (report.is_brief) return svg::with_micro_sign(text);
  text += ladder(pair) + sample_strips(pair) + gpu_states(pair, report);
  text = svg::with_micro_sign(text);
  const auto source = report.sources.find(pair.target);
  if (source != report.sources.end()) text += lesson_place(source->second) + source_part(pair, source->second);
  std::string groups;
  for (const std::string_view group : evidence::quantity_groups)
    groups += folded_table(pair, group, group, quantity_rows(pair, group));
  const std::string more = profile_part(pair) + groups +
                           folded_table(pair, "Compiled kernels", "Compiled kernels", kernel_rows(pair)) +
                           folded_table(pair, "Metrics", "metrics", metric_rows(pair)) +
                           folded_table(pair, "Hardware counters", "hardware counters", counters_table(pair)) +
                           folded_table(pair, "Stages", "stages", stage_rows(pair));
  return more.empty() ? text : text + tag("h4", "More") + svg::with_micro_sign(more);
}

std::string pair_block(const PairResult& pair, const HtmlReport& report) {
  std::string body = tag("p", escaped(pair.teaches), "class=\"teaches\"");
  if (!pair.reason.empty()) body += tag("p", escaped(pair.reason), "class=\"reason\"");
  body = svg::with_micro_sign(body + notes(pair));
  if (const std::string more = inside(pair, report); !more.empty()) body += packed(more);
  return fmt::format(
      "<details class=\"pair\" id=\"{}\"><summary><h3>{}</h3> <span class=\"result\">{}</span> <span "
      "class=\"lesson\">{}</span></summary>\n{}</details>\n",
      id_of(label_in_run(pair)), breakable(label_of(pair)), result_in_short(pair), svg::with_micro_sign(escaped(pair.teaches)),
      tag("div", body, "class=\"body\""));
}

}  // namespace

std::string pairs_section(const HtmlReport& report) {
  std::string blocks;
  for (const PairResult* pair : by_chapter(report)) blocks += pair_block(*pair, report);
  return tag("section",
             tag("h2", "Pairs") +
                 tag("p",
                     report.is_brief
                         ? "Open a pair for all of its variants; aisp report RUN --html shows samples, clocks and source."
                         : "Open a pair for its samples, its clocks and its source.",
                     "class=\"note\"") +
                 blocks + source_files(report),
             "id=\"pairs\"") +
         "\n";
}

std::string profile_sentence_part(const evidence::PairResult& pair) {
  const std::string sentence = evidence::profile_sentence(pair);
  return sentence.empty() ? "" : tag("p", tag("b", "Profile: ") + escaped(sentence) + ".", "class=\"profile\"");
}

std::string profile_part(const evidence::PairResult& pair) {
  std::string text;
  for (const ProfileTable& each : profile_tables(pair)) {
    text += tag("h5", escaped(each.title)) + text_table(each.title + " of " + pair.target, each.rows);
  }
  return text.empty() ? "" : folded("Profile", text);
}

}  // namespace aisp::report::html
