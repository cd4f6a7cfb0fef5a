// SPDX-License-Identifier: Apache-2.0
#include "report/markdown/chapter_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "report/markdown/markdown.hpp"
#include "report/numbers.hpp"
#include "report/quote.hpp"

namespace aisp::report {
namespace {

using evidence::Expectations;
using evidence::ExpectedPair;
using evidence::ExpectedVariant;
using evidence::Recorded;
using evidence::RecordedMetrics;

std::string speedup_of(const ExpectedVariant& variant) {
  return speedup_text({variant.speedup, variant.speedup_low, variant.speedup_high, {}});
}

// "device_scalars 2.80x, captured_graph 5.25x (1.36x)": what a step brings over the one before it stands behind it, and over
// which one where that is another.
std::string steps_of(const KnownPair& known, const ExpectedPair& pair) {
  if (known.steps.size() < 2) return {};
  std::vector<std::string> texts;
  std::string before = pair.baseline;
  for (const KnownPair::Step& step : known.steps) {
    const auto found = pair.variants.find(step.name);
    if (found == pair.variants.end()) continue;
    std::string text = fmt::format("{} {}x", step.name, base::significant(found->second.speedup));
    const auto gain = evidence::speed_over(pair, step.name, step.gains_over);
    if (gain && step.gains_over != pair.baseline)
      text += fmt::format(" ({}x{})", base::significant(*gain), step.gains_over == before ? "" : " over " + step.gains_over);
    texts.push_back(std::move(text));
    before = step.name;
  }
  return base::join(texts, ", ");
}

std::string all_of(const ExpectedPair& pair, evidence::VariantRole role) {
  std::vector<std::string> texts;
  for (const auto& [name, variant] : pair.variants)
    if (variant.role == role) texts.push_back(fmt::format("{} {}x", name, base::significant(variant.speedup)));
  return base::join(texts, ", ");
}

// "61 % of cublas, wgmma 89 %": the lesson's, then the best variant's where that is nearer to its library.
std::string shares_of(const KnownPair& known, const ExpectedPair& pair) {
  const auto share_of = [&](const std::string& variant, const std::string& library) {
    return evidence::speed_over(pair, variant, library).value_or(0);
  };
  const std::string library = fastest_library(known, pair, known.lesson);
  if (library.empty()) return {};
  const double share = share_of(known.lesson, library);
  std::string text = fmt::format("{:.0f} % of {}", 100 * share, library);
  const std::string best = evidence::best_variant(pair), beside_best = fastest_library(known, pair, best);
  if (best == known.lesson || beside_best.empty() || share_of(best, beside_best) <= share) return text;
  text += fmt::format(", {} {:.0f} %", best, 100 * share_of(best, beside_best));
  return beside_best == library ? text : text + " of " + beside_best;
}

// "tokens_per_second 1.20M to 3.40M tokens/s": from the baseline to the best variant, which is named where the lesson is another.
// What is the same of both is left out: a pair may report its registers and shared memory, few of which its lesson is about.
std::string metrics_of(const ExpectedPair& pair) {
  const std::string best = evidence::best_variant(pair);
  if (best.empty()) return {};
  const RecordedMetrics &before = pair.baseline_metrics, &after = pair.variants.at(best).metrics;
  RecordedMetrics all = after;
  all.insert(before.begin(), before.end());
  const auto number_in = [](const RecordedMetrics& metrics, const std::string& name) {
    const auto found = metrics.find(name);
    return found == metrics.end() ? "-" : metric_number(found->second);
  };
  std::vector<std::string> texts;
  for (const auto& [name, metric] : all) {
    const std::string from = number_in(before, name), to = number_in(after, name);
    if (from != to) texts.push_back(fmt::format("{} {} to {}{}{}", name, from, to, metric.unit.empty() ? "" : " ", metric.unit));
  }
  if (texts.empty()) return {};
  return (best == pair.lesson ? "" : best + ": ") + base::join(texts, ", ");
}

std::string when(const Recorded& recorded, bool stale) {
  // Nobody could find the code of a commit with changes.
  const bool changed = recorded.commit.ends_with("+changes");
  return fmt::format("{} at {}{}{}", recorded.date_utc.substr(0, 10), recorded.commit.substr(0, 9),
                     changed ? " with changes" : "", stale ? " (**stale**)" : "");
}

// A pair on one kind of hardware; none where it is not measured yet.
struct Row {
  const KnownPair& known;
  std::string hardware;
  const ExpectedPair* pair = nullptr;
};

std::vector<Row> rows_of(const std::string& chapter, const std::vector<KnownPair>& chapter_pairs,
                         const std::vector<Expectations>& all) {
  std::vector<Row> rows;
  for (const KnownPair& known : chapter_pairs) {
    const std::size_t before = rows.size();
    for (const Expectations& expectations : all) {
      const auto pair = expectations.pairs.find(known.name);
      if (expectations.chapter == chapter && pair != expectations.pairs.end())
        rows.push_back({known, expectations.hardware, &pair->second});
    }
    if (rows.size() == before) rows.push_back({known, {}, nullptr});
  }
  return rows;
}

void add_row(MarkdownTable& table, const KnownPair& known, const std::string& hardware, const ExpectedPair& pair,
             bool with_metrics) {
  std::vector<std::string> cells{known.name, known.teaches, base::display_ms(pair.baseline_median_ms)};
  if (const auto lesson = pair.variants.find(known.lesson); lesson != pair.variants.end()) {
    const auto& [name, variant] = *lesson;
    const std::string metric = pair.judged_by == "time" ? "" : " of " + pair.judged_by;
    cells.push_back(fmt::format("{} {}", name, base::display_ms(variant.median_ms)));
    cells.push_back(speedup_of(variant) + metric);
    cells.push_back(variant.percent_of_floor ? fmt::format("{:.0f} %", *variant.percent_of_floor) : "-");
    cells.push_back(shares_of(known, pair));
  } else {
    cells.insert(cells.end(), {"-", "-", "-", ""});
  }
  cells.push_back(steps_of(known, pair));
  cells.push_back(all_of(pair, evidence::VariantRole::control));
  cells.push_back(all_of(pair, evidence::VariantRole::library));
  if (with_metrics) cells.push_back(metrics_of(pair));
  cells.push_back(hardware);
  cells.push_back(when(pair.recorded, is_stale(known, pair)));
  table.add(std::move(cells));
}

constexpr std::string_view what_columns_say =
    "Medians; speedup of the variant that shows the lesson over the baseline, with the interval that 95 % of further runs fall "
    "into; of its floor: part of the least time that the machine's ceilings allow; of the library: its speed in percent of the "
    "fastest one's, then the best variant's where that is more; steps: all variants in their order, each with its speedup over "
    "the baseline and, in brackets, over the one "
    "before it or the one named";
constexpr std::string_view what_metrics_say =
    "; metrics: what else the pair measures and the baseline and the best variant differ in, from the one to the other, which is "
    "named where it is not the lesson";
constexpr const char* how_to_measure_again =
    "Stale: the code changed after the measurement; `aisp run --targets {} --update-expectations` measures it again.";

// What the rows came to need below the table.
struct Footnotes {
  std::vector<std::string> machines;
  bool metrics = false, stale = false;

  void note(const KnownPair& known, const std::string& hardware, const ExpectedPair& pair) {
    const std::string machine = fmt::format("{}: {}", markdown_text(hardware), markdown_text(machine_text(pair.recorded)));
    if (std::find(machines.begin(), machines.end(), machine) == machines.end()) machines.push_back(machine);
    stale = stale || is_stale(known, pair);
  }

  std::string text(const std::string& chapter) const {
    if (machines.empty()) return {};
    std::string lines = "\n" + paragraph(fmt::format("{}{}.", what_columns_say, metrics ? what_metrics_say : ""));
    lines += "\n" + paragraph(base::join(machines, "; "));
    if (stale) lines += "\n" + paragraph(fmt::format(how_to_measure_again, chapter));
    return lines;
  }
};

struct Line {
  std::size_t begin = 0, end = 0;  // without its line feed
};

std::vector<Line> lines_equal_to(const std::string& text, std::string_view wanted) {
  std::vector<Line> found;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (base::trim(std::string_view{text}.substr(begin, end - begin)) == wanted) found.push_back({begin, end});
    begin = end + 1;
  }
  return found;
}

}  // namespace

std::string fastest_library(const KnownPair& known, const ExpectedPair& recorded, const std::string& variant) {
  const auto step = std::ranges::find(known.steps, variant, &KnownPair::Step::name);
  std::string fastest;
  if (step == known.steps.end()) return fastest;
  for (const std::string& library : step->libraries)
    if (recorded.variants.contains(library) &&
        (fastest.empty() || evidence::speed_over(recorded, library, fastest).value_or(0) > 1))
      fastest = library;
  return fastest;
}

bool is_stale(const KnownPair& known, const ExpectedPair& expected) {
  return std::find(known.source_digests.begin(), known.source_digests.end(), expected.source_digest) ==
         known.source_digests.end();
}

std::string chapter_table(const std::string& chapter, const std::vector<KnownPair>& chapter_pairs,
                          const std::vector<Expectations>& all) {
  if (chapter_pairs.empty()) return "This chapter has no pairs yet.\n";
  const std::vector<Row> rows = rows_of(chapter, chapter_pairs, all);
  Footnotes footnotes;
  footnotes.metrics = std::ranges::any_of(rows, [](const Row& row) { return row.pair && !metrics_of(*row.pair).empty(); });
  std::vector<std::string> columns{"pair",         "what it teaches", "baseline", "lesson",   "speedup, 95 % interval",
                                   "of its floor", "of the library",  "steps",    "controls", "libraries"};
  if (footnotes.metrics) columns.emplace_back("metrics");
  columns.insert(columns.end(), {"hardware", "recorded"});
  MarkdownTable table{std::move(columns)};
  for (const Row& row : rows) {
    if (row.pair == nullptr) {
      table.add({row.known.name, row.known.teaches, "not measured yet"});
      continue;
    }
    add_row(table, row.known, row.hardware, *row.pair, footnotes.metrics);
    footnotes.note(row.known, row.hardware, *row.pair);
  }
  return table.text() + footnotes.text(chapter);
}

std::string with_table(const std::string& readme, const std::string& table, const std::string& place) {
  const std::vector<Line> begins = lines_equal_to(readme, table_begin), ends = lines_equal_to(readme, table_end);
  if (begins.size() != 1 || ends.size() != 1 || ends.front().begin < begins.front().begin)
    throw base::Error{base::Exit::usage,
                      fmt::format("{}: the table's place is not marked; put the lines {} and {} where it belongs, once and in "
                                  "this order",
                                  place, table_begin, table_end)};
  return fmt::format("{}\n\n{}\n{}", readme.substr(0, begins.front().end), table, readme.substr(ends.front().begin));
}

}  // namespace aisp::report
