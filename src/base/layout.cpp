// SPDX-License-Identifier: Apache-2.0
#include "base/layout.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>

#include "base/system/terminal.hpp"
#include "base/text.hpp"

namespace aisp::base {
namespace {

constexpr std::size_t between = 2;  // blanks between columns
constexpr std::size_t indent = 4;   // of all lines of a row but its first
// A column of running text that is narrower than this cannot be read.
constexpr std::size_t narrowest_text = 24;

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

bool utf8_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string locale = lower(value);
    return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  }
  return false;
}

// The first character that is seen in `text` from `at` on, behind the colours of a Painter.
char seen_from(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const std::size_t colour = painted(text.substr(at));
    if (colour == 0) return text[at];
    at += colour;
  }
  return '\0';
}

// Words with the blanks before them. Where `keep_together`, a number and what follows it are one word, and so is what stands in
// square brackets or in backquotes.
std::vector<std::string_view> words_of(std::string_view line, bool keep_together) {
  std::vector<std::string_view> words;
  std::size_t begin = 0, brackets = 0;
  bool quoted = false;
  char last = '\0';
  for (std::size_t i = 0; i < line.size();) {
    if (const std::size_t colour = painted(line.substr(i)); colour > 0) {
      i += colour;
      continue;
    }
    const char c = line[i];
    if (c == '[') ++brackets;
    if (c == ']' && brackets > 0) --brackets;
    quoted = quoted != (c == '`');
    const bool single = c == ' ' && i + 1 < line.size() && seen_from(line, i + 1) != ' ';
    const bool kept = keep_together && single && (brackets > 0 || quoted || is_digit(last));
    if (c == ' ' && last != ' ' && last != '\0' && !kept) {
      words.push_back(line.substr(begin, i - begin));
      begin = i;
    }
    last = c;
    ++i;
  }
  words.push_back(line.substr(begin));
  return words;
}

std::string_view without_blanks_before(std::string_view word) {
  const std::size_t first = word.find_first_not_of(' ');
  return first == std::string_view::npos ? std::string_view{} : word.substr(first);
}

std::size_t leading_blanks(std::string_view line) { return std::min(line.find_first_not_of(' '), line.size()); }

// Padding between words at most as wide as the gap between two columns.
std::string without_padding(std::string_view line) {
  std::string result{line.substr(0, leading_blanks(line))};
  std::size_t blanks = 0;
  for (const char c : line.substr(result.size())) {
    blanks = c == ' ' ? blanks + 1 : 0;
    if (blanks <= between) result += c;
  }
  return result;
}

std::string with_units_as_written(std::string_view line) {
  std::string result;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char unit = i + 1 < line.size() ? line[i + 1] : '\0';
    const bool whole_word = i + 2 >= line.size() || std::isalnum(static_cast<unsigned char>(line[i + 2])) == 0;
    const bool micro =
        line[i] == 'u' && (unit == 's' || unit == 'J') && whole_word && i >= 2 && line[i - 1] == ' ' && is_digit(line[i - 2]);
    if (micro) result += "µ";
    else result += line[i];
  }
  return result;
}

// Columns that share a line, and the room of the last of them.
struct Band {
  std::size_t first = 0, last = 0, indent = 0, room = 0;
};

std::size_t room_behind(const std::vector<std::size_t>& widths, const Band& band, std::size_t last, std::size_t width) {
  std::size_t before = band.indent;
  for (std::size_t i = band.first; i < last; ++i) before += widths[i] + between;
  return before >= width ? 0 : width - before;
}

std::vector<Band> bands_of(const std::vector<std::size_t>& widths, std::size_t width) {
  std::vector<Band> bands;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const bool is_last = i + 1 == widths.size();
    if (!bands.empty()) {
      const std::size_t room = room_behind(widths, bands.back(), i, width);
      const std::size_t enough = is_last ? std::min(widths[i], std::max(narrowest_text, width / 3)) : widths[i];
      if (room >= enough) {
        bands.back().last = i;
        continue;
      }
    }
    bands.push_back({.first = i, .last = i, .indent = bands.empty() ? 0 : indent});
  }
  for (Band& band : bands) band.room = std::max<std::size_t>(room_behind(widths, band, band.last, width), 1);
  return bands;
}

std::string band_text(const std::vector<std::string>& row, const std::vector<std::size_t>& widths, const Band& band) {
  if (band.first >= row.size()) return {};
  std::string text(band.indent, ' ');
  const std::size_t last = std::min(band.last, row.size() - 1);
  for (std::size_t i = band.first; i < last; ++i) text += row[i] + std::string(widths[i] - display_width(row[i]) + between, ' ');
  const std::size_t hang = display_width(text);
  const std::vector<std::string> lines = broken(row[last], last == band.last ? band.room : Screen::endless);
  for (std::size_t i = 0; i < lines.size(); ++i) text += (i == 0 ? "" : '\n' + std::string(hang, ' ')) + lines[i];
  return text.find_first_not_of(' ') == std::string::npos ? std::string{} : text + '\n';
}

}  // namespace

Screen screen_of(int descriptor) {
  if (!is_terminal(descriptor)) return {};
  // Narrower ones exist, but nothing can be laid out on them.
  return {.width = static_cast<std::size_t>(std::max(terminal_width(descriptor), 20)), .utf8 = utf8_locale()};
}

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t colour = painted(text.substr(i));
    if (colour == 0 && (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) ++width;
    i += std::max<std::size_t>(colour, 1);
  }
  return width;
}

std::string first_columns(std::string_view text, std::size_t columns) {
  std::size_t end = 0, width = 0;
  for (; end < text.size(); ++end) {
    const bool begins_character = (static_cast<unsigned char>(text[end]) & 0xC0) != 0x80;
    if (begins_character && width++ == columns) break;
  }
  return std::string{text.substr(0, end)};
}

std::vector<std::string> broken(std::string_view line, std::size_t width, std::size_t hang) {
  if (display_width(line) <= width) return {std::string{line}};
  if (hang + narrowest_text > width) hang = std::min(hang, width / 3);
  std::vector<std::string> lines{std::string{}};
  std::size_t used = 0;
  const auto add = [&](std::string_view word) {
    const std::size_t length = display_width(word);
    if (used > 0 && used + length > width) {
      lines.emplace_back(hang, ' ');
      word = without_blanks_before(word);
      used = hang;
    }
    lines.back() += word;
    used += display_width(word);
  };
  for (const std::string_view word : words_of(line, true)) {
    if (display_width(without_blanks_before(word)) + hang <= width) add(word);
    else
      for (const std::string_view part : words_of(word, false)) add(part);
  }
  return lines;
}

std::string for_screen(std::string_view text, const Screen& screen) {
  if (screen.width == Screen::endless && !screen.utf8) return std::string{text};
  std::string result;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string line = screen.utf8 ? with_units_as_written(text.substr(0, end)) : std::string{text.substr(0, end)};
    if (display_width(line) > screen.width) line = without_padding(line);
    result += join(broken(line, screen.width, leading_blanks(line) + indent), "\n");
    if (end == std::string_view::npos) break;
    result += '\n';
    text.remove_prefix(end + 1);
  }
  return result;
}

std::string laid_out(const TableRows& rows, std::size_t width) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (widths.size() <= i) widths.push_back(0);
      widths[i] = std::max(widths[i], display_width(row[i]));
    }
  const std::vector<Band> bands = bands_of(widths, width);
  std::string text;
  for (const auto& row : rows) {
    if (row.empty()) text += '\n';
    for (const Band& band : bands) text += band_text(row, widths, band);
  }
  return text;
}

}  // namespace aisp::base
