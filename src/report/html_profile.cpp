// SPDX-License-Identifier: Apache-2.0
#include "base/text.hpp"
#include "evidence/profile_difference.hpp"
#include "report/html_parts.hpp"
#include "report/html_text.hpp"
#include "report/profile_tables.hpp"

namespace aisp::report::html {

std::string profile_sentence_part(const evidence::PairResult& pair) {
  const std::string sentence = evidence::profile_sentence(pair);
  return sentence.empty() ? "" : tag("p", tag("b", "Profile: ") + escaped(sentence) + ".", "class=\"profile\"");
}

std::string profile_part(const evidence::PairResult& pair) {
  std::string text;
  for (const ProfileTable& each : profile_tables(pair)) {
    std::string rows;
    for (std::vector<std::string> cells : each.rows) {
      for (std::string& cell : cells) cell = escaped(cell);
      rows += row(cells);
    }
    text += tag("h5", escaped(each.title)) + table(each.title + " of " + pair.target, each.columns, rows);
  }
  return text.empty() ? "" : folded("Profile", text);
}

}  // namespace aisp::report::html
