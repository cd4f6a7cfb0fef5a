// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "base/text.hpp"
#include "evidence/quantities.hpp"
#include "evidence/run_summary.hpp"
#include "report/html/parts.hpp"
#include "report/html/text.hpp"
#include "report/numbers.hpp"

namespace aisp::report::html {
namespace {

using evidence::PairResult;
using evidence::VariantResult;

struct Column {
  const char* name;
  bool numeric;
};
constexpr std::array columns = {Column{"pair", false},          Column{"variant", false},   Column{"median", true},
                                Column{"speedup", true},        Column{"verdict", false},   Column{"of the lower bound", true},
                                Column{"of the library", true}, Column{"limited by", false}};

// data-v holds what a number sorts by, data-h the heading for narrow screens.
std::string cell(std::size_t column, const std::string& content, double value = NAN) {
  std::string attributes = fmt::format("data-h=\"{}\"", columns[column].name);
  if (columns[column].numeric) {
    attributes += " class=\"number\"";
    if (std::isfinite(value)) attributes += fmt::format(" data-v=\"{:.6g}\"", value);
  }
  return tag("td", content, attributes);
}

// One scale for all speedups of a run, from 1x to the greatest; logarithmic, as they differ by orders of magnitude.
class Scales {
 public:
  explicit Scales(const std::vector<PairResult>& pairs) {
    for (const PairResult& pair : pairs)
      for (const VariantResult& variant : pair.variants)
        if (const evidence::Speedup* speedup = claimable(pair, variant); speedup != nullptr && std::isfinite(speedup->value))
          greatest_ = std::max(greatest_, speedup->value);
  }
  double speedup(double value) const { return value > 1 && greatest_ > 1 ? std::log(value) / std::log(greatest_) * 100 : 0; }

 private:
  double greatest_ = 1;
};

// A picture beside its number, which says the same.
std::string bar(std::string_view css_class, double percent) {
  const double length = std::isfinite(percent) ? std::clamp(percent, 0.0, 100.0) : 0.0;
  return fmt::format(
      "<svg class=\"bar {}\" viewBox=\"0 0 100 1\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><path class=\"rest\" "
      "d=\"M0 0H100V1H0z\"/><path d=\"M0 0H{:.1f}V1H0z\"/></svg>",
      css_class, length);
}

std::string speedup_cell(const evidence::Speedup* speedup, const Scales& scales) {
  if (speedup == nullptr) return cell(3, "");
  return cell(3,
              bar(to_string(speedup->verdict), scales.speedup(speedup->value)) +
                  fmt::format("<b>{}x</b> <small>{} to {}</small>", base::significant(speedup->value),
                              base::significant(speedup->low), base::significant(speedup->high)),
              speedup->value);
}

std::string floor_cell(const PairResult& pair, const VariantResult& variant) {
  if (!variant.floor) return cell(5, "");
  const evidence::Floor& floor = *variant.floor;
  const std::string_view about = guess_mark(floor.ceiling_from);
  const auto gap = evidence::gap_closed(pair, variant);
  return cell(5,
              bar("floor", floor.percent) +
                  fmt::format("{}{:.0f}\u00a0% <small>{}</small>", about, floor.percent, escaped(floor.limiter)) +
                  (gap ? fmt::format(" <small>gap {}{:.0f}\u00a0% closed</small>", about, gap->value) : ""),
              floor.percent);
}

std::string library_cell(const PairResult& pair, const VariantResult& variant) {
  const std::optional<evidence::LibraryShare>& share = variant.library_share;
  if (!share || pair.status != evidence::Status::passed) return cell(6, "");
  return cell(
      6, bar("library", share->percent) + fmt::format("{:.0f}\u00a0% <small>{}</small>", share->percent, escaped(share->library)),
      share->percent);
}

std::string opened(const PairResult& pair, std::string_view outcome, std::string_view role, bool leads) {
  const bool wrong = pair.status != evidence::Status::passed && pair.status != evidence::Status::skipped;
  return fmt::format("<tr data-chapter=\"{}\" data-outcome=\"{}\" data-role=\"{}\"{}{}>", escaped(pair.chapter), outcome, role,
                     leads ? " data-leads=\"yes\"" : "", wrong ? " class=\"wrong\"" : "");
}

// Returns the reason of a pair that did not pass, in place of its figures.
std::string why(const PairResult& pair) { return tag("td", escaped(pair.reason), "class=\"reason\" colspan=\"3\""); }

std::string row_of(const PairResult& pair, const VariantResult& variant, bool leads, const Scales& scales) {
  const evidence::Speedup* speedup = claimable(pair, variant);
  const bool passed = pair.status == evidence::Status::passed;
  const std::string_view role = to_string(variant.role);
  const std::string outcome{speedup != nullptr ? to_string(speedup->verdict)
                            : !passed          ? to_string(pair.status)
                                               : to_string(variant.status)};
  const std::string shown = speedup != nullptr ? badge(speedup->verdict) : badge(passed ? variant.status : pair.status);
  const std::string rest = leads && !passed ? why(pair)
                                            : floor_cell(pair, variant) + library_cell(pair, variant) +
                                                  cell(7, variant.floor ? escaped(variant.floor->held_back_by) : "");
  return opened(pair, outcome, role, leads) + cell(0, link_to(pair)) +
         cell(1, breakable(variant.name) + fmt::format(" <small>{}</small>", escaped(standing_text(pair, variant)))) +
         cell(2, variant.timing ? time_text(variant.timing->summary.median) : "-",
              variant.timing ? variant.timing->summary.median : NAN) +
         speedup_cell(speedup, scales) + cell(4, shown) + rest + "</tr>\n";
}

// The variant that the pair is about first, then the rest as the pair has them.
std::string rows_of(const PairResult& pair, const Scales& scales, std::size_t most) {
  if (pair.variants.empty()) {
    return opened(pair, to_string(pair.status), "", true) + cell(0, link_to(pair)) + cell(1, "") + cell(2, "") + cell(3, "") +
           cell(4, badge(pair.status)) + why(pair) + "</tr>\n";
  }
  std::vector<const VariantResult*> variants;
  for (const VariantResult& variant : pair.variants) variants.push_back(&variant);
  std::stable_partition(variants.begin(), variants.end(), [&](const auto* v) { return v == headline(pair); });
  variants.resize(std::min(variants.size(), most));
  std::string text;
  for (const VariantResult* variant : variants) text += row_of(pair, *variant, variant == variants.front(), scales);
  return text;
}

std::string option(std::string_view value, std::string_view words) {
  return fmt::format("<option value=\"{}\">{}</option>", escaped(value), escaped(words));
}

using Chapters = std::map<std::string, std::vector<const PairResult*>>;

Chapters chapters_of(const HtmlReport& report) {
  Chapters chapters;
  for (const PairResult* pair : by_chapter(report)) chapters[pair->chapter].push_back(pair);
  return chapters;
}

// Hidden until the script, without which they would do nothing, shows them.
std::string controls(const Chapters& chapters) {
  std::string chapter_options = option("", "all chapters");
  for (const auto& [chapter, pairs] : chapters) chapter_options += option(chapter, chapter_title(chapter));
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
  std::string shown;
  for (const auto& [value, words] : {std::pair{"lesson", "one of each pair"},
                                     {"all", "all"},
                                     {"baseline", "baselines"},
                                     {"optimized", "other steps"},
                                     {"library", "libraries"},
                                     {"control", "controls"}})
    shown += option(value, words);
  return fmt::format(
      "<form class=\"controls\" id=\"controls\" hidden><label>Search <input id=\"search\" type=\"search\" placeholder=\"pair, "
      "variant, limit\"></label>"
      "<label>Chapter <select id=\"chapter\">{}</select></label><label>Outcome <select id=\"outcome\">{}</select></label>"
      "<label>Variants <select id=\"variants\">{}</select></label><button type=\"reset\">Clear</button>"
      "<output id=\"shown\" aria-live=\"polite\"></output></form>\n",
      chapter_options, outcomes, shown);
}

std::string chapter_head(const std::string& chapter, const std::vector<const PairResult*>& pairs) {
  evidence::SuiteResult suite;
  for (const PairResult* pair : pairs) suite.pairs.push_back(*pair);
  const evidence::SpeedupRange range = range_of_lessons(suite);
  std::string words = fmt::format("{} of {} passed", count(suite).passed, base::plural(pairs.size(), "pair"));
  if (range.count > 0) words += fmt::format(", geometric mean {}x", base::significant(range.geometric_mean));
  return fmt::format("<tr class=\"chapter\"><th colspan=\"{}\" scope=\"rowgroup\">{} <small>{}</small></th></tr>\n",
                     columns.size(), escaped(chapter_title(chapter)), words);
}

// `most`: rows of a pair.
std::string bodies_of(const Chapters& chapters, const Scales& scales, std::size_t most) {
  std::string bodies;
  for (const auto& [chapter, pairs] : chapters) {
    std::string rows = chapter_head(chapter, pairs);
    for (const PairResult* pair : pairs) rows += rows_of(*pair, scales, most);
    bodies += "<tbody>\n" + rows + "</tbody>\n";
  }
  return bodies;
}

}  // namespace

std::string results_section(const HtmlReport& report) {
  std::string head;
  for (const Column& column : columns)
    head += tag("th", column.name,
                fmt::format("scope=\"col\" data-type=\"{}\"{}", column.numeric ? "number" : "text",
                            column.numeric ? " class=\"number\"" : ""));
  const Scales scales{report.run.pairs};
  const Chapters chapters = chapters_of(report);
  return tag("section",
             tag("h2", "Results") + controls(chapters) +
                 fmt::format("<div class=\"results\"><table id=\"results-table\"><thead><tr>{}</tr></thead>\n{}</table></div>",
                             head, bodies_of(chapters, scales, 1)) +
                 stored("all-rows", svg::with_micro_sign(bodies_of(chapters, scales, std::numeric_limits<std::size_t>::max()))) +
                 "<p id=\"none\" class=\"note\" hidden>Nothing matches; clear the filter to see all.</p>" +
                 tag("p",
                     "A speedup is the ratio of medians with its 95\u00a0% interval within this run; its bar is logarithmic. The "
                     "lower "
                     "bound is the time that the declared work takes at the ceilings of this machine; ~ marks a ceiling that is "
                     "a guess. Above "
                     "98\u00a0% a variant is at its ceiling, and a little more than 100\u00a0% is the tolerance of the two "
                     "measurements. The gap is that between the baseline and the lower bound. The library was "
                     "timed in the same rounds. The variant shown is the one that teaches the pair's lesson.",
                     "class=\"note\""),
             "id=\"results\"") +
         "\n";
}

}  // namespace aisp::report::html
