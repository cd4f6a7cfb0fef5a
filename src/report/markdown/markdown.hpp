// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "evidence/manifest.hpp"
#include "evidence/result.hpp"

namespace aisp::report {

// A Markdown table; cells are text (quote.hpp), in which only emphasis means something.
class MarkdownTable {
 public:
  // Aligns the cells of the columns named in `right_aligned` to the right.
  explicit MarkdownTable(std::vector<std::string> columns, const std::vector<std::string>& right_aligned = {});
  void add(std::vector<std::string> cells);
  bool empty() const { return rows_ == 0; }
  const std::string& text() const { return text_; }

 private:
  void line(const std::vector<std::string>& cells);
  std::size_t columns_;
  std::size_t rows_ = 0;
  std::string text_;
};

// A paragraph of running text, its words taken as they are, in lines as long as those that people write into documents.
std::string paragraph(std::string_view words);
// Likewise an item of a list.
std::string list_item(std::string_view words);

std::string suite_markdown(const evidence::SuiteResult& suite, const evidence::Manifest& manifest);
std::string pair_markdown(const evidence::PairResult& pair);

}  // namespace aisp::report
