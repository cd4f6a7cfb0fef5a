// SPDX-License-Identifier: Apache-2.0
#include "base/system/terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace aisp::base {
namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view{} : std::string_view{value};
}

std::string_view code(Style style) {
  switch (style) {
    case Style::bold: return "\x1b[1m";
    case Style::dim: return "\x1b[2m";
    case Style::red: return "\x1b[31m";
    case Style::green: return "\x1b[32m";
    case Style::yellow: return "\x1b[33m";
    case Style::cyan: return "\x1b[36m";
  }
  return {};
}

std::vector<std::string> painters_words() {
  std::vector<std::string> words;
  for (const Style style : {Style::bold, Style::dim, Style::red, Style::green, Style::yellow, Style::cyan}) {
    const std::string shown = Painter{true}(style, "|");
    words.push_back(shown.substr(0, shown.find('|')));
    words.push_back(shown.substr(shown.find('|') + 1));
  }
  return words;
}

}  // namespace

bool is_terminal(int descriptor) { return ::isatty(descriptor) == 1; }

int terminal_width(int descriptor, int otherwise) {
  const std::string columns{environment("COLUMNS")};
  const int stated = std::atoi(columns.c_str());
  if (stated > 0) return stated;
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return otherwise;
}

std::optional<Color> parse_color(std::string_view text) {
  if (text == "auto") return Color::automatic;
  if (text == "always") return Color::always;
  if (text == "never") return Color::never;
  return std::nullopt;
}

bool use_color(Color choice, int descriptor) {
  if (choice != Color::automatic) return choice == Color::always;
  return environment("NO_COLOR").empty() && can_redraw(descriptor);
}

std::string Painter::operator()(Style style, std::string_view text) const {
  if (!on_ || text.empty()) return std::string{text};
  return std::string{code(style)} + std::string{text} + "\x1b[0m";
}

std::size_t painted(std::string_view text) {
  if (!text.starts_with('\x1b')) return 0;
  static const std::vector<std::string> words = painters_words();
  const auto word = std::find_if(words.begin(), words.end(), [&](const std::string& each) { return text.starts_with(each); });
  return word == words.end() ? 0 : word->size();
}

// The bytes of the control character that `text` begins with; 0 where it begins with none. Those that turn the direction of what
// follows are such too: U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069; and the separators U+2028 and U+2029.
static std::size_t control_bytes(std::string_view text) {
  const auto byte = [&](std::size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0; };
  const auto third_within = [&](int first, int last) { return byte(2) >= first && byte(2) <= last; };
  if (byte(0) < 0x20 || byte(0) == 0x7F) return 1;
  if ((byte(0) == 0xC2 && byte(1) >= 0x80 && byte(1) < 0xA0) || (byte(0) == 0xD8 && byte(1) == 0x9C)) return 2;
  if (byte(0) != 0xE2) return 0;
  if (byte(1) == 0x80 && (third_within(0x8E, 0x8F) || third_within(0xA8, 0xAE))) return 3;
  return byte(1) == 0x81 && third_within(0xA6, 0xA9) ? 3 : 0;
}

std::string without_controls(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t bytes = control_bytes(text);
    result += bytes > 0 ? ' ' : text.front();
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return result;
}

std::string on_screen(std::string_view line) {
  std::string result;
  while (!line.empty()) {
    const std::size_t end = std::min(line.find('\x1b', 1), line.size());
    const std::size_t colour = painted(line);
    result += std::string{line.substr(0, colour)} + without_controls(line.substr(colour, end - colour));
    line.remove_prefix(end);
  }
  return result;
}

bool can_redraw(int descriptor) {
  const char* terminal = std::getenv("TERM");
  const std::string_view name = terminal == nullptr ? "" : terminal;
  return !name.empty() && name != "dumb" && is_terminal(descriptor);
}

}  // namespace aisp::base
