// SPDX-License-Identifier: Apache-2.0
#include "report/markdown/chapter_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "report/markdown/markdown.hpp"
#include "report/numbers.hpp"
#include "report/quote.hpp"
#include "report/recorded_speedup.hpp"

namespace aisp::report {
namespace {

using evidence::Expectations;
using evidence::ExpectedPair;
using evidence::ExpectedVariant;
using evidence::Recorded;
using evidence::RecordedMetrics;

constexpr std::size_t most_metrics = 3;
// A library's speedup over the baseline that reads as 1.00x.
constexpr double no_slower = 0.9995;

// "device_scalars 2.80x, captured_graph 5.25x (1.36x)": what a step brings over the one before it stands behind it, and over
// which one where that is another.
std::string steps_of(const KnownPair& known, const ExpectedPair& pair) {
  if (known.steps.size() < 2) return {};
  std::vector<std::string> texts;
  std::string before = pair.baseline;
  for (const KnownPair::Step& step : known.steps) {
    const auto found = pair.variants.find(step.name);
    if (found == pair.variants.end()) continue;
    std::string text = fmt::format("{} {}", step.name, short_recorded_speedup(pair, found->second));
    const std::string gain = step.gains_over == pair.baseline ? "" : recorded_gain(pair, step.name, step.gains_over);
    if (!gain.empty()) text += fmt::format(" ({}{})", gain, step.gains_over == before ? "" : " over " + step.gains_over);
    texts.push_back(std::move(text));
    before = step.name;
  }
  return base::join(texts, ", ");
}

std::string all_of(const ExpectedPair& pair, evidence::VariantRole role) {
  std::vector<std::string> texts;
  for (const auto& [name, variant] : pair.variants)
    if (variant.role == role) texts.push_back(fmt::format("{} {}", name, short_recorded_speedup(pair, variant)));
  return base::join(texts, ", ");
}

// The best variant where the lesson is another.
std::string other_best(const KnownPair& known, const ExpectedPair& pair) {
  const std::string best = evidence::best_variant(pair);
  return best == known.lesson ? "" : best;
}

std::string whole_percent_text(double percent) { return fmt::format("{:.0f} %", percent); }

// "61 %, best 89 %"; `best` is empty where the lesson's is all there is to say.
std::string with_best(const std::string& lesson, const std::string& best) {
  return lesson + (lesson.empty() || best.empty() ? "" : ", ") + (best.empty() ? "" : "best " + best);
}

std::string lower_bound_of(const KnownPair& known, const ExpectedPair& pair) {
  const auto of = [&](const std::string& name) {
    const auto variant = pair.variants.find(name);
    return variant != pair.variants.end() && variant->second.percent_of_floor
               ? whole_percent_text(*variant->second.percent_of_floor)
               : std::string{};
  };
  return with_best(of(known.lesson), of(other_best(known, pair)));
}

// "61 % of cublas", "82 %, best 99 % of cublaslt_tuned": each beside the fastest library that it may be held against.
std::string library_shares_of(const KnownPair& known, const ExpectedPair& pair) {
  const auto library_of = [&](const std::string& name) {
    return pair.variants.contains(name) ? fastest_library(known, pair, name) : std::string{};
  };
  const auto share_of = [&](const std::string& name, const std::string& library) {
    return library.empty() ? "" : whole_percent_text(100 * evidence::speed_over(pair, name, library).value_or(0));
  };
  const std::string best = other_best(known, pair), beside_lesson = library_of(known.lesson), beside_best = library_of(best);
  std::string lesson_share = share_of(known.lesson, beside_lesson), best_share = share_of(best, beside_best);
  if (!lesson_share.empty() && beside_lesson != beside_best) lesson_share += " of " + beside_lesson;
  if (!best_share.empty()) best_share += " of " + beside_best;
  return with_best(lesson_share, best_share);
}

// Returns a metric's change from the baseline as a logarithm; 0 if one of both has none, which says nothing of a difference.
double change_of(const RecordedMetrics& before, const RecordedMetrics& after, const std::string& name) {
  const auto from = before.find(name), to = after.find(name);
  if (from == before.end() || to == after.end()) return 0;
  const double ratio = to->second.value / from->second.value;
  return ratio > 0 && std::isfinite(ratio) ? std::fabs(std::log(ratio)) : std::numeric_limits<double>::infinity();
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
  std::vector<std::pair<double, std::string>> differing;  // what differs most first
  for (const auto& [name, metric] : all) {
    const std::string from = number_in(before, name), to = number_in(after, name);
    if (from == to) continue;
    differing.emplace_back(change_of(before, after, name),
                           fmt::format("{} {} to {}{}{}", name, from, to, metric.unit.empty() ? "" : " ", metric.unit));
  }
  if (differing.empty()) return {};
  std::ranges::stable_sort(differing, std::greater{}, [](const auto& metric) { return metric.first; });
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < std::min(differing.size(), most_metrics); ++i) texts.push_back(differing[i].second);
  const std::string more =
      differing.size() > most_metrics ? fmt::format(" and {} more", differing.size() - most_metrics) : std::string{};
  return (best == pair.lesson ? "" : best + ": ") + base::join(texts, ", ") + more;
}

// A pair on one kind of hardware; none where it is not measured yet.
struct ChapterRow {
  const KnownPair& known;
  std::string hardware;
  const ExpectedPair* pair = nullptr;
};

std::vector<ChapterRow> rows_of(const std::string& chapter, const std::vector<KnownPair>& chapter_pairs,
                                const std::vector<Expectations>& all) {
  std::vector<ChapterRow> rows;
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

// "H100" of h100_80gb_hbm3, which is an NVIDIA H100 80GB HBM3; a part of a GPU keeps its key.
std::string short_name(const std::string& hardware, const ExpectedPair& pair) {
  if (pair.recorded.gpu.empty() || hardware.find("_mig") != std::string::npos) return hardware;
  std::vector<std::string> words;
  for (const std::string& word : base::split(pair.recorded.gpu, ' ')) {
    if (word.ends_with("GB")) break;
    if (word != "NVIDIA") words.push_back(word);
  }
  const std::size_t number = hardware.find("x_");
  const bool several = number != std::string::npos && hardware.find_first_not_of("0123456789") == number;
  return words.empty() ? hardware : (several ? hardware.substr(0, number) + "x " : "") + base::join(words, " ");
}

using HardwareNames = std::map<std::string, std::string>;  // of each kind of hardware, for a reader

HardwareNames names_of(const std::vector<ChapterRow>& rows) {
  HardwareNames names;
  for (const ChapterRow& row : rows)
    if (row.pair != nullptr) names.emplace(row.hardware, short_name(row.hardware, *row.pair));
  HardwareNames result = names;
  for (auto& [hardware, name] : result)
    if (std::ranges::count(names, name, [](const auto& each) { return each.second; }) > 1) name = hardware;
  return result;
}

// One table, in which a pair's name stands in the first of its rows.
class PairRows {
 public:
  PairRows(std::vector<std::string> columns, const std::vector<std::string>& right_aligned)
      : table_{std::move(columns), right_aligned} {}
  void add(const std::string& pair, std::vector<std::string> cells) {
    cells.insert(cells.begin(), pair == last_ ? "" : pair);
    table_.add(std::move(cells));
    last_ = pair;
  }
  const std::string& text() const { return table_.text(); }

 private:
  MarkdownTable table_;
  std::string last_;
};

std::string results_table(const std::vector<ChapterRow>& rows, const HardwareNames& names) {
  PairRows table{{"pair", "GPU", "baseline", "lesson", "its time", "speedup of the recorded runs", "best variant",
                  "of its lower bound", "of the library"},
                 {"baseline", "its time", "speedup of the recorded runs", "of its lower bound"}};
  for (const ChapterRow& row : rows) {
    if (row.pair == nullptr) {
      table.add(row.known.name, {"not measured yet"});
      continue;
    }
    const ExpectedPair& pair = *row.pair;
    std::vector<std::string> cells{names.at(row.hardware) + (is_stale(row.known, pair) ? " (**stale**)" : ""),
                                   base::display_ms(pair.baseline_median_ms)};
    if (const auto lesson = pair.variants.find(row.known.lesson); lesson != pair.variants.end()) {
      cells.insert(cells.end(),
                   {lesson->first, base::display_ms(lesson->second.median_ms), recorded_speedup_text(pair, lesson->second)});
    } else {
      cells.insert(cells.end(), {"-", "-", "-"});
    }
    const std::string best = other_best(row.known, pair);
    cells.push_back(best.empty() ? "" : fmt::format("{} {}", best, short_recorded_speedup(pair, pair.variants.at(best))));
    cells.push_back(lower_bound_of(row.known, pair));
    cells.push_back(library_shares_of(row.known, pair));
    table.add(row.known.name, std::move(cells));
  }
  return table.text();
}

struct Detail {
  const char* name;
  std::string (*text)(const KnownPair& known, const ExpectedPair& pair);
};
constexpr std::array details = {
    Detail{"steps", steps_of},
    Detail{"controls", [](const KnownPair&, const ExpectedPair& pair) { return all_of(pair, evidence::VariantRole::control); }},
    Detail{"libraries", [](const KnownPair&, const ExpectedPair& pair) { return all_of(pair, evidence::VariantRole::library); }},
    Detail{"metrics", [](const KnownPair&, const ExpectedPair& pair) { return metrics_of(pair); }}};

constexpr const char* what_steps_say =
    "Steps are the optimized variants in their order, each with its speedup over the baseline (its time where that ratio is not "
    "steady) and, in brackets, over the step before it or the one named.";
constexpr const char* what_metrics_say =
    "Metrics go from the baseline to the best variant, which is named where it is not the lesson's; where more than three "
    "differ, those stand here that differ most.";

// Without rows and columns that say nothing; nothing where none says anything.
std::string details_table(const std::vector<ChapterRow>& rows, const HardwareNames& names) {
  std::vector<const Detail*> shown;
  for (const Detail& detail : details)
    if (std::ranges::any_of(rows, [&](const ChapterRow& row) { return row.pair && !detail.text(row.known, *row.pair).empty(); }))
      shown.push_back(&detail);
  if (shown.empty()) return {};
  std::vector<std::string> columns{"pair", "GPU"};
  for (const Detail* detail : shown) columns.emplace_back(detail->name);
  PairRows table{columns, {}};
  for (const ChapterRow& row : rows) {
    if (row.pair == nullptr) continue;
    std::vector<std::string> cells{names.at(row.hardware)};
    for (const Detail* detail : shown) cells.push_back(detail->text(row.known, *row.pair));
    if (std::any_of(cells.begin() + 1, cells.end(), [](const std::string& cell) { return !cell.empty(); }))
      table.add(row.known.name, std::move(cells));
  }
  const auto has = [&](const char* name) { return std::ranges::find(columns, name) != columns.end(); };
  const std::string words = fmt::format("{}{}{}", has("steps") ? what_steps_say : "", has("steps") && has("metrics") ? " " : "",
                                        has("metrics") ? what_metrics_say : "");
  columns.erase(columns.begin(), columns.begin() + 2);
  return fmt::format("\n### Steps, controls and libraries\n\n<details>\n<summary>A table of {}</summary>\n\n{}\n</details>\n{}",
                     base::join(columns, ", "), table.text(), words.empty() ? "" : "\n" + paragraph(words));
}

constexpr const char* what_columns_say =
    "Times and speedups are medians over the recorded runs. Of fewer than five runs, the range that was seen stands in round "
    "brackets. Of five or more, square brackets hold the interval in which 95 % of further runs are expected, 99 % where the "
    "host decides the times; it is wider than the interval within one run, which reports of a run show. Where its ends, or "
    "those of the range, are a factor of 1.5 or more apart, the times stand in place of the ratio. The best variant is named "
    "where it is another than the lesson's; its shares then follow those of the lesson. The lower bound is the least time that "
    "the machine's ceilings allow, the library the fastest one that is as precise, where that is no slower than the baseline.";
constexpr const char* how_to_measure_again =
    "Stale: the code changed after the measurement; `aisp run --targets {} --update-expectations` measures it again.";

std::string when(const Recorded& recorded) {
  // Nobody could find the code of a commit with changes.
  const bool changed = recorded.commit.ends_with("+changes");
  return fmt::format("{} at {}{}", recorded.date_utc.substr(0, 10), recorded.commit.substr(0, 9), changed ? " with changes" : "");
}

// The machines of one kind of hardware, and when its rows were recorded.
struct Recordings {
  std::vector<std::string> machines;
  std::map<std::string, std::vector<std::string>> pairs;  // by date and commit

  void add(const ChapterRow& row) {
    const std::string machine = machine_text(row.pair->recorded);
    if (std::ranges::find(machines, machine) == machines.end()) machines.push_back(machine);
    pairs[when(row.pair->recorded)].push_back(row.known.name);
  }

  // "2026-01-02 at 012345678 (transpose), 2026-01-03 at 123456789 (the others)"
  std::string times() const {
    const auto most = std::ranges::max_element(pairs, {}, [](const auto& each) { return each.second.size(); });
    if (pairs.size() == 1) return most->first;
    std::string text;
    for (const auto& [time, names] : pairs)
      if (time != most->first) text += fmt::format("{} ({}), ", time, base::join(names, ", "));
    return text + fmt::format("{} ({})", most->first, most->second.size() > 1 ? "the others" : base::join(most->second, ", "));
  }
};

std::string recordings_of(const std::vector<ChapterRow>& rows, const HardwareNames& names) {
  std::map<std::string, Recordings> all;
  for (const ChapterRow& row : rows)
    if (row.pair != nullptr) all[row.hardware].add(row);
  std::string text;
  for (const auto& [hardware, recordings] : all)
    text += list_item(markdown_text(
        fmt::format("{}: {}; recorded {}", names.at(hardware), base::join(recordings.machines, "; "), recordings.times())));
  return text;
}

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
  double most = no_slower;
  for (const std::string& library : step->libraries)
    if (const double speedup = evidence::speed_over(recorded, library, recorded.baseline).value_or(0); speedup > most) {
      fastest = library;
      most = speedup;
    }
  return fastest;
}

bool is_stale(const KnownPair& known, const ExpectedPair& expected) {
  return std::find(known.source_digests.begin(), known.source_digests.end(), expected.source_digest) ==
         known.source_digests.end();
}

std::string chapter_table(const std::string& chapter, const std::vector<KnownPair>& chapter_pairs,
                          const std::vector<Expectations>& all) {
  if (chapter_pairs.empty()) return "This chapter has no pairs yet.\n";
  const std::vector<ChapterRow> rows = rows_of(chapter, chapter_pairs, all);
  const HardwareNames names = names_of(rows);
  std::string text = results_table(rows, names);
  if (names.empty()) return text;
  text += "\n" + paragraph(what_columns_say) + "\n" + recordings_of(rows, names);
  if (std::ranges::any_of(rows, [](const ChapterRow& row) { return row.pair && is_stale(row.known, *row.pair); }))
    text += "\n" + paragraph(fmt::format(how_to_measure_again, chapter));
  return text + details_table(rows, names);
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
