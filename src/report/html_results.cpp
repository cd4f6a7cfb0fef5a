// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <set>

#include "base/text.hpp"
#include "report/html_parts.hpp"
#include "report/html_text.hpp"
#include "report/numbers.hpp"

namespace aisp::report::html {
namespace {

using evidence::PairResult;
using evidence::VariantResult;

struct Column {
  const char* name;
  bool numeric;
};
constexpr std::array columns = {Column{"pair", false},    Column{"variant", false},     Column{"role", false},
                                Column{"median", true},   Column{"speedup", true},      Column{"verdict", false},
                                Column{"of floor", true}, Column{"held back by", false}};

// data-v holds what a number sorts by, data-h the heading for narrow screens.
std::string cell(std::size_t column, const std::string& content, double value = NAN) {
  std::string attributes = fmt::format("data-h=\"{}\"", columns[column].name);
  if (columns[column].numeric) {
    attributes += " class=\"number\"";
    if (std::isfinite(value)) attributes += fmt::format(" data-v=\"{:.6g}\"", value);
  }
  return tag("td", content, attributes);
}

std::string row_of(const PairResult& pair, const std::string& cells, std::string_view outcome, std::string_view role) {
  const bool wrong = pair.status != evidence::Status::passed && pair.status != evidence::Status::skipped;
  return fmt::format("<tr data-chapter=\"{}\" data-outcome=\"{}\" data-role=\"{}\"{}>{}</tr>\n", escaped(pair.chapter), outcome,
                     role, wrong ? " class=\"wrong\"" : "", cells);
}

std::string link_to(const PairResult& pair) {
  return fmt::format("<a href=\"#{}\">{}</a>", id_of(label_in_run(pair)), escaped(label_of(pair)));
}

std::string row_of(const PairResult& pair, const VariantResult& variant) {
  const evidence::Speedup* speedup = claimable(pair, variant);
  const bool is_best = !pair.best.empty() && variant.name == pair.best && speedup != nullptr;
  const std::string role = is_best ? "best" : std::string{to_string(variant.role)};
  const std::string outcome{speedup != nullptr                        ? to_string(speedup->verdict)
                            : pair.status != evidence::Status::passed ? to_string(pair.status)
                                                                      : to_string(variant.status)};
  const std::string shown = speedup != nullptr ? badge(speedup->verdict)
                                               : badge(pair.status != evidence::Status::passed ? pair.status : variant.status);
  const auto& floor = variant.floor;
  return row_of(pair,
                cell(0, link_to(pair)) + cell(1, escaped(variant.name)) + cell(2, role) +
                    cell(3, median_text(variant), variant.timing ? variant.timing->summary.median : NAN) +
                    cell(4,
                         speedup != nullptr ? fmt::format("<b>{}x</b> <small>{} to {}</small>", base::significant(speedup->value),
                                                          base::significant(speedup->low), base::significant(speedup->high))
                                            : "",
                         speedup != nullptr ? speedup->value : NAN) +
                    cell(5, shown) +
                    cell(6, floor ? fmt::format("{:.0f} % <small>{}</small>", floor->percent, escaped(floor->limiter)) : "",
                         floor ? floor->percent : NAN) +
                    cell(7, floor ? escaped(floor->held_back_by) : ""),
                outcome, role);
}

std::string rows(const HtmlReport& report) {
  std::string text;
  for (const PairResult& pair : report.run.pairs) {
    for (const VariantResult& variant : pair.variants) text += row_of(pair, variant);
    if (pair.variants.empty())
      text += row_of(pair,
                     cell(0, link_to(pair)) + cell(1, "") + cell(2, "") + cell(3, "") + cell(4, "") +
                         cell(5, badge(pair.status)) + cell(6, "") + cell(7, escaped(pair.reason)),
                     to_string(pair.status), "");
  }
  return text;
}

std::string option(std::string_view value, std::string_view words) {
  return fmt::format("<option value=\"{}\">{}</option>", escaped(value), escaped(words));
}

// Hidden until the script, without which they would do nothing, shows them.
std::string controls(const HtmlReport& report) {
  std::set<std::string> chapters;
  for (const PairResult& pair : report.run.pairs) chapters.insert(pair.chapter);
  std::string chapter_options = option("", "all chapters");
  for (const std::string& chapter : chapters) chapter_options += option(chapter, chapter);
  std::string outcomes = option("", "any outcome");
  for (const auto& [value, words] : {std::pair{"faster", "faster"},
                                     {"slower", "slower"},
                                     {"cannot_tell", "cannot tell"},
                                     {"passed", "passed, no speedup"},
                                     {"failed", "failed"},
                                     {"timeout", "timed out"},
                                     {"crashed", "crashed"},
                                     {"skipped", "skipped"}})
    outcomes += option(value, words);
  std::string roles = option("", "all variants");
  for (const auto& [value, words] : {std::pair{"best", "best only"},
                                     {"baseline", "baselines"},
                                     {"optimized", "other optimized"},
                                     {"library", "libraries"},
                                     {"control", "controls"}})
    roles += option(value, words);
  return fmt::format(
      "<form class=\"controls\" id=\"controls\" hidden><label>Search <input id=\"search\" type=\"search\" placeholder=\"pair, "
      "variant, limit\"></label>"
      "<label>Chapter <select id=\"chapter\">{}</select></label><label>Outcome <select id=\"outcome\">{}</select></label>"
      "<label>Variants <select id=\"role\">{}</select></label><button type=\"reset\">Clear</button>"
      "<output id=\"shown\" aria-live=\"polite\"></output></form>\n",
      chapter_options, outcomes, roles);
}

}  // namespace

std::string results_section(const HtmlReport& report) {
  std::string head;
  for (const Column& column : columns)
    head += tag("th", column.name,
                fmt::format("scope=\"col\" data-type=\"{}\"{}", column.numeric ? "number" : "text",
                            column.numeric ? " class=\"number\"" : ""));
  return tag("section",
             tag("h2", "Results") + controls(report) +
                 fmt::format("<div class=\"scroll\"><table "
                             "id=\"results-table\"><thead><tr>{}</tr></thead><tbody>\n{}</tbody></table></div>",
                             head, rows(report)) +
                 "<p id=\"none\" class=\"note\" hidden>Nothing matches; clear the filter to see all.</p>",
             "id=\"results\"") +
         "\n";
}

}  // namespace aisp::report::html
