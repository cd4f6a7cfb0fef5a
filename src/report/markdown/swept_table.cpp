// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "report/markdown/markdown.hpp"
#include "report/markdown/marked_tables.hpp"
#include "report/pictures/sweep_picture.hpp"

namespace aisp::report {
namespace {

std::string table_of(const evidence::Sweep& sweep, const KnownPair& pair) {
  const Rows rows = sweep_summary(sweep);
  MarkdownTable table{rows.front()};
  std::for_each(rows.begin() + 1, rows.end(), [&](const auto& row) { table.add(row); });
  const bool current = std::ranges::find(pair.source_digests, sweep.source_digest) != pair.source_digests.end();
  return table.text() + "\n" +
         paragraph(fmt::format("{} on {}, {} at {}{}.", pair.name, sweep.hardware, sweep.recorded.date_utc.substr(0, 10),
                               sweep.recorded.commit.substr(0, 9), current ? "" : "; stale: the code changed since"));
}

}  // namespace

std::string with_swept_tables(const std::string& page, const std::string& chapter, const std::vector<KnownPair>& chapter_pairs,
                              const std::vector<evidence::Sweep>& all, const std::string& place) {
  return with_marked_tables(page, "swept", place, [&](const std::string& hardware, const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) {
      const auto pair = std::ranges::find(chapter_pairs, word, &KnownPair::name);
      if (pair == chapter_pairs.end()) throw base::Error{base::Exit::usage, fmt::format("{} has no pair {}", chapter, word)};
      const auto sweep = std::ranges::find_if(
          all, [&](const evidence::Sweep& each) { return each.hardware == hardware && each.target == chapter + ":" + word; });
      text += text.empty() ? "" : "\n";
      text += sweep == all.end() ? paragraph(fmt::format("The sweep of {} was not recorded on {} yet.", word, hardware))
                                 : table_of(*sweep, *pair);
    }
    return text;
  });
}

}  // namespace aisp::report
