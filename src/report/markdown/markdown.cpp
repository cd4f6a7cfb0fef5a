// SPDX-License-Identifier: Apache-2.0
#include "report/markdown/markdown.hpp"

#include "base/math/fit.hpp"
#include "base/text.hpp"
#include "report/quote.hpp"

namespace aisp::report {

MarkdownTable::MarkdownTable(std::vector<std::string> columns) : columns_{columns.size()} {
  line(columns);
  text_ += "|";
  for (std::size_t i = 0; i < columns_; ++i) text_ += " --- |";
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

std::string paragraph(std::string_view words) {
  constexpr std::size_t columns = 100;
  return base::join(base::broken(words, columns), "\n") + "\n";
}

}  // namespace aisp::report
