// SPDX-License-Identifier: Apache-2.0
#include "report/markdown/marked_tables.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/text.hpp"
#include "report/counters.hpp"
#include "report/markdown/markdown.hpp"
#include "report/quote.hpp"

namespace aisp::report {
namespace {

using evidence::Counted;
using evidence::CountedVariant;
using Row = std::vector<std::string>;

// "transpose/tiled" of a mark.
struct Wanted {
  std::string pair;
  std::vector<std::string> further;  // beside baseline and lesson
};

Wanted wanted(const std::string& word) {
  std::vector<std::string> parts = base::split(word, '/');
  Wanted result{parts.front(), {}};
  result.further.assign(parts.begin() + 1, parts.end());
  return result;
}

bool is_shown(const CountedVariant& variant, const Counted& of, const Wanted& wanted) {
  return variant.role == evidence::VariantRole::baseline || variant.name == of.lesson ||
         std::ranges::find(wanted.further, variant.name) != wanted.further.end();
}

// A column of dashes says nothing; the name stays.
void drop_empty_columns(std::vector<Row>& rows) {
  for (std::size_t column = rows.front().size(); column-- > 1;) {
    if (std::any_of(rows.begin() + 1, rows.end(), [&](const Row& row) { return row[column] != "-"; })) continue;
    for (Row& row : rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(column));
  }
}

class Table {
 public:
  Table(std::string hardware, const std::string& chapter, const std::vector<KnownPair>& known, const std::vector<Counted>& all)
      : hardware_{std::move(hardware)}, chapter_{chapter}, known_{known}, all_{all} {}

  // False where the chapter has no such pair.
  bool add(const Wanted& wanted) {
    const auto pair = std::ranges::find(known_, wanted.pair, &KnownPair::name);
    if (pair == known_.end()) return false;
    const auto counted = std::ranges::find_if(
        all_, [&](const Counted& each) { return each.hardware == hardware_ && each.target == chapter_ + ":" + wanted.pair; });
    if (counted == all_.end()) {
      missing_.push_back(wanted.pair);
      return true;
    }
    for (const CountedVariant& variant : counted->variants)
      if (is_shown(variant, *counted, wanted)) rows_.emplace_back(wanted.pair + ": " + variant.name, &variant.counters);
    const bool current = std::ranges::find(pair->source_digests, counted->source_digest) != pair->source_digests.end();
    if (!current) stale_.push_back(wanted.pair);
    const std::string when =
        fmt::format("{} at {}", counted->recorded.date_utc.substr(0, 10), counted->recorded.commit.substr(0, 9));
    if (std::ranges::find(when_, when) == when_.end()) when_.push_back(when);
    return true;
  }

  std::string text() const {
    std::string text;
    if (!rows_.empty()) {
      std::vector<Row> rows = counters_table(rows_);
      drop_empty_columns(rows);
      rows.front().front() = "pair: variant";
      MarkdownTable table{rows.front()};
      for (std::size_t i = 1; i < rows.size(); ++i) table.add(rows[i]);
      text = table.text() + "\n" +
             paragraph(
                 fmt::format("Counted on {} on {}. Of each pair the baseline comes first.", hardware_, base::join(when_, ", ")));
    }
    const auto say = [&](const std::vector<std::string>& pairs, const char* what) {
      if (!pairs.empty()) text += (text.empty() ? "" : "\n") + paragraph(fmt::format("{}: {}.", what, base::join(pairs, ", ")));
    };
    say(stale_, "Stale, since the code changed after the counting");
    say(missing_, fmt::format("Not counted on {} yet", hardware_).c_str());
    return text;
  }

 private:
  std::string hardware_;
  const std::string& chapter_;
  const std::vector<KnownPair>& known_;
  const std::vector<Counted>& all_;
  std::vector<CountedRow> rows_;
  std::vector<std::string> stale_, missing_, when_;
};

}  // namespace

std::string with_counted_tables(const std::string& page, const std::string& chapter, const std::vector<KnownPair>& chapter_pairs,
                                const std::vector<Counted>& all, const std::string& place) {
  return with_marked_tables(page, "counted", place, [&](const std::string& hardware, const std::vector<std::string>& words) {
    Table table{hardware, chapter, chapter_pairs, all};
    for (const std::string& word : words)
      if (!table.add(wanted(word)))
        throw base::Error{base::Exit::usage, fmt::format("{} has no pair {}", chapter, wanted(word).pair)};
    return table.text();
  });
}

}  // namespace aisp::report
