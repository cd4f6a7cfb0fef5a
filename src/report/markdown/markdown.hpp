// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "evidence/manifest.hpp"
#include "evidence/result.hpp"
#include "report/numbers.hpp"

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

// Headings first.
std::string markdown_table(const Rows& rows);

// A paragraph of running text, its words taken as they are, in lines as long as those that people write into documents.
std::string paragraph(std::string_view words);
// Likewise an item of a list.
std::string list_item(std::string_view words);

std::string suite_markdown(const evidence::SuiteResult& suite, const evidence::Manifest& manifest);
std::string pair_markdown(const evidence::PairResult& pair);

// Results of a pair at several points, by --sweep or several values of --size: point by variant.
struct SweepTable {
  std::string target;
  Rows rows;  // headings first
};
// One for each pair that was swept, in the order of the run; none without a sweep.
std::vector<SweepTable> sweep_tables(const std::vector<evidence::PairResult>& pairs);
// The same, a short row for each point.
std::vector<SweepTable> sweep_summaries(const std::vector<evidence::PairResult>& pairs);
std::string sweep_markdown(const evidence::SuiteResult& suite);

// Profiles by --profile as tables of text: the same rows in Markdown and HTML.
struct ProfileTable {
  std::string title;
  Rows rows;  // headings first
};

// Those that have anything to show; none when no variant has a profile.
std::vector<ProfileTable> profile_tables(const evidence::PairResult& pair);

// profiles/profile.md; empty when no variant has a profile.
std::string profile_markdown(const evidence::PairResult& pair);

}  // namespace aisp::report
