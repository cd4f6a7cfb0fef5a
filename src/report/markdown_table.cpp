// SPDX-License-Identifier: Apache-2.0
#include "report/markdown_table.hpp"

namespace aisp::report {
namespace {

std::string escaped(const std::string& cell) {
  std::string result;
  for (const char c : cell) {
    if (c == '|') result += "\\|";
    else if (c == '\n') result += ' ';
    else result += c;
  }
  return result;
}

}  // namespace

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
  for (const std::string& cell : cells) text_ += " " + escaped(cell) + " |";
  text_ += "\n";
}

}  // namespace aisp::report
