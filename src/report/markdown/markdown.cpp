// SPDX-License-Identifier: Apache-2.0
#include "report/markdown/markdown.hpp"

#include <algorithm>

#include "base/layout.hpp"
#include "base/text.hpp"
#include "report/quote.hpp"

namespace aisp::report {
namespace {

constexpr std::size_t prose_columns = 100;

}  // namespace

MarkdownTable::MarkdownTable(std::vector<std::string> columns, const std::vector<std::string>& right_aligned)
    : columns_{columns.size()} {
  line(columns);
  text_ += "|";
  for (const std::string& column : columns)
    text_ += std::ranges::find(right_aligned, column) != right_aligned.end() ? " ---: |" : " --- |";
  text_ += "\n";
}

void MarkdownTable::add(std::vector<std::string> cells) {
  cells.resize(columns_);
  line(cells);
  ++rows_;
}

void MarkdownTable::line(const std::vector<std::string>& cells) {
  text_ += "|";
  for (const std::string& cell : cells) text_ += " " + markdown_text(cell) + " |";
  text_ += "\n";
}

std::string markdown_table(const Rows& rows) {
  MarkdownTable table{rows.front()};
  std::for_each(rows.begin() + 1, rows.end(), [&](const auto& row) { table.add(row); });
  return table.text();
}

std::string paragraph(std::string_view words) { return base::join(base::broken(words, prose_columns), "\n") + "\n"; }

std::string list_item(std::string_view words) {
  return base::join(base::broken("- " + std::string{words}, prose_columns, 2), "\n") + "\n";
}

}  // namespace aisp::report
