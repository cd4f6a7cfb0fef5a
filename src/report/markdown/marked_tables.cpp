// SPDX-License-Identifier: Apache-2.0
#include "report/markdown/marked_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <sstream>

#include "base/error.hpp"
#include "base/text.hpp"

namespace aisp::report {
namespace {

constexpr std::string_view comment_end = "-->";

// How many lines a comment has that begins with the first of `lines`; 0 where text follows it, or where it has no end.
std::size_t lines_of_comment(std::span<const std::string> lines) {
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0 && lines[i].starts_with("<!--")) return 0;
    if (const std::size_t at = lines[i].find(comment_end); at != std::string::npos)
      return at + comment_end.size() == lines[i].size() ? i + 1 : 0;
  }
  return 0;
}

// Returns the words between a comment's kind and its end.
std::vector<std::string> words_of_comment(std::span<const std::string> lines, std::size_t begin) {
  std::string text = base::join({lines.begin(), lines.end()}, " ").substr(begin);
  text.resize(text.size() - comment_end.size());
  std::istringstream stream{text};
  return {std::istream_iterator<std::string>{stream}, {}};
}

}  // namespace

std::string with_marked_tables(const std::string& page, std::string_view kind, const std::string& place,
                               const std::function<std::string(const std::string&, const std::vector<std::string>&)>& make) {
  const std::string begin = fmt::format("<!-- {}:", kind), end = begin + " end -->";
  std::string written;
  bool inside = false;
  const std::vector<std::string> lines = base::split(page, '\n');
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto refuse = [&](const std::string& what) {
      throw base::Error{base::Exit::usage, fmt::format("{}:{}: {}", place, i + 1, what)};
    };
    const bool ends = lines[i] == end;
    const std::size_t mark = ends || !lines[i].starts_with(begin) ? 0 : lines_of_comment(std::span{lines}.subspan(i));
    if (ends && !inside) refuse("a table ends here that has not begun");
    if (mark > 0 && inside) refuse(fmt::format("a table begins here before {} of the one above", end));
    if (ends) inside = false;
    if (!inside)
      for (std::size_t line = i; line < i + std::max<std::size_t>(mark, 1); ++line)
        written += lines[line] + (line + 1 < lines.size() ? "\n" : "");
    if (mark == 0) continue;
    inside = true;
    std::vector<std::string> words = words_of_comment(std::span{lines}.subspan(i, mark), begin.size());
    if (words.size() < 2) refuse(fmt::format("it names no pair: {} HARDWARE PAIR... -->", begin));
    const std::string hardware = words.front();
    words.erase(words.begin());
    try {
      written += "\n" + make(hardware, words) + "\n";
    } catch (const base::Error& error) {
      refuse(error.what());
    }
    i += mark - 1;
  }
  if (inside) throw base::Error{base::Exit::usage, fmt::format("{}: a table has no line {}", place, end)};
  return written;
}

}  // namespace aisp::report
