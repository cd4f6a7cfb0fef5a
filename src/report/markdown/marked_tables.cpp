// SPDX-License-Identifier: Apache-2.0
#include "report/markdown/marked_tables.hpp"

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/text.hpp"

namespace aisp::report {

std::string with_marked_tables(const std::string& page, std::string_view kind, const std::string& place,
                               const std::function<std::string(const std::string&, const std::vector<std::string>&)>& make) {
  const std::string begin = fmt::format("<!-- {}: ", kind), end = begin + "end -->";
  constexpr std::string_view close = " -->";
  std::string written;
  bool inside = false;
  const std::vector<std::string> lines = base::split(page, '\n');
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    const auto refuse = [&](const std::string& what) {
      throw base::Error{base::Exit::usage, fmt::format("{}:{}: {}", place, i + 1, what)};
    };
    const bool ends = line == end, begins = !ends && line.starts_with(begin) && line.ends_with(close);
    if (ends && !inside) refuse("a table ends here that has not begun");
    if (begins && inside) refuse(fmt::format("a table begins here before {} of the one above", end));
    if (ends) inside = false;
    if (!inside) written += line + (i + 1 < lines.size() ? "\n" : "");
    if (!begins) continue;
    inside = true;
    std::vector<std::string> words = base::split(line.substr(begin.size(), line.size() - begin.size() - close.size()), ' ');
    if (words.size() < 2) refuse(fmt::format("it names no pair: {}HARDWARE PAIR...{}", begin, close));
    const std::string hardware = words.front();
    words.erase(words.begin());
    try {
      written += "\n" + make(hardware, words) + "\n";
    } catch (const base::Error& error) {
      refuse(error.what());
    }
  }
  if (inside) throw base::Error{base::Exit::usage, fmt::format("{}: a table has no line {}", place, end)};
  return written;
}

}  // namespace aisp::report
