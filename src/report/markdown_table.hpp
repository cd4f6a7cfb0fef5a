// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

namespace aisp::report {

// A Markdown table; cells are text (quote.hpp), in which only emphasis means something.
class MarkdownTable {
 public:
  explicit MarkdownTable(std::vector<std::string> columns);
  void add(std::vector<std::string> cells);
  bool empty() const { return rows_ == 0; }
  const std::string& text() const { return text_; }

 private:
  void line(const std::vector<std::string>& cells);
  std::size_t columns_;
  std::size_t rows_ = 0;
  std::string text_;
};

}  // namespace aisp::report
